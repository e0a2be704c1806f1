"""The folder of an index, without its model. A View is one generation of it, with its searches by meaning and words."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable
from contextlib import closing, suppress
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import numpy as np

from ctx_embed.errors import InputError
from ctx_embed.index.database import DATABASE, MAPPED, ChangedError, Database, Settings, rows_of
from ctx_embed.index.filters import Condition, form_of_date
from ctx_embed.index.nearest import Nearest, VectorTable
from ctx_embed.index.vectors import Mask, Rows
from ctx_embed.index.words import Bm25

Result = TypeVar("Result")

# How often a process without write permission reads again if others write meanwhile.
ATTEMPTS = 20
# The number of filters whose rows are cached.
REMEMBERED_FILTERS = 8


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
        if not self._mapped and self._view is not None and (self._view.last_nearest or self._view.last_words):
            with self.reporting_errors():
                self._mapped = True
                self.connection.execute(f"PRAGMA mmap_size = {MAPPED}")
        for _ in range(ATTEMPTS):
            with suppress(ChangedError), self.reading():
                view = before = self._view
                if view is None or view.state != self.state():
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
            status = os.stat(self.path)
            place = status.st_dev, status.st_ino
        if place == self.opened or (no_copy and place is None):
            return
        # After another index replaced it, the opened one still answers.
        other = read_settings(self.folder)
        if not no_copy or other.index_id == self.settings.index_id:
            raise InputError(f"{self.folder}: another index has replaced it; open it again")


class View:
    """One generation of an index; use it inside the transaction that it was made in.

    A row never changes its number; positions, which masks use, are counted from the last compaction. Unless the index
    was compacted since, a view takes over what the one ``before`` has read.
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
        # For each filter, the positions that match it, the next row, and the generation that last changed metadata.
        self._masks: dict[Condition, tuple[Mask, int, int]] = {}
        # The fields that filters may compare with strings, each with the form of a date among these.
        self._texts: set[tuple[str, str]] = set()
        # The searches of this view, or until they are used those of an earlier one.
        self.last_nearest: Nearest | None = None
        self.last_words: Bm25 | None = None
        # The first row, and the number of the last deletion, that the masks do not know yet.
        first = self._deleted = 0
        live = readable = np.ones(len(rows), bool)
        if before is not None and (before.compacted, before.settings.table) == (self.compacted, self.settings.table):
            first = stop = before.state.next_row
            rows, live, readable, self._deleted = before.rows, before.live, before.readable, before._deleted
            self._masks, self.last_nearest, self.last_words = before._masks, before.last_nearest, before.last_words
        try:
            new = np.arange(stop, max(self.state.next_row, stop))
            # The row at each position (n,), ascending.
            self.rows: Rows = np.concatenate([rows, new])
        except (ValueError, MemoryError):
            raise store.damaged(f"its next row is {self.state.next_row}") from None
        # Whether it belongs to a document, as it was not deleted since; and whether its vector is not zero, too.
        self.live: Mask = np.append(live, np.ones(len(new), bool))
        self.readable: Mask = np.append(readable, np.ones(len(new), bool))
        zeros = f"SELECT row FROM vectors_{self.settings.table} WHERE code = x'' AND row >= ?"
        if unread := store.integers(zeros, first):
            self.readable[self.positions(np.array(unread, np.int64).ravel())] = False
        deleted = "SELECT number, row, passages FROM deleted WHERE number > ? ORDER BY number"
        for number, row, passages in store.integers(deleted, self._deleted):
            position = int(np.searchsorted(self.rows, row))
            self.live[position : position + passages] = self.readable[position : position + passages] = False
            self._deleted = number
        # The number of passages, and the positions (n,) that a search without a filter may find, None for all.
        self.count = int(np.count_nonzero(self.live))
        self.unfiltered: Mask | None = None if self.count == len(self.rows) else self.live

    @cached_property
    def nearest(self) -> Nearest:
        """The search by meaning."""
        self.last_nearest = Nearest(self, self.last_nearest)
        return self.last_nearest

    @cached_property
    def words(self) -> Bm25:
        """The search by words."""
        self.last_words = Bm25(self, self.last_words)
        return self.last_words

    def positions(self, rows: Rows) -> Rows:
        """Return the positions (n,) of rows that the view has."""
        positions = np.searchsorted(self.rows, rows)
        if len(positions) and positions.max() >= len(self.rows):
            raise self.store.damaged("it has rows beyond its last one")
        return positions

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
            firsts = self.store.firsts(condition, stop)
            mask = np.concatenate([mask, np.zeros(len(self.rows) - len(mask), bool)])
            for position, passages in zip(self.positions(firsts[:, 0]).tolist(), firsts[:, 1].tolist(), strict=True):
                mask[position : position + passages] = True
        if len(self._masks) == REMEMBERED_FILTERS:
            self._masks.pop(next(iter(self._masks)))
        self._masks[condition] = mask, self.state.next_row, self.state.edited
        return mask & self.live
