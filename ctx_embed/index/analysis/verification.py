"""Checks of an index for damage: checksums, counts, words, and vectors against documents."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing

import numpy as np

from ctx_embed.errors import InputError
from ctx_embed.index.analysis.word_lists import lookup_problem, word_problems
from ctx_embed.index.ann.cache import Cache
from ctx_embed.index.model import IndexModel
from ctx_embed.index.storage import checksums
from ctx_embed.index.storage.database import SCHEMA, WORDS, Snapshot
from ctx_embed.index.storage.documents import DocumentStore
from ctx_embed.index.storage.folder import IndexFolder
from ctx_embed.index.storage.manifest import CACHE, DOCUMENTS
from ctx_embed.index.storage.shards import Shard, crc32_of

# Number of passages that are embedded again and compared with their stored vectors.
SAMPLED_PASSAGES = 64
# The largest accepted distance of a new embedding from the stored one, as batches and machines round differently.
LARGEST_DISTANCE = 0.02
# At most this number of lines or rows is reported.
MOST_LINES = 20


class Problems(list[str]):
    """A line for each problem of an index; if there are no lines, the index is intact.

    Attributes:
        unchecked: what could not be checked, and why.
    """

    def __init__(self, lines: Iterable[str] = (), unchecked: Iterable[str] = ()) -> None:
        super().__init__(lines)
        self.unchecked = list(unchecked)


def verify(folder: IndexFolder, embedder: IndexModel | None = None) -> Problems:
    """Return the problems of an index.

    Args:
        folder: the index.
        embedder: its model, to embed some passages again; None skips that check.
    """
    problems = Problems()
    with closing(DocumentStore(folder.path / DOCUMENTS)) as store, store.reading():
        snapshot = store.snapshot()
        for check in (_database, _schema, _documents, _shards, _rows, _origins, _words, _cache):
            problems += [line for line in _found(check(folder, store, snapshot)) if line not in problems]
        problem, reason = lookup_problem(store)
        problems += [problem] if problem else []
        problems.unchecked += [reason] if reason else []
        problems.unchecked += _without_checksums(store)
        if embedder is not None:
            problems += list(_vectors_of_texts(folder, store, snapshot, embedder))
    return problems


def _found(lines: Iterator[str]) -> list[str]:
    """Return the problems that a check yields; if an error ends the check, return that error alone."""
    try:
        return list(lines)
    except InputError as error:
        return [str(error)]


def _database(folder: IndexFolder, store: DocumentStore, snapshot: Snapshot) -> Iterator[str]:
    with store.reporting_errors():
        # SQLite puts several lines into one row, below one that names the database.
        rows = [str(row) for (row,) in store.connection.execute("PRAGMA integrity_check")]
    lines = [line for row in rows for line in row.splitlines() if not line.startswith("***")]
    if lines != ["ok"]:
        yield from (f"{store.path}: {line}" for line in lines[:MOST_LINES])


def _schema(folder: IndexFolder, store: DocumentStore, snapshot: Snapshot) -> Iterator[str]:
    """Yield a problem for each table that is not defined as this version defines it."""
    select = "SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL"
    with closing(sqlite3.connect(":memory:")) as new:
        new.executescript(f"{SCHEMA};{WORDS};{';'.join(checksums.SCHEMA)}")
        expected = dict(new.execute(select))
    with store.reporting_errors():
        found = dict(store.connection.execute(select))
    for name, sql in expected.items():
        # Indexes of older versions have no checksums.
        if found.get(name) != sql and (name in found or "checksums" not in sql):
            yield f"{store.path}: the definition of {name} is damaged"


def _documents(folder: IndexFolder, store: DocumentStore, snapshot: Snapshot) -> Iterator[str]:
    if not checksums.prepare(store.connection):
        return
    with store.reporting_errors():
        rows = checksums.damaged(store.connection)
    if rows:
        named = ", ".join(map(str, rows[:MOST_LINES]))
        yield f"{store.path}: documents with wrong checksums: {len(rows)}, in the rows {named}"


def _without_checksums(store: DocumentStore) -> Iterator[str]:
    try:
        with store.reporting_errors():
            count = checksums.missing(store.connection)
    except InputError:
        # The other checks report this.
        return
    if count:
        yield (
            f"the texts and metadata of {count} documents, written by an older version without checksums; "
            "`ctx-embed index compact` adds these"
        )


def _shards(folder: IndexFolder, store: DocumentStore, snapshot: Snapshot) -> Iterator[str]:
    for shard in snapshot.shards:
        yield from _shard(folder, shard)


def _shard(folder: IndexFolder, shard: Shard) -> Iterator[str]:
    path = folder.vectors.folder / shard.name
    try:
        # Damaged numbers may be huge.
        with np.errstate(over="ignore", invalid="ignore"):
            lengths = np.concatenate([np.linalg.norm(block, axis=1) for block in folder.vectors.blocks([shard])])
    except InputError as error:
        yield str(error)
    except OSError as error:
        yield f"{path}: cannot be read ({error.strerror})"
    else:
        if not np.all((np.abs(lengths - 1) < 1e-3) | (lengths == 0)):
            yield f"{path}: has vectors that are not of length 1"


def _rows(folder: IndexFolder, store: DocumentStore, snapshot: Snapshot) -> Iterator[str]:
    """Yield a problem if a row does not belong to exactly one document, deleted documents included."""
    state = store.state()
    owners = np.zeros(snapshot.rows, np.int64)
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


def _origins(folder: IndexFolder, store: DocumentStore, snapshot: Snapshot) -> Iterator[str]:
    """Yield a problem if documents of a followed folder name a file that does not exist."""
    with store.reporting_errors():
        connection = store.connection
        if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'origins'").fetchone() is None:
            return
        (lost,) = connection.execute(
            # Version 0.1 kept the origin of a deleted document, which does no harm.
            "SELECT count(*) FROM origins WHERE id IN (SELECT id FROM documents) "
            "AND file NOT IN (SELECT file FROM files WHERE folder IN (SELECT folder FROM folders))"
        ).fetchone()
    if lost:
        yield f"{store.path}: {lost} documents of followed folders have lost their file"


def _words(folder: IndexFolder, store: DocumentStore, snapshot: Snapshot) -> Iterator[str]:
    return word_problems(store)


def _cache(folder: IndexFolder, store: DocumentStore, snapshot: Snapshot) -> Iterator[str]:
    for cached in Cache(folder.path / CACHE, folder.manifest.dimension).fitting(snapshot):
        try:
            whole = crc32_of(cached.path) == cached.crc32
        except OSError:
            continue
        if not whole:
            yield f"{cached.path}: damaged (its checksum is wrong); remove it and run `ctx-embed index compact`"


def _vectors_of_texts(
    folder: IndexFolder, store: DocumentStore, snapshot: Snapshot, embedder: IndexModel
) -> Iterator[str]:
    """Yield a problem if some passages, embedded again, differ from their stored vectors."""
    try:
        live = np.flatnonzero(store.live(snapshot.rows))
        if not len(live):
            return
        rows = live[np.unique(np.linspace(0, len(live) - 1, SAMPLED_PASSAGES, dtype=np.int64))]
        passages = store.fetch(rows.tolist())
        stored = folder.vectors.gather(snapshot.shards, rows)
    except (InputError, OSError):
        # The other checks report this.
        return
    again = embedder.documents([passages[int(row)].embedded(folder.manifest.titled) for row in rows])
    with np.errstate(over="ignore", invalid="ignore"):
        apart = int((~(np.linalg.norm(stored - again, axis=1) <= LARGEST_DISTANCE)).sum())
    if apart:
        yield f"{folder.path}: {apart} of {len(rows)} passages, embedded again, differ from their stored vectors"
