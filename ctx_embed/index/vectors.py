"""The FAISS index over the raw vectors: built from them, cached in a file, extended by what was added since."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from ctx_embed.errors import InputError
from ctx_embed.index.shards import Shard, ShardFolder, Vectors

Rows = NDArray[np.int64]

# Candidates beyond k that are scored anew from the raw vectors: it mends the order of quantized and of tied ones.
SPARE_CANDIDATES = 16
# Vectors that training sees for each one that it needs at least, as FAISS itself would sample them.
TRAINING_FACTOR = 256
# The cache is written again when so large a part of the rows is missing from it.
STALE_PART = 0.1
_CACHE_NAME = re.compile(r"g(\d+)-n(\d+)-([0-9a-f]{8})\.faiss")


def _reason(error: Exception) -> str:
    """What FAISS says, without its place in the C++ source."""
    return re.split(r"failed: |cpp:\d+: (?:Error: )?", " ".join(str(error).split()))[-1] or type(error).__name__


def new_index(factory: str, dimension: int) -> Any:
    """An empty FAISS index of inner products.

    Args:
        factory: a FAISS factory string, e.g. ``Flat``, ``HNSW32`` or ``IVF256,PQ32``.
        dimension: numbers in a vector.

    Raises:
        InputError: FAISS does not know it, or it cannot take vectors piece by piece or compare by inner products.
    """
    if not isinstance(factory, str):
        raise InputError(f"the FAISS factory is a {type(factory).__name__}, a string is needed, e.g. 'Flat'")
    try:
        index = faiss.index_factory(dimension, factory, faiss.METRIC_INNER_PRODUCT)
    except (RuntimeError, MemoryError) as error:
        raise InputError(f"FAISS factory {factory!r}: {_reason(error)}; try Flat, HNSW32 or IVF256,Flat") from None
    kind = type(index).__name__
    problem = ""
    # FAISS takes sizes of 0, and then divides by them or never answers.
    if any(int(size) == 0 for size in re.findall(r"\d+", factory)) or re.search(r"HNSW0*1(?!\d)", factory):
        problem = "a size in it is too small"
    elif "IDMap" in kind:
        problem = "ids are kept beside the vectors already, leave IDMap out"
    elif "NSG" in kind or "NNDescent" in kind:
        problem = "its graph cannot grow by additions, take HNSW instead"
    elif index.metric_type != faiss.METRIC_INNER_PRODUCT:
        problem = "it cannot compare by inner products"
    if problem:
        raise InputError(f"FAISS factory {factory!r}: {problem}; try Flat, HNSW32 or IVF256,Flat")
    return index


def _prepare_training(index: Any) -> int:
    """Silence FAISS's advice on more training vectors, and tell how many it cannot do without."""
    needed = 1
    if hasattr(index, "nlist"):
        needed = index.nlist
        index.cp.min_points_per_centroid = 1
    if hasattr(index, "pq"):
        needed = max(needed, index.pq.ksub)
        index.pq.cp.min_points_per_centroid = 1
    for part in ("index", "base_index", "storage"):
        if hasattr(index, part):
            needed = max(needed, _prepare_training(faiss.downcast_index(getattr(index, part))))
    return needed


def _crc32(path: Path) -> int:
    checksum = 0
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            checksum = zlib.crc32(chunk, checksum)
    return checksum


@dataclass(frozen=True)
class Snapshot:
    """The shards of one generation."""

    generation: int
    shards: Sequence[Shard]

    @property
    def rows(self) -> int:
        """The number of vectors."""
        return sum(shard.rows for shard in self.shards)


