"""Reranking: a larger model scores the best passages of a search again."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ctx_embed.errors import InputError
from ctx_embed.index.model import IndexModel
from ctx_embed.index.storage.vectors import Vectors
from ctx_embed.numpy_model.checks import read_json


@runtime_checkable
class Reranker(Protocol):
    """A model that scores passages for queries.

    Attributes:
        cosines: whether the scores are cosines.
    """

    cosines: bool

    def scores(self, queries: Sequence[Sequence[str]], passages: Sequence[Sequence[str]]) -> list[NDArray[Any]]:
        """Return the scores (texts, passages) of each search.

        Args:
            queries: the query texts of each search.
            passages: the passages of each search.
        """


class BiEncoder:
    """Scores by the cosines of its own embeddings.

    Args:
        embedder: the model.
    """

    cosines = True

    def __init__(self, embedder: IndexModel) -> None:
        self.embedder = embedder

    def scores(self, queries: Sequence[Sequence[str]], passages: Sequence[Sequence[str]]) -> list[NDArray[Any]]:
        """Return the cosines, see :class:`Reranker`; every text is embedded once."""
        texts = list(dict.fromkeys(text for group in queries for text in group))
        of_query = dict(zip(texts, self.embedder.queries(texts), strict=True))
        distinct = list(dict.fromkeys(text for group in passages for text in group))
        known = dict(zip(distinct, self.embedder.documents(distinct), strict=True)) if distinct else {}
        return [
            _cosines(np.stack([of_query[text] for text in asked]), np.stack([known[text] for text in found]))
            if found
            else np.empty((len(asked), 0))
            for asked, found in zip(queries, passages, strict=True)
        ]


def _cosines(queries: Vectors, passages: Vectors) -> Vectors:
    # Computed in float64, so that the rounded cosine of a pair does not depend on other pairs.
    cosines: Vectors = np.clip(queries.astype(np.float64) @ passages.astype(np.float64).T, -1, 1).astype(np.float32)
    return cosines


class PairScorer:
    """Scores by a CrossEncoder, which reads a query and a passage together.

    Args:
        model: a CrossEncoder with one output.
    """

    cosines = False

    def __init__(self, model: Any) -> None:
        self.model = model

    def scores(self, queries: Sequence[Sequence[str]], passages: Sequence[Sequence[str]]) -> list[NDArray[Any]]:
        """Return the model's outputs, see :class:`Reranker`.

        Raises:
            InputError: the model has several outputs, or one is not finite.
        """
        pairs = [
            (text, passage)
            for asked, found in zip(queries, passages, strict=True)
            for text in asked
            for passage in found
        ]
        if not pairs:
            return [np.empty((len(asked), 0)) for asked in queries]
        outputs = np.asarray(self.model.predict(pairs, show_progress_bar=False))
        if outputs.ndim != 1 or not np.isfinite(outputs).all():
            raise InputError(f"the reranker must return one finite score for each pair, got the shape {outputs.shape}")
        scores, start = [], 0
        for asked, found in zip(queries, passages, strict=True):
            stop = start + len(asked) * len(found)
            scores.append(outputs[start:stop].reshape(len(asked), len(found)))
            start = stop
        return scores


def reranker_of(model: Any) -> Reranker:
    """Return the reranker for a model.

    Args:
        model: a name or a folder, a SentenceTransformer, a :class:`ctx_embed.runtime.Embedder`, a CrossEncoder, or a
            reranker.

    Raises:
        InputError: there is no such model, or it cannot rerank.
    """
    if isinstance(model, Reranker):
        return model
    if isinstance(model, str | Path):
        if not _is_cross_encoder(str(model)):
            return BiEncoder(IndexModel.of(model))
        from ctx_embed.loading import load_cross_encoder

        return PairScorer(load_cross_encoder(str(model)))
    if hasattr(model, "predict") and not hasattr(model, "encode_query"):
        return PairScorer(model)
    if not hasattr(model, "encode_query"):
        raise InputError(f"rerank must be a model or the name of one, got {type(model).__name__}")
    return BiEncoder(IndexModel.of(model))


def _is_cross_encoder(name: str) -> bool:
    """Return whether a folder, or a name on the hub, is a CrossEncoder."""
    if not os.path.isdir(name):
        return name.startswith("cross-encoder/")
    for file, of_config in (
        ("config_sentence_transformers.json", lambda config: config.get("model_type") == "CrossEncoder"),
        ("config.json", lambda config: "ForSequenceClassification" in str(config.get("architectures"))),
    ):
        path = Path(name) / file
        if path.is_file() and isinstance(config := read_json(path), dict) and of_config(config):
            return True
    return False
