"""Embeddings of an evaluation: each text is embedded once, and the embeddings of a task are stored on disk."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ctx_embed.encoders import Encoder, embed
from ctx_embed.eval.bars import title
from ctx_embed.eval.features import Features, Matrix, frozen
from ctx_embed.eval.stored_scores import read_sealed, write_sealed


class EmbeddingCache:
    """The embeddings of one encoder: a text is embedded once per run, and the texts of a task once for all runs.

    Args:
        encoder: one with a key has its embeddings kept.
        folder: they are kept in ``FOLDER/<encoder's key>/<hash of the texts>.npy``; None keeps none.
    """

    def __init__(self, encoder: Encoder, folder: Path | None = None) -> None:
        self.encoder = encoder
        self.folder = folder / encoder.key[:32] if folder is not None and encoder.key else None
        self._rows: dict[str, NDArray[np.float32]] = {}

    def __call__(self, texts: Sequence[str]) -> Matrix:
        """Return the embeddings of ``texts``, (n, d), as :func:`embed`; sparse if the encoder is fitted on them."""
        if self.encoder.fit is not None:
            rows = np.arange(len(texts))
            return self.encoder.fit(texts)(rows, rows)[1]
        path = None if self.folder is None else self.folder / f"{_hash(texts)}.npy"
        if path is not None and (content := read_sealed(path)) is not None:
            return np.load(io.BytesIO(content))
        unseen = [text for text in dict.fromkeys(texts) if text not in self._rows]
        if unseen:
            self._rows.update(zip(unseen, embed(self.encoder, unseen, title=title("embedding")), strict=True))
        embeddings = np.stack([self._rows[text] for text in texts])
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            stream = io.BytesIO()
            np.save(stream, embeddings)
            write_sealed(path, stream.getvalue())
        return embeddings

    def features(self, texts: Sequence[str]) -> Features:
        """Return the features of ``texts``: frozen embeddings, or features fitted on each training fold."""
        return frozen(self(texts)) if self.encoder.fit is None else self.encoder.fit(texts)


def _hash(texts: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for text in texts:
        data = text.encode("utf-8", "surrogatepass")
        digest.update(f"{len(data)} ".encode() + data)
    return digest.hexdigest()[:32]
