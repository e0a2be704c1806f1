"""Texts to embeddings: in batches of like length, each text once, checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from ctx_embed.errors import InputError
from ctx_embed.eval.encoders import Encoder
from ctx_embed.texts import BATCH_TEXTS, length_batches, well_formed


def embed(encoder: Encoder, texts: Sequence[str], batch_size: int = BATCH_TEXTS) -> NDArray[np.float32]:
    """The embeddings of ``texts``, (n, d) float32, in their order; progress goes to standard error.

    Args:
        encoder: any.
        texts: at least one.
        batch_size: texts in one call of the encoder, at most; long texts come in smaller batches.

    Raises:
        InputError: the encoder gives another number of rows than texts, or NaN, or infinity.
    """
    texts = [well_formed(text) for text in texts]
    embeddings: NDArray[np.float32] | None = None
    with tqdm(total=len(texts), desc=encoder.name, unit=" texts", leave=False, disable=None) as bar:
        for places in length_batches(texts, batch_size):
            rows = _checked(encoder, [texts[place] for place in places])
            if embeddings is None:
                embeddings = np.empty((len(texts), rows.shape[1]), np.float32)
            embeddings[places] = rows
            bar.update(len(places))
    if embeddings is None:
        raise InputError("no texts to embed")
    return embeddings


def _checked(encoder: Encoder, texts: list[str]) -> NDArray[Any]:
    rows = np.asarray(encoder.encode(texts))
    if rows.ndim != 2 or len(rows) != len(texts):
        raise InputError(
            f"encoder {encoder.name!r} gives an array of shape {rows.shape} for {len(texts)} texts, "
            "one row for each is needed"
        )
    finite = np.isfinite(rows).all(axis=1)
    if not finite.all():
        text = texts[int(np.argmin(finite))]
        raise InputError(f"encoder {encoder.name!r} gives NaN or infinity for the text {text[:40]!r}")
    return rows


class EmbeddingCache:
    """The embeddings of one encoder, each text encoded once in a run."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder
        self._rows: dict[str, NDArray[np.float32]] = {}

    def __call__(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """The embeddings of ``texts``, (n, d), as :func:`embed`."""
        unseen = [text for text in dict.fromkeys(texts) if text not in self._rows]
        if unseen:
            self._rows.update(zip(unseen, embed(self.encoder, unseen), strict=True))
        return np.stack([self._rows[text] for text in texts])
