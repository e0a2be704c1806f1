"""The documents of an index in SQLite: their ids, texts, metadata and passages."""

from __future__ import annotations

import hashlib
import json
import numbers
import re
import sqlite3
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ctx_embed.errors import REMEDY, DamagedError, InputError, described
from ctx_embed.index.storage.database import Database
from ctx_embed.index.storage.filters import Condition
from ctx_embed.index.storage.vectors import VectorTable
from ctx_embed.text.words import indexed
from ctx_embed.texts import well_formed

Id: TypeAlias = str | int
Span: TypeAlias = tuple[int, int]
Mask: TypeAlias = NDArray[np.bool_]

LARGEST_ID = 2**63 - 1
# Number of values in one statement, below SQLite's limit on parameters.
VALUES_A_QUERY = 500
# Maximum depth of nested metadata; JSON readers, including SQLite's, fail at some greater depth.
DEEPEST_METADATA = 100
_JSON = json.JSONEncoder(ensure_ascii=False, allow_nan=False)
# Number of documents read at a time when all are read.
DOCUMENTS_AT_ONCE = 2048
# The passages of a document as one text, which its checksum covers, and the columns of a document.
_SPANS = (
    "(SELECT group_concat(start || ' ' || stop) FROM passages AS p "
    "WHERE p.row >= documents.row AND p.row < documents.row + documents.passages)"
)
COLUMNS = f"documents.row, passages, id, metadata, text, checksum, {_SPANS}"


@dataclass(frozen=True)
class Stored:
    """A stored document.

    Args:
        row: the row of its first passage.
        passages: the number of its passages.
        id: its id.
        metadata: its metadata.
        text: its text.
        cut: where its passages start and stop, as one text; None if the document is its only passage.
    """

    row: int
    passages: int
    id: Id
    metadata: dict[str, Any]
    text: str
    cut: str | None

    @cached_property
    def spans(self) -> list[Span]:
        """Where each passage starts and stops, in characters."""
        if self.cut is None:
            return [(0, len(self.text))]
        numbers = iter(map(int, self.cut.replace(",", " ").split()))
        return list(zip(numbers, numbers, strict=True))

    def passage(self, row: int) -> Passage:
        """Return the passage in a row."""
        return Passage(self, *self.spans[row - self.row])


class NewDocument(NamedTuple):
    """A document to store: its id, its metadata as JSON, its text, and where its passages start and stop."""

    id: Id
    metadata: str
    text: str
    spans: Sequence[Span]

    def passages(self) -> list[str]:
        """Return the text of each passage."""
        return [self.text[start:stop] for start, stop in self.spans]


class Passage(NamedTuple):
    """A passage of a document: characters ``start`` to ``stop`` of its text."""

    document: Stored
    start: int
    stop: int

    @property
    def text(self) -> str:
        """The text of the passage."""
        return self.document.text[self.start : self.stop]

    def embedded(self, titled: bool) -> str:
        """Return the text that is embedded for the passage, see :func:`embedded_texts`."""
        title = self.document.metadata.get("title") if titled and self.document.passages > 1 else None
        return _with_title(self.text, title)


def checked_id(identifier: Any, number: int | None = None) -> Id:
    """Return an id as it is stored.

    Args:
        identifier: a string or a 64-bit integer, also of NumPy.
        number: the number of the document, from 1, for the message; None if the id stands alone.

    Raises:
        InputError: the id is anything else.
    """
    place = "" if number is None else f"document {number}: "
    if isinstance(identifier, str):
        if well_formed(identifier) != identifier:
            raise InputError(f"{place}the id {identifier!r} has a lone surrogate; give it another id")
        return str(identifier)
    if isinstance(identifier, bool) or not isinstance(identifier, numbers.Integral):
        raise InputError(f"{place}the id must be a string or an integer, got {described(identifier)}")
    if not -LARGEST_ID - 1 <= int(identifier) <= LARGEST_ID:
        raise InputError(f"{place}the id {identifier} does not fit into 64 bits; give it as a string")
    return int(identifier)


