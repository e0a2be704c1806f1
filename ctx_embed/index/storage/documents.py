"""The documents of an index in SQLite: their ids, texts, metadata and passages, and the vectors of these."""

import json
import numbers
import re
import zlib
from bisect import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from itertools import chain, compress, pairwise
from operator import lt, ne
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ctx_embed.errors import InputError, described
from ctx_embed.index.storage.database import Database, Settings, checksum
from ctx_embed.index.storage.filters import ALL, Condition
from ctx_embed.index.storage.vectors import DTYPES, Rows, Vectors
from ctx_embed.texts import well_formed

Id: TypeAlias = str | int
Span: TypeAlias = tuple[int, int]

LARGEST_ID = 2**63 - 1
# Maximum depth of nested metadata; JSON readers, including SQLite's, fail at some greater depth.
DEEPEST_METADATA = 100
_JSON = json.JSONEncoder(ensure_ascii=False, allow_nan=False)
# Number of documents, and of vectors, to read at a time.
ROWS_AT_ONCE = 2048
# The passages of a document as one text, which its checksum covers, and the columns of a document.
_SPANS = (
    "(SELECT group_concat(start || ' ' || stop) FROM passages AS p "
    "WHERE p.row >= documents.row AND p.row < documents.row + documents.passages)"
)
COLUMNS = f"documents.row, passages, id, metadata, text, checksum, {_SPANS}"
_CHECKSUM = f"checksum_of(passages, id, metadata, text, {_SPANS})"


@dataclass(frozen=True)
class Stored:
    """A stored document: the row of its first passage, their number, and where they are cut (None: one passage)."""

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

    def texts(self) -> list[tuple[int, str]]:
        """Return the row and the text of each passage."""
        return [(row, self.text[start:stop]) for row, (start, stop) in enumerate(self.spans, self.row)]


class Passage(NamedTuple):
    """A passage of a document: characters ``start`` to ``stop`` of its text."""

    document: Stored
    start: int
    stop: int

    @property
    def text(self) -> str:
        """The text of the passage."""
        return self.document.text[self.start : self.stop]


def checked_id(identifier: Any, number: int | None = None) -> Id:
    """Return an id as it is stored: a string without lone surrogates, or a 64-bit integer, also of NumPy."""
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
    """Return metadata as the JSON that is stored, or raise InputError; lone surrogates become U+FFFD.

    Scalars of NumPy become numbers, and dates and times strings in ISO 8601. A field that is NaN, or missing as pandas
    has it, is left out.
    """
    if not isinstance(metadata, dict) or not all(isinstance(name, str) for name in metadata):
        raise InputError(f"document {number}: the metadata must be a dictionary with string keys, got {metadata!r:.60}")
    written, name = [], ""
    try:
        for name, value in metadata.items():
            if not _is_missing(value):
                written.append(f"{_JSON.encode(name)}: {_JSON.encode(_plain(value, DEEPEST_METADATA - 1))}")
    except RecursionError:
        raise InputError(
            f"document {number}: the metadata is nested more than {DEEPEST_METADATA} levels deep; flatten it"
        ) from None
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"document {number}: the metadata field {name!r} cannot be stored as JSON ({error})") from None
    return well_formed(f"{{{', '.join(written)}}}")


