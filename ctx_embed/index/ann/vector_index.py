"""Vector search: FAISS proposes rows, or all are compared; the cosines are computed from the raw vectors."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

import faiss
import numpy as np
from numpy.typing import NDArray

from ctx_embed.errors import InputError
from ctx_embed.index.ann import factories
from ctx_embed.index.ann.cache import Cache
from ctx_embed.index.storage.database import Snapshot
from ctx_embed.index.storage.documents import Mask
from ctx_embed.index.storage.folder import IndexFolder
from ctx_embed.index.storage.manifest import CACHE
from ctx_embed.index.storage.shards import Shard, ShardFolder, Vectors

Ranking: TypeAlias = list[tuple[float, int]]
Rows: TypeAlias = NDArray[np.int64]

# Queries compared with a shard in one matrix product; with 65,536 rows their scores take 16 MB.
QUERIES_AT_ONCE = 64
# float32 scores that differ by less are ties until the cosines are computed in float64.
ROUNDING = 2e-6
# Number of candidates beyond k whose cosines are computed again from the raw vectors; this corrects ties and rounding.
SPARE_CANDIDATES = 16
# Coarsely quantized vectors need more candidates: a small number is multiplied by the first factor, a large number by
# the second.
COARSE_FACTOR, LEAST_COARSE_FACTOR = 10, 4
ENOUGH_CANDIDATES = 300
# If a filter allows at most this number or this share of the rows, each of these rows is compared with the query.
FEW_ROWS, FEW_PART = 20_000, 0.05
# FAISS's file is rewritten when it lacks this number of rows, or this share of them.
STALE_ROWS, STALE_PART = 25_000, 0.1


class VectorIndex:
    """Search over the vectors of a shard folder.

    The FAISS index is a cache that a writer leaves behind. Rows that it lacks are compared one by one, as are all rows
    if there is no FAISS index, so a reader never has to train or build anything.

    Args:
        folder: the folder of FAISS's files.
        vectors: the raw vectors, the source of truth.
        factory: ``auto`` or a FAISS factory string.
        memory_map: whether to leave FAISS's vectors on disk.
        few_rows: if at most this number of rows may be found, all of those are compared.

    Raises:
        InputError: :func:`ctx_embed.index.ann.factories.checked_factory` rejects the factory.
    """

    def __init__(
        self, folder: Path, vectors: ShardFolder, factory: str, memory_map: bool = False, few_rows: int = FEW_ROWS
    ) -> None:
        self.cache = Cache(folder, vectors.dimension)
        self.vectors = vectors
        self.factory = factories.checked_factory(factory, vectors.dimension)
        self.memory_map = memory_map
        self.few_rows = few_rows
        self.index: Any = None
        self._seen: tuple[int, int] = (-1, -1)
        self._effort: int | None = None
        self._zeros: tuple[tuple[int, int], Rows] = ((-1, -1), np.empty(0, np.int64))

    @classmethod
    def of(cls, folder: IndexFolder, memory_map: bool = False, few_rows: int = FEW_ROWS) -> VectorIndex:
        """Return the search over the vectors of an index."""
        return cls(folder.path / CACHE, folder.vectors, folder.manifest.factory, memory_map, few_rows)

    def factory_for(self, rows: int) -> str:
        """Return the factory string for a number of rows."""
        if self.factory != factories.AUTO:
            return self.factory
        return factories.auto_factory(rows, self.vectors.dimension)

    def forget(self) -> None:
        """Drop the loaded index; it is read again when needed."""
        self.index = None
        self._seen = (-1, -1)

    def refresh(self, snapshot: Snapshot) -> None:
        """Load the newest FAISS file that fits ``snapshot``, unless this was done for the same state already."""
        if self._seen == (snapshot.numbering, snapshot.generation):
            return
        if self._seen[0] != snapshot.numbering:
            self.forget()
        loaded = 0 if self.index is None else self.index.ntotal
        newer = self.cache.load(snapshot, self._flags(), more_than=loaded)
        if newer is not None:
            self.index = newer
        self._seen = (snapshot.numbering, snapshot.generation)
        self._effort = self._tuned(snapshot)

    def _flags(self) -> int:
        """Return FAISS's flags for reading its file: inverted lists have a memory-mapping flag of their own."""
        if not self.memory_map:
            return 0
        lists = self.factory == factories.AUTO or "IVF" in self.factory
        return int(faiss.IO_FLAG_MMAP if lists else faiss.IO_FLAG_MMAP_IFC)

    def _tuned(self, snapshot: Snapshot) -> int | None:
        """Return the tuned search effort of this index, or the default one."""
        usual = None if self.index is None else factories.effort_of(self.index)
        if usual is None:
            return None
        with suppress(ValueError):
            tuned = json.loads(snapshot.tuned).get(self.described())
            if isinstance(tuned, dict) and isinstance(tuned.get(usual[0]), int):
                return int(tuned[usual[0]])
        return usual[1]

    def described(self) -> str:
        """Return the loaded index's kind and number of lists, for which a tuned parameter is valid."""
        part = factories.inner(self.index)
        return f"{type(part).__name__} {getattr(part, 'nlist', '')}".strip()

    def search(
        self,
        queries: Vectors,
        k: int,
        snapshot: Snapshot,
        allowed: Mask | None = None,
        effort: int | None = None,
    ) -> list[Ranking]:
        """Return the k nearest rows to each query by cosine, nearest first; ties go to the row added first.

        Args:
            queries: (Q, dimension), l2-normalised.
            k: at least 1.
            snapshot: the state to search.
            allowed: which rows may be found; None allows all.
            effort: nprobe or efSearch; by default the tuned value, or FAISS's usual one if it was not tuned.

        Returns:
            Q lists of min(k, rows that may be found) pairs (cosine, row), without zero vectors. Cosines and order are
            computed from the raw vectors, so they do not depend on the kind of index or on the batch.
        """
        self.refresh(snapshot)
        found = snapshot.rows if allowed is None else int(allowed.sum())
        wanted = min(k, found)
        if not wanted:
            return [[] for _ in queries]
        candidates = wanted + SPARE_CANDIDATES
        if self.index is None or found <= self.few_rows or found <= FEW_PART * snapshot.rows:
            proposed = self._exact(queries, candidates, snapshot, allowed)
        else:
            harder = (effort or self._effort or 1) * snapshot.rows / found
            proposed = self._proposed(queries, candidates, snapshot, allowed, round(harder))
        ranked = [
            self.ranked(query, rows, snapshot, wanted, alike=True)
            for query, rows in zip(queries, proposed, strict=True)
        ]
        short = [place for place, ranking in enumerate(ranked) if len(ranking) < wanted and queries[place].any()]
        if short:
            # An approximate index may return fewer rows than there are.
            whole = self.search_exactly(queries[short], wanted, snapshot, allowed)
            for place, ranking in zip(short, whole, strict=True):
                ranked[place] = ranking
        return ranked

    def search_exactly(
        self, queries: Vectors, k: int, snapshot: Snapshot, allowed: Mask | None = None
    ) -> list[Ranking]:
        """Search as :meth:`search` does, but compare with every vector."""
        zeros = self._zero_rows(snapshot)
        if len(zeros):
            allowed = np.ones(snapshot.rows, bool) if allowed is None else allowed.copy()
            allowed[zeros] = False
        proposed = self._exact(queries, k + SPARE_CANDIDATES, snapshot, allowed)
        return [
            self.ranked(query, rows, snapshot, k, alike=True) for query, rows in zip(queries, proposed, strict=True)
        ]

    def _zero_rows(self, snapshot: Snapshot) -> Rows:
        """Return the rows with zero vectors, which are looked for once in each state of the index."""
        state = (snapshot.numbering, snapshot.generation)
        if self._zeros[0] != state:
            found, first = [np.empty(0, np.int64)], 0
            for block in self.vectors.blocks(snapshot.shards, 0):
                found.append(np.flatnonzero(~block.any(axis=1)) + first)
                first += len(block)
            self._zeros = (state, np.concatenate(found))
        return self._zeros[1]

    def _exact(
        self, queries: Vectors, candidates: int, snapshot: Snapshot, allowed: Mask | None, start: int = 0
    ) -> list[Rows]:
        return exact_candidates(self.vectors, snapshot.shards, queries, candidates, allowed, start)

    def _proposed(
        self, queries: Vectors, candidates: int, snapshot: Snapshot, allowed: Mask | None, effort: int
    ) -> list[Rows]:
        """Return the rows that FAISS proposes, and the best of the rows that its index lacks."""
        covered = self.index.ntotal
        mask = None if allowed is None or allowed[:covered].all() else allowed[:covered]
        asked = candidates
        if factories.is_coarse(self.index):
            asked = max(LEAST_COARSE_FACTOR * candidates, min(COARSE_FACTOR * candidates, ENOUGH_CANDIDATES))
        asked = min(asked, covered)
        usual = factories.effort_of(self.index)
        if usual is not None:
            # efSearch is the number of candidates that a graph search tracks.
            least = asked if usual[0] == "efSearch" else 1
            effort = max(least, min(effort, usual[2]))
        found = self._asked(queries, asked, mask, effort if usual else None)
        # -1 stands for no row, and a damaged file may propose rows that it does not have.
        rows = [of_query[(of_query >= 0) & (of_query < covered)] for of_query in found]
        if mask is not None:
            rows = [of_query[mask[of_query]] for of_query in rows]
        if covered < snapshot.rows:
            rest = self._exact(queries, candidates, snapshot, allowed, covered)
            rows = [np.concatenate(pair) for pair in zip(rows, rest, strict=True)]
        return rows

    def _asked(self, queries: Vectors, asked: int, mask: Mask | None, effort: int | None) -> Rows:
        selector = None if mask is None else factories.selector_of(mask)
        parameters = factories.search_parameters(self.index, effort, selector)
        with suppress(RuntimeError):
            return np.asarray(self.index.search(queries, asked, params=parameters)[1])
        # Some kinds take no selector. They return more rows, and the caller drops the rows that are not allowed.
        part = 1.0 if mask is None else float(mask.mean())
        with suppress(RuntimeError):
            return np.asarray(self.index.search(queries, min(self.index.ntotal, round(2 * asked / part)))[1])
        # Its file is damaged; the caller compares the queries with every vector.
        return np.full((len(queries), 1), -1)

    def ranked(
        self, query: Vectors, rows: Rows, snapshot: Snapshot, most: int | None = None, *, alike: bool = False
    ) -> Ranking:
        """Return rows ranked by their cosine with one query (dimension,), nearest first, ties by row.

        Args:
            query: (dimension,), l2-normalised.
            rows: any rows.
            snapshot: the state to search.
            most: how many of the rows to return; None: all.
            alike: whether to leave out zero vectors, which resemble no vector; a zero query then finds no rows.
        """
        vectors = self.vectors.gather(snapshot.shards, rows)
        if alike:
            kept = np.flatnonzero(vectors.any(axis=1)) if query.any() else np.empty(0, np.int64)
            rows, vectors = rows[kept], vectors[kept]
        if most is not None and len(rows) > most:
            kept = highest(vectors @ query, most)
            rows, vectors = rows[kept], vectors[kept]
        scores = np.clip(vectors.astype(np.float64) @ query.astype(np.float64), -1.0, 1.0).astype(np.float32)
        order = np.lexsort((rows, -scores))[:most]
        return [(float(scores[place]), int(rows[place])) for place in order]

    def is_stale(self, snapshot: Snapshot) -> bool:
        """Return whether FAISS's newest file is missing, or lacks enough rows for a writer to rebuild it."""
        if self.factory_for(snapshot.rows) == "Flat":
            return False
        covered = max((cached.rows for cached in self.cache.fitting(snapshot)), default=0)
        missing = snapshot.rows - covered
        return missing > min(STALE_PART * snapshot.rows, max(STALE_ROWS, 0.02 * snapshot.rows))

    def build(self, snapshot: Snapshot) -> bool:
        """Train the FAISS index if needed, add the rows that its newest file lacks, and write it again.

        Only one process at a time may call this.

        Returns:
            Whether a new index was started; False also if there are too few rows to train on.

        Raises:
            OSError, RuntimeError: the file cannot be written.
        """
        if self.index is not None and self.memory_map:
            self.forget()
        index = self.cache.load(snapshot, 0)
        anew = index is None or self._outgrown(index, snapshot)
        if anew:
            index = self._trained(snapshot)
            if index is None:
                return False
        for block in self.vectors.blocks(snapshot.shards, index.ntotal):
            index.add(block)
        self.cache.write(index, snapshot)
        self.index = None if self.memory_map else index
        self._seen = (-1, -1)
        return anew

    def _outgrown(self, index: Any, snapshot: Snapshot) -> bool:
        """Return whether `auto` would by now use at least twice the number of lists."""
        if self.factory != factories.AUTO:
            return False
        lists = getattr(factories.inner(index), "nlist", 0)
        return bool(2 * lists <= factories.new_index(self.factory_for(snapshot.rows), self.vectors.dimension).nlist)

    def _trained(self, snapshot: Snapshot) -> Any:
        """Return an empty index trained on a sample of the rows, or None if there are too few."""
        factory = self.factory_for(snapshot.rows)
        index = factories.new_index(factory, self.vectors.dimension)
        if index.is_trained:
            return index
        centroids = factories.centroids(index)
        if snapshot.rows < factories.LEAST_TRAINING * centroids:
            return None
        size = min(snapshot.rows, max(factories.MOST_TRAINING * centroids, 10_000))
        chosen = np.unique(np.linspace(0, snapshot.rows - 1, size, dtype=np.int64))
        sample, row = [], 0
        # Shards are read sequentially, since a memory map would load almost all vectors into memory.
        for block in self.vectors.blocks(snapshot.shards):
            first, last = np.searchsorted(chosen, (row, row + len(block)))
            sample.append(block[chosen[first:last] - row])
            row += len(block)
        try:
            index.train(np.concatenate(sample))
        except RuntimeError as error:
            raise InputError(
                f"FAISS factory {factory!r} on {snapshot.rows} vectors: {factories.reason(error)}"
            ) from None
        return index


def exact_candidates(
    folder: ShardFolder, shards: Sequence[Shard], queries: Vectors, k: int, allowed: Mask | None, start: int = 0
) -> list[Rows]:
    """Return the k rows nearest to each query by inner product, and rows tied with the k-th, in the order of rows.

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
    """Return the allowed rows of a shard, counted from its row ``skip``; None if all are allowed."""
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
