"""The documents of an index in SQLite: ids, texts, metadata, and the list of shards whose commit they share."""

from __future__ import annotations

import json
import numbers
import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import quote

from ctx_embed.errors import InputError
from ctx_embed.index.manifest import REMEDY
from ctx_embed.index.shards import Shard
from ctx_embed.texts import Document, well_formed

Id: TypeAlias = str | int

# `id` has no type: SQLite then keeps 1 and '1' apart. Rows count from 0 in the order of addition.
SCHEMA = """
CREATE TABLE state (index_id TEXT NOT NULL, generation INTEGER NOT NULL, next_id INTEGER NOT NULL);
CREATE TABLE shards (
    name TEXT PRIMARY KEY, first INTEGER NOT NULL, rows INTEGER NOT NULL, bytes INTEGER NOT NULL, crc32 INTEGER NOT NULL
);
CREATE TABLE documents (row INTEGER PRIMARY KEY, id NOT NULL UNIQUE, text TEXT NOT NULL, metadata TEXT NOT NULL);
"""
LARGEST_ID = 2**63 - 1
# How long a writer waits for another one before it gives up; small additions take turns within it.
PATIENCE_SECONDS = 2.0
# Rows asked for in one statement, below SQLite's limit on parameters.
ROWS_A_QUERY = 500


@dataclass(frozen=True)
class State:
    """What a commit changes beside documents and shards: the number of commits, and the next id to give."""

    index_id: str
    generation: int
    next_id: int


def checked_id(identifier: Any, number: int) -> Id:
    """An id as it is stored.

    Args:
        identifier: a string or an integer of 64 bits; integers of numpy count.
        number: of the document, from 1, for the message.

    Raises:
        InputError: anything else.
    """
    if isinstance(identifier, str):
        if well_formed(identifier) != identifier:
            raise InputError(f"document {number}: the id {identifier!r} has a lone surrogate, give it another id")
        return str(identifier)
    if isinstance(identifier, bool) or not isinstance(identifier, numbers.Integral):
        raise InputError(
            f"document {number}: the id is a {type(identifier).__name__}, a string or an integer is needed"
        )
    if not -LARGEST_ID - 1 <= int(identifier) <= LARGEST_ID:
        raise InputError(f"document {number}: the id {identifier} does not fit into 64 bits, give it as a string")
    return int(identifier)


