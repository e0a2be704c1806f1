"""The folder of an index, without its model. A View is one generation of it, with all that searches computed."""

from __future__ import annotations

import operator
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import compress
from operator import lt, ne
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ctx_embed.errors import InputError
from ctx_embed.index.database import DATABASE, MAPPED, ROWS_AT_ONCE, ChangedError, Database, Settings, rows_of
from ctx_embed.index.faiss_file import SPARE_CANDIDATES, Loaded, loaded
from ctx_embed.index.filters import Condition, form_of_date
from ctx_embed.index.vectors import DTYPES, Mask, Rows, Vectors

Result = TypeVar("Result")

# How often a process without write permission reads again if others write meanwhile.
ATTEMPTS = 20
# The number of filters whose rows are cached.
REMEMBERED_FILTERS = 8
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


def read_settings(folder: str | Path) -> Settings:
    """Return the settings of the index in a folder; raise InputError if it has none that can be read."""
    with closing(Database(folder)) as database:
        return database.present()


def is_free(folder: Path) -> bool:
    """Return whether a folder does not exist yet or is empty."""
    return not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))


def require_free(folder: Path) -> None:
    """Raise InputError if a folder for a copy exists and is not empty, or lies in an index."""
    if (folder.parent / DATABASE).is_file():
        raise InputError(f"{folder}: lies in an index; choose another folder")
    if not is_free(folder):
        raise InputError(f"{folder}: already exists; choose another name")


