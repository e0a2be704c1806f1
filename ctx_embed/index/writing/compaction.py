"""Compaction: renumber the rows, and rewrite shards and word lists without the deleted documents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ctx_embed.errors import DamagedError, InputError
from ctx_embed.index.storage.database import WORDS
from ctx_embed.index.storage.documents import DocumentStore, Mask, embedded_texts, text_hash
from ctx_embed.index.storage.folder import IndexFolder
from ctx_embed.index.storage.manifest import DOCUMENTS, REMEDY, Manifest, write_manifest
from ctx_embed.index.storage.shards import READ_ROWS, SHARD_ROWS, Shard, ShardFolder

# A writer compacts automatically once deleted documents have at least this many vectors and more than half of all. It
# then rewrites fewer vectors than were deleted, so the cost per deletion is constant.
LEAST_DEAD_ROWS = 20_000


def dead_rows(store: DocumentStore, least: int = LEAST_DEAD_ROWS) -> int:
    """Return the number of vectors of deleted documents if that calls for compaction, otherwise 0."""
    state = store.state()
    # A document has at least one row, which gives an upper bound without reading the table.
    if state.rows - state.documents < least:
        return 0
    dead = store.deleted_rows()
    return dead if dead >= least and 2 * dead > state.rows else 0


def compact(folder: IndexFolder, tidy: Callable[[DocumentStore], None], dtype: str | None = None) -> int:
    """Rewrite an index without its deleted documents, as one commit; readers are not interrupted.

    Vectors of a data type that the index no longer uses are rewritten too.

    Args:
        folder: the index.
        tidy: :meth:`Writer.tidy`, which removes the old files and builds FAISS's file.
        dtype: the data type in which to store all vectors from now on; None keeps that of the index.

    Returns:
        The number of vectors removed.

    Raises:
        InputError: another process is writing, the disk is full, or a file is damaged.
    """
    with closing(DocumentStore(folder.path / DOCUMENTS)) as store:
        try:
            with store.writing():
                folder.require_in_place()
                before = folder.manifest
                wanted = replace(before, dtype=dtype or before.dtype)
                try:
                    if wanted.format_version > before.format_version:
                        # Older versions must refuse the index before it lists a shard that they cannot read.
                        _declare(folder, wanted)
                    folder.vectors.dtype = wanted.dtype
                    removed = _compact(store, folder.vectors, before.titled)
                except BaseException:
                    with suppress(InputError, OSError):
                        _declare(folder, before)
                    raise
            if wanted.dtype != folder.manifest.dtype:
                _declare_if_true(folder, store, wanted.dtype)
        finally:
            tidy(store)
        # The index is already compact; a later call can free the disk space.
        with suppress(InputError):
            store.vacuum()
    return removed


def _declare(folder: IndexFolder, manifest: Manifest) -> None:
    """Write a manifest if it differs from the present one."""
    if manifest != folder.manifest:
        write_manifest(folder.path, manifest)
    folder.manifest = manifest
    folder.vectors.dtype = manifest.dtype


def _declare_if_true(folder: IndexFolder, store: DocumentStore, dtype: str) -> None:
    """Declare a data type in the manifest, unless a shard of another type is still listed."""
    with store.writing():
        folder.require_in_place()
        if all(folder.vectors.dtype_of(shard) == dtype for shard in store.shards()):
            _declare(folder, replace(folder.manifest, dtype=dtype))


def _compact(store: DocumentStore, vectors: ShardFolder, titled: bool) -> int:
    state = store.state()
    live = store.live(state.rows)
    rows = np.flatnonzero(live)
    shards = store.shards()
    if len(rows) == state.rows and all(vectors.dtype_of(shard) == vectors.dtype for shard in shards):
        store.store_checksums()
        return 0
    shards = _rewritten(vectors, shards, rows)
    generation = state.generation + 1
    new_state = replace(state, generation=generation, numbering=generation, rows=len(rows), tuned="{}")
    if len(rows) < state.rows:
        # Documents that move lose their checksums, so damage would go unnoticed afterwards.
        store.require_whole()
        _renumber(store, live, titled)
    store.store_checksums()
    store.finish(new_state, shards)
    return state.rows - len(rows)


def _renumber(store: DocumentStore, live: Mask, titled: bool) -> None:
    """Give the live rows new numbers without gaps in all tables."""
    # Numbers only decrease, so if rows are renumbered in ascending order, each new number is free.
    numbers = np.cumsum(live) - 1
    with store.reporting_errors():
        for table in ("documents", "passages"):
            moved = [row for (row,) in store.connection.execute(f"SELECT row FROM {table} ORDER BY row")]
            if any(not 0 <= row < len(numbers) for row in moved):
                raise DamagedError(f"{store.path}: damaged ({table} have rows that the index lacks); {REMEDY}")
            pairs = [(int(numbers[row]), row) for row in moved if numbers[row] != row]
            store.connection.executemany(f"UPDATE {table} SET row = ? WHERE row = ?", pairs)
        for statement in ("DELETE FROM deleted", "DELETE FROM hashes", "DROP TABLE words", WORDS):
            store.connection.execute(statement)
    _write_words(store, titled)


def _rewritten(vectors: ShardFolder, shards: Sequence[Shard], rows: NDArray[np.int64]) -> list[Shard]:
    """Verify the old shards, then write and return new ones with the chosen rows."""
    new: list[Shard] = []
    for shard in shards:
        vectors.verify(shard)
    for start in range(0, len(rows), SHARD_ROWS):
        part = rows[start : start + SHARD_ROWS]
        blocks = (vectors.gather(shards, part[at : at + READ_ROWS]) for at in range(0, len(part), READ_ROWS))
        new.append(vectors.write(start, blocks, len(part)))
    return new


def _write_words(store: DocumentStore, titled: bool) -> None:
    """Fill the tables derived from the texts: the word lists, and the row in which each text was embedded."""
    for document in store.all():
        passages = [
            (row, document.text[start:stop]) for row, (start, stop) in enumerate(store.spans(document), document.row)
        ]
        store.index_words(passages)
        with store.reporting_errors():
            embedded = embedded_texts(document.text, document.metadata, store.spans(document), titled)
            # A passage embedded with a title must not be found by its text alone.
            hashes = [(text_hash(text), row) for (row, text), of in zip(passages, embedded, strict=True) if text == of]
            store.connection.executemany("INSERT OR IGNORE INTO hashes VALUES (?, ?)", hashes)
