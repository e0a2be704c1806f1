"""Near-duplicates: pairs of documents whose vectors have a high cosine."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ctx_embed.errors import InputError
from ctx_embed.index.ann import nearest
from ctx_embed.index.storage.documents import Id
from ctx_embed.index.storage.folder import View
from ctx_embed.index.storage.vectors import Rows
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


def find_duplicates(view: View, threshold: float, most: int, progress: bool) -> list[Pair]:
    """Return the pairs of passages of different documents with the highest cosines, see :meth:`SearchIndex.duplicates`.

    If FAISS's file does not compare all, each passage is compared with its neighbours there, otherwise with all others.
    """
    if not -1 <= threshold <= 1:
        raise InputError(f"the threshold must be a cosine from -1 to 1, got {threshold}")
    firsts = np.array([row for row, _ in view.store.firsts()], np.int64)
    rows = view.rows[view.readable]
    best: list[tuple[float, int, int]] = []
    with Meter("comparing", len(rows), "passages", shown=progress) as meter:
        for start in range(0, len(rows), ROWS_AT_ONCE):
            some = rows[start : start + ROWS_AT_ONCE]
            # Earlier pairs win ties.
            lowest = best[0][0] if len(best) == most else threshold
            for score, left, right in near_pairs(view, some, lowest, firsts, most):
                heapq.heappush(best, (score, -left, -right))
                if len(best) > most:
                    heapq.heappop(best)
            meter.update(len(some))
    passages = view.store.fetch({-row for _, *rows in best for row in rows})
    found = [(score, passages[-left], passages[-right]) for score, left, right in sorted(best, reverse=True)]
    return [Pair(score, left.document.id, right.document.id, left.text, right.text) for score, left, right in found]


def near_pairs(view: View, rows: Rows, threshold: float, firsts: Rows, most: int) -> Iterator[tuple[float, int, int]]:
    """Yield pairs (cosine, row, later row) of some ascending rows with later rows of other documents.

    ``firsts`` are the first rows of all documents. Only ``most`` pairs are needed, so others than the best may lack.
    """

    def documents(of: Rows) -> Rows:
        return np.searchsorted(firsts, of, side="right")

    vectors = view.vectors.get(rows)
    if view.faiss is None or view.faiss.exact:
        for others, of_others in view.vectors.blocks(int(rows[0]) - 1):
            scores = vectors @ of_others.T
            wanted = (scores >= threshold - 1e-6) & (others > rows[:, None])
            wanted &= documents(others) != documents(rows)[:, None]
            found = scores[wanted]
            if len(found) > most:
                wanted &= scores >= np.partition(found, -most)[-most]
            for place, column in np.argwhere(wanted):
                score = float(np.clip(scores[place, column], -1, 1))
                yield max(score, threshold), int(rows[place]), int(others[column])
        return
    waiting, k = np.arange(len(rows)), NEIGHBOURS
    while len(waiting):
        rankings = nearest.search(view, vectors[waiting], k)
        again = []
        for place, ranking in zip(waiting, rankings, strict=True):
            if len(ranking) == k and ranking[-1][0] >= threshold and k < NEIGHBOURS * 64:
                again.append(place)
                continue
            own = documents(rows[place : place + 1])[0]
            for score, row in ranking:
                if row > rows[place] and score >= threshold and documents(np.array([row]))[0] != own:
                    yield score, int(rows[place]), row
        waiting, k = np.array(again, np.int64), 4 * k