class IndexFolder(Database):
    """An index on disk, with the settings and the view of its newest generation that was read."""

    def __init__(self, folder: str | Path, memory_map: bool = False) -> None:
        super().__init__(folder, memory_map)
        self._view: View | None = None
        try:
            self.settings = self.present()
            self.require_all_rows()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Release files and memory."""
        super().close()
        self._view = None

    def read(self, work: Callable[[View], Result]) -> Result:
        """Return the result of ``work`` on the newest generation, which stays the same while ``work`` runs."""
        # Only a process that searches again has the file mapped, see MAPPED.
        if not self._mapped and self._view is not None and self._view.computed:
            with self.reporting_errors():
                self._mapped = True
                self.connection.execute(f"PRAGMA mmap_size = {MAPPED}")
        for _ in range(ATTEMPTS):
            with suppress(ChangedError), self.reading():
                view = before = self._view
                if view is None or view.state != self.state():
                    # It takes over what the last view had computed.
                    view = View(self, before)
                    if before is not None and view.settings.table != before.settings.table:
                        raise self.embedded_again()
                    self.settings, self._view = view.settings, view
                return work(view)
        raise ChangedError(f"{self.folder}: was changed while it was read; try again")

    def embedded_again(self) -> InputError:
        """Return the error for an index that has another model than it had when it was opened."""
        return InputError(f"{self.folder}: was embedded again with another model meanwhile; open it again")

    def require_in_place(self, *, no_copy: bool = False) -> None:
        """Raise InputError if the index that was opened has been replaced or removed; ``no_copy``: only by a copy."""
        place: tuple[int, int] | None = None
        with suppress(OSError):
            found = os.stat(self.path)
            place = found.st_dev, found.st_ino
        if place == self.opened or (no_copy and place is None):
            return
        # After another index replaced it, the opened one still answers.
        other = read_settings(self.folder)
        if not no_copy or other.index_id == self.settings.index_id:
            raise InputError(f"{self.folder}: another index has replaced it; open it again")


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
        found = self.database.run(select, (str(wanted),))
        if len(found) < len(wanted):
            raise self.database.damaged("vectors are missing")
        vectors = self._decoded(found)
        return vectors[np.searchsorted(wanted, rows)] if len(wanted) else vectors

    def blocks(self, after: int = -1) -> Iterator[tuple[Rows, Vectors]]:
        """Yield rows beyond ``after`` and their vectors, a few thousand at a time, without zero vectors."""
        select = f"SELECT row, code, checksum FROM vectors_{self.settings.table} WHERE row > ? ORDER BY row LIMIT ?"
        while found := self.database.run(select, (after, ROWS_AT_ONCE)):
            if found[0][0] <= after:
                raise self.database.damaged("its vectors are out of order")
            after = found[-1][0]
            vectors = self._decoded(found)
            kept = np.array([bool(code) for _, code, _ in found])
            if kept.any():
                rows = np.array([row for row, _, _ in found], np.int64)
                yield (rows, vectors) if kept.all() else (rows[kept], vectors[kept])

    def _decoded(self, found: Sequence[tuple[Any, ...]]) -> Vectors:
        """Return the vectors of rows, codes and checksums, after checking them."""
        dimension = self.settings.dimension
        if not found:
            return np.zeros((0, dimension), np.float32)
        types = {dimension * dtype.scalar().itemsize: dtype for dtype in DTYPES.values()}
        rows, codes, checksums = zip(*found, strict=True)
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


class View:
    """One generation of an index; use it inside the transaction that it was made in.

    A row never changes its number; positions, which masks use, are counted from the last compaction. A view takes over
    from the one before what the commits between them have left true.
    """

    def __init__(self, store: Database, before: View | None = None) -> None:
        self.store = store
        self.settings, self.state, self.record = store.present(), store.state(), store.record()
        self.vectors = VectorTable(store, self.settings)
        # The last compaction's generation, the next row at that time, and the rows (n,) that it kept.
        compaction = store.run("SELECT generation, stop, ranges FROM compaction")
        try:
            ((generation, stop, ranges),) = compaction
            self.compacted, stop, rows = operator.index(generation), operator.index(stop), rows_of(ranges)
        except (ValueError, TypeError, MemoryError):
            raise store.damaged("the rows of its last compaction are missing or overlap") from None
        live = readable = np.ones(len(rows), bool)
        # The first row, and the number of the last deletion, that `live` and `readable` do not know yet.
        first = self._deleted = 0
        # What searches compute from this view, and what they have computed from earlier ones.
        self.computed: dict[str, Any] = {}
        self.earlier: dict[str, Any] = {}
        # For each filter, the positions that match it, the next row, and the generation that last changed metadata.
        self._masks: dict[Condition, tuple[Mask, int, int]] = {}
        self._last_vectors: dict[int, Vectors] = {}
        # The fields that filters may compare with strings, each with the form of a date among these.
        self._texts: set[tuple[str, str]] = set()
        if before is not None and (before.compacted, before.settings.table) == (self.compacted, self.settings.table):
            first = stop = before.state.next_row
            rows, live, readable, self._deleted = before.rows, before.live, before.readable, before._deleted
            self.earlier, self._masks = before.earlier | before.computed, before._masks
        # The row at each position (n,), ascending; whether it belongs to a document, as it was not deleted since; and
        # whether its vector is not zero, too.
        try:
            new = np.ones(max(self.state.next_row - stop, 0), bool)
            self.rows: Rows = np.concatenate([rows, np.arange(stop, stop + len(new))])
        except (ValueError, MemoryError):
            raise store.damaged(f"its next row is {self.state.next_row}") from None
        self.live: Mask = np.concatenate([live, new])
        self.readable: Mask = np.concatenate([readable, new])
        zeros = f"SELECT row FROM vectors_{self.settings.table} WHERE code = x'' AND row >= ?"
        if found := store.integers(zeros, first):
            self.readable[self.positions(np.array(found, np.int64).ravel())] = False
        deleted = "SELECT number, row, passages FROM deleted WHERE number > ? ORDER BY number"
        for number, row, passages in store.integers(deleted, self._deleted):
            position = int(np.searchsorted(self.rows, row))
            self.live[position : position + passages] = self.readable[position : position + passages] = False
            self._deleted = number
        # The number of passages, and the positions (n,) that a search without a filter may find, None for all.
        self.count = int(np.count_nonzero(self.live))
        self.unfiltered: Mask | None = None if self.count == len(self.rows) else self.live

    def positions(self, rows: Rows) -> Rows:
        """Return the positions (n,) of rows that the view has."""
        found = np.searchsorted(self.rows, rows)
        if len(found) and found.max() >= len(self.rows):
            raise self.store.damaged("it has rows beyond its last one")
        return found

    def require_texts(self, condition: Condition) -> None:
        """Raise InputError if a filter compares strings with numbers, or ISO dates with others."""
        for path, date in condition.texts:
            if (path, form_of_date(date)) not in self._texts:
                self.store.require_texts(path, date)
                self._texts.add((path, form_of_date(date)))

    def allowed(self, condition: Condition) -> Mask:
        """Return which positions (n,) a metadata filter lets a search find."""
        mask, stop, edited = self._masks.pop(condition, (self.live[:0], 0, -1))
        if edited != self.state.edited:
            mask, stop = self.live[:0], 0
        if len(mask) < len(self.rows):
            found = self.store.firsts(condition, stop)
            mask = np.concatenate([mask, np.zeros(len(self.rows) - len(mask), bool)])
            for position, passages in zip(self.positions(found[:, 0]).tolist(), found[:, 1].tolist(), strict=True):
                mask[position : position + passages] = True
        if len(self._masks) == REMEMBERED_FILTERS:
            self._masks.pop(next(iter(self._masks)))
        self._masks[condition] = mask, self.state.next_row, self.state.edited
        return mask & self.live

    @cached_property
    def faiss(self) -> Loaded | None:
        """FAISS's index; None if this view cannot use one."""
        found: Loaded | None = self.earlier.pop("faiss", None)
        if self.record is None:
            return None
        if found is None or found.token != self.record.token:
            found = loaded(self.store.folder, self.record, self.settings, self.store.memory_map)
        self.computed["faiss"] = found
        return found

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

    def nearest(
        self, queries: Vectors, k: int, allowed: Mask | None = None, surely: int | None = None
    ) -> list[tuple[Rows, Vectors]]:
        """Return the k allowed rows nearest to each unit query (Q, dimension), and their cosines, nearest first.

        Zero vectors are not found. An approximate index may miss some beyond the first ``surely`` (None: k).
        """
        # Most searches may find all passages, which needs no masks.
        mask = None if allowed is None or allowed is self.unfiltered else self.readable & allowed
        found = int(np.count_nonzero(self.readable if mask is None else mask))
        wanted = min(k, found)
        faiss = self.faiss
        if not wanted:
            return [(np.empty(0, np.int64), np.empty(0, np.float32)) for _ in queries]
        if faiss is None or (not faiss.exact and found <= max(FEW_ROWS, FEW_PART * self.count)):
            proposed = self.compared(queries, wanted + SPARE_CANDIDATES, mask)
        else:
            places, there = self.of_faiss
            if mask is not None:
                there = mask[places] if there is None else there & mask[places]
            # The fewer rows may be found, the more lists are looked into for each.
            proposed = faiss.proposed(queries, wanted, surely or wanted, there, self.count / found)
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
        known, of_known = self.computed.get("rest_vectors", (rows[:0], None))
        places = np.searchsorted(known, rows)
        if len(known) and (known.take(places, mode="clip") == rows).all():
            found: Vectors = of_known[places]
            return found
        if not 0 < len(rows) <= LAST_VECTORS // 2:
            return self.vectors.get(rows)
        wanted = rows.tolist()
        if new := [row for row in wanted if row not in self._last_vectors]:
            if len(self._last_vectors) + len(new) > LAST_VECTORS:
                self._last_vectors, new = {}, wanted
            self._last_vectors |= zip(new, self.vectors.get(np.array(new)), strict=True)
        # Faster than np.stack, which looks at each vector first.
        return np.concatenate([self._last_vectors[row] for row in wanted]).reshape(len(rows), -1)

    def compared(self, queries: Vectors, k: int, mask: Mask | None) -> list[Rows]:
        """Return the k readable rows in a mask (None: all) nearest to each query, and those tied with the k-th."""
        mask = self.readable if mask is None else mask
        best: list[tuple[Rows, Vectors]] = [(np.empty(0, np.int64), np.empty(0, np.float32)) for _ in queries]
        wanted = self.rows[mask]
        blocks: Any
        if int(self.rest.sum()) <= CACHED_ROWS and not (mask & ~self.rest).any():
            if "rest_vectors" not in self.computed:
                # All vectors that FAISS's file lacks; an earlier view may have read some.
                rows = self.rows[self.rest]
                vectors = np.empty((len(rows), self.settings.dimension), np.float32)
                known, of_known = self.earlier.get("rest_vectors", (rows[:0], vectors[:0]))
                there = np.isin(rows, known, assume_unique=True)
                vectors[there] = of_known[np.isin(known, rows, assume_unique=True)]
                vectors[~there] = self.vectors.get(rows[~there])
                self.computed["rest_vectors"] = rows, vectors
                self.earlier.pop("rest_vectors", None)
            blocks = [self.computed["rest_vectors"]]
        elif len(wanted) <= FEW_ROWS:
            blocks = [(wanted, self.vectors.get(wanted))]
        else:
            blocks = self.vectors.blocks(int(wanted[0]) - 1)
        for rows, vectors in blocks:
            kept = mask[self.positions(rows)]
            if not kept.all():
                rows, vectors = rows[kept], vectors[kept]
            if not len(rows):
                continue
            for number, scores in enumerate(queries @ vectors.T):
                old_rows, old_scores = best[number]
                of_rows, of_scores = np.concatenate([old_rows, rows]), np.concatenate([old_scores, scores])
                if len(of_scores) > k:
                    lowest = np.partition(of_scores, -k)[-k]
                    surely = np.flatnonzero(of_scores > lowest + ROUNDING)
                    ties = np.flatnonzero((of_scores <= lowest + ROUNDING) & (of_scores >= lowest - ROUNDING))
                    still = np.sort(np.concatenate([surely, ties[: k - len(surely) + MOST_TIES]]))
                    of_rows, of_scores = of_rows[still], of_scores[still]
                best[number] = of_rows, of_scores
        return [rows for rows, _ in best]