def metadata_json(metadata: Any, number: int) -> str:
    """Return metadata as the JSON that is stored; lone surrogates become U+FFFD.

    Scalars of NumPy become numbers, and dates and times strings in ISO 8601. A field that is NaN, or missing as pandas
    has it, is left out.

    Raises:
        InputError: the metadata is not a dictionary with string keys, or has a value that JSON cannot hold (such as
            infinity) or that is nested too deeply.
    """
    if metadata == {} and isinstance(metadata, dict):
        return "{}"
    if not isinstance(metadata, dict) or not all(isinstance(name, str) for name in metadata):
        raise InputError(f"document {number}: the metadata must be a dictionary with string keys, got {metadata!r:.60}")
    try:
        written, nested = _written(metadata), _is_deep(metadata)
    except (TypeError, ValueError, OverflowError) as error:
        name = next(name for name, value in metadata.items() if not _is_json(value))
        raise InputError(f"document {number}: the metadata field {name!r} cannot be stored as JSON ({error})") from None
    except RecursionError:
        nested = True
    if nested:
        raise InputError(
            f"document {number}: the metadata is nested more than {DEEPEST_METADATA} levels deep; flatten it"
        )
    return well_formed(written)


def _written(metadata: dict[str, Any]) -> str:
    """Return metadata as JSON; values of NumPy and pandas are converted if there are any."""
    try:
        written = _JSON.encode(metadata)
    except (TypeError, ValueError):
        written = _JSON.encode(_plain({name: value for name, value in metadata.items() if not _is_missing(value)}))
    if len(written) > sys.float_info.max_10_exp:
        _require_finite(metadata)
    return written


def _require_finite(value: Any) -> None:
    """Raise OverflowError for an integer that SQLite would read as infinity."""
    if type(value) is int:
        float(value)
    elif isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            _require_finite(item)


def _plain(value: Any) -> Any:
    """Return a value without types of NumPy and pandas: times as ISO 8601, and missing values in lists as None."""
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if _is_missing(value):
        return None
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, np.datetime64):
        return str(value)
    return value.item() if isinstance(value, np.generic) else value


def _is_missing(value: Any) -> bool:
    """Return whether a value is NaN, pandas' NaT, or pandas' NA."""
    if isinstance(value, numbers.Real | date | np.datetime64):
        return bool(value != value)
    return type(value).__name__ == "NAType"


def _is_json(value: Any) -> bool:
    try:
        _written({"": value})
    except (TypeError, ValueError, OverflowError, RecursionError):
        return False
    return True


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(DEEPEST_METADATA):
        level = [
            item
            for parent in level
            if isinstance(parent, dict | list | tuple)
            for item in (parent.values() if isinstance(parent, dict) else parent)
        ]
        if not level:
            return False
    return any(isinstance(item, dict | list | tuple) for item in level)


def embedded_texts(text: str, metadata: Mapping[str, Any], spans: Sequence[Span], titled: bool) -> list[str]:
    """Return what is embedded for each passage of a document.

    Args:
        text: the document.
        metadata: its metadata; the field ``title`` is its title.
        spans: its passages.
        titled: whether, in a document of several passages, the title is put before passages without it, since a passage
            alone seldom says what the document is about.
    """
    title = metadata.get("title") if titled and len(spans) > 1 else None
    return [_with_title(text[start:stop], title) for start, stop in spans]


def _with_title(passage: str, title: Any) -> str:
    is_missing = isinstance(title, str) and bool(title.strip()) and title not in passage
    return f"{title}\n{passage}" if is_missing else passage


