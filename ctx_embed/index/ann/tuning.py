"""Tuning: measure the recall of the FAISS index, and find the smallest search effort that reaches a target."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, replace

import numpy as np

from ctx_embed.errors import InputError
from ctx_embed.index.ann import factories
from ctx_embed.index.ann.vector_index import VectorIndex
from ctx_embed.index.storage.database import Database, Snapshot
from ctx_embed.index.storage.shards import Vectors

# The recall that `auto` is tuned to. Tuning uses stored passages as queries, but real queries may be further from their
# neighbours, hence a margin over 0.95.
AUTO_RECALL = 0.97
SAMPLED_QUERIES = 200
NEIGHBOURS = 10


@dataclass(frozen=True)
class Tuning:
    """The measurements: recall@10 against exact search for each value of the parameter, and the value that was set."""

    parameter: str
    value: int
    recall: float
    milliseconds: float
    reached: bool
    steps: list[dict[str, float]]


def tune(index: VectorIndex, snapshot: Snapshot, recall: float, store: Database) -> Tuning:
    """Find the smallest nprobe or efSearch that reaches a recall@10 and commit it; call it in ``store.writing()``.

    Raises:
        InputError: as :func:`search_effort`.
    """
    tuning = search_effort(index, snapshot, recall)
    tuned = json.loads(snapshot.tuned)
    tuned[index.described()] = {tuning.parameter: tuning.value, "recall": round(tuning.recall, 4)}
    state = store.state()
    store.finish(replace(state, generation=state.generation + 1, tuned=json.dumps(tuned)), store.shards())
    return tuning


def search_effort(index: VectorIndex, snapshot: Snapshot, recall: float) -> Tuning:
    """Measure recall@10 with a growing nprobe or efSearch until it reaches ``recall``.

    Raises:
        InputError: the index searches exactly anyway, or its kind has nothing to tune.
    """
    index.refresh(snapshot)
    where = index.vectors.folder.parent
    if index.index is None:
        raise InputError(f"{where}: search is exact (recall 1), so there is nothing to tune")
    effort = factories.effort_of(index.index)
    if effort is None:
        raise InputError(f"{where}: the factory {index.factory!r} has neither nprobe nor efSearch to tune")
    name, _, largest = effort
    truth = Truth(index, snapshot)
    steps: list[dict[str, float]] = []
    value = 1 if name == "nprobe" else 16
    while True:
        steps.append({"value": value, **truth.measured(value)})
        best = steps[-1]
        if best["recall"] >= recall or value >= largest:
            return Tuning(name, value, best["recall"], best["milliseconds"], best["recall"] >= recall, steps)
        value = min(largest, max(value + 1, round(value * 1.4)))


class Truth:
    """Queries with their true neighbours, to measure an index against.

    Args:
        index: the index to measure, with its FAISS index loaded.
        snapshot: the state to search.
    """

    def __init__(self, index: VectorIndex, snapshot: Snapshot) -> None:
        self.index = index
        self.snapshot = snapshot
        self.queries, self.neighbours = self._exact()

    def _exact(self) -> tuple[Vectors, list[list[int]]]:
        rows = np.unique(np.linspace(0, self.snapshot.rows - 1, SAMPLED_QUERIES, dtype=np.int64))
        queries = self.index.vectors.gather(self.snapshot.shards, rows)
        exact = self.index.search_exactly(queries, NEIGHBOURS + 1, self.snapshot)
        return queries, [[row for _, row in ranking] for ranking in exact]

    def measured(self, value: int) -> dict[str, float]:
        """Return recall@10 and milliseconds per query at a value of the search parameter.

        The queries are stored vectors, so the nearest row, the vector itself, is left out and the next ten count.
        """
        found = 0
        start = time.perf_counter()
        for query, neighbours in zip(self.queries, self.neighbours, strict=True):
            (ranking,) = self.index.search(query[None], NEIGHBOURS + 1, self.snapshot, effort=value)
            found += len({row for _, row in ranking} & set(neighbours)) - 1
        milliseconds = (time.perf_counter() - start) * 1000 / len(self.queries)
        counted = sum(len(neighbours) - 1 for neighbours in self.neighbours)
        return {"recall": max(found, 0) / max(counted, 1), "milliseconds": milliseconds}
