"""Texts to embeddings: in batches of like length, each text once, checked, and kept on disk."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from ctx_embed.errors import InputError
from ctx_embed.eval.bars import title
from ctx_embed.eval.encoders.registry import Encoder
from ctx_embed.eval.features import Features, Matrix, frozen
from ctx_embed.eval.sealed import read_sealed, write_sealed
from ctx_embed.texts import BATCH_TEXTS, length_batches, well_formed


def embed(encoder: Encoder, texts: Sequence[str], batch_size: int = BATCH_TEXTS) -> NDArray[np.float32]:
    """The embeddings of ``texts``, (n, d) float32, in their order; progress goes to standard error.

    Args:
        encoder: any.
        texts: at least one.
        batch_size: texts in one call of the encoder, at most; long texts come in smaller batches.

    Raises:
        InputError: the encoder gives another number of rows than texts, rows of several lengths or of no numbers, NaN,
            or what float32 holds as infinity; or it is fitted on the texts of a task.
    """
    if encoder.fit is not None:
        raise InputError(f"encoder {encoder.name!r} is fitted on the texts of a task, it has no embeddings of its own")
    texts = [well_formed(text) for text in texts]
    embeddings: NDArray[np.float32] | None = None
    with tqdm(total=len(texts), desc=title("embedding"), unit=" texts", leave=False, disable=None) as bar:
        for places in length_batches(texts, batch_size):
            rows = _checked(encoder, [texts[place] for place in places])
            if embeddings is None:
                embeddings = np.empty((len(texts), rows.shape[1]), np.float32)
            if rows.shape[1] != embeddings.shape[1]:
                raise InputError(
                    f"encoder {encoder.name!r} gives rows of {embeddings.shape[1]} numbers for some texts and of "
                    f"{rows.shape[1]} for others, one length is needed"
                )
            embeddings[places] = rows
            bar.update(len(places))
    if embeddings is None:
        raise InputError("no texts to embed")
    return embeddings


def _checked(encoder: Encoder, texts: list[str]) -> NDArray[np.float32]:
    given = encoder.encode(texts)
    if hasattr(given, "detach"):  # a tensor, perhaps of a device or a type that NumPy does not know
        given = given.detach().cpu().float()
    try:
        rows: NDArray[Any] = np.asarray(given)
    except ValueError:
        raise InputError(f"encoder {encoder.name!r} gives rows of several lengths, one length is needed") from None
    if rows.ndim != 2 or len(rows) != len(texts):
        raise InputError(
            f"encoder {encoder.name!r} gives an array of shape {rows.shape} for {len(texts)} texts, "
            "one row for each is needed"
        )
    if rows.dtype.kind not in "biuf" or rows.shape[1] == 0:
        raise InputError(f"encoder {encoder.name!r} gives rows of {rows.shape[1]} {rows.dtype}, numbers are needed")
    with np.errstate(over="ignore"):
        rows = rows.astype(np.float32)
    finite = np.isfinite(rows).all(axis=1)
    if not finite.all():
        text = texts[int(np.argmin(finite))]
        raise InputError(f"encoder {encoder.name!r} gives NaN or infinity for the text {text[:40]!r}")
    return rows


class EmbeddingCache:
    """The embeddings of one encoder: each text is encoded once in a run, and those of a task once in all runs.

    Args:
        encoder: one with a key has its embeddings kept.
        folder: they are kept in ``FOLDER/<encoder's key>/<hash of the texts>.npy``; None keeps none.
    """

    def __init__(self, encoder: Encoder, folder: Path | None = None) -> None:
        self.encoder = encoder
        self.folder = folder / encoder.key[:32] if folder is not None and encoder.key else None
        self._rows: dict[str, NDArray[np.float32]] = {}

    def __call__(self, texts: Sequence[str]) -> Matrix:
        """The embeddings of ``texts``, (n, d), as :func:`embed`; sparse ones of an encoder that is fitted on them."""
        if self.encoder.fit is not None:
            rows = np.arange(len(texts))
            return self.encoder.fit(texts)(rows, rows)[1]
        path = None if self.folder is None else self.folder / f"{_hash(texts)}.npy"
        if path is not None and (content := read_sealed(path)) is not None:
            return np.load(io.BytesIO(content))
        unseen = [text for text in dict.fromkeys(texts) if text not in self._rows]
        if unseen:
            self._rows.update(zip(unseen, embed(self.encoder, unseen), strict=True))
        embeddings = np.stack([self._rows[text] for text in texts])
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            stream = io.BytesIO()
            np.save(stream, embeddings)
            write_sealed(path, stream.getvalue())
        return embeddings

    def features(self, texts: Sequence[str]) -> Features:
        """The features of ``texts``: frozen embeddings, or those that are fitted on each training fold."""
        return frozen(self(texts)) if self.encoder.fit is None else self.encoder.fit(texts)


def _hash(texts: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for text in texts:
        data = text.encode("utf-8", "surrogatepass")
        digest.update(f"{len(data)} ".encode() + data)
    return digest.hexdigest()[:32]
