"""The SQLite database of an index: settings, schema, connection, documents, and transactions, which are its commits.

Statements obey the deadline of the work that runs them, and no connection passes a fork.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import re
import shutil
import sqlite3
import stat
import threading
import time
import weakref
import zlib
from bisect import bisect
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import asdict, astuple, dataclass, fields, replace
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from ctx_embed.deadlines import require_time
from ctx_embed.errors import REMEDY, BusyError, DamagedError, InputError, UnwritableError, quoted
from ctx_embed.files import has_locks, taking_turns
from ctx_embed.index.documents import LARGEST_ID, Id, Span, embedded_texts, forms_of, integer_of
from ctx_embed.index.filters import ALL, Condition, form_of_date, moment_of, name_of
from ctx_embed.index.vectors import DTYPES, FLOAT32, page_size, schema

# The version of the file format.
FORMAT_VERSION = 1
DATABASE = "index.sqlite"
FAISS_SUFFIX = ".faiss"

# The ways to cut documents into passages, see ctx_embed.index.chunking.
CHUNKS = re.compile(r"none|sentences|passages|(?:tokens|passages):0*[1-9]\d{0,8}")


@dataclass(frozen=True)
class Settings:
    """The settings of an index: ``table`` is the number of the table of vectors, and a reembedding fills the next one.

    ``model`` is what loads the model, None if unknown; ``unrelated`` are its :func:`unrelated_cosines`.
    """

    index_id: str
    model_fingerprint: str
    model: str | None
    dimension: int
    factory: str
    chunk: str = "none"
    dtype: str = FLOAT32
    unrelated: tuple[float, float] | None = None
    table: int = 1
    format_version: int = FORMAT_VERSION

    @property
    def titled(self) -> bool:
        """Whether passages are embedded with their document's title, as they seldom say what a document is about."""
        return self.chunk.partition(":")[0] == "passages"

    def stored(self) -> tuple[str, int]:
        """Return the settings as JSON, with its checksum; :meth:`Database.settings_named` reads them."""
        content = json.dumps(asdict(self))
        return content, zlib.crc32(content.encode())