def _plain(value: Any, depth: int) -> Any:
    """Return a value without types of NumPy and pandas: times as ISO 8601, and missing values in lists as None."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict | list | tuple):
        if not depth:
            raise RecursionError
        if isinstance(value, dict):
            return {name: _plain(item, depth - 1) for name, item in value.items()}
        return [_plain(item, depth - 1) for item in value]
    if _is_missing(value):
        return None
    if type(value) is int:
        # SQLite reads integers as infinity where this raises OverflowError.
        float(value)
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


def embedded_texts(text: str, metadata: Mapping[str, Any], spans: Sequence[Span], titled: bool) -> list[str]:
    """Return the text to embed for each passage; ``titled`` puts the document's title before those that lack it.

    A passage alone seldom says what its document is about.
    """
    title = metadata.get("title")
    passages = [text[start:stop] for start, stop in spans]
    if not titled or len(spans) < 2 or not isinstance(title, str) or not title.strip():
        return passages
    return [passage if title in passage else f"{title}\n{passage}" for passage in passages]


class DocumentStore(Database):
    """The documents in ``index.sqlite``; call the methods that change them inside :meth:`Database.writing`."""

    def store_checksums(self, where: str, *values: Any) -> None:
        """Store the checksums of the documents that match an SQL condition."""
        self.run(f"UPDATE documents SET checksum = {_CHECKSUM} WHERE {where}", values)

    def damaged_rows(self) -> list[int]:
        """Return the rows of the documents whose checksum is wrong."""
        return [row for (row,) in self.run(f"SELECT row FROM documents WHERE checksum IS NOT {_CHECKSUM}")]

    def fetch(self, rows: Iterable[int]) -> dict[int, Passage]:
        """Return the passages of some rows, by row; raise DamagedError if the database lacks one."""
        wanted = sorted(rows)
        first = "(SELECT max(row) FROM documents WHERE row <= value)"
        select = f"SELECT {COLUMNS} FROM documents WHERE row IN (SELECT {first} FROM json_each(?)) ORDER BY row"
        documents = self._stored(self.run(select, (str(wanted),)))
        firsts = [document.row for document in documents]
        found: dict[int, Passage] = {}
        for row in wanted:
            document = documents[bisect(firsts, row) - 1] if documents else None
            if document is None or not document.row <= row < document.row + document.passages:
                raise self.damaged("documents are missing")
            found[row] = Passage(document, *document.spans[row - document.row])
        return found

    def group_keys(self, rows: Sequence[int], path: str | None) -> list[tuple[Any, ...]]:
        """Return a key for each row: its document, or the document's value of the field at ``path`` if it has one."""
        select = (
            "SELECT row, json_type(metadata, ?), json_extract(metadata, ?) FROM documents WHERE row <= ? "
            "ORDER BY row DESC LIMIT 1"
        )
        keys: list[tuple[Any, ...]] = []
        for row in rows:
            document, kind, value = self.run_one(select, (path or "$.id", path or "$.id", row))
            keys.append((document,) if path is None or kind in (None, "null") else (kind, value))
        return keys

    def find(self, ids: Sequence[Id]) -> dict[Id, Stored]:
        """Return the documents with the given ids, by id; ids that do not exist are left out."""
        found = self.run_among(f"SELECT {COLUMNS} FROM documents WHERE id IN ({{}})", ids)
        return {document.id: document for document in self._stored(found)}

    def after(self, row: int, count: int, condition: Condition = ALL, offset: int = 0) -> list[Stored]:
        """Return up to ``count`` documents after a row that match a condition, in order, skipping the first ones."""
        select = f"SELECT {COLUMNS} FROM documents WHERE row > ? AND {condition.sql} ORDER BY row LIMIT ? OFFSET ?"
        found = self.run(select, (row, *condition.values, count, offset))
        # A damaged table may repeat rows without end.
        if any(row >= following for row, following in pairwise([row, *(values[0] for values in found)])):
            raise self.damaged("its documents are out of order")
        return self._stored(found)

    def all(self, condition: Condition = ALL, offset: int = 0, limit: int = LARGEST_ID) -> Iterator[Stored]:
        """Yield the documents that match a condition, in order and bounded memory, inside a transaction."""
        row = -1
        while documents := self.after(row, min(limit, ROWS_AT_ONCE), condition, offset):
            yield from documents
            row, offset, limit = documents[-1].row, 0, limit - len(documents)

    def _stored(self, found: Sequence[Sequence[Any]]) -> list[Stored]:
        """Return documents from their columns, after checking them."""
        documents = []
        sums = [checksum(passages, name, fields, text, cut) for _, passages, name, fields, text, _, cut in found]
        for (row, passages, identifier, metadata, text, stored, spans), right in zip(found, sums, strict=True):
            if stored != right:
                raise self.damaged("the checksum of a document is wrong")
            if not (type(passages) is int and type(identifier) in (int, str) and type(metadata) is type(text) is str):
                raise self.damaged("a document has a wrong type")
            if passages != (1 if spans is None else spans.count(",") + 1):
                raise self.damaged("passages are missing")
            try:
                documents.append(Stored(row, passages, identifier, json.loads(metadata), text, spans))
            except (ValueError, RecursionError) as error:
                raise self.damaged(f"metadata: {error}") from None
        return documents

    def next_row(self) -> int:
        """Return the first row that no document has or had."""
        select = (
            "SELECT max(ifnull((SELECT row + passages FROM documents ORDER BY row DESC LIMIT 1), 0), "
            "ifnull((SELECT max(row + passages) FROM deleted), 0), (SELECT stop FROM compaction))"
        )
        return self._integers(select)[0][0]

    def deleted(self, after: int = 0) -> list[tuple[int, ...]]:
        """Return number, row and passages of documents deleted since the last compaction, from a number on."""
        return self._integers("SELECT number, row, passages FROM deleted WHERE number > ? ORDER BY number", after)

    def deleted_rows(self) -> int:
        """Return the number of rows of documents deleted since the last compaction."""
        return self._integers("SELECT ifnull(sum(passages), 0) FROM deleted")[0][0]

    def firsts(self, condition: Condition = ALL, first: int = 0) -> list[tuple[int, ...]]:
        """Return row and passages of the documents from a row on that match a condition, in the order of rows."""
        select = f"SELECT row, passages FROM documents WHERE row >= ? AND {condition.sql} ORDER BY row"
        return self._integers(select, first, *condition.values)

    def _integers(self, select: str, *values: Any) -> list[tuple[int, ...]]:
        """Return what was found, after checking that all are integers: in a damaged file SQLite may read any type."""
        found = self.run(select, values)
        if not set(map(type, chain.from_iterable(found))) <= {int}:
            raise self.damaged("a row has a wrong type")
        return found

    def ids_matching(self, condition: Condition = ALL) -> list[Id]:
        """Return the ids of the documents whose metadata match a condition, in the order of addition."""
        select = f"SELECT id FROM documents WHERE {condition.sql} ORDER BY row"
        return [identifier for (identifier,) in self.run(select, condition.values)]

    def unknown_fields(self, paths: Iterable[str]) -> dict[str, list[str]]:
        """Return the names of fields (given by paths) that no document has, each mapped to all fields there are."""
        having = "SELECT 1 FROM documents WHERE json_type(metadata, ?) IS NOT NULL LIMIT 1"
        unknown = [".".join(re.findall('"([^"]*)"', path)) for path in paths if not self.run(having, (path,))]
        if not unknown:
            return {}
        # This statement reads all metadata.
        names = self.run("SELECT DISTINCT entry.key FROM documents, json_each(documents.metadata) AS entry")
        return dict.fromkeys(unknown, sorted(str(name) for (name,) in names))

    def rows_of_ids(self, ids: Sequence[Id]) -> dict[Id, tuple[int, int]]:
        """Return row and passages of each document that has one of the given ids, by id."""
        found = self.run_among("SELECT id, row, passages FROM documents WHERE id IN ({})", ids)
        return {identifier: (row, count) for identifier, row, count in found}

    def record_automatic(self, automatic: Iterable[Id], given: Iterable[Id]) -> None:
        """Record which ids the index has assigned itself: only these may change in another index."""
        self.run_many("DELETE FROM automatic WHERE id = ?", ((identifier,) for identifier in given))
        self.run_many("INSERT OR IGNORE INTO automatic VALUES (?)", ((identifier,) for identifier in automatic))

    def automatic(self, ids: Sequence[Id]) -> set[Id]:
        """Return which of the given ids the index has assigned itself."""
        return {identifier for (identifier,) in self.run_among("SELECT id FROM automatic WHERE id IN ({})", ids)}


