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
from ctx_embed.numpy_model.saved import read_json


@runtime_checkable
class Reranker(Protocol):
    """A model that scores passages for queries; ``cosines`` says whether the scores are cosines."""

    cosines: bool

    def scores(self, queries: Sequence[Sequence[str]], passages: Sequence[Sequence[str]]) -> list[NDArray[Any]]:
        """Return the scores (texts, passages) of each search, given the query texts and the passages of each."""


class BiEncoder:
    """Scores by the cosines of its own embeddings."""

    cosines = True

    def __init__(self, embedder: IndexModel) -> None:
        self.embedder = embedder

    def scores(self, queries: Sequence[Sequence[str]], passages: Sequence[Sequence[str]]) -> list[NDArray[Any]]:
        """Return the cosines, see :class:`Reranker`; every text is embedded once."""
        asked = list(dict.fromkeys(text for texts in queries for text in texts))
        found = list(dict.fromkeys(text for texts in passages for text in texts))
        # In float64, so that the rounded cosine of a pair does not depend on other pairs.
        of_asked, of_found = self.embedder.queries(asked).astype(float), self.embedder.documents(found).astype(float)
        row, column = ({text: place for place, text in enumerate(texts)} for texts in (asked, found))
        scores = []
        for texts, of_texts in zip(queries, passages, strict=True):
            left, right = of_asked[[row[text] for text in texts]], of_found[[column[text] for text in of_texts]]
            scores.append(np.clip(left @ right.T, -1, 1).astype(np.float32))
        return scores


class PairScorer:
    """Scores by a CrossEncoder with one output, which reads a query and a passage together."""

    cosines = False

    def __init__(self, model: Any) -> None:
        self.model = model

    def scores(self, queries: Sequence[Sequence[str]], passages: Sequence[Sequence[str]]) -> list[NDArray[Any]]:
        """Return the model's outputs, see :class:`Reranker`; raise InputError if they are several, or not finite."""
        shapes = [(len(asked), len(found)) for asked, found in zip(queries, passages, strict=True)]
        pairs = [
            (text, passage)
            for asked, found in zip(queries, passages, strict=True)
            for text in asked
            for passage in found
        ]
        outputs = np.asarray(self.model.predict(pairs, show_progress_bar=False)) if pairs else np.empty(0)
        if outputs.ndim != 1 or not np.isfinite(outputs).all():
            raise InputError(f"the reranker must return one finite score for each pair, got the shape {outputs.shape}")
        ends = np.cumsum([asked * found for asked, found in shapes])[:-1]
        return [of_query.reshape(shape) for of_query, shape in zip(np.split(outputs, ends), shapes, strict=True)]


def reranker_of(model: Any) -> Reranker:
    """Return the reranker for a name or folder, a SentenceTransformer, an Embedder, a CrossEncoder or a Reranker.

    Raise InputError if there is no such model, or it cannot rerank.
    """
    if isinstance(model, Reranker):
        return model
    if isinstance(model, str | Path):
        reads_pairs = str(model).startswith("cross-encoder/")
        if os.path.isdir(model):
            paths = (Path(model) / name for name in ("config_sentence_transformers.json", "config.json"))
            configs = [config for path in paths if path.is_file() and isinstance(config := read_json(path), dict)]
            reads_pairs = any(
                config.get("model_type") == "CrossEncoder"
                or "ForSequenceClassification" in str(config.get("architectures"))
                for config in configs
            )
        if reads_pairs:
            from ctx_embed.loading import load_cross_encoder

            return PairScorer(load_cross_encoder(str(model)))
    if isinstance(model, str | Path) or hasattr(model, "encode_query"):
        return BiEncoder(IndexModel.of(model))
    if hasattr(model, "predict"):
        return PairScorer(model)
    raise InputError(f"rerank must be a model or the name of one, got {type(model).__name__}")
