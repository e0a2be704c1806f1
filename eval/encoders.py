"""Encoders of an evaluation by name, and their embeddings: each text is embedded once, and stored on disk."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctx_embed import encoders
from ctx_embed.encoders import Encoder, as_encoder, embed
from ctx_embed.eval.stored_scores import read_sealed, write_sealed

__all__ = ["BASELINES", "EmbeddingCache", "Encoder", "as_encoder", "encoder_names", "load_encoder"]

RANDOM_DIMENSION = 256


def load_encoder(name: str) -> Encoder:
    """Return the encoder of that name, a baseline or one of :func:`ctx_embed.encoders.load_encoder`."""
    return encoders.load_encoder(name, others=BASELINES)


def encoder_names() -> list[str]:
    """Return the names that are not paths: the default, MiniLM, the baselines, and every system."""
    return encoders.encoder_names(BASELINES)


def _random() -> Encoder:
    def row(text: str) -> NDArray[np.float64]:
        seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
        return np.random.default_rng(seed).normal(size=RANDOM_DIMENSION)

    def encode(texts: list[str]) -> NDArray[np.float64]:
        return np.stack([row(text) for text in texts])

    return Encoder("random", encode, None, "random-1", 0, by_name=True)


def _majority() -> Encoder:
    # A probe that sees the same embedding everywhere names the most frequent class of its training rows.
    return Encoder("majority", lambda texts: np.zeros((len(texts), 1)), parameters=0, probes_only=True, by_name=True)


def _tfidf() -> Encoder:
    from ctx_embed.eval.tfidf import Tfidf

    def encode(texts: list[str]) -> Any:
        rows = np.arange(len(texts))
        return Tfidf(texts)(rows, rows)[1]

    return Encoder("tfidf", encode, fit=Tfidf, by_name=True)


BASELINES: dict[str, Callable[[], Encoder]] = {"tfidf": _tfidf, "majority": _majority, "random": _random}


class EmbeddingCache:
    """The embeddings of one encoder: a text is embedded once per run, and the texts of a task once for all runs.

    Args:
        encoder: embeddings are stored only if it has a key.
        folder: where to store them, in ``FOLDER/<encoder's key>/<hash of the texts>.npy``; None stores none.
    """

    def __init__(self, encoder: Encoder, folder: Path | None = None) -> None:
        self.encoder = encoder
        self.folder = folder / encoder.key[:32] if folder is not None and encoder.key else None
        self._rows: dict[str, NDArray[np.float32]] = {}

    def __call__(self, texts: Sequence[str]) -> Any:
        """Return the embeddings of ``texts``, (n, d), see :func:`embed`; sparse if the encoder is fitted on them."""
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


def _hash(texts: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for text in texts:
        data = text.encode("utf-8", "surrogatepass")
        digest.update(f"{len(data)} ".encode() + data)
    return digest.hexdigest()[:32]