class VectorTable:
    """The vectors of one model. Codes say their data type by their length; a zero vector has an empty code.

    Call the methods inside a transaction of the database; all of them raise DamagedError if a vector is damaged.
    """

    def __init__(self, database: Database, settings: Settings) -> None:
        self.database = database
        self.dimension = settings.dimension
        self.dtype = settings.dtype
        self.name = f"vectors_{settings.table}"
        self._types = {self.dimension * dtype.scalar().itemsize: dtype for dtype in DTYPES.values()}

    def put(self, rows: Sequence[int] | range, vectors: Vectors) -> None:
        """Store the vectors (n, dimension) of n new rows, or of rows whose data type changes."""
        codes = np.ascontiguousarray(DTYPES[self.dtype].encode(vectors))
        width = codes.itemsize * self.dimension
        content = codes.tobytes()
        parts = (content[start : start + width] for start in range(0, len(content), width))
        filled = (part if there else b"" for part, there in zip(parts, np.any(vectors, axis=1), strict=True))
        self.database.run_many(
            f"INSERT OR REPLACE INTO {self.name} VALUES (?, ?, ?)",
            ((row, code, zlib.crc32(code)) for row, code in zip(rows, filled, strict=True)),
        )

    def get(self, rows: Rows) -> Vectors:
        """Return the vectors (n, dimension) of rows, in their order."""
        # Not np.unique, which imports NumPy's masked arrays. One statement for any number of rows is prepared once.
        wanted = sorted(set(rows.tolist()))
        among = "row IN (SELECT value FROM json_each(?)) ORDER BY row"
        found = self.database.run(f"SELECT row, code, checksum FROM {self.name} WHERE {among}", (str(wanted),))
        if len(found) < len(wanted):
            raise self.database.damaged("vectors are missing")
        vectors = self._decoded(found)
        return vectors[np.searchsorted(wanted, rows)] if len(wanted) else vectors

    def blocks(self, after: int = -1) -> Iterator[tuple[Rows, Vectors]]:
        """Yield rows beyond ``after`` and their vectors, a few thousand at a time, without zero vectors."""
        select = f"SELECT row, code, checksum FROM {self.name} WHERE row > ? ORDER BY row LIMIT {ROWS_AT_ONCE}"
        while found := self.database.run(select, (after,)):
            if found[0][0] <= after:
                raise self.database.damaged("its vectors are out of order")
            after = found[-1][0]
            vectors = self._decoded(found)
            kept = np.array([bool(code) for _, code, _ in found])
            if kept.any():
                rows = np.array([row for row, _, _ in found], np.int64)
                yield (rows, vectors) if kept.all() else (rows[kept], vectors[kept])

    def zeros(self, first: int = 0) -> Rows:
        """Return the rows from ``first`` on whose vectors are zero."""
        select = f"SELECT row FROM {self.name} WHERE code = x'' AND row >= ?"
        return np.array(self.database.run(select, (first,)), np.int64).ravel()

    def _decoded(self, found: Sequence[tuple[Any, ...]]) -> Vectors:
        """Return the vectors of rows, codes and checksums, after checking them."""
        if not found:
            return np.zeros((0, self.dimension), np.float32)
        rows, codes, checksums = zip(*found, strict=True)
        if set(map(type, codes)) != {bytes} or any(map(ne, map(zlib.crc32, codes), checksums)):
            raise self.database.damaged("the checksum of a vector is wrong")
        # A damaged table may repeat rows without end.
        if not all(map(lt, rows, rows[1:])):
            raise self.database.damaged("its vectors are out of order")
        widths = np.array(list(map(len, codes)))
        vectors = np.zeros((len(codes), self.dimension), np.float32)
        for width in set(widths.tolist()) - {0}:
            if width not in self._types:
                raise self.database.damaged("a vector has a wrong size")
            dtype, chosen = self._types[width], widths == width
            parts = np.frombuffer(b"".join(compress(codes, chosen)), dtype.scalar)
            decoded = dtype.decode(parts.reshape(-1, self.dimension))
            if chosen.all():
                return decoded
            vectors[chosen] = decoded
        return vectors
