"""Search by vectors: FAISS proposes rows, or all are compared; the cosines come from the raw vectors."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

import faiss
import numpy as np

from ctx_embed.errors import InputError
from ctx_embed.index.ann import factories
from ctx_embed.index.ann.cache import Cache
from ctx_embed.index.ann.exact import Rows, exact_candidates
from ctx_embed.index.storage.documents import Mask
from ctx_embed.index.storage.shards import ShardFolder, Vectors
from ctx_embed.index.storage.snapshot import Snapshot

Ranking: TypeAlias = list[tuple[float, int]]

# Candidates beyond k that are scored anew from the raw vectors: it mends the order of quantized and of tied ones.
SPARE_CANDIDATES = 16
# Of coarsely quantized vectors, so many times k.
COARSE_FACTOR = 10
# Where at most so many rows, or so small a part, may be found, all of these are compared.
FEW_ROWS, FEW_PART = 20_000, 0.05
# FAISS's file is written again when so many rows are missing from it, or when so large a part is.
STALE_ROWS, STALE_PART = 25_000, 0.1


class VectorIndex:
    """Search over the vectors of a shard folder.

    The FAISS index is a cache that a writer leaves behind: rows it lacks, and all rows where there is none, are
    compared one by one, so that a reader never has to train or build anything.

    Args:
        folder: of FAISS's files.
        vectors: the truth.
        factory: ``auto`` or a FAISS factory string.
        memory_map: leave FAISS's vectors in the file.

    Raises:
        InputError: as :func:`ctx_embed.index.ann.factories.checked_factory`.
    """

    def __init__(self, folder: Path, vectors: ShardFolder, factory: str, memory_map: bool = False) -> None:
        self.cache = Cache(folder, vectors.dimension)
        self.vectors = vectors
        self.factory = factories.checked_factory(factory, vectors.dimension)
        self.memory_map = memory_map
        self.index: Any = None
        self._seen: tuple[int, int] = (-1, -1)
        self._effort: int | None = None

    def factory_for(self, rows: int) -> str:
        """The factory string for so many rows."""
        return factories.auto_factory(rows) if self.factory == factories.AUTO else self.factory

    def forget(self) -> None:
        """Drop the loaded index; it is read again when it is needed."""
        self.index = None
        self._seen = (-1, -1)

    def refresh(self, snapshot: Snapshot) -> None:
        """Load the newest file of FAISS that fits, where the state is another one than at the last look."""
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
        """How FAISS reads its file: inverted lists and other kinds are mapped into memory in two ways."""
        if not self.memory_map:
            return 0
        lists = self.factory == factories.AUTO or "IVF" in self.factory
        return int(faiss.IO_FLAG_MMAP if lists else faiss.IO_FLAG_MMAP_IFC)

    def _tuned(self, snapshot: Snapshot) -> int | None:
        """The search parameter that was measured for this index, or the usual one."""
        usual = None if self.index is None else factories.effort_of(self.index)
        if usual is None:
            return None
        with suppress(ValueError):
            tuned = json.loads(snapshot.tuned).get(self.described())
            if isinstance(tuned, dict) and isinstance(tuned.get(usual[0]), int):
                return int(tuned[usual[0]])
        return usual[1]

    def described(self) -> str:
        """The loaded index's kind, with its number of lists: what a measured parameter holds for."""
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
        """The k nearest rows of each query by cosine, the nearest first, among equals the one added first.

        Args:
            queries: (Q, dimension), l2-normalised.
            k: at least 1.
            snapshot: the state searched.
            allowed: which rows may be found; None: all.
            effort: nprobe or efSearch, by default the tuned or usual one.

        Returns:
            Q lists of min(k, rows that may be found) pairs (cosine, row). The cosines, and with them the order, come
            from the raw vectors, so that they do not depend on the kind of index or on the batch.
        """
        self.refresh(snapshot)
        found = snapshot.rows if allowed is None else int(allowed.sum())
        wanted = min(k, found)
        if not wanted:
            return [[] for _ in queries]
        candidates = wanted + SPARE_CANDIDATES
        if self.index is None or found <= FEW_ROWS or found <= FEW_PART * snapshot.rows:
            proposed = self._exact(queries, candidates, snapshot, allowed)
        else:
            harder = (effort or self._effort or 1) * snapshot.rows / found
            proposed = self._proposed(queries, candidates, snapshot, allowed, round(harder))
        ranked = [self.ranked(query, rows, snapshot)[:wanted] for query, rows in zip(queries, proposed, strict=True)]
        short = [place for place, ranking in enumerate(ranked) if len(ranking) < wanted]
        if short:
            # An approximate index may come back with fewer than there are.
            whole = self.search_exactly(queries[short], wanted, snapshot, allowed)
            for place, ranking in zip(short, whole, strict=True):
                ranked[place] = ranking
        return ranked

    def search_exactly(
        self, queries: Vectors, k: int, snapshot: Snapshot, allowed: Mask | None = None
    ) -> list[Ranking]:
        """As :meth:`search`, by comparison with every vector."""
        proposed = self._exact(queries, k + SPARE_CANDIDATES, snapshot, allowed)
        return [self.ranked(query, rows, snapshot)[:k] for query, rows in zip(queries, proposed, strict=True)]

    def _exact(
        self, queries: Vectors, candidates: int, snapshot: Snapshot, allowed: Mask | None, start: int = 0
    ) -> list[Rows]:
        return exact_candidates(self.vectors, snapshot.shards, queries, candidates, allowed, start)

    def _proposed(
        self, queries: Vectors, candidates: int, snapshot: Snapshot, allowed: Mask | None, effort: int
    ) -> list[Rows]:
        """What FAISS proposes, and the best of the rows that it lacks."""
        covered = self.index.ntotal
        mask = None if allowed is None or allowed[:covered].all() else allowed[:covered]
        asked = min(candidates * (COARSE_FACTOR if factories.is_coarse(self.index) else 1), covered)
        usual = factories.effort_of(self.index)
        if usual is not None:
            # A graph's effort is the number of candidates that it keeps.
            least = asked if usual[0] == "efSearch" else 1
            effort = max(least, min(effort, usual[2]))
        found = self._asked(queries, asked, mask, effort if usual else None)
        rows = [of_query[of_query >= 0] for of_query in found]
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
        # Some kinds take no selector: they are asked for more, of which the caller drops what may not be found.
        part = 1.0 if mask is None else float(mask.mean())
        return np.asarray(self.index.search(queries, min(self.index.ntotal, round(2 * asked / part)))[1])

    def ranked(self, query: Vectors, rows: Rows, snapshot: Snapshot) -> Ranking:
        """Rows by their cosine with one query (dimension,), the nearest first, among equals by row."""
        vectors = self.vectors.gather(snapshot.shards, rows).astype(np.float64)
        scores = np.clip(vectors @ query.astype(np.float64), -1.0, 1.0).astype(np.float32)
        order = np.lexsort((rows, -scores))
        return [(float(scores[place]), int(rows[place])) for place in order]

    def is_stale(self, snapshot: Snapshot) -> bool:
        """Whether FAISS's newest file lacks so many rows, or none is there, that a writer should build it."""
        if self.factory_for(snapshot.rows) == "Flat":
            return False
        covered = max((cached.rows for cached in self.cache.fitting(snapshot)), default=0)
        missing = snapshot.rows - covered
        return missing > min(STALE_PART * snapshot.rows, max(STALE_ROWS, 0.02 * snapshot.rows))

    def build(self, snapshot: Snapshot) -> bool:
        """Train where needed, add the rows that FAISS's newest file lacks, and write it again.

        One process at a time may call this.

        Returns:
            Whether the index was trained or begun anew; False also where too few rows are there to train on.

        Raises:
            OSError, RuntimeError: the disk does not take the file.
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
        """Whether `auto` would by now take twice the number of lists."""
        if self.factory != factories.AUTO:
            return False
        lists = getattr(factories.inner(index), "nlist", 0)
        return bool(2 * lists <= factories.new_index(self.factory_for(snapshot.rows), self.vectors.dimension).nlist)

    def _trained(self, snapshot: Snapshot) -> Any:
        """An index without rows, trained on a sample; None where the rows are too few for that."""
        factory = self.factory_for(snapshot.rows)
        index = factories.new_index(factory, self.vectors.dimension)
        if index.is_trained:
            return index
        centroids = factories.centroids(index)
        if snapshot.rows < factories.LEAST_TRAINING * centroids:
            return None
        size = min(snapshot.rows, max(factories.MOST_TRAINING * centroids, 10_000))
        chosen = np.unique(np.linspace(0, snapshot.rows - 1, size, dtype=np.int64))
        try:
            index.train(self.vectors.gather(snapshot.shards, chosen))
        except RuntimeError as error:
            raise InputError(
                f"FAISS factory {factory!r} on {snapshot.rows} vectors: {factories.reason(error)}"
            ) from None
        return index
