"""The stored vectors of an index, and search among them: FAISS proposes passages, whose vectors give the cosines."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import compress
from operator import lt, ne
from typing import TYPE_CHECKING, Any

import numpy as np

from ctx_embed.deadlines import require_time
from ctx_embed.index.database import ROWS_AT_ONCE, Database, Settings
from ctx_embed.index.faiss_file import SPARE_CANDIDATES, Loaded, loaded
from ctx_embed.index.vectors import DTYPES, Mask, Rows, Vectors

if TYPE_CHECKING:
    from ctx_embed.index.folder import View

# If an approximate index may return at most this number of rows, or this share of all, all of them are compared.
FEW_ROWS, FEW_PART = 2_000, 0.02
# float32 scores that differ by less than this are ties until the cosines are computed in float64.
ROUNDING = 2e-6
# Maximum number of rows beyond k that are kept because they may equal the k-th.
MOST_TIES = 64
# Up to this number, vectors that FAISS's file lacks are cached; more are read again in each search.
CACHED_ROWS = 32_768
# Maximum number of vectors in memory that a search has read, and may read again.
LAST_VECTORS = 1_000


@dataclass(frozen=True)
class VectorTable:
    """The vectors of one model. Codes say their data type by their length; a zero vector has an empty code."""

    database: Database
    settings: Settings

    def put(self, rows: Sequence[int] | range, vectors: Vectors) -> None:
        """Store the vectors (n, dimension) of n new rows, or of rows whose data type changes."""
        encoded = zip(DTYPES[self.settings.dtype].encode(vectors), np.any(vectors, axis=1), strict=True)
        codes = [code.tobytes() if is_filled else b"" for code, is_filled in encoded]
        statement = f"INSERT OR REPLACE INTO vectors_{self.settings.table} VALUES (?, ?, ?)"
        self.database.run_many(statement, zip(rows, codes, map(zlib.crc32, codes), strict=True))

    def get(self, rows: Rows) -> Vectors:
        """Return the vectors (n, dimension) of rows, in their order."""
        # Not np.unique, which imports NumPy's masked arrays. One statement for any number of rows is prepared once.
        wanted = sorted(set(rows.tolist()))
        among = "row IN (SELECT value FROM json_each(?)) ORDER BY row"
        select = f"SELECT row, code, checksum FROM vectors_{self.settings.table} WHERE {among}"
        stored = self.database.run(select, (str(wanted),))
        if len(stored) < len(wanted):
            raise self.database.damaged("vectors are missing")
        vectors = self._decoded(stored)
        return vectors[np.searchsorted(wanted, rows)] if len(wanted) else vectors

    def blocks(self, after: int = -1) -> Iterator[tuple[Rows, Vectors]]:
        """Yield rows beyond ``after`` and their vectors, a few thousand at a time, without zero vectors."""
        select = f"SELECT row, code, checksum FROM vectors_{self.settings.table} WHERE row > ? ORDER BY row LIMIT ?"
        while stored := self.database.run(select, (after, ROWS_AT_ONCE)):
            if stored[0][0] <= after:
                raise self.database.damaged("its vectors are out of order")
            after = stored[-1][0]
            vectors = self._decoded(stored)
            kept = np.array([bool(code) for _, code, _ in stored])
            if kept.any():
                rows = np.array([row for row, _, _ in stored], np.int64)
                yield (rows, vectors) if kept.all() else (rows[kept], vectors[kept])

    def _decoded(self, stored: Sequence[tuple[Any, ...]]) -> Vectors:
        """Return the vectors of rows, codes and checksums, after checking them."""
        dimension = self.settings.dimension
        if not stored:
            return np.zeros((0, dimension), np.float32)
        types = {dimension * dtype.scalar().itemsize: dtype for dtype in DTYPES.values()}
        rows, codes, checksums = zip(*stored, strict=True)
        if set(map(type, codes)) != {bytes} or any(map(ne, map(zlib.crc32, codes), checksums)):
            raise self.database.damaged("the checksum of a vector is wrong")
        # A damaged table may repeat rows without end.
        if not all(map(lt, rows, rows[1:])):
            raise self.database.damaged("its vectors are out of order")
        widths = np.array(list(map(len, codes)))
        vectors = np.zeros((len(codes), dimension), np.float32)
        for width in set(widths.tolist()) - {0}:
            if width not in types:
                raise self.database.damaged("a vector has a wrong size")
            dtype, chosen = types[width], widths == width
            parts = np.frombuffer(b"".join(compress(codes, chosen)), dtype.scalar)
            decoded = dtype.decode(parts.reshape(-1, dimension))
            if chosen.all():
                return decoded
            vectors[chosen] = decoded
        return vectors


class Nearest:
    """Search by meaning in a view; it takes over what that of an earlier view has read, where that still holds."""

    def __init__(self, view: View, before: Nearest | None) -> None:
        self.view, self.rows, self.readable, self.vectors = view, view.rows, view.readable, view.vectors
        # Vectors that searches have read, by row, and all that FAISS's file lacks, by ascending rows.
        self._last: dict[int, Vectors] = {}
        self.cached: tuple[Rows, Vectors] | None = None
        self._before = before
        if before is not None:
            before._before = None

    @cached_property
    def faiss(self) -> Loaded | None:
        """FAISS's index; None if this view cannot use one."""
        view, before = self.view, None if self._before is None else vars(self._before).get("faiss")
        if view.record is None:
            return None
        is_same = before is not None and before.token == view.record.token
        return before if is_same else loaded(view.store.folder, view.record, view.settings, view.store.memory_map)

    @cached_property
    def of_faiss(self) -> tuple[Rows | slice, Mask | None]:
        """The positions (m,) of FAISS's rows, and which of these rows the view still has (m,), None for all."""
        assert self.faiss is not None
        rows = self.faiss.rows
        places: Rows | slice = slice(0, len(rows))
        # FAISS's rows are the first rows of the view unless the index was compacted since.
        if not np.array_equal(self.rows[places], rows):
            # Rows that the view lacks get any position.
            places = np.minimum(np.searchsorted(self.rows, rows), max(len(self.rows) - 1, 0))
        there = self.readable[places] & (self.rows[places] == rows)
        return places, None if there.all() else there

    @cached_property
    def rest(self) -> Mask:
        """Which positions have a vector that FAISS's file lacks (n,)."""
        mask: Mask = self.readable.copy()
        if self.faiss is not None:
            places, there = self.of_faiss
            mask[places if there is None else np.arange(len(mask))[places][there]] = False
        return mask

    def best(
        self, queries: Vectors, k: int, allowed: Mask | None = None, measured: int | None = None
    ) -> list[tuple[Rows, Vectors]]:
        """Return the k allowed rows nearest to each unit query (Q, dimension), and their cosines, nearest first.

        Zero vectors are not found. An approximate index has the measured recall for the first ``measured`` (None: k).
        """
        # Most searches may find all passages, which needs no masks.
        mask = None if allowed is None or allowed is self.view.unfiltered else self.readable & allowed
        count = int(np.count_nonzero(self.readable if mask is None else mask))
        wanted = min(k, count)
        faiss = self.faiss
        if not wanted:
            return [(np.empty(0, np.int64), np.empty(0, np.float32)) for _ in queries]
        if faiss is None or (not faiss.exact and count <= max(FEW_ROWS, FEW_PART * self.view.count)):
            proposed = self.compared(queries, wanted + SPARE_CANDIDATES, mask)
        else:
            places, there = self.of_faiss
            if mask is not None:
                there = mask[places] if there is None else there & mask[places]
            # The fewer rows may be found, the more lists are looked into for each.
            proposed = faiss.proposed(queries, wanted, measured or wanted, there, self.view.count / count)
            # Add the best of the rows that FAISS's file lacks.
            if self.rest.any() and (rest := self.rest if mask is None else mask & self.rest).any():
                more = self.compared(queries, wanted + SPARE_CANDIDATES, rest)
                proposed = [np.concatenate(pair) for pair in zip(proposed, more, strict=True)]
        ranked = [self.ranked(query, rows, wanted) for query, rows in zip(queries, proposed, strict=True)]
        short = [place for place, (rows, _) in enumerate(ranked) if len(rows) < wanted and queries[place].any()]
        if short:
            # An approximate index may return fewer rows than there are.
            whole = self.compared(queries[short], wanted + SPARE_CANDIDATES, mask)
            for place, rows in zip(short, whole, strict=True):
                ranked[place] = self.ranked(queries[place], rows, wanted)
        return ranked

    def ranked(self, query: Vectors, rows: Rows, most: int) -> tuple[Rows, Vectors]:
        """Return the ``most`` rows nearest to one query, nearest first, and their cosines; skip zero vectors."""
        require_time()
        rows = rows if query.any() else rows[:0]
        vectors = self.vectors_of(rows)
        kept = vectors.any(axis=1)
        if not kept.all():
            rows, vectors = rows[kept], vectors[kept]
        # Summed in float64, so that a cosine does not depend on the other rows.
        sums = vectors.astype(np.float64) @ query.astype(np.float64)
        cosines: Vectors = np.clip(sums, -1, 1).astype(np.float32)
        order = np.lexsort((rows, -cosines))[:most]
        return rows[order], cosines[order]

    def vectors_of(self, rows: Rows) -> Vectors:
        """Return the vectors (n, dimension) of rows, read again only if they are many or not among the last ones."""
        if self.cached is not None and len(self.cached[0]):
            cached, vectors = self.cached
            places = np.searchsorted(cached, rows)
            if (cached.take(places, mode="clip") == rows).all():
                return vectors[places]
        if not 0 < len(rows) <= LAST_VECTORS // 2:
            return self.vectors.get(rows)
        wanted = rows.tolist()
        if new := [row for row in wanted if row not in self._last]:
            if len(self._last) + len(new) > LAST_VECTORS:
                self._last, new = {}, wanted
            self._last |= zip(new, self.vectors.get(np.array(new)), strict=True)
        # Faster than np.stack, which looks at each vector first.
        return np.concatenate([self._last[row] for row in wanted]).reshape(len(rows), -1)

    def compared(self, queries: Vectors, k: int, mask: Mask | None, read: Callable[[int], object] = bool) -> list[Rows]:
        """Return the k readable rows in a mask (None: all) nearest to each query, and those tied with the k-th.

        ``read`` is called with numbers of rows as they are read.
        """
        mask = self.readable if mask is None else mask
        # Rows and scores of each query, and the k-th score, below which nothing is wanted.
        best: list[tuple[Rows, Vectors, Any]] = [(np.empty(0, np.int64), np.empty(0, np.float32), None)] * len(queries)
        wanted = self.rows[mask]
        blocks: Any
        if int(self.rest.sum()) <= CACHED_ROWS and not (mask & ~self.rest).any():
            if self.cached is None:
                rows = self.rows[self.rest]
                vectors = np.empty((len(rows), self.view.settings.dimension), np.float32)
                # An earlier view may have read some.
                old, of_old = (self._before and self._before.cached) or (rows[:0], vectors[:0])
                there = np.isin(rows, old, assume_unique=True)
                vectors[there] = of_old[np.isin(old, rows, assume_unique=True)]
                vectors[~there] = self.vectors.get(rows[~there])
                self.cached, self._before = (rows, vectors), None
            blocks = [self.cached]
        elif len(wanted) <= FEW_ROWS:
            blocks = [(wanted, self.vectors.get(wanted))]
        else:
            blocks = self.vectors.blocks(int(wanted[0]) - 1)
        for rows, vectors in blocks:
            read(len(rows))
            kept = mask[self.view.positions(rows)]
            if not kept.all():
                rows, vectors = rows[kept], vectors[kept]
            if not len(rows):
                continue
            for number, scores in enumerate(queries @ vectors.T):
                old_rows, old_scores, lowest = best[number]
                some = slice(None) if lowest is None else scores >= lowest - ROUNDING
                of_rows, of_scores = np.concatenate([old_rows, rows[some]]), np.concatenate([old_scores, scores[some]])
                if len(of_scores) > k:
                    lowest = np.partition(of_scores, -k)[-k]
                    above = np.flatnonzero(of_scores > lowest + ROUNDING)
                    ties = np.flatnonzero((of_scores <= lowest + ROUNDING) & (of_scores >= lowest - ROUNDING))
                    chosen = np.sort(np.concatenate([above, ties[: k - len(above) + MOST_TIES]]))
                    of_rows, of_scores = of_rows[chosen], of_scores[chosen]
                best[number] = of_rows, of_scores, lowest
        return [rows for rows, *_ in best]
