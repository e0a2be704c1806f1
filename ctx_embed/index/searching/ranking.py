"""The search modes: by meaning, by keywords, or both; rankings fused, and varied."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ctx_embed.index.ann.vector_index import VectorIndex
from ctx_embed.index.searching.bm25 import Bm25, phrases
from ctx_embed.index.searching.options import Mode
from ctx_embed.index.storage.database import Snapshot
from ctx_embed.index.storage.documents import DocumentStore, Mask
from ctx_embed.index.storage.shards import Vectors

# Reciprocal rank fusion, the sum over lists of 1 / (60 + rank): Cormack, Clarke and Buettcher (SIGIR 2009).
FUSION_CONSTANT = 60
# At least this many ranks of each list are fused, even for a smaller k: a document may rank low in both lists.
FUSED_RANKS = 100


@dataclass(frozen=True)
class Searched:
    """The documents, words, vectors and state that a search reads, and the rows that it may find."""

    store: DocumentStore
    bm25: Bm25
    index: VectorIndex
    snapshot: Snapshot
    allowed: Mask | None


class Scored(NamedTuple):
    """A row found: its cosine and, in hybrid mode, the fused score that orders the rows."""

    score: float
    row: int
    fused: float | None = None


def dense(searched: Searched, texts: Sequence[str], vectors: Vectors, k: int) -> list[list[Scored]]:
    """Rank passages by the cosines of their vectors; zero vectors, of texts without known tokens, are not found."""
    rankings = searched.index.search(vectors, k, searched.snapshot, searched.allowed)
    return [[Scored(score, row) for score, row in ranking] for ranking in rankings]


def words(searched: Searched, texts: Sequence[str], vectors: Vectors, k: int) -> list[list[Scored]]:
    """Rank passages by BM25; passages without any word of the query are not found."""
    found = [_with_words(searched, text, k) for text in texts]
    return [_with_cosines(searched, vector, rows) for vector, rows in zip(vectors, found, strict=True)]


def hybrid(searched: Searched, texts: Sequence[str], vectors: Vectors, k: int) -> list[list[Scored]]:
    """Rank passages by the sum of 1 / (60 + rank) over the two other modes; ties keep the order by words."""
    depth = max(2 * k, FUSED_RANKS)
    rankings = []
    for text, vector, by_meaning in zip(texts, vectors, dense(searched, texts, vectors, depth), strict=True):
        if phrases(text):
            (by_meaning,) = dense(_with_phrases(searched, text), [text], vector[None], depth)
        sums: dict[int, float] = {}
        for rows in (_with_words(searched, text, depth), [found.row for found in by_meaning]):
            for rank, row in enumerate(rows, 1):
                sums[row] = sums.get(row, 0.0) + 1 / (FUSION_CONSTANT + rank)
        best = sorted(sums, key=sums.__getitem__, reverse=True)[:k]
        rankings.append([found._replace(fused=sums[found.row]) for found in _with_cosines(searched, vector, best)])
    return rankings


def reciprocal_rank_fusion(rankings: Sequence[Sequence[Scored]]) -> list[Scored]:
    """Return one ranking of the passages of several: by the sum of 1 / (60 + rank), ties in the order of appearance.

    The score of a passage is its highest one. Rankings that are fused already (``hybrid``) add their sums, as if all
    the lists that they were made of were fused at once.
    """
    sums: dict[int, float] = {}
    scores: dict[int, float] = {}
    for ranking in rankings:
        for rank, found in enumerate(ranking, 1):
            share = 1 / (FUSION_CONSTANT + rank) if found.fused is None else found.fused
            sums[found.row] = sums.get(found.row, 0.0) + share
            scores[found.row] = max(scores.get(found.row, -1.0), found.score)
    return [Scored(scores[row], row, sums[row]) for row in sorted(sums, key=sums.__getitem__, reverse=True)]


def maximal_marginal_relevance(relevance: NDArray[Any], vectors: Vectors, count: int, weight: float) -> list[int]:
    """Return the places of ``count`` items in the order of maximal marginal relevance.

    Each next item has the highest weight * relevance - (1 - weight) * its highest cosine with the items before it.

    Args:
        relevance: of the items (n,); the first of equal ones comes first.
        vectors: their unit vectors (n, dimension).
        count: how many to choose; all if there are fewer.
        weight: 1 orders by relevance alone, 0 by variety alone.

    Source: Carbonell and Goldstein (SIGIR 1998).
    """
    left = weight * relevance.astype(np.float64)
    nearest = np.full(len(left), -np.inf)
    order: list[int] = []
    for _ in range(min(count, len(left))):
        # The first one has nothing to differ from: it is the most relevant.
        marginal = relevance if not order else left - (1 - weight) * nearest
        marginal = np.where(np.isin(np.arange(len(left)), order), -np.inf, marginal)
        order.append(int(np.argmax(marginal)))
        nearest = np.maximum(nearest, vectors @ vectors[order[-1]])
    return order


RANKINGS: dict[Mode, Callable[[Searched, Sequence[str], Vectors, int], list[list[Scored]]]] = {
    "dense": dense,
    "words": words,
    "hybrid": hybrid,
}


def _with_phrases(searched: Searched, text: str) -> Searched:
    """Return what to search if passages must have the quoted phrases of a query."""
    mask = searched.bm25.with_phrases(text, searched.snapshot.rows)
    return replace(searched, allowed=mask if searched.allowed is None else mask & searched.allowed)


def _with_words(searched: Searched, text: str, k: int) -> list[int]:
    return searched.bm25.best(text, k, searched.snapshot.rows, searched.allowed)


def _with_cosines(searched: Searched, vector: Vectors, rows: list[int]) -> list[Scored]:
    cosines = {row: score for score, row in searched.index.ranked(vector, np.array(rows, np.int64), searched.snapshot)}
    return [Scored(cosines[row], row) for row in rows]
