"""Compaction: rows are numbered anew, shards and word lists are written without what deleted documents left."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ctx_embed.errors import InputError
from ctx_embed.index.storage.database import WORDS
from ctx_embed.index.storage.documents import DocumentStore, text_hash
from ctx_embed.index.storage.folder import IndexFolder
from ctx_embed.index.storage.manifest import DOCUMENTS
from ctx_embed.index.storage.shards import SHARD_ROWS, Shard, ShardFolder

# A writer compacts by itself once so many vectors, and more than half of them, are of deleted documents: what it then
# rewrites has been paid for by as many deletions.
LEAST_DEAD_ROWS = 20_000


def dead_rows(store: DocumentStore) -> int:
    """The number of vectors of deleted documents where that calls for compaction, otherwise 0."""
    state = store.state()
    # A document has a row at least: that is looked at first, as it costs nothing.
    if state.rows - state.documents < LEAST_DEAD_ROWS:
        return 0
    dead = store.deleted_rows()
    return dead if dead >= LEAST_DEAD_ROWS and 2 * dead > state.rows else 0


def compact(folder: IndexFolder, tidy: Callable[[DocumentStore], None]) -> int:
    """Rewrite an index without its deleted documents, as one commit; readers go on meanwhile.

    Args:
        folder: of the index.
        tidy: :meth:`SearchIndex.tidy`, which removes the old files and builds FAISS's file.

    Returns:
        The number of vectors removed.

    Raises:
        InputError: another process is writing, the disk is full, or a file is damaged.
    """
    with closing(DocumentStore(folder.path / DOCUMENTS)) as store:
        try:
            with store.writing():
                folder.require_in_place()
                removed = _compact(store, folder.vectors)
        finally:
            tidy(store)
        # The index is compact by now; the space on disk can be given back another time.
        with suppress(InputError):
            store.vacuum()
    return removed


def _compact(store: DocumentStore, vectors: ShardFolder) -> int:
    state = store.state()
    live = store.live(state.rows)
    rows = np.flatnonzero(live)
    if len(rows) == state.rows:
        return 0
    shards = _rewritten(vectors, store.shards(), rows)
    # Row by row in order, each to a number that is free by then, as numbers only become smaller.
    numbers = np.cumsum(live) - 1
    with store.told():
        for table in ("documents", "passages"):
            moved = [row for (row,) in store.connection.execute(f"SELECT row FROM {table} ORDER BY row")]
            pairs = [(int(numbers[row]), row) for row in moved if numbers[row] != row]
            store.connection.executemany(f"UPDATE {table} SET row = ? WHERE row = ?", pairs)
        for statement in ("DELETE FROM deleted", "DELETE FROM hashes", "DROP TABLE words", WORDS):
            store.connection.execute(statement)
    _write_words(store)
    generation = state.generation + 1
    new_state = replace(state, generation=generation, numbering=generation, rows=len(rows), tuned="{}")
    store.finish(new_state, shards)
    return state.rows - len(rows)


def _rewritten(vectors: ShardFolder, shards: Sequence[Shard], rows: NDArray[np.int64]) -> list[Shard]:
    """New shards of the chosen rows, after the old ones were verified."""
    new: list[Shard] = []
    for shard in shards:
        vectors.scan(shard)
    for start in range(0, len(rows), SHARD_ROWS):
        part = vectors.gather(shards, rows[start : start + SHARD_ROWS])
        new.append(vectors.write(start, part))
    return new


def _write_words(store: DocumentStore) -> None:
    """Fill the tables that are made from the texts: words, and where each text was embedded."""
    for document in store.all():
        passages = [
            (row, document.text[start:stop]) for row, (start, stop) in enumerate(store.spans(document), document.row)
        ]
        with store.told():
            store.connection.executemany("INSERT INTO words (rowid, text) VALUES (?, ?)", passages)
            hashes = [(text_hash(text), row) for row, text in passages]
            store.connection.executemany("INSERT OR IGNORE INTO hashes VALUES (?, ?)", hashes)