# Rows are numbered in the order of addition, one for each passage, and never used twice; a document has the row of its
# first passage. `id` has no type: an id is stored as it was first given, as an integer or text, and found by either
# form. Long columns come last, so scans skip them.
SCHEMA = """
CREATE TABLE settings (name TEXT PRIMARY KEY, content TEXT NOT NULL, checksum INTEGER NOT NULL);
CREATE TABLE state (
    generation INTEGER NOT NULL, next_row INTEGER NOT NULL, next_id INTEGER NOT NULL, documents INTEGER NOT NULL,
    edited INTEGER NOT NULL
);
CREATE TABLE documents (
    row INTEGER PRIMARY KEY, passages INTEGER NOT NULL, checksum INTEGER NOT NULL, id NOT NULL UNIQUE,
    metadata TEXT NOT NULL, text TEXT NOT NULL
);
CREATE TABLE passages (row INTEGER PRIMARY KEY, start INTEGER NOT NULL, stop INTEGER NOT NULL);
CREATE TABLE deleted (number INTEGER PRIMARY KEY, row INTEGER NOT NULL, passages INTEGER NOT NULL);
CREATE TABLE compaction (generation INTEGER NOT NULL, stop INTEGER NOT NULL, ranges BLOB NOT NULL);
CREATE TABLE faiss (token TEXT PRIMARY KEY, facts TEXT NOT NULL, ranges BLOB NOT NULL);
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
# Number of documents, and of vectors, to read at a time.
ROWS_AT_ONCE = 2048
# Number of values in one statement, below SQLite's limit on parameters.
VALUES_A_QUERY = 500
# The names of the index's settings, and of the settings that a reembedding will give it.
PRESENT, NEXT = "present", "next"
# Seconds that a writer waits for others before it gives up, unless :func:`patient` says otherwise.
PATIENCE_SECONDS = 30.0
# Seconds that readers wait where SQLite locks them out for a moment, as after a crash.
READERS_PATIENCE = 2.0
_PATIENCE: ContextVar[float] = ContextVar("patience", default=PATIENCE_SECONDS)
# SQLite's page cache in KiB; it is large because hashes are looked up all over their table.
PAGE_CACHE = 16 * 1024
# Bytes of the database to map after the first search: rows from all over the file are then read faster, but each
# brings its neighbours into memory.
MAPPED = 1 << 34
# SQLite checks the deadline each time after this number of its operations.
OPERATIONS_AT_ONCE = 10_000


@dataclass(frozen=True)
class State:
    """What each commit changes besides documents and vectors; generation ``edited`` last changed metadata in place."""

    generation: int = 0
    next_row: int = 0
    next_id: int = 0
    documents: int = 0
    edited: int = 0


class Record(NamedTuple):
    """What the database says about FAISS's file: its name without the suffix, its rows as ranges, and more facts.

    The facts are its kind, number of rows, size, checksum, search effort, spare candidates and measured recall.
    """

    token: str
    facts: dict[str, Any]
    ranges: bytes

    def path(self, folder: Path) -> Path:
        """Return the file."""
        return folder / f"{self.token}{FAISS_SUFFIX}"


def ranges_of(rows: NDArray[np.int64]) -> bytes:
    """Return ascending rows (n,) as ranges: the first and last row of each run of consecutive rows."""
    edges = np.flatnonzero(np.diff(rows) > 1)
    first, last = np.append(0, edges + 1), np.append(edges, len(rows) - 1)
    return np.stack([rows[first], rows[last]], axis=1).astype("<i8").tobytes() if len(rows) else b""


def rows_of(ranges: bytes) -> NDArray[np.int64]:
    """Return the rows of :func:`ranges_of`; raise ValueError if the ranges are damaged."""
    pairs = np.frombuffer(ranges, "<i8").reshape(-1, 2).astype(np.int64)
    flat = pairs.ravel()
    if len(flat) and (flat[0] < 0 or (np.diff(flat[1:]) < 0).any() or (pairs[:, 0] > pairs[:, 1]).any()):
        raise ValueError("ranges of rows overlap")
    return expanded(pairs[:, 0], pairs[:, 1] - pairs[:, 0] + 1)


def expanded(firsts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return all rows of ranges, which are given by their first rows and lengths."""
    starts = np.repeat(firsts - np.concatenate([[0], np.cumsum(lengths)])[:-1], lengths)
    return starts + np.arange(len(starts))


def checksum(passages: Any, identifier: Any, metadata: Any, text: Any, spans: Any) -> int:
    """Return the CRC-32 of the columns of a document, with its spans as one text, see :class:`Stored`."""
    # Formatting accepts values of any type, which a damaged database may hold.
    return zlib.crc32(f"{(passages, identifier, spans)!r}{metadata}{text}".encode("utf-8", "surrogatepass"))


MESSAGE_CHARACTERS = 200
# The option of SQLite that reads files without locks.
_WITHOUT_LOCKS = "unix-none" if os.name == "posix" else "win32-none"
# A disk with less space than this is full: SQLite needs 32 kB even for reading.
FREE_BYTES = 1 << 16
# The passages of a document as one text, which its checksum covers, and the columns of a document.
_SPANS = (
    "(SELECT group_concat(start || ' ' || stop) FROM passages AS p "
    "WHERE p.row >= documents.row AND p.row < documents.row + documents.passages)"
)
COLUMNS = f"documents.row, passages, id, metadata, text, checksum, {_SPANS}"
_CHECKSUM = f"checksum_of(passages, id, metadata, text, {_SPANS})"


class Stored(NamedTuple):
    """A stored document: the row of its first passage, their number, and where each starts and stops, in characters."""

    row: int
    passages: int
    id: Id
    metadata: dict[str, Any]
    text: str
    spans: list[Span]

    def texts(self) -> list[tuple[int, str]]:
        """Return the row and the text of each passage."""
        return [(row, self.text[start:stop]) for row, (start, stop) in enumerate(self.spans, self.row)]

    def embedded(self, titled: bool) -> list[str]:
        """Return the text to embed for each passage, see :func:`embedded_texts`."""
        return embedded_texts(self.text, self.metadata, self.spans, titled)


