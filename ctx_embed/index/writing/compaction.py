"""Compaction: forget the rows of deleted documents, and give their space back to the disk."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

import numpy as np

from ctx_embed.errors import REMEDY, DamagedError, UnwritableError
from ctx_embed.index.storage.database import ranges_of
from ctx_embed.index.storage.documents import DocumentStore
from ctx_embed.index.storage.folder import IndexFolder
from ctx_embed.index.storage.vectors import VectorTable

# A writer compacts automatically once deleted documents had at least this many vectors and more than half of all.
LEAST_DEAD_ROWS = 20_000
# Vectors whose data type changes in one commit.
ROWS_AT_ONCE = 8192


def dead_rows(store: DocumentStore, least: int = LEAST_DEAD_ROWS) -> int:
    """Return the number of rows of deleted documents if that calls for compaction, otherwise 0."""
    dead = store.deleted_rows()
    return dead if dead >= least and dead > store.state().documents else 0


def compact(folder: IndexFolder, tidy: Callable[[DocumentStore, bool], None], dtype: str | None = None) -> int:
    """Forget the rows of deleted documents, and rewrite FAISS's file; return the number of rows forgotten.

    Readers are not interrupted. Vectors of a data type that the index no longer uses are rewritten in small commits.

    Args:
        tidy: :meth:`Writer.tidy`, which writes FAISS's file; its second argument says whether anew.
        dtype: as for :meth:`SearchIndex.compact`.
    """
    with closing(DocumentStore(folder.documents.path)) as store:
        with store.writing():
            folder.require_in_place()
            settings = store.present()
            if dtype not in (None, settings.dtype):
                store.store_settings(replace(settings, dtype=str(dtype)))
            removed = _forget(store)
        changed = 0
        while rewritten := _rewrite(store):
            changed += rewritten
        tidy(store, bool(removed or changed))
    return removed


def _forget(store: DocumentStore) -> int:
    """Forget the rows of deleted documents, in one commit."""
    state = store.state()
    removed = store.deleted_rows()
    if not removed:
        return 0
    if store.damaged_rows():
        raise DamagedError(f"{store.path}: damaged (`ctx-embed index verify` lists the problems); {REMEDY}")
    firsts = np.array(store.firsts(), np.int64).reshape(-1, 2)
    starts = (
        np.repeat(firsts[:, 0] - np.append(0, np.cumsum(firsts[:, 1])[:-1]), firsts[:, 1])
        if len(firsts)
        else firsts[:, 0]
    )
    rows = starts + np.arange(len(starts))
    generation = state.generation + 1
    with store.reporting_errors():
        run = store.connection.execute
        run("DELETE FROM deleted")
        run("UPDATE compaction SET generation = ?, stop = ?, ranges = ?", (generation, state.next_row, ranges_of(rows)))
        run(f"DELETE FROM hashes WHERE row NOT IN (SELECT row FROM {VectorTable(store, store.present()).name})")
    store.finish(replace(state, generation=generation))
    return removed


def _rewrite(store: DocumentStore) -> int:
    """Store some vectors in the data type of the index, in one commit; return their number."""
    with store.writing():
        vectors = VectorTable(store, store.present())
        rows = vectors.other_types(ROWS_AT_ONCE)
        if rows:
            vectors.put(rows, vectors.get(np.array(rows, np.int64)))
            state = store.state()
            store.finish(replace(state, generation=state.generation + 1))
    return len(rows)


def require_space(store: DocumentStore) -> None:
    """Raise an error unless the disk has room for a copy of the database, which VACUUM writes.

    Raises:
        UnwritableError: it has not.
    """
    needed = 2 * store.path.stat().st_size
    if (free := shutil.disk_usage(store.path.parent).free) < needed:
        raise UnwritableError(
            f"{store.path}: giving deleted space back needs {needed >> 20} MiB of free space, got {free >> 20} MiB"
        )
