"""The rows that a search may find: those of documents that exist and meet its filter."""

from __future__ import annotations

from dataclasses import dataclass, field

from ctx_embed.errors import InputError
from ctx_embed.index.storage.database import Snapshot
from ctx_embed.index.storage.documents import DocumentStore, Mask
from ctx_embed.index.storage.filters import parse_filter

# The number of filters whose rows are cached as long as the index does not change.
REMEMBERED_FILTERS = 8


@dataclass
class LiveRows:
    """The rows that may be found, cached until the index changes.

    Args:
        store: the documents.
    """

    store: DocumentStore
    _state: tuple[int, int] = (-1, -1)
    _live: Mask | None = None
    _filtered: dict[str, Mask] = field(default_factory=dict)

    def allowed(self, snapshot: Snapshot, where: str | None) -> Mask | None:
        """Return which rows (rows,) a search may find, or None if it may find all.

        Args:
            snapshot: the state of the current transaction.
            where: a metadata filter, see :mod:`ctx_embed.index.storage.filters`.

        Raises:
            InputError: the filter cannot be understood.
        """
        if self._state != (snapshot.generation, snapshot.rows):
            live = self.store.live(snapshot.rows)
            self._live = None if live.all() else live
            self._filtered = {}
            self._state = (snapshot.generation, snapshot.rows)
        if where is None:
            return self._live
        if where not in self._filtered:
            condition = parse_filter(where)
            try:
                mask = self.store.matching(condition.sql, condition.values, snapshot.rows)
            except OverflowError as error:
                raise InputError(f"filter {where[:80]!r}: {error}") from None
            if len(self._filtered) == REMEMBERED_FILTERS:
                self._filtered.pop(next(iter(self._filtered)))
            self._filtered[where] = mask
        return self._filtered[where]