class Passage(NamedTuple):
    """A passage of a document, whose text has it from the character ``start`` on."""

    document: Stored
    start: int
    text: str


@contextmanager
def patient(seconds: float) -> Iterator[None]:
    """Let writers in the block wait for others for this time."""
    token = _PATIENCE.set(seconds)
    try:
        yield
    finally:
        _PATIENCE.reset(token)


class ChangedError(InputError):
    """Another process has changed a database that this one may only read."""


class Database:
    """A connection to the ``index.sqlite`` of a folder, in WAL mode, so readers never wait for the writer.

    A child process gets a connection of its own, see the end of this file. Every method raises InputError if the file
    is missing, damaged or being written, or the disk is full. Those that change something need :meth:`writing`.
    """

    def __init__(self, folder: str | Path, memory_map: bool = False) -> None:
        self.folder = Path(folder).absolute()
        # Whether FAISS's vectors stay in their file, whatever its kind.
        self.memory_map = memory_map
        self.path = self.folder / DATABASE
        try:
            status = self.path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            if self.folder.is_dir():
                reason = f"a folder but not an index (it has no {DATABASE})"
            elif self.folder.exists():
                reason = "must be the folder of an index, got a file"
            else:
                reason = "no such index; make one with `ctx-embed index build` or SearchIndex.create"
            raise InputError(f"{self.folder}: {reason}") from None
        except OSError as error:
            raise InputError(f"{self.path}: cannot be read ({error.strerror})") from None
        # Opening a pipe would wait for its writer, and a link may lead anywhere.
        if not stat.S_ISREG(status.st_mode):
            raise self.damaged("not a regular file")
        # The device and inode of the file.
        self.opened = status.st_dev, status.st_ino
        self.lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self.closed = self._mapped = False
        # Whether this process may write, at the last opening; if not, the files' identities, sizes and times then.
        self._writable = True
        self._unchanged: list[tuple[int, ...] | None] | None = None
        _databases.add(self)

    @property
    def connection(self) -> sqlite3.Connection:
        """The connection, made again after a fork; use it while holding :attr:`lock`."""
        if self._connection is not None:
            if self._connection.in_transaction or self._unchanged is None or self._unchanged == self._stamp():
                return self._connection
            # Others have written to a database that this process may only read.
            self._connection.close()
            self._connection = None
        if self.closed:
            raise InputError(f"{self.folder}: this index is closed; open it again")
        if self.opened in _of_parent:
            raise InputError(
                f"{self.folder}: the parent process was reading or changing this index when it forked; start "
                "workers with the method 'spawn' or 'forkserver', or fork at another moment"
            )
        mode, alone = "mode=rw", False
        self._writable = os.access(self.folder, os.W_OK) and os.access(self.path, os.W_OK)
        if not self._writable:
            _, log, shared = stamp = self._stamp()
            # SQLite reads a log by a shared index of it, which a writer has made. A snapshot lacks it: SQLite makes one
            # in memory there if it takes no locks and may believe to be alone.
            mode, alone = "mode=ro", log is not None and shared is None
            self._unchanged = stamp if shared is None or log is None else None
            if self._unchanged is not None:
                mode += f"&vfs={_WITHOUT_LOCKS}" if alone else "&immutable=1"
        options: Any = {"uri": True, "timeout": READERS_PATIENCE, "isolation_level": None, "check_same_thread": False}
        connection: sqlite3.Connection = sqlite3.connect(f"file:{quote(str(self.path))}?{mode}", **options)
        # An exception in this handler only interrupts the statement, see reporting_errors.
        connection.set_progress_handler(require_time, OPERATIONS_AT_ONCE)
        connection.create_function("checksum_of", 5, checksum, deterministic=True)
        connection.create_function("moment_of", 1, moment_of, deterministic=True)
        if alone:
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA cache_size = -{PAGE_CACHE}")
        if self._mapped:
            connection.execute(f"PRAGMA mmap_size = {MAPPED}")
        # A view under the name of a table may have rows without end, and a trigger does what it likes.
        if foreign := connection.execute("SELECT name FROM sqlite_master WHERE type IN ('view', 'trigger')").fetchone():
            connection.close()
            raise self.damaged(f"it has the view or trigger {quoted(foreign[0])}")
        self._connection = connection
        return connection

    def _stamp(self) -> list[tuple[int, ...] | None]:
        """Return what shows a change of the database, its log and the log's shared index; None for a missing file."""
        stamps: list[tuple[int, ...] | None] = [None, None, None]
        for place, suffix in enumerate(("", "-wal", "-shm")):
            with suppress(FileNotFoundError):
                status = os.stat(f"{self.path}{suffix}")
                stamps[place] = status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
        return stamps

    @staticmethod
    def create(folder: Path, settings: Settings) -> None:
        """Create a database without documents in a folder."""
        with closing(sqlite3.connect(folder / DATABASE)) as connection:
            connection.execute(f"PRAGMA page_size = {page_size(settings.dimension, settings.dtype)}")
            connection.execute("PRAGMA journal_mode = WAL")
            connection.executescript(f"{SCHEMA};{WORDS};{';'.join(schema(settings.table))}")
            connection.execute("INSERT INTO state VALUES (?, ?, ?, ?, ?)", astuple(State()))
            connection.execute("INSERT INTO compaction VALUES (0, 0, x'')")
            connection.execute("INSERT INTO settings VALUES (?, ?, ?)", (PRESENT, *settings.stored()))
            connection.commit()

    def close(self) -> None:
        """Close the connection; the last one to close merges the write-ahead log into the database."""
        with self.lock:
            self.closed = True
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Let the block read one unchanging state; raise ChangedError if others wrote to a read-only index."""
        with self.lock:
            try:
                with self.reporting_errors():
                    # Ctrl-C may have left a transaction behind.
                    self.connection.rollback()
                    self.connection.execute("BEGIN")
                yield
            finally:
                if self._connection is not None:
                    self._connection.rollback()
                if self._unchanged is not None and self._unchanged != self._stamp():
                    raise ChangedError(f"{self.folder}: was changed while it was read; try again")

    @contextmanager
    def writing(self, patience: float | None = None) -> Iterator[None]:
        """Run the block as the only writer, in one transaction: committed to disk at its end, undone if it raises.

        ``patience`` is the number of seconds to wait for other writers; None: see :func:`patient`.
        """
        stop = time.monotonic() + (_PATIENCE.get() if patience is None else patience)
        with self.lock, taking_turns(self.folder, stop) as is_next:
            if not is_next:
                raise self._busy()
            try:
                with self.reporting_errors():
                    self.connection.rollback()
                    left = max(round((stop - time.monotonic()) * 1000), 0)
                    self.connection.execute(f"PRAGMA busy_timeout = {left}")
                    self.connection.execute("BEGIN IMMEDIATE")
                # Each name of a file has a log and locks of its own: writers by two names would lose changes.
                for suffix in ("", "-wal", "-shm"):
                    with suppress(FileNotFoundError):
                        if os.stat(f"{self.path}{suffix}").st_nlink > 1:
                            raise UnwritableError(
                                f"{self.path}{suffix}: cannot be written, since it is a hard link that another copy of "
                                "the index shares, as `cp -al` makes; delete that copy, or write to a copy that "
                                "`ctx-embed index backup` or `cp -a` makes"
                            )
                yield
                with self.reporting_errors():
                    self.connection.execute("COMMIT")
            finally:
                if self._connection is not None:
                    self._connection.rollback()

    def _busy(self) -> BusyError:
        return BusyError(f"{self.folder}: another process is writing to this index; try again when it has finished")

    @contextmanager
    def reporting_errors(self) -> Iterator[None]:
        """Turn SQLite's errors about the file into InputErrors of one line; errors in our SQL keep their traceback."""
        try:
            # Threads share the connection; the lock separates their cursors.
            with self.lock:
                yield
        except sqlite3.DatabaseError as error:
            if "interrupted" in str(error):
                # The progress handler has raised, whose exceptions SQLite does not pass on: LateError, or Ctrl-C there.
                require_time()
                raise KeyboardInterrupt from None
            if isinstance(error, sqlite3.ProgrammingError | sqlite3.InterfaceError | sqlite3.NotSupportedError):
                raise
            # SQLite's message may quote a whole text that it cannot decode: shorten it.
            message = " ".join(str(error).split())[:MESSAGE_CHARACTERS]
            if "locked" in message and not has_locks(self.folder):
                raise UnwritableError(
                    f"{self.folder}: the file system has no locks, without which an index cannot be used; move "
                    "it to a local disk"
                ) from None
            if "locked" in message:
                raise self._busy() from None
            if "unable to open" in message and not self._writable:
                raise UnwritableError(
                    f"{self.folder}: has changes in {self.path.name}-wal that can be read only with write "
                    "permission for the folder; open it once with that permission"
                ) from None
            if any(word in message for word in ("full", "readonly", "disk I/O")):
                # SQLite cannot open a database on a full disk either, and then speaks of an I/O error.
                if shutil.disk_usage(self.folder).free < FREE_BYTES:
                    message = "the disk is full"
                raise UnwritableError(f"{self.path}: cannot be written ({message})") from None
            raise DamagedError(f"{self.path}: cannot be read ({message}); {REMEDY}") from None
        except (TypeError, OverflowError, UnicodeDecodeError) as error:
            # Damaged records may have NULL or huge numbers in any column, and SQLite may quote bytes that are not text.
            raise self.damaged(error) from error

    def run(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run a statement and return the rows that it finds; raise LateError if the deadline passes meanwhile."""
        with self.reporting_errors():
            return self.connection.execute(statement, values).fetchall()

    def run_many(self, statement: str, values: Iterable[Sequence[Any]]) -> None:
        """Run a statement once for each of some rows of values."""
        with self.reporting_errors():
            self.connection.executemany(statement, values)

    def run_among(self, statement: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Run a statement with ``IN ({})`` for a few hundred values at a time, and return all rows that it finds."""
        parts = (values[start : start + VALUES_A_QUERY] for start in range(0, len(values), VALUES_A_QUERY))
        return [row for part in parts for row in self.run(statement.format(",".join("?" * len(part))), part)]

    def damaged(self, what: object) -> DamagedError:
        """Return the error that says what is damaged in the database."""
        return DamagedError(f"{self.path}: damaged ({what}); {REMEDY}")

    def state(self) -> State:
        """Return the state of the newest commit, or of the current transaction."""
        rows = self.run("SELECT generation, next_row, next_id, documents, edited FROM state")
        if not rows or any(type(value) is not int or value < 0 for value in rows[0]):
            raise self.damaged("its state has a wrong type")
        return State(*rows[0])

    def finish(self, state: State) -> None:
        """Store the state that a commit publishes as the next generation."""
        state = replace(state, generation=state.generation + 1)
        self.run(f"UPDATE state SET {', '.join(f'{field.name} = ?' for field in fields(State))}", astuple(state))

    def settings_named(self, name: str) -> Settings | None:
        """Return settings, or None if there are none of this name; raise InputError if they have another format."""
        rows = self.run("SELECT content, checksum FROM settings WHERE name = ?", (name,))
        if not rows:
            return None
        ((content, checked),) = rows
        try:
            if not isinstance(content, str) or checked != zlib.crc32(content.encode()):
                raise ValueError("its settings are damaged")
            fields = json.loads(content)
            if not isinstance(fields, dict) or not isinstance(version := fields.get("format_version"), int):
                raise ValueError("its settings have no format_version")
            if version != FORMAT_VERSION:
                has = f"has format {version}, ctx-embed reads {FORMAT_VERSION}"
                raise InputError(f"{self.folder}: {has}; build it again")
            unrelated, kinds = fields.get("unrelated"), get_type_hints(Settings)
            if isinstance(unrelated, list):
                fields["unrelated"] = tuple(unrelated)
            for field, kind in kinds.items():
                if type(fields.setdefault(field)) not in [
                    get_origin(part) or part for part in get_args(kind) or [kind]
                ]:
                    raise ValueError(f"the setting {quoted(field)} is missing or of the wrong type")
            if min(fields["dimension"], fields["table"]) < 1 or fields["dtype"] not in DTYPES:
                raise ValueError("dimension {dimension}, table {table}, dtype {dtype!r}".format(**fields))
            if not CHUNKS.fullmatch(fields["chunk"]):
                raise ValueError(f"chunk {quoted(fields['chunk'])}")
            if unrelated is not None and [type(number) for number in unrelated] != [float, float]:
                raise ValueError("the setting 'unrelated' is of the wrong type")
            if unrelated is not None and not (math.isfinite(sum(unrelated)) and unrelated[1] > 0):
                raise ValueError("the setting 'unrelated' is out of range")
        except InputError:
            raise
        except (ValueError, RecursionError) as error:
            raise self.damaged(error) from None
        return Settings(**{field: fields[field] for field in kinds})

    def present(self) -> Settings:
        """Return the settings of the index."""
        settings = self.settings_named(PRESENT)
        if settings is None:
            raise self.damaged("it has no settings")
        return settings

    def store_settings(self, settings: Settings | None, name: str = PRESENT) -> None:
        """Store or delete settings."""
        self.run("DELETE FROM settings WHERE name = ?", (name,))
        if settings is not None:
            self.run("INSERT INTO settings VALUES (?, ?, ?)", (name, *settings.stored()))

    def record(self) -> Record | None:
        """Return what the database says about FAISS's file, if that can be used."""
        for token, written, ranges in self.run("SELECT token, facts, ranges FROM faiss"):
            with suppress(ValueError, TypeError, RecursionError):
                if re.fullmatch("[0-9a-f]{32}", token) and isinstance(facts := json.loads(written), dict):
                    return Record(token, facts, bytes(ranges))
        return None

    def store_record(self, record: Record | None) -> None:
        """Record a new file of FAISS instead of the last one."""
        self.run("DELETE FROM faiss")
        if record is not None:
            self.run("INSERT INTO faiss VALUES (?, ?, ?)", (record.token, json.dumps(record.facts), record.ranges))

    def store_checksums(self, where: str, *values: Any) -> None:
        """Store the checksums of the documents that match an SQL condition."""
        self.run(f"UPDATE documents SET checksum = {_CHECKSUM} WHERE {where}", values)

    def damaged_rows(self) -> list[int]:
        """Return the rows of the documents whose checksum is wrong."""
        return [row for (row,) in self.run(f"SELECT row FROM documents WHERE checksum IS NOT {_CHECKSUM}")]

    def fetch(self, rows: Iterable[int]) -> dict[int, Passage]:
        """Return the passages of some rows, by row in the order given; raise DamagedError if one is missing."""
        wanted = list(rows)
        first = "(SELECT max(row) FROM documents WHERE row <= value)"
        select = f"SELECT {COLUMNS} FROM documents WHERE row IN (SELECT {first} FROM json_each(?)) ORDER BY row"
        documents = self._stored(self.run(select, (str(wanted),)))
        firsts = [document.row for document in documents]
        passages: dict[int, Passage] = {}
        for row in wanted:
            document = documents[bisect(firsts, row) - 1] if documents else None
            if document is None or not document.row <= row < document.row + document.passages:
                raise self.damaged("documents are missing")
            start, stop = document.spans[row - document.row]
            passages[row] = Passage(document, start, document.text[start:stop])
        return passages

    def group_keys(self, rows: Sequence[int], path: str | None) -> list[tuple[Any, ...]]:
        """Return a key for each row: its document, or the document's value of the field at ``path`` if it has one."""
        select = (
            "SELECT row, json_type(metadata, ?), json_extract(metadata, ?) FROM json_each(?) AS asked "
            "LEFT JOIN documents ON row = (SELECT max(row) FROM documents WHERE row <= asked.value) ORDER BY asked.key"
        )
        keys = self.run(select, (path or "$.id", path or "$.id", str(rows)))
        return [(row,) if path is None or kind in (None, "null") else (kind, value) for row, kind, value in keys]

    def find(self, ids: Iterable[Id]) -> dict[str, Stored]:
        """Return the documents with the given ids, by the text of the id; ids that do not exist are left out."""
        rows = self.run_among(f"SELECT {COLUMNS} FROM documents WHERE id IN ({{}})", forms_of(ids))
        return {str(document.id): document for document in self._stored(rows)}

    def after(self, row: int, count: int, condition: Condition = ALL, offset: int = 0) -> list[Stored]:
        """Return up to ``count`` documents after a row that match a condition, in order, skipping the first ones."""
        select = f"SELECT {COLUMNS} FROM documents WHERE row > ? AND {condition.sql} ORDER BY row LIMIT ? OFFSET ?"
        rows = self.run(select, (row, *condition.values, count, offset))
        # A damaged table may repeat rows without end.
        if any(row >= following for row, following in pairwise([row, *(values[0] for values in rows)])):
            raise self.damaged("its documents are out of order")
        return self._stored(rows)

    def all(self, condition: Condition = ALL, offset: int = 0, limit: int = LARGEST_ID) -> Iterator[Stored]:
        """Yield the documents that match a condition, in order and bounded memory, inside a transaction."""
        row = -1
        while documents := self.after(row, min(limit, ROWS_AT_ONCE), condition, offset):
            yield from documents
            row, offset, limit = documents[-1].row, 0, limit - len(documents)

    def _stored(self, rows: Sequence[Sequence[Any]]) -> list[Stored]:
        """Return documents from their columns, after checking them."""
        documents = []
        for row, passages, identifier, metadata, text, stored, cut in rows:
            if stored != checksum(passages, identifier, metadata, text, cut):
                raise self.damaged("the checksum of a document is wrong")
            if not (type(passages) is int and type(identifier) in (int, str) and type(metadata) is type(text) is str):
                raise self.damaged("a document has a wrong type")
            # A document that is its only passage is not cut.
            spans = [(0, len(text))]
            try:
                if cut is not None:
                    numbers = list(map(int, cut.replace(",", " ").split()))
                    spans = list(zip(numbers[::2], numbers[1::2], strict=True))
                fields = json.loads(metadata)
            except (ValueError, RecursionError) as error:
                raise self.damaged(error) from None
            if len(spans) != passages:
                raise self.damaged("passages are missing")
            documents.append(Stored(row, passages, identifier, fields, text, spans))
        return documents

    def require_all_rows(self) -> None:
        """Raise DamagedError unless the next row is the first one that no document has or had."""
        self.state()
        # One statement, because another process may commit between two.
        select = (
            "SELECT next_row, max(ifnull((SELECT row + passages FROM documents ORDER BY row DESC LIMIT 1), 0), "
            "ifnull((SELECT max(row + passages) FROM deleted), 0), (SELECT stop FROM compaction)) FROM state"
        )
        ((counted, rows),) = self.integers(select)
        if rows != counted:
            raise DamagedError(f"{self.folder}: has {rows} rows, but its count is {counted}; {REMEDY}")

    def deleted_rows(self) -> int:
        """Return the number of rows of documents deleted since the last compaction."""
        return self.integers("SELECT ifnull(sum(passages), 0) FROM deleted")[0][0]

    def firsts(self, condition: Condition = ALL, first: int = 0) -> NDArray[np.int64]:
        """Return row and passages (n, 2) of the documents from a row on that match a condition, in order."""
        select = f"SELECT row, passages FROM documents WHERE row >= ? AND {condition.sql} ORDER BY row"
        return np.array(self.integers(select, first, *condition.values), np.int64).reshape(-1, 2)

    def integers(self, select: str, *values: Any) -> list[tuple[int, ...]]:
        """Return what was found, after checking that all are integers: in a damaged file SQLite may read any type."""
        rows = self.run(select, values)
        if not set(map(type, chain.from_iterable(rows))) <= {int}:
            raise self.damaged("a row has a wrong type")
        return rows

    def ids_matching(self, condition: Condition = ALL) -> list[Id]:
        """Return the ids of the documents whose metadata match a condition, in the order of addition."""
        select = f"SELECT id FROM documents WHERE {condition.sql} ORDER BY row"
        return [identifier for (identifier,) in self.run(select, condition.values)]

    def unknown_fields(self, paths: Iterable[tuple[str, bool]]) -> dict[str, list[str]]:
        """Return the names of fields (given by paths) that no document has, each mapped to all fields there are.

        With True, a field is also unknown if it has only strings, and is then among the fields it is mapped to.
        """
        unknown: dict[str, bool] = {}
        for path, numeric in paths:
            having = "SELECT 1 FROM documents WHERE json_type(metadata, ?) IS NOT NULL"
            others = f"{having} AND json_type(metadata, ?) NOT IN ('text', 'null')" if numeric else having
            if not self.run(f"{others} LIMIT 1", (path,) * others.count("?")):
                name = name_of(path)
                unknown[name] = bool(self.run(f"{having} LIMIT 1", (path,)))
        if not unknown:
            return {}
        # This statement reads all metadata.
        names = self.run("SELECT DISTINCT entry.key FROM documents, json_each(documents.metadata) AS entry")
        fields = {str(name) for (name,) in names}
        return {name: sorted(fields | {name} if is_text else fields) for name, is_text in unknown.items()}

    def require_texts(self, path: str, date: str) -> None:
        """Raise InputError if a field has no strings but numbers, or dates of another form than ``date`` has."""
        having = "SELECT json_extract(metadata, ?) FROM documents WHERE json_type(metadata, ?) IN"
        if not (texts := self.run(f"{having} ('text', 'array') LIMIT 1", (path, path))):
            if self.run(f"{having} ('integer', 'real', 'true', 'false') LIMIT 1", (path, path)):
                values = "numbers, true or false; compare it with these, without quotation marks"
                raise InputError(f"the field {quoted(name_of(path))} has no text, but {values}")
        elif {form_of_date(date), form_of_date(texts[0][0])} == {"ISO", "other"}:
            dates = f"dates such as {quoted(texts[0][0])}, and the filter {quoted(date)}"
            raise InputError(f"the field {quoted(name_of(path))} has {dates}; write both as ISO dates")

    def rows_of_ids(self, ids: Iterable[Id]) -> dict[str, tuple[Id, int, int]]:
        """Return id, row and passages of each document that has one of the given ids, by the text of the id."""
        rows = self.run_among("SELECT id, row, passages FROM documents WHERE id IN ({})", forms_of(ids))
        return {str(identifier): (identifier, row, count) for identifier, row, count in rows}

    def record_automatic(self, automatic: Iterable[Id], given: Iterable[Id]) -> None:
        """Record which ids the index has assigned itself: only these may change in another index."""
        self.run_many("DELETE FROM automatic WHERE id = ?", ((integer_of(identifier),) for identifier in given))
        self.run_many("INSERT OR IGNORE INTO automatic VALUES (?)", ((identifier,) for identifier in automatic))

    def automatic(self, ids: Iterable[Id]) -> set[Id]:
        """Return which of the given ids the index has assigned itself."""
        numbers = [number for number in map(integer_of, ids) if number is not None]
        return {identifier for (identifier,) in self.run_among("SELECT id FROM automatic WHERE id IN ({})", numbers)}


# SQLite's locks belong to a process, but it keeps their books in memory, which a fork copies: a child that goes on with
# a file that its parent had open takes no locks, and either of the two loses what the other writes. So connections are
# closed before a fork and opened again when they are next used. A connection in the middle of a transaction stays open,
# and its child is refused that file.
_databases: weakref.WeakSet[Database] = weakref.WeakSet()
# Databases whose lock the forking thread holds during a fork.
_held: list[Database] = []
# Device and inode of files that the parent was using at the fork.
_of_parent: set[tuple[int, int] | None] = set()


def _before() -> None:
    for database in list(_databases):
        if database.lock.acquire(blocking=False):
            _held.append(database)
            connection = database._connection
            if connection is not None and not connection.in_transaction:
                connection.close()
                database._connection = None


def _after_in_parent() -> None:
    while _held:
        _held.pop().lock.release()


def _after_in_child() -> None:
    _held.clear()
    for database in list(_databases):
        # A thread of the parent may hold the lock; the child does not have that thread.
        database.lock = threading.RLock()
        if database._connection is not None:
            # This connection is never closed: that would release SQLite's locks, and remove the parent's log.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(database._connection))
            database._connection = None
            _of_parent.add(database.opened)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
