"""Encoders of an evaluation by name: models, systems and baselines."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctx_embed import encoders
from ctx_embed.encoders import Encoder, as_encoder

__all__ = ["BASELINES", "Encoder", "as_encoder", "encoder_names", "load_encoder"]

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
    from ctx_embed.eval.encoders.tfidf import Tfidf

    def encode(texts: list[str]) -> Any:
        rows = np.arange(len(texts))
        return Tfidf(texts)(rows, rows)[1]

    return Encoder("tfidf", encode, fit=Tfidf, by_name=True)


BASELINES: dict[str, Callable[[], Encoder]] = {"tfidf": _tfidf, "majority": _majority, "random": _random}
