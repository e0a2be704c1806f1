"""The search modes: by meaning, by keywords, or both with their ranks fused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ctx_embed.index.ann.vector_index import VectorIndex
from ctx_embed.index.fulltext import search_words
from ctx_embed.index.storage.documents import DocumentStore, Mask
from ctx_embed.index.storage.shards import Vectors
from ctx_embed.index.storage.snapshot import Snapshot

# Reciprocal rank fusion, the sum over lists of 1 / (60 + rank): Cormack, Clarke and Buettcher (SIGIR 2009).
FUSION_CONSTANT = 60
# At least this many ranks of each list are fused, even for a smaller k: a document may rank low in both lists.
FUSED_RANKS = 100


@dataclass(frozen=True)
class Searched:
    """The documents, vectors and state that a search reads, and the rows it may find; for :meth:`Database.reading`."""

    store: DocumentStore
    index: VectorIndex
    snapshot: Snapshot
    allowed: Mask | None


class Scored(NamedTuple):
    """A row found: its cosine and, in hybrid mode, the fused score that orders the rows."""

    score: float
    row: int
    fused: float | None = None


def dense(searched: Searched, texts: Sequence[str], vectors: Vectors, k: int) -> list[list[Scored]]:
    """Rank passages by the cosines of their vectors."""
    rankings = searched.index.search(vectors, k, searched.snapshot, searched.allowed)
    return [[Scored(score, row) for score, row in ranking] for ranking in rankings]


def words(searched: Searched, texts: Sequence[str], vectors: Vectors, k: int) -> list[list[Scored]]:
    """Rank passages by BM25; passages without any word of the query are not found."""
    found = [_word_rows(searched, text, k) for text in texts]
    return [_with_cosines(searched, vector, rows) for vector, rows in zip(vectors, found, strict=True)]


def hybrid(searched: Searched, texts: Sequence[str], vectors: Vectors, k: int) -> list[list[Scored]]:
    """Rank passages by the sum of 1 / (60 + rank) over the two other modes; ties keep their dense order."""
    depth = max(2 * k, FUSED_RANKS)
    rankings = []
    for text, vector, by_meaning in zip(texts, vectors, dense(searched, texts, vectors, depth), strict=True):
        fused: dict[int, float] = {}
        for rows in ([found.row for found in by_meaning], _word_rows(searched, text, depth)):
            for rank, row in enumerate(rows, 1):
                fused[row] = fused.get(row, 0.0) + 1 / (FUSION_CONSTANT + rank)
        best = sorted(fused, key=fused.__getitem__, reverse=True)[:k]
        rankings.append([found._replace(fused=fused[found.row]) for found in _with_cosines(searched, vector, best)])
    return rankings


MODES: dict[str, Callable[[Searched, Sequence[str], Vectors, int], list[list[Scored]]]] = {
    "dense": dense,
    "words": words,
    "hybrid": hybrid,
}


def _word_rows(searched: Searched, text: str, k: int) -> list[int]:
    mask: Any = searched.allowed
    # Deleted passages are not in the full-text index, so only a filter needs checking.
    allowed = None if mask is None else lambda row: bool(mask[row])
    return search_words(searched.store, text, k, searched.snapshot.rows, allowed)


def _with_cosines(searched: Searched, vector: Vectors, rows: list[int]) -> list[Scored]:
    cosines = {row: score for score, row in searched.index.ranked(vector, np.array(rows, np.int64), searched.snapshot)}
    return [Scored(cosines[row], row) for row in rows]
