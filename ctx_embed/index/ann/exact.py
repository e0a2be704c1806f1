"""Exact search: compare the queries with every vector that may be found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ctx_embed.index.storage.documents import Mask
from ctx_embed.index.storage.shards import Shard, ShardFolder, Vectors

Rows: TypeAlias = NDArray[np.int64]

# Queries compared with a shard in one matrix product; with 65,536 rows their scores take 16 MB.
QUERIES_AT_ONCE = 64
# float32 scores that differ by less are ties until the cosines are computed in float64.
ROUNDING = 2e-6


def exact_candidates(
    folder: ShardFolder, shards: Sequence[Shard], queries: Vectors, k: int, allowed: Mask | None, start: int = 0
) -> list[Rows]:
    """Return the k rows nearest to each query by inner product, and those tied with the k-th, in the order of rows.

    Args:
        folder: the shards' folder.
        shards: the shards of all rows.
        queries: (Q, dimension), l2-normalised.
        k: at least 1.
        allowed: which rows may be found, (rows,); None allows all.
        start: the first row that may be found.
    """
    results: list[Rows] = []
    for first in range(0, len(queries), QUERIES_AT_ONCE):
        results += _candidates(folder, shards, queries[first : first + QUERIES_AT_ONCE], k, allowed, start)
    return results


def _candidates(
    folder: ShardFolder, shards: Sequence[Shard], queries: Vectors, k: int, allowed: Mask | None, start: int
) -> list[Rows]:
    best = [(np.empty(0, np.int64), np.empty(0, np.float32)) for _ in queries]
    for shard in shards:
        skip = max(start - shard.first, 0)
        if skip >= shard.rows:
            continue
        chosen = _chosen(shard, allowed, skip)
        if chosen is not None and not len(chosen):
            continue
        scores = folder.scores(shard, queries, slice(skip, None) if chosen is None else chosen + skip)
        places = None if chosen is None else chosen + shard.first + skip
        for number, of_query in enumerate(scores):
            kept = highest(of_query, k)
            rows = kept + shard.first + skip if places is None else places[kept]
            old_rows, old_scores = best[number]
            rows, of_rows = np.concatenate([old_rows, rows]), np.concatenate([old_scores, of_query[kept]])
            still = highest(of_rows, k)
            best[number] = (rows[still], of_rows[still])
    return [rows for rows, _ in best]


def _chosen(shard: Shard, allowed: Mask | None, skip: int) -> Rows | None:
    """Return the rows of a shard that may be found, counted from its row ``skip``; None if all may be."""
    if allowed is None:
        return None
    mask = allowed[shard.first + skip : shard.first + shard.rows]
    return None if mask.all() else np.flatnonzero(mask)


def highest(scores: Vectors, k: int) -> Rows:
    """Return the positions, in order, of the k highest scores and of up to 64 more within rounding of the k-th."""
    if len(scores) <= k:
        return np.arange(len(scores))
    lowest = np.partition(scores, -k)[-k]
    surely = np.flatnonzero(scores > lowest + ROUNDING)
    ties = np.flatnonzero((scores <= lowest + ROUNDING) & (scores >= lowest - ROUNDING))
    return np.sort(np.concatenate([surely, ties[: k - len(surely) + 64]]))