def metadata_json(metadata: Any, number: int) -> str:
    """Metadata as the JSON that is stored; lone surrogates become U+FFFD.

    Raises:
        InputError: no dictionary with names as keys, or a value that JSON cannot hold (NaN among them).
    """
    if not isinstance(metadata, dict) or not all(isinstance(name, str) for name in metadata):
        raise InputError(f"document {number}: the metadata {metadata!r:.60} are no dictionary with strings as keys")
    try:
        return well_formed(json.dumps(metadata, ensure_ascii=False, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"document {number}: the metadata cannot be kept as JSON ({error})") from None


class DocumentStore:
    """A connection to ``documents.sqlite``: WAL, so that readers never wait for the writer.

    Args:
        path: of an existing database, see :meth:`create`.

    Raises:
        InputError: it is missing or cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.RLock()
        if not path.is_file():
            raise InputError(f"{path}: missing, {REMEDY}")
        with self._told():
            self._connection = sqlite3.connect(
                _uri(path), uri=True, timeout=PATIENCE_SECONDS, isolation_level=None, check_same_thread=False
            )
        try:
            with self._told():
                self._connection.execute("PRAGMA synchronous = FULL")
                self.state()
        except BaseException:
            self.close()
            raise

    @staticmethod
    def create(path: Path, index_id: str) -> None:
        """Write a database without documents."""
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.executescript(SCHEMA)
            connection.execute("INSERT INTO state VALUES (?, 0, 0)", (index_id,))
            connection.commit()

    def close(self) -> None:
        """Close the connection; the last one to close folds the write-ahead log into the database."""
        with self._lock:
            self._connection.close()

    @contextmanager
    def reading(self) -> Iterator[None]:
        """One unchanging state of the database for all that is read inside."""
        with self._lock:
            with self._told():
                self._connection.execute("BEGIN")
            try:
                yield
            finally:
                self._connection.rollback()

    @contextmanager
    def writing(self, patience: float = PATIENCE_SECONDS) -> Iterator[None]:
        """The one writer's transaction: committed, and durable, when the block ends, undone when it raises.

        Args:
            patience: seconds to wait for another writer.

        Raises:
            InputError: another writer is at work, or the disk is full.
        """
        with self._lock:
            with self._told():
                self._connection.execute(f"PRAGMA busy_timeout = {round(patience * 1000)}")
                self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                with self._told():
                    self._connection.execute("COMMIT")
            finally:
                self._connection.rollback()

    @contextmanager
    def _told(self) -> Iterator[None]:
        """What SQLite says of the state of the file becomes one line; what it says of our SQL stays an error."""
        try:
            yield
        except sqlite3.DatabaseError as error:
            if not (isinstance(error, sqlite3.OperationalError) or type(error) is sqlite3.DatabaseError):
                raise
            message = str(error)
            if "locked" in message:
                said = f"{self.path.parent}: another process is writing to this index, try again when it has finished"
            elif "full" in message or "readonly" in message:
                said = f"{self.path}: cannot be written ({message})"
            else:
                said = f"{self.path}: cannot be read ({message}), {REMEDY}"
            raise InputError(said) from None

    def state(self) -> State:
        """The state of the newest commit, or of the transaction inside one."""
        with self._lock, self._told():
            row = self._connection.execute("SELECT index_id, generation, next_id FROM state").fetchone()
        if row is None:
            raise InputError(f"{self.path}: damaged (it has no state), {REMEDY}")
        return State(*row)

    def shards(self) -> list[Shard]:
        """The shards of raw vectors in the order of their rows."""
        with self._lock, self._told():
            rows = self._connection.execute("SELECT name, first, rows, bytes, crc32 FROM shards ORDER BY first")
            return [Shard(*row) for row in rows]

    def rows(self) -> int:
        """The number of rows given so far."""
        with self._lock, self._told():
            (last,) = self._connection.execute("SELECT max(row) FROM documents").fetchone()
        return 0 if last is None else int(last) + 1

    def fetch(self, rows: Iterable[int]) -> dict[int, tuple[Id, str, dict[str, Any]]]:
        """The id, text and metadata of the documents of some rows."""
        wanted = list(rows)
        found: dict[int, tuple[Id, str, dict[str, Any]]] = {}
        with self._lock, self._told():
            for start in range(0, len(wanted), ROWS_A_QUERY):
                part = wanted[start : start + ROWS_A_QUERY]
                marks = ",".join("?" * len(part))
                select = f"SELECT row, id, text, metadata FROM documents WHERE row IN ({marks})"
                for row, identifier, text, metadata in self._connection.execute(select, part):
                    found[row] = (identifier, text, self._parsed(metadata))
        if len(found) < len(set(wanted)):
            raise InputError(f"{self.path}: damaged (documents are missing), {REMEDY}")
        return found

    def _parsed(self, metadata: str) -> dict[str, Any]:
        try:
            parsed: dict[str, Any] = json.loads(metadata)
        except ValueError as error:
            raise InputError(f"{self.path}: damaged (metadata: {error}), {REMEDY}") from None
        return parsed

    def insert(self, row: int, document: Document, number: int) -> None:
        """Add a document, inside :meth:`writing`; its id, text and metadata are those that are stored.

        Args:
            row: the next one.
            document: with an id.
            number: of the document in this addition, from 1, for the message.

        Raises:
            InputError: the id is taken.
        """
        values = (row, document.id, document.text, metadata_json(document.metadata, number))
        with self._told():
            taken = self._connection.execute("SELECT row FROM documents WHERE id = ?", (document.id,)).fetchone()
            if taken is None:
                self._connection.execute("INSERT INTO documents VALUES (?, ?, ?, ?)", values)
                return
        other = taken[0] - (row - number)
        where = "is already in the index" if other < 1 else f"is also that of document {other}"
        raise InputError(f"document {number}: the id {document.id!r} {where}, ids are unique")

    def finish(self, state: State, shards: Sequence[Shard]) -> None:
        """Set what a commit publishes beside the documents, inside :meth:`writing`."""
        with self._told():
            self._connection.execute("DELETE FROM shards")
            self._connection.executemany("INSERT INTO shards VALUES (?, ?, ?, ?, ?)", map(astuple, shards))
            self._connection.execute("UPDATE state SET generation = ?, next_id = ?", (state.generation, state.next_id))


def _uri(path: Path) -> str:
    """How to open a database: where the folder cannot be written, WAL files neither, so it is read as it stands."""
    mode = "mode=rw"
    if not os.access(path.parent, os.W_OK) and not path.with_name(path.name + "-wal").exists():
        mode = "mode=ro&immutable=1"
    return f"file:{quote(str(path.absolute()))}?{mode}"
