"""Checks of an index for damage: checksums, counts, words, and vectors against documents."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing

import numpy as np

from ctx_embed.errors import InputError
from ctx_embed.index.ann.cache import Cache
from ctx_embed.index.embedder import Embedder
from ctx_embed.index.storage.documents import DocumentStore
from ctx_embed.index.storage.folder import IndexFolder
from ctx_embed.index.storage.manifest import CACHE, DOCUMENTS
from ctx_embed.index.storage.shards import Shard, crc32_of
from ctx_embed.index.storage.snapshot import Snapshot

# Passages embedded again and compared with their vectors.
SAMPLED_PASSAGES = 64
# The largest distance of a new embedding from the stored one: batches and machines round differently.
LARGEST_DISTANCE = 0.02


def problems(folder: IndexFolder, embedder: Embedder | None = None) -> list[str]:
    """Return a line for each problem of an index; an empty list means that it is intact.

    Args:
        folder: the index.
        embedder: its model, to embed some passages again; None skips that check.
    """
    with closing(DocumentStore(folder.path / DOCUMENTS)) as store, store.reading():
        snapshot = Snapshot.of(store.state(), store.shards())
        return [line for check in _CHECKS for line in check(folder, store, snapshot)] + (
            [] if embedder is None else list(_vectors_of_texts(folder, store, snapshot, embedder))
        )


def _database(folder: IndexFolder, store: DocumentStore, snapshot: Snapshot) -> Iterator[str]:
    try:
        with store.reporting_errors():
            found = [str(line) for (line,) in store.connection.execute("PRAGMA integrity_check")]
            found = [] if found == ["ok"] else found
    except InputError as error:
        found = [str(error)]
    yield from (f"{store.path}: {line}" for line in found[:20])


def _shards(folder: IndexFolder, store: DocumentStore, snapshot: Snapshot) -> Iterator[str]:
    for shard in snapshot.shards:
        yield from _shard(folder, shard)


def _shard(folder: IndexFolder, shard: Shard) -> Iterator[str]:
    path = folder.vectors.folder / shard.name
    try:
        vectors = folder.vectors.read(shard)
    except InputError as error:
        yield str(error)
    except OSError as error:
        yield f"{path}: cannot be read ({error.strerror})"
    else:
        lengths = np.linalg.norm(vectors, axis=1)
        if not np.all((np.abs(lengths - 1) < 1e-3) | (lengths == 0)):
            yield f"{path}: has vectors that are not of length 1"


def _rows(folder: IndexFolder, store: DocumentStore, snapshot: Snapshot) -> Iterator[str]:
    """Yield a problem if a row belongs to no document, deleted or not, or to several."""
    state = store.state()
    owners = np.zeros(state.rows, np.int64)
    documents = 0
    beyond = 0
    with store.reporting_errors():
        for table in ("documents", "deleted"):
            for row, passages in store.connection.execute(f"SELECT row, passages FROM {table}"):
                owners[row : row + passages] += 1
                documents += table == "documents"
                beyond += row + passages > state.rows
    if beyond:
        yield f"{store.path}: {beyond} documents lie beyond the {state.rows} rows of the index"
    if (owners != 1).any():
        yield f"{store.path}: {int((owners != 1).sum())} of {state.rows} rows belong to no document, or to several"
    if documents != state.documents:
        yield f"{store.path}: holds {documents} documents, but its count is {state.documents}"


def _words(folder: IndexFolder, store: DocumentStore, snapshot: Snapshot) -> Iterator[str]:
    try:
        with store.reporting_errors():
            (words,) = store.connection.execute("SELECT count(*) FROM words_docsize").fetchone()
    except (InputError, sqlite3.Error) as error:
        yield f"{store.path}: the word lists cannot be read ({error})"
        return
    passages = snapshot.rows - store.deleted_rows()
    if words != passages:
        yield f"{store.path}: the words of {words} passages are listed, but there are {passages} passages"


def _cache(folder: IndexFolder, store: DocumentStore, snapshot: Snapshot) -> Iterator[str]:
    for cached in Cache(folder.path / CACHE, folder.manifest.dimension).fitting(snapshot):
        try:
            whole = crc32_of(cached.path) == cached.crc32
        except OSError:
            continue
        if not whole:
            yield f"{cached.path}: damaged (its checksum is wrong); remove it and run `ctx-embed index compact`"


_CHECKS: tuple[Callable[[IndexFolder, DocumentStore, Snapshot], Iterator[str]], ...] = (
    _database,
    _shards,
    _rows,
    _words,
    _cache,
)


def _vectors_of_texts(
    folder: IndexFolder, store: DocumentStore, snapshot: Snapshot, embedder: Embedder
) -> Iterator[str]:
    """Yield a problem if some passages, embedded again, differ from their stored vectors."""
    live = np.flatnonzero(store.live(snapshot.rows))
    if not len(live):
        return
    rows = live[np.unique(np.linspace(0, len(live) - 1, SAMPLED_PASSAGES, dtype=np.int64))]
    try:
        passages = store.fetch(rows.tolist())
        stored = folder.vectors.gather(snapshot.shards, rows)
    except (InputError, OSError):
        # The other checks report this.
        return
    again = embedder.documents([passages[int(row)].embedded(folder.manifest.titled) for row in rows])
    apart = int((np.linalg.norm(stored - again, axis=1) > LARGEST_DISTANCE).sum())
    if apart:
        yield f"{folder.path}: {apart} of {len(rows)} passages, embedded again, differ from their stored vectors"