def text_hash(text: str) -> int:
    """Return 64 bits of a text's BLAKE2 hash, as a signed integer for SQLite."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big", signed=True)


def checksum(passages: Any, identifier: Any, metadata: Any, text: Any, spans: Any) -> int:
    """Return the CRC-32 of a document.

    Args:
        passages: the number of its passages.
        identifier: its id.
        metadata: its metadata, as JSON.
        text: its text.
        spans: the start and the stop of each passage, as one text; None if the document is its only passage.
    """
    # Formatting accepts values of any type, which a damaged database may hold.
    return zlib.crc32(f"{(passages, identifier, spans)!r}{metadata}{text}".encode("utf-8", "surrogatepass"))


class DocumentStore(Database):
    """The documents in ``index.sqlite``; call the methods that change them inside :meth:`Database.writing`."""

    def _connected(self) -> sqlite3.Connection:
        connection = super()._connected()
        connection.create_function("checksum_of", 5, checksum, deterministic=True)
        return connection

    def store_checksums(self, where: str, *values: Any) -> None:
        """Store the checksums of the documents that match an SQL condition, inside :meth:`Database.writing`."""
        with self.reporting_errors():
            self.connection.execute(
                f"UPDATE documents SET checksum = checksum_of(passages, id, metadata, text, {_SPANS}) WHERE {where}",
                values,
            )

    def damaged_rows(self) -> list[int]:
        """Return the rows of the documents whose checksum is wrong."""
        select = f"SELECT row FROM documents WHERE checksum IS NOT checksum_of(passages, id, metadata, text, {_SPANS})"
        with self.reporting_errors():
            return [row for (row,) in self.connection.execute(select)]

    def fetch(self, rows: Iterable[int]) -> dict[int, Passage]:
        """Return the passages of some rows, by row.

        Raises:
            DamagedError: the database lacks a row.
        """
        select = f"SELECT {COLUMNS} FROM documents WHERE row <= ? ORDER BY row DESC LIMIT 1"
        found: dict[int, Passage] = {}
        document: Stored | None = None
        for row in sorted(rows):
            # A document is read once for all its passages.
            if document is None or row >= document.row + document.passages:
                with self.reporting_errors():
                    values = self.connection.execute(select, (row,)).fetchone()
                document = None if values is None else self._stored(values)
                if document is None or row >= document.row + document.passages:
                    raise DamagedError(f"{self.path}: damaged (documents are missing); {REMEDY}")
            found[row] = document.passage(row)
        return found

    def group_keys(self, rows: Sequence[int], path: str | None) -> list[tuple[Any, ...]]:
        """Return a key for each row: equal for rows of one document, or of one value of a metadata field.

        Args:
            rows: rows of documents.
            path: the field's path, see :func:`.filters.field_path`; None groups by document, and so do rows whose
                documents lack the field.
        """
        select = (
            "SELECT row, json_type(metadata, ?), json_extract(metadata, ?) FROM documents WHERE row <= ? "
            "ORDER BY row DESC LIMIT 1"
        )
        path_or_id = path or "$.id"
        keys: list[tuple[Any, ...]] = []
        for row in rows:
            with self.reporting_errors():
                document, kind, value = self.connection.execute(select, (path_or_id, path_or_id, row)).fetchone()
            keys.append((document,) if path is None or kind in (None, "null") else (kind, value))
        return keys

    def has_field(self, path: str) -> bool:
        """Return whether any document has a field, given by its path, see :func:`.filters.field_path`."""
        select = "SELECT 1 FROM documents WHERE json_type(metadata, ?) IS NOT NULL LIMIT 1"
        with self.reporting_errors():
            return self.connection.execute(select, (path,)).fetchone() is not None

    def find(self, ids: Sequence[Id]) -> dict[Id, Stored]:
        """Return the documents with the given ids, by id; ids that do not exist are left out."""
        found: dict[Id, Stored] = {}
        for start in range(0, len(ids), VALUES_A_QUERY):
            part = ids[start : start + VALUES_A_QUERY]
            select = f"SELECT {COLUMNS} FROM documents WHERE id IN ({_marks(part)})"
            with self.reporting_errors():
                values = self.connection.execute(select, part).fetchall()
            found |= {document.id: document for document in map(self._stored, values)}
        return found

    def beginnings(self, rows: Sequence[int], characters: int) -> str:
        """Return the beginnings of texts, one after the other, which have this many characters together."""
        select, part = "SELECT substr(text, 1, ?) FROM documents WHERE row = ?", characters // max(len(rows), 1)
        with self.reporting_errors():
            return "\n".join(self.connection.execute(select, (part, row)).fetchone()[0] for row in rows)

    def after(self, row: int, count: int) -> list[Stored]:
        """Return up to ``count`` documents after a row, in order."""
        select = f"SELECT {COLUMNS} FROM documents WHERE row > ? ORDER BY row LIMIT ?"
        with self.reporting_errors():
            found = self.connection.execute(select, (row, count)).fetchall()
        return self._in_order(found, row)

    def all(self) -> Iterator[Stored]:
        """Yield every document in the order of rows, in bounded memory, inside :meth:`reading` or :meth:`writing`."""
        row = -1
        while documents := self.after(row, DOCUMENTS_AT_ONCE):
            yield from documents
            row = documents[-1].row

    def rows_there(self, rows: Sequence[int]) -> set[int]:
        """Return which of some rows are the first ones of documents."""
        found: set[int] = set()
        for start in range(0, len(rows), VALUES_A_QUERY):
            part = rows[start : start + VALUES_A_QUERY]
            with self.reporting_errors():
                select = f"SELECT row FROM documents WHERE row IN ({_marks(part)})"
                found |= {row for (row,) in self.connection.execute(select, part)}
        return found

    def _in_order(self, found: Sequence[Sequence[Any]], after: int) -> list[Stored]:
        """Return the documents in the order of rows; a damaged table is an error, as it may repeat rows without end."""
        rows = [after, *(values[0] for values in found)]
        if any(row >= following for row, following in pairwise(rows)):
            raise DamagedError(f"{self.path}: damaged (its documents are out of order); {REMEDY}")
        return list(map(self._stored, found))

    def _stored(self, values: Sequence[Any]) -> Stored:
        row, passages, identifier, metadata, text, stored, spans = values
        if stored != checksum(passages, identifier, metadata, text, spans):
            raise DamagedError(f"{self.path}: damaged (the checksum of a document is wrong); {REMEDY}")
        if not (type(passages) is int and type(identifier) in (int, str) and type(metadata) is type(text) is str):
            raise DamagedError(f"{self.path}: damaged (a document has a wrong type); {REMEDY}")
        if passages != (1 if spans is None else spans.count(",") + 1):
            raise DamagedError(f"{self.path}: damaged (passages are missing); {REMEDY}")
        try:
            return Stored(row, passages, identifier, json.loads(metadata), text, spans)
        except (ValueError, RecursionError) as error:
            raise DamagedError(f"{self.path}: damaged (metadata: {error}); {REMEDY}") from None

    def next_row(self) -> int:
        """Return the row after all that documents have or had."""
        select = (
            "SELECT max(ifnull((SELECT row + passages FROM documents ORDER BY row DESC LIMIT 1), 0), "
            "ifnull((SELECT max(row + passages) FROM deleted), 0), (SELECT stop FROM compaction))"
        )
        with self.reporting_errors():
            return int(self.connection.execute(select).fetchone()[0])

    def deleted(self, after: int = 0) -> list[tuple[int, int, int]]:
        """Return the documents deleted since the last compaction: number, row and passages, from a number on."""
        with self.reporting_errors():
            select = "SELECT number, row, passages FROM deleted WHERE number > ? ORDER BY number"
            return self._integers(self.connection.execute(select, (after,)).fetchall())

    def _integers(self, found: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """Return what was found if all of it are integers: in a damaged file SQLite may read any type."""
        if any(type(value) is not int for values in found for value in values):
            raise DamagedError(f"{self.path}: damaged (a row has a wrong type); {REMEDY}")
        return found

    def deleted_rows(self) -> int:
        """Return the number of rows of documents deleted since the last compaction."""
        with self.reporting_errors():
            return int(self.connection.execute("SELECT ifnull(sum(passages), 0) FROM deleted").fetchone()[0])

    def matching(self, condition: str, values: Sequence[Any], first: int = 0) -> list[tuple[int, int]]:
        """Return row and passages of the documents from a row on that match a condition of :mod:`.filters`."""
        with self.reporting_errors():
            select = f"SELECT row, passages FROM documents WHERE row >= ? AND {condition}"
            return self._integers(self.connection.execute(select, (first, *values)).fetchall())

    def firsts(self) -> list[tuple[int, int]]:
        """Return row and passages of all documents, in the order of rows."""
        with self.reporting_errors():
            return self._integers(
                self.connection.execute("SELECT row, passages FROM documents ORDER BY row").fetchall()
            )

    def ids_matching(self, condition: Condition | None) -> list[Id]:
        """Return the ids of the documents whose metadata match a condition (None: all), in the order of addition."""
        sql, values = ("1", ()) if condition is None else (condition.sql, condition.values)
        with self.reporting_errors():
            found = self.connection.execute(f"SELECT id FROM documents WHERE {sql} ORDER BY row", values)
            return [identifier for (identifier,) in found]

    def matching_documents(self, condition: Condition | None, offset: int, limit: int | None) -> Iterator[Stored]:
        """Yield the documents whose metadata match a condition (None: all), in the order of addition.

        Call it inside :meth:`reading`; memory is bounded.

        Args:
            condition: of :mod:`.filters`.
            offset: the number of documents to skip.
            limit: the maximum number of documents; None: all.
        """
        sql, values = ("1", ()) if condition is None else (condition.sql, condition.values)
        select = f"SELECT {COLUMNS} FROM documents WHERE row > ? AND {sql} ORDER BY row LIMIT ? OFFSET ?"
        row = -1
        while limit is None or limit > 0:
            count = DOCUMENTS_AT_ONCE if limit is None else min(limit, DOCUMENTS_AT_ONCE)
            with self.reporting_errors():
                found = self.connection.execute(select, (row, *values, count, offset)).fetchall()
            yield from self._in_order(found, row)
            if len(found) < count:
                return
            row, offset = found[-1][0], 0
            limit = None if limit is None else limit - count

    def value_counts(self, path: str, condition: Condition | None, limit: int | None) -> list[tuple[Any, int]]:
        """Return the values of a field with their numbers of documents, most frequent first.

        Elements of lists count one by one; null and objects do not.

        Args:
            path: the field's path, see :func:`.filters.field_path`.
            condition: which documents count; None: all.
            limit: the maximum number of values; None: all.
        """
        sql, values = ("1", ()) if condition is None else (condition.sql, condition.values)
        select = (
            "SELECT element.type, element.value, count(DISTINCT documents.row) AS count "
            "FROM documents, json_each(documents.metadata, ?) AS element "
            f"WHERE json_type(documents.metadata, ?) != 'object' AND {sql} "
            "AND element.type NOT IN ('null', 'object', 'array') "
            "GROUP BY element.type, element.value ORDER BY count DESC, element.value, element.type LIMIT ?"
        )
        with self.reporting_errors():
            found = self.connection.execute(select, (path, path, *values, -1 if limit is None else limit)).fetchall()
        return [(value == 1 if kind in ("true", "false") else value, count) for kind, value, count in found]

    def set_metadata(self, document: Stored, metadata: str) -> None:
        """Replace the metadata of a document, given as JSON; call it inside :meth:`Database.writing`."""
        with self.reporting_errors():
            self.connection.execute("UPDATE documents SET metadata = ? WHERE row = ?", (metadata, document.row))
        self.store_checksums("row = ?", document.row)

    def unknown_fields(self, paths: Iterable[str]) -> dict[str, list[str]]:
        """Return the names of fields that no document has, each mapped to the fields of documents.

        Args:
            paths: the paths of fields, see :func:`.filters.field_path`.
        """
        unknown = [".".join(re.findall('"([^"]*)"', path)) for path in paths if not self.has_field(path)]
        return dict.fromkeys(unknown, self.metadata_fields() if unknown else [])

    def metadata_fields(self) -> list[str]:
        """Return the sorted names of all metadata fields; this reads all metadata."""
        select = "SELECT DISTINCT entry.key FROM documents, json_each(documents.metadata) AS entry"
        with self.reporting_errors():
            return sorted(str(name) for (name,) in self.connection.execute(select))

    def rows_of_ids(self, ids: Sequence[Id]) -> dict[Id, tuple[int, int]]:
        """Return row and passages of each document that has one of the given ids, by id."""
        found: dict[Id, tuple[int, int]] = {}
        for start in range(0, len(ids), VALUES_A_QUERY):
            part = ids[start : start + VALUES_A_QUERY]
            with self.reporting_errors():
                select = f"SELECT id, row, passages FROM documents WHERE id IN ({_marks(part)})"
                found |= {identifier: (row, count) for identifier, row, count in self.connection.execute(select, part)}
        return found

    def rows_of_texts(self, hashes: Mapping[str, int]) -> dict[str, int]:
        """Return a row for each text that is already a passage; the text itself is compared, not only its hash.

        Args:
            hashes: the :func:`text_hash` of each text.
        """
        by_hash = {digest: text for text, digest in hashes.items()}
        ordered = sorted(by_hash)
        found: dict[str, int] = {}
        for start in range(0, len(ordered), VALUES_A_QUERY):
            part = ordered[start : start + VALUES_A_QUERY]
            with self.reporting_errors():
                pairs = self.connection.execute(
                    f"SELECT hash, row FROM hashes WHERE hash IN ({_marks(part)})", part
                ).fetchall()
            for digest, row in pairs:
                if self._is_passage(row, by_hash[digest]):
                    found[by_hash[digest]] = row
        return found

    def _is_passage(self, row: int, text: str) -> bool:
        # The row may belong to a deleted document.
        try:
            return self.fetch([row])[row].text == text
        except InputError:
            return False

    def insert(self, row: int, documents: Iterable[NewDocument]) -> None:
        """Add documents whose ids are not taken, with their passages in the rows from ``row`` on."""
        records, cut, words = [], [], []
        for document in documents:
            identifier, metadata, text, spans = document
            is_cut = list(spans) != [(0, len(text))]
            joined = ",".join(f"{start} {stop}" for start, stop in spans) if is_cut else None
            check = checksum(len(spans), identifier, metadata, text, joined)
            records.append((row, len(spans), check, identifier, metadata, text))
            for place, (start, stop) in enumerate(spans, row):
                words.append((place, text[start:stop]))
                if is_cut:
                    cut.append((place, start, stop))
            row += len(spans)
        with self.reporting_errors():
            self.connection.executemany("INSERT INTO documents VALUES (?, ?, ?, ?, ?, ?)", records)
            self.connection.executemany("INSERT INTO passages VALUES (?, ?, ?)", cut)
        self.index_words(words)

    def index_words(self, passages: Iterable[tuple[int, str]]) -> None:
        """Add passages, as pairs of row and text, to the word lists."""
        with self.reporting_errors():
            rows = ((row, indexed(text)) for row, text in passages)
            self.connection.executemany("INSERT INTO words (rowid, text) VALUES (?, ?)", rows)

    def record_automatic(self, automatic: Iterable[Id], given: Iterable[Id]) -> None:
        """Record which ids the index has numbered itself: only these may change in another index."""
        with self.reporting_errors():
            run = self.connection.executemany
            run("DELETE FROM automatic WHERE id = ?", ((identifier,) for identifier in given))
            run("INSERT OR IGNORE INTO automatic VALUES (?)", ((identifier,) for identifier in automatic))

    def automatic(self, ids: Sequence[Id]) -> set[Id]:
        """Return which of some ids the index has numbered itself."""
        found: set[Id] = set()
        for start in range(0, len(ids), VALUES_A_QUERY):
            part = ids[start : start + VALUES_A_QUERY]
            with self.reporting_errors():
                select = f"SELECT id FROM automatic WHERE id IN ({_marks(part)})"
                found |= {identifier for (identifier,) in self.connection.execute(select, part)}
        return found

    def largest_given_id(self) -> int:
        """Return the largest integer that was given as an id, -1 if there is none."""
        select = "SELECT max(id) FROM documents WHERE typeof(id) = 'integer' AND id NOT IN (SELECT id FROM automatic)"
        with self.reporting_errors():
            found = self.connection.execute(select).fetchone()[0]
        return -1 if found is None else int(found)

    def keep_hashes(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Record in which row each text was embedded, as pairs of :func:`text_hash` and row."""
        with self.reporting_errors():
            self.connection.executemany("INSERT OR REPLACE INTO hashes VALUES (?, ?)", sorted(pairs))

    def remove(self, documents: Sequence[Stored], tables: Sequence[VectorTable]) -> None:
        """Delete documents and their vectors in some tables; their rows are never used again."""
        words = [
            (row, indexed(document.text[start:stop]))
            for document in documents
            for row, (start, stop) in enumerate(document.spans, document.row)
        ]
        rows = [(document.row, document.passages) for document in documents]
        with self.reporting_errors():
            run = self.connection.executemany
            run("INSERT INTO words (words, rowid, text) VALUES ('delete', ?, ?)", words)
            run("DELETE FROM passages WHERE row >= ? AND row < ? + ?", [(row, row, count) for row, count in rows])
            run("DELETE FROM documents WHERE row = ? AND passages = ?", rows)
            run("INSERT INTO deleted (row, passages) VALUES (?, ?)", rows)
        for table in tables:
            table.remove(rows)

    def documents_up_to(self, first: int, row: int) -> int:
        """Return how many documents start in the rows ``first`` to ``row``, both included."""
        with self.reporting_errors():
            select = "SELECT count(*) FROM documents WHERE row BETWEEN ? AND ?"
            return int(self.connection.execute(select, (first, row)).fetchone()[0])


def _marks(values: Sequence[Any]) -> str:
    return ",".join("?" * len(values))
