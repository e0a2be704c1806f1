"""The SQLite database of an index: schema, connection, and the transactions that are the index's commits."""

from __future__ import annotations

import os
import shutil
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from ctx_embed.errors import BusyError, DamagedError, InputError, UnwritableError
from ctx_embed.files import has_locks
from ctx_embed.index.storage import checksums, connections
from ctx_embed.index.storage.manifest import REMEDY
from ctx_embed.index.storage.shards import Shard

# Rows are numbered from 0 in the order of addition, one for each passage; a document has the row of its first passage.
# `id` has no type, so SQLite distinguishes 1 and '1'. The text comes last, so scans of other columns skip it.
SCHEMA = """
CREATE TABLE state (
    index_id TEXT NOT NULL, generation INTEGER NOT NULL, numbering INTEGER NOT NULL, next_id INTEGER NOT NULL,
    documents INTEGER NOT NULL, rows INTEGER NOT NULL, tuned TEXT NOT NULL
);
CREATE TABLE shards (
    name TEXT PRIMARY KEY, first INTEGER NOT NULL, rows INTEGER NOT NULL, bytes INTEGER NOT NULL, crc32 INTEGER NOT NULL
);
CREATE TABLE documents (
    row INTEGER PRIMARY KEY, passages INTEGER NOT NULL, id NOT NULL UNIQUE, metadata TEXT NOT NULL, text TEXT NOT NULL
);
CREATE TABLE passages (row INTEGER PRIMARY KEY, start INTEGER NOT NULL, stop INTEGER NOT NULL);
CREATE TABLE deleted (row INTEGER PRIMARY KEY, passages INTEGER NOT NULL);
CREATE TABLE hashes (hash INTEGER PRIMARY KEY, row INTEGER NOT NULL);
CREATE TABLE automatic (id INTEGER PRIMARY KEY);
CREATE TABLE builds (
    run TEXT PRIMARY KEY, signature TEXT NOT NULL, documents INTEGER NOT NULL, digest TEXT NOT NULL,
    finished INTEGER NOT NULL
);
"""
# Words are stemmed and stripped of accents; the texts themselves stay in `documents`.
TOKENIZER = "porter unicode61 remove_diacritics 2"
WORDS = f"CREATE VIRTUAL TABLE words USING fts5(text, content='', tokenize='{TOKENIZER}')"
# Seconds that a writer waits for another one before it gives up; long enough for small additions to take turns.
PATIENCE_SECONDS = 2.0
# SQLite's page cache in KiB; it is large because hashes are looked up all over their table.
PAGE_CACHE = 64 * 1024


@dataclass(frozen=True)
class State:
    """The state of an index besides its documents and shards; each commit updates it.

    Args:
        index_id: the random id of the index.
        generation: the number of commits.
        numbering: the generation in which the newest compaction renumbered the rows.
        next_id: the next automatic id.
        documents: the number of documents.
        rows: the number of vectors, including those of deleted documents.
        tuned: search parameters by FAISS factory, as JSON.
    """

    index_id: str
    generation: int = 0
    numbering: int = 0
    next_id: int = 0
    documents: int = 0
    rows: int = 0
    tuned: str = "{}"


@dataclass(frozen=True)
class Snapshot:
    """The vectors of one generation.

    Args:
        generation: the number of commits.
        numbering: the generation in which the rows were last renumbered.
        rows: the number of vectors, including those of deleted documents.
        shards: the shards that hold them.
        tuned: search parameters by FAISS factory, as JSON.
    """

    generation: int
    numbering: int
    rows: int
    shards: Sequence[Shard]
    tuned: str = "{}"

    @classmethod
    def of(cls, state: State, shards: Sequence[Shard]) -> Snapshot:
        """Return the snapshot of a state and its list of shards."""
        return cls(state.generation, state.numbering, state.rows, shards, state.tuned)


MESSAGE_CHARACTERS = 200
# A disk with less space than this is full: SQLite needs 32 kB even for reading.
FREE_BYTES = 1 << 16

Record = TypeVar("Record", State, Shard)


