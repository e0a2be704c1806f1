"""Near-duplicates: pairs of documents whose vectors have a high cosine."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ctx_embed.errors import InputError
from ctx_embed.index.ann.vector_index import FEW_ROWS, Rows, VectorIndex
from ctx_embed.index.searching.search import LiveRows
from ctx_embed.index.storage.database import Snapshot
from ctx_embed.index.storage.documents import Id, Mask
from ctx_embed.index.storage.folder import IndexFolder
from ctx_embed.index.storage.shards import Vectors
from ctx_embed.progress import Meter

ROWS_AT_ONCE = 1024
# Number of neighbours fetched at first; it is multiplied by four as long as all of them reach the threshold.
NEIGHBOURS = 32


@dataclass(frozen=True)
class Pair:
    """Two passages (``left`` was added first) and the cosine of their vectors."""

    score: float
    left: Id
    right: Id
    left_text: str
    right_text: str


def find_duplicates(
    folder: IndexFolder,
    threshold: float,
    most: int,
    progress: bool = False,
    *,
    rows_at_once: int = ROWS_AT_ONCE,
    neighbours: int = NEIGHBOURS,
    few_rows: int = FEW_ROWS,
) -> list[Pair]:
    """Return the pairs of passages of different documents with the highest cosines, highest first.

    If the index has a FAISS file, each passage is compared with its nearest neighbours, otherwise with all others.

    Args:
        folder: the index.
        threshold: the lowest cosine of a pair.
        most: the maximum number of pairs to return.
        progress: whether to show progress on standard error.
        rows_at_once: the number of passages that are compared with the others at a time.
        neighbours: as for :func:`near_pairs`.
        few_rows: as for :class:`VectorIndex`.

    Raises:
        InputError: the threshold is not a cosine, or a file is damaged.
    """
    if not -1 <= threshold <= 1:
        raise InputError(f"the threshold must be a cosine from -1 to 1, got {threshold}")
    index = VectorIndex.of(folder, memory_map=True, few_rows=few_rows)

    def found(snapshot: Snapshot) -> list[Pair]:
        index.refresh(snapshot)
        allowed = LiveRows(folder.documents).allowed(snapshot, None)
        documents = folder.documents.document_rows(snapshot.rows)
        best: list[tuple[float, int, int]] = []
        with Meter("comparing", snapshot.rows, "passages", shown=progress) as meter:
            for first in range(0, snapshot.rows, rows_at_once):
                rows = np.arange(first, min(first + rows_at_once, snapshot.rows))
                # Earlier pairs win ties.
                lowest = best[0][0] if len(best) == most else threshold
                pairs = near_pairs(index, snapshot, rows, allowed, lowest, None, documents, most, neighbours)
                for score, left, right in pairs:
                    heapq.heappush(best, (score, -left, -right))
                    if len(best) > most:
                        heapq.heappop(best)
                meter.update(len(rows))
        passages = folder.documents.fetch({-row for _, *rows in best for row in rows})
        return [
            Pair(score, left.document.id, right.document.id, left.text, right.text)
            for score, left, right in (
                (score, passages[-left], passages[-right]) for score, left, right in sorted(best, reverse=True)
            )
        ]

    return folder.read(found)


def near_pairs(
    index: VectorIndex,
    snapshot: Snapshot,
    rows: Rows,
    allowed: Mask | None,
    threshold: float,
    effort: int | None = None,
    documents: Rows | None = None,
    most: int | None = None,
    neighbours: int = NEIGHBOURS,
) -> Iterator[tuple[float, int, int]]:
    """Yield each pair (cosine, row, later row) of the given rows with any later row that reaches a threshold.

    Args:
        index: the vectors, with its FAISS index loaded if it has one.
        snapshot: their state.
        rows: some rows in ascending order.
        allowed: which rows may be found; None allows all.
        threshold: the lowest cosine.
        effort: the search effort, as for :meth:`VectorIndex.search`.
        documents: the document of each row, to leave out pairs within a document; None keeps these pairs.
        most: the caller needs only this many pairs with the highest cosines, so others may be left out; None: all.
        neighbours: the number of neighbours that FAISS returns at first; see :data:`NEIGHBOURS`.
    """
    if allowed is not None:
        rows = rows[allowed[rows]]
    if not len(rows):
        return
    vectors = index.vectors.gather(snapshot.shards, rows)
    if index.index is None:
        yield from _compared(index, snapshot, rows, vectors, allowed, threshold, documents, most)
        return
    waiting, k = np.arange(len(rows)), neighbours
    while len(waiting):
        rankings = index.search(vectors[waiting], k, snapshot, allowed, effort)
        again = []
        for place, ranking in zip(waiting, rankings, strict=True):
            if len(ranking) == k and ranking[-1][0] >= threshold and k < neighbours * 64:
                again.append(place)
            else:
                yield from (
                    (score, int(rows[place]), row)
                    for score, row in ranking
                    if row > rows[place]
                    and score >= threshold
                    and (documents is None or documents[row] != documents[rows[place]])
                )
        waiting, k = np.array(again, np.int64), 4 * k


def _compared(
    index: VectorIndex,
    snapshot: Snapshot,
    rows: Rows,
    vectors: Vectors,
    allowed: Mask | None,
    threshold: float,
    documents: Rows | None,
    most: int | None,
) -> Iterator[tuple[float, int, int]]:
    for shard in snapshot.shards:
        if shard.first + shard.rows <= rows[0]:
            continue
        scores = index.vectors.scores(shard, vectors)
        others = np.arange(shard.first, shard.first + scores.shape[1])
        wanted = (scores >= threshold - 1e-6) & (others > rows[:, None])
        if documents is not None:
            wanted &= documents[others] != documents[rows][:, None]
        if allowed is not None:
            wanted &= allowed[others]
        found = scores[wanted]
        if most is not None and len(found) > most:
            wanted &= scores >= np.partition(found, -most)[-most]
        for place, column in np.argwhere(wanted):
            score = float(np.clip(scores[place, column], -1, 1))
            yield max(score, threshold), int(rows[place]), int(others[column])