class VectorIndex:
    """Search over the vectors of a shard folder.

    A cache file holds the FAISS index of an earlier generation, with that and its number of rows and checksum in its
    name; rows are only ever added, so it remains a beginning of every later state. ``Flat`` has no such file: the
    shards are as quick to load.

    Args:
        folder: of the cache files.
        vectors: the truth.
        factory: a FAISS factory string.

    Raises:
        InputError: as :func:`new_index`.
    """

    def __init__(self, folder: Path, vectors: ShardFolder, factory: str) -> None:
        self.folder = folder
        self.vectors = vectors
        self.factory = factory
        self._empty = new_index(factory, vectors.dimension)
        self._index: Any = None
        self.is_cached = not isinstance(self._empty, faiss.IndexFlat)

    def train(self, snapshot: Snapshot) -> None:
        """Train an index without rows on those of ``snapshot``, where its kind needs it.

        Raises:
            InputError: they are too few.
        """
        index = new_index(self.factory, self.vectors.dimension)
        if not index.is_trained:
            needed = _prepare_training(index)
            rows = snapshot.rows
            chosen = np.unique(np.linspace(0, rows - 1, min(rows, needed * TRAINING_FACTOR), dtype=np.int64))
            if rows < needed:
                raise InputError(
                    f"FAISS factory {self.factory!r} is trained on the first addition and needs at least {needed} "
                    f"documents in it, got {rows}: add more at once, or take a smaller factory, e.g. Flat"
                )
            try:
                index.train(self.vectors.gather(snapshot.shards, chosen))
            except RuntimeError as error:
                raise InputError(f"FAISS factory {self.factory!r} on {rows} documents: {_reason(error)}") from None
        if hasattr(index, "nlist"):
            # FAISS would look into one cell of nlist.
            index.nprobe = max(1, round(index.nlist**0.5))
        self._index = index

    def forget(self) -> None:
        """Drop the loaded index; it is read or built again when it is needed."""
        self._index = None

    def forget_if_empty(self) -> None:
        """Drop a training on rows that were not committed."""
        if self._index is not None and self._index.ntotal == 0:
            self.forget()

    def refresh(self, snapshot: Snapshot) -> None:
        """Load the index where it is not loaded, and add the rows that it lacks."""
        if self._index is None:
            self._index = self._cached(snapshot)
        if self._index is None:
            self.train(snapshot)
        for block in self.vectors.blocks(snapshot.shards, self._index.ntotal):
            self._index.add(block)

    def search(self, queries: Vectors, k: int, snapshot: Snapshot) -> list[list[tuple[float, int]]]:
        """The k nearest rows of each query by cosine, the nearest first, among equals the one added first.

        Args:
            queries: (Q, dimension), l2-normalised.
            k: at least 1.
            snapshot: the state searched, of at least one row; :meth:`refresh` has seen it.

        Returns:
            Q lists of min(k, rows) pairs (cosine, row). The index proposes the rows; the cosines, and with them the
            order, come from the raw vectors, so that they do not depend on the kind of index or on the batch.
        """
        wanted = min(k, snapshot.rows)
        _, proposed = self._index.search(queries, min(k + SPARE_CANDIDATES, snapshot.rows))
        results = []
        for query, rows in zip(queries, proposed, strict=True):
            found = rows[rows >= 0]
            if len(found) < wanted:
                # An approximate index may come back with fewer than there are.
                found = self._exact(query, wanted, snapshot)
            vectors = self.vectors.gather(snapshot.shards, found).astype(np.float64)
            scores = np.clip(vectors @ query.astype(np.float64), -1.0, 1.0).astype(np.float32)
            order = np.lexsort((found, -scores))[:wanted]
            results.append([(float(scores[place]), int(found[place])) for place in order])
        return results

    def _exact(self, query: Vectors, k: int, snapshot: Snapshot) -> Rows:
        """The k rows nearest to one query (dimension,) by comparison with all."""
        rows = np.empty(0, np.int64)
        scores = np.empty(0, np.float32)
        for shard in snapshot.shards:
            rows = np.concatenate([rows, np.arange(shard.first, shard.first + shard.rows)])
            scores = np.concatenate([scores, self.vectors.map(shard) @ query])
            best = np.argsort(-scores, kind="stable")[:k]
            rows, scores = rows[best], scores[best]
        return rows

    def _caches(self) -> list[tuple[int, int, int, Path]]:
        """The cache files as (generation, rows, checksum, path), the newest first."""
        matches = [(_CACHE_NAME.fullmatch(path.name), path) for path in self.folder.glob("*.faiss")]
        return sorted(((int(m[1]), int(m[2]), int(m[3], 16), path) for m, path in matches if m), reverse=True)

    def _cached(self, snapshot: Snapshot) -> Any:
        """The newest cached index that belongs to ``snapshot`` or to an earlier state; None where there is none."""
        for generation, rows, checksum, path in self._caches():
            # Another process may remove the file at any time, and whatever is wrong with it, the vectors are there.
            with suppress(OSError, RuntimeError):
                if generation > snapshot.generation or rows > snapshot.rows or _crc32(path) != checksum:
                    continue
                index = faiss.read_index(str(path))
                if index.ntotal == rows and index.d == self.vectors.dimension and type(index) is type(self._empty):
                    return index
        return None

    def save(self, snapshot: Snapshot) -> None:
        """Write the cache anew when a good part of the rows is missing from it; failing to write is no error.

        One process at a time may call this.
        """
        newest = max((rows for generation, rows, *_ in self._caches() if generation <= snapshot.generation), default=0)
        if not self.is_cached or snapshot.rows - newest <= STALE_PART * snapshot.rows:
            return
        self.refresh(snapshot)
        beside = self.folder / "next.tmp"
        with suppress(OSError, RuntimeError):
            faiss.write_index(self._index, str(beside))
            beside.replace(self.folder / f"g{snapshot.generation}-n{snapshot.rows}-{_crc32(beside):08x}.faiss")
            for generation, _, _, path in self._caches():
                if generation != snapshot.generation:
                    path.unlink()