class Database:
    """A connection to ``documents.sqlite``, in WAL mode, so readers never wait for the writer.

    A child process that inherits it by a fork gets a connection of its own, see :mod:`.connections`.

    Args:
        path: an existing database, see :meth:`create`.

    Raises:
        InputError: it is missing or cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._closed = False
        if not path.is_file():
            raise DamagedError(f"{path}: missing; {REMEDY}")
        found = path.stat()
        self.opened = found.st_dev, found.st_ino
        connections.register(self)
        try:
            self.state()
        except BaseException:
            self.close()
            raise

    @property
    def connection(self) -> sqlite3.Connection:
        """The connection, made again after a fork; use it while holding :attr:`lock`."""
        if self._connection is None:
            if self._closed:
                raise InputError(f"{self.path.parent}: this index is closed; open it again")
            connections.require_own(self)
            self._connection = self._connected()
        return self._connection

    def _connected(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            _uri(self.path), uri=True, timeout=PATIENCE_SECONDS, isolation_level=None, check_same_thread=False
        )
        connection.create_function("checksum", 5, checksums.checksum, deterministic=True)
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA cache_size = -{PAGE_CACHE}")
        return connection

    def release(self) -> None:
        """Close the connection until it is next used; call it while holding :attr:`lock`, outside a transaction."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    @staticmethod
    def create(path: Path, index_id: str) -> None:
        """Create a database without documents."""
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.executescript(SCHEMA)
            connection.execute(WORDS)
            for statement in checksums.SCHEMA:
                connection.execute(statement)
            connection.execute("INSERT INTO state VALUES (?, ?, ?, ?, ?, ?, ?)", astuple(State(index_id)))
            connection.commit()

    def close(self) -> None:
        """Close the connection; the last one to close merges the write-ahead log into the database."""
        with self.lock:
            self._closed = True
            self.release()

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Let the block read one unchanging state of the database."""
        with self.lock:
            try:
                with self.reporting_errors():
                    self._begin("BEGIN")
                yield
            finally:
                self._end()

    @contextmanager
    def writing(self, patience: float = PATIENCE_SECONDS) -> Iterator[None]:
        """Run the block as the only writer, in one transaction: committed to disk at its end, undone if it raises.

        Args:
            patience: seconds to wait for another writer.

        Raises:
            InputError: another writer is at work, or the disk is full.
        """
        with self.lock:
            try:
                with self.reporting_errors():
                    self.connection.execute(f"PRAGMA busy_timeout = {round(patience * 1000)}")
                    self._begin("BEGIN IMMEDIATE")
                yield
                with self.reporting_errors():
                    self.connection.execute("COMMIT")
            finally:
                self._end()

    def _begin(self, statement: str) -> None:
        """Begin a transaction, after ending one that Ctrl-C has left behind."""
        self._end()
        self.connection.execute(statement)

    def _end(self) -> None:
        if self._connection is not None and self._connection.in_transaction:
            self._connection.rollback()

    @contextmanager
    def reporting_errors(self) -> Iterator[None]:
        """Turn SQLite's errors about the file into one line; errors in our SQL keep their traceback.

        Raises:
            InputError: the index is closed, damaged or being written, or the disk is full.
        """
        try:
            # Threads share the connection; the lock separates their cursors.
            with self.lock:
                yield
        except sqlite3.DatabaseError as error:
            if "closed database" in str(error):
                raise InputError(f"{self.path.parent}: this index is closed; open it again") from None
            if isinstance(error, sqlite3.ProgrammingError | sqlite3.InterfaceError | sqlite3.NotSupportedError):
                raise
            # SQLite's message may quote a whole text that it cannot decode: shorten it.
            message = " ".join(str(error).split())[:MESSAGE_CHARACTERS]
            if "locked" in message and not has_locks(self.path.parent):
                raise UnwritableError(
                    f"{self.path.parent}: the file system has no locks, without which an index cannot be used; move "
                    "it to a local disk"
                ) from None
            if "locked" in message:
                raise BusyError(
                    f"{self.path.parent}: another process is writing to this index; try again when it has finished"
                ) from None
            if any(word in message for word in ("full", "readonly", "disk I/O")):
                # SQLite cannot open a database on a full disk either, and then speaks of an I/O error.
                if shutil.disk_usage(self.path.parent).free < FREE_BYTES:
                    message = "the disk is full"
                raise UnwritableError(f"{self.path}: cannot be written ({message})") from None
            raise DamagedError(f"{self.path}: cannot be read ({message}); {REMEDY}") from None
        except (TypeError, OverflowError, UnicodeDecodeError) as error:
            # Damaged records may have NULL or huge numbers in any column, and SQLite may quote bytes that are not text.
            raise DamagedError(f"{self.path}: damaged ({error}); {REMEDY}") from error

    def state(self) -> State:
        """Return the state of the newest commit, or of the current transaction."""
        with self.reporting_errors():
            row = self.connection.execute(
                "SELECT index_id, generation, numbering, next_id, documents, rows, tuned FROM state"
            ).fetchone()
        if row is None:
            raise DamagedError(f"{self.path}: damaged (it has no state); {REMEDY}")
        return self._record(State, row)

    def shards(self) -> list[Shard]:
        """Return the shards of raw vectors in the order of their rows."""
        with self.reporting_errors():
            rows = self.connection.execute("SELECT name, first, rows, bytes, crc32 FROM shards ORDER BY first")
            return [self._record(Shard, row) for row in rows]

    def _record(self, kind: type[Record], values: Sequence[Any]) -> Record:
        """Return a row as a dataclass, after checking types: in a damaged file SQLite may read any type."""
        if [type(value).__name__ for value in values] != [field.type for field in fields(kind)]:
            raise DamagedError(f"{self.path}: damaged (the {kind.__name__.lower()} has a wrong type); {REMEDY}")
        return kind(*values)

    def snapshot(self) -> Snapshot:
        """Return the state of the vectors; call it inside :meth:`reading` or :meth:`writing`."""
        return Snapshot.of(self.state(), self.shards())

    def finish(self, state: State, shards: Sequence[Shard]) -> None:
        """Store the state and the shards that a commit publishes; call it inside :meth:`writing`."""
        with self.reporting_errors():
            self.connection.execute("DELETE FROM shards")
            self.connection.executemany("INSERT INTO shards VALUES (?, ?, ?, ?, ?)", map(astuple, shards))
            self.connection.execute("DELETE FROM state")
            self.connection.execute("INSERT INTO state VALUES (?, ?, ?, ?, ?, ?, ?)", astuple(state))

    def vacuum(self) -> None:
        """Free the disk space of deleted rows.

        Raises:
            InputError: another writer is at work, or the disk is full.
        """
        with self.reporting_errors():
            self.connection.execute("VACUUM")
            self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _uri(path: Path) -> str:
    """Return SQLite's URI of a database; in a read-only folder, which allows no WAL files, it opens as immutable."""
    mode = "mode=rw"
    if not os.access(path.parent, os.W_OK) and not path.with_name(path.name + "-wal").exists():
        mode = "mode=ro&immutable=1"
    return f"file:{quote(str(path.absolute()))}?{mode}"
