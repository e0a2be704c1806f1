"""Reading documents and labelled texts: plain text, JSONL, CSV, TSV and Parquet, plain or gzip, files and folders."""

from __future__ import annotations

import codecs
import csv
import datetime
import decimal
import gzip
import io
import json
import math
import os
import re
import shutil
import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import IO, Any, cast

from ctx_embed.errors import InputError, described
from ctx_embed.texts import Document

GZIP_MAGIC = b"\x1f\x8b"
TEXT_FIELD, LABEL_FIELD = "text", "label"
# A cell is read as a number if it is written in the usual way: 007 and 1e5 stay strings.
_NUMBER = re.compile(r"-?(?:0|[1-9]\d{0,17})(\.\d+)?")
_ROWS_AT_ONCE = 2048
_SAMPLED_BYTES = 1 << 20
# A cell of a table may hold a whole book.
csv.field_size_limit(2**31 - 1)

Lines = Iterator[tuple[int, str]]


def source_name(source: str | Path) -> str:
    """Return the name of a source for messages."""
    return "standard input" if str(source) == "-" else str(source)


def _open(source: str | Path) -> IO[bytes]:
    if str(source) == "-":
        if sys.stdin is None:
            raise InputError("standard input is closed")
        return sys.stdin.buffer
    if os.path.isdir(source):
        raise InputError(f"{source}: must be a file, got a folder")
    try:
        return open(source, "rb")
    except FileNotFoundError:
        raise InputError(f"{source}: no such file") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{source}: cannot be read ({getattr(error, 'strerror', error)})") from None


@contextmanager
def _unpacked(source: str | Path) -> Iterator[IO[bytes]]:
    """Yield ``source`` (``-``: standard input) as a binary file, decompressed if it starts like gzip."""
    raw = _open(source)
    buffered = cast("io.BufferedReader", raw if hasattr(raw, "peek") else io.BufferedReader(cast(Any, raw)))
    try:
        if buffered.peek(2)[:2] == GZIP_MAGIC:
            with gzip.open(buffered, "rb") as unpacked:
                yield cast("IO[bytes]", unpacked)
        else:
            yield buffered
    finally:
        if str(source) != "-":
            raw.close()


class EncodingError(InputError):
    """A file is not UTF-8."""


def read_lines(source: str | Path, encoding: str | None = None) -> Lines:
    """Yield the lines of ``source`` with their numbers from 1, split on ``\\n`` only, without the line ends.

    Args:
        source: a path, plain or gzip, or ``-`` for standard input; with or without a byte order mark.
        encoding: the name of its encoding; None: UTF-8.

    Raises:
        InputError: no such file, a folder, broken gzip, or bytes of another encoding (an :class:`EncodingError`); the
            line is named.
    """
    number = 0
    try:
        with _unpacked(source) as file:
            for number, line in enumerate(_decoded_lines(file, encoding), 1):
                text = line.removesuffix("\n").removesuffix("\r")
                yield number, text.removeprefix("\ufeff") if number == 1 else text
    except UnicodeDecodeError as error:
        if encoding is not None:
            raise InputError(f"{source_name(source)}: must be {encoding}; give the right encoding") from None
        where = f"{source_name(source)}, line {number + 1}: must be UTF-8 (see byte {error.start + 1} of the line)"
        raise EncodingError(f"{where}; convert the file") from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputError(f"{source_name(source)}: broken gzip after line {number} ({error})") from None
    except OSError as error:
        raise InputError(f"{source_name(source)}: cannot be read after line {number} ({error.strerror})") from None


def _decoded_lines(file: IO[bytes], encoding: str | None) -> Iterator[str]:
    if encoding is None:
        for line in file:
            yield line.decode("utf-8")
        return
    try:
        codecs.lookup(encoding)
    except LookupError:
        raise InputError(f"unknown encoding {encoding!r}; Python knows names such as latin-1, cp1252, utf-16") from None
    lines = io.TextIOWrapper(file, encoding=encoding, newline="\n")
    try:
        yield from lines
    finally:
        # The file, perhaps standard input, is closed by whoever opened it, or is closed already.
        with suppress(ValueError):
            lines.detach()


def read_documents(
    source: str | Path, text_field: str | None = None, *, blank_lines: bool = False, encoding: str | None = None
) -> Iterator[Document]:
    """Yield the documents of a file, in order and in bounded memory.

    The suffix of a file (also before ``.gz``) names its format: ``.jsonl``, ``.ndjson`` and ``.json`` hold one object
    per line, ``.csv`` and ``.tsv`` a table with a header, ``.parquet`` a table, and any other file one text per line
    (blank lines are skipped). Standard input is JSONL if its first line is a JSON object, else text. With
    ``text_field``, standard input and files of other names may also be tables whose first line names the field.

    The field ``id`` (or ``_id``) of a row is its id; all others except the text are its metadata. Empty cells of CSV
    and TSV and nulls and NaN of Parquet are left out; cells that are numbers are read as numbers.

    Args:
        source: a path, plain or gzip, or ``-`` for standard input.
        text_field: the field that holds the text; None: ``text``, of text files the line.
        blank_lines: a blank line of a text file is a document too, an empty one.
        encoding: as for :func:`read_lines`.

    Raises:
        InputError: as :func:`read_lines`; a row that cannot be read or lacks the field (the message says where); a text
            file although a field is named.
    """
    for _, document in read_numbered_documents(source, text_field, blank_lines=blank_lines, encoding=encoding):
        yield document


def read_numbered_documents(
    source: str | Path, text_field: str | None = None, *, blank_lines: bool = False, encoding: str | None = None
) -> Iterator[tuple[int, Document]]:
    """Yield the documents of a file with the number of their line (the last one, in CSV), or of their row in Parquet.

    Arguments and errors are those of :func:`read_documents`.
    """
    needed = {text_field or TEXT_FIELD: "--field"}
    reader, lines = READERS.get(suffix_of(source)), read_lines(source, encoding)
    if reader is None and (str(source) == "-" or text_field is not None):
        reader, lines = _recognised(lines, needed if text_field is not None else None)
    if reader is not None:
        for number, row in reader.rows(source, lines, needed):
            where = f"{source_name(source)}, {reader.unit} {number}"
            yield number, document_of(where, row, text_field or TEXT_FIELD)
        return
    for number, line in lines:
        if line.strip():
            if text_field is not None:
                raise InputError(
                    f"{source_name(source)}: lines of text have no field {text_field!r}; give a CSV, TSV, JSONL or "
                    "Parquet file, or leave --field out"
                )
            yield number, Document(line)
        elif blank_lines:
            yield number, Document("")


def read_labelled_rows(
    source: str | Path, text_field: str | None = None, label_field: str | None = None, *, several: bool = False
) -> Iterator[tuple[int, Any, str]]:
    """Yield number, label and text of each row of a labelled file.

    JSONL, CSV and Parquet are recognised as by :func:`read_documents`; any other file, ``.tsv`` included, holds lines
    of ``label<TAB>text``, unless a field is named or its first line names both columns: then it is a table.

    Args:
        source: a path, plain or gzip, or ``-`` for standard input.
        text_field: the field that holds the text; None: ``text``.
        label_field: the field that holds the label; None: ``label``.
        several: a text has any number of labels, with commas between them or as a list of JSONL or Parquet: labels are
            tuples of strings, which may be empty.

    Raises:
        InputError: as :func:`read_lines`; a row that cannot be read, lacks a field or has an empty label.
    """
    label_of = _labels if several else _label
    text_name, label_name = text_field or TEXT_FIELD, label_field or LABEL_FIELD
    if text_name == label_name:
        raise InputError(f"--field and --label-field must differ, got {text_name!r} twice")
    needed = {text_name: "--field", label_name: "--label-field"}
    reader, lines = READERS.get(suffix_of(source)), read_lines(source)
    if reader is None or suffix_of(source) == ".tsv":
        reader, lines = _recognised(lines, needed)
    if reader is not None:
        for number, row in reader.rows(source, lines, needed):
            where = f"{source_name(source)}, {reader.unit} {number}"
            yield number, label_of(where, row[label_name], label_name), _text(where, row[text_name], text_name)
        return
    for number, line in lines:
        if not line.strip():
            continue
        where = f"{source_name(source)}, line {number}"
        if text_field is not None or label_field is not None:
            raise InputError(f"{where}: {line[:40]!r} does not name the columns {label_name!r} and {text_name!r}")
        label, tab, text = line.partition("\t")
        if not tab or not (several or label.strip()):
            raise InputError(f"{where}: {line[:40]!r} is not label<TAB>text")
        yield number, label_of(where, label, label_name), text


def read_labelled(
    source: str | Path, text_field: str | None = None, label_field: str | None = None, *, several: bool = False
) -> tuple[list[Any], list[str]]:
    """Return the labels and texts of a labelled file, see :func:`read_labelled_rows`; a text may be empty.

    Raises:
        InputError: as :func:`read_labelled_rows`, or a file without rows.
    """
    rows = list(read_labelled_rows(source, text_field, label_field, several=several))
    if not rows:
        raise InputError(f"{source_name(source)}: no rows; give lines of label<TAB>text")
    _, labels, texts = zip(*rows, strict=True)
    return list(labels), list(texts)


def header_hint(labels: Sequence[str]) -> str:
    """Return advice if only the first label occurs just once, as a header would; otherwise an empty string."""
    once = [label for label, count in Counter(labels).items() if count == 1]
    if len(labels) < 2 or once != [labels[0]]:
        return ""
    hint = "if that is a header, name its columns with --field and --label-field"
    return f"the label {labels[0]!r} occurs once, on the first line; {hint}"


def read_columns(source: str | Path) -> Iterator[str]:
    """Yield every text of a file: the string fields of JSONL, CSV and Parquet, else the tab-separated columns of lines.

    Raises:
        InputError: as :func:`read_lines`; a row that cannot be read.
    """
    reader, lines = READERS.get(suffix_of(source)), read_lines(source)
    if reader is None or reader is _TSV:
        # A TSV file may have no header here.
        for _, line in lines:
            yield from line.split("\t")
    else:
        for _, row in reader.rows(source, lines, {}):
            yield from (value for value in row.values() if isinstance(value, str))


def expanded(sources: Sequence[str | Path]) -> list[str]:
    """Return the files that sources name, those of a folder sorted and without hidden ones; ``-`` is standard input.

    Raises:
        InputError: no source, a folder without files that can be read, or standard input named twice.
    """
    files: list[str] = []
    for source in sources:
        if str(source) != "-" and os.path.isdir(source):
            found = sorted(_files_of(source))
            if not found:
                raise InputError(f"{source}: a folder must hold a file ending in {', '.join(FOLDER_SUFFIXES)}")
            files += found
        else:
            files.append(str(source))
    if not files:
        raise InputError("no source of documents: give a file, a folder or - (standard input)")
    if files.count("-") > 1:
        raise InputError("standard input is named twice, but can be read only once")
    return files


def _files_of(source: str | Path) -> Iterator[str]:
    for folder, inner, names in os.walk(source):
        inner[:] = [name for name in inner if not name.startswith(".")]
        for name in names:
            if suffix_of(name) in FOLDER_SUFFIXES and not name.startswith("."):
                yield os.path.join(folder, name)


def estimated_count(files: Sequence[str]) -> int | None:
    """Estimate the number of rows of files from their sizes and first lines; return None if that is impossible."""
    total = 0.0
    for file in files:
        if not os.path.isfile(file):
            return None
        if suffix_of(file) == ".parquet":
            rows = _rows_of_parquet(file)
            if rows is None:
                return None
            total += rows
            continue
        with open(file, "rb") as opened:
            sample = opened.read(_SAMPLED_BYTES)
        packed = len(sample)
        if sample[:2] == GZIP_MAGIC:
            try:
                sample = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(sample)
            except zlib.error:
                return None
        lines = sum(1 for line in sample.split(b"\n") if line.strip())
        total += lines * os.path.getsize(file) / max(packed, 1)
    return round(total) or None


def _rows_of_parquet(file: str) -> int | None:
    """Return the number of rows that a Parquet file states; None if it is compressed or damaged."""
    import pyarrow
    from pyarrow import parquet

    try:
        return int(parquet.read_metadata(file).num_rows)
    except (pyarrow.ArrowException, OSError):
        return None


def suffix_of(source: str | Path) -> str:
    """Return the suffix that names a file's format, in lower case: the one before ``.gz``."""
    return os.path.splitext(str(source).lower().removesuffix(".gz"))[1]


def format_of(source: str | Path, text_field: str | None = None, *, recognise: bool = False) -> str:
    """Return the suffix that names the format in which :func:`read_documents` reads a file.

    Args:
        source: a path, plain or gzip.
        text_field: the field that holds the text.
        recognise: whether to look at the content of a file of an unknown name, as at that of standard input.

    Returns:
        ``.jsonl``, ``.csv``, ``.tsv``, ``.parquet`` or, for text, ``.txt``.
    """
    reader = READERS.get(suffix_of(source))
    if reader is None and (recognise or text_field is not None):
        reader, _ = _recognised(read_lines(source), None if text_field is None else {text_field: "--field"})
    return next((suffix for suffix, known in READERS.items() if known is reader), ".txt")


def _is_json_object(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _recognised(lines: Lines, needed: Mapping[str, str] | None) -> tuple[_Reader | None, Lines]:
    """Return the reader for lines of unknown format (None: text), chosen by the first that is not blank, and all lines.

    A table is recognised by a header with the needed fields; None: only JSONL is.
    """
    seen: list[tuple[int, str]] = []
    for number, line in lines:
        seen.append((number, line))
        if line.strip():
            break
    reader: _Reader | None = None
    if seen:
        first = seen[-1][1]
        if _is_json_object(first):
            reader = _JSONL
        elif needed is not None:
            reader = next((table for table in (_TSV, _CSV) if needed.keys() <= set(table.cells(first))), None)
    return reader, chain(seen, lines)


def _require_fields(where: str, names: Sequence[str], needed: Mapping[str, str]) -> None:
    for name, option in needed.items():
        if name not in names:
            known = ", ".join(map(repr, names)) or "none"
            raise InputError(f"{where}: no field {name!r} (fields: {known}); name the right one with {option}")


def _with(needed: Mapping[str, str]) -> str:
    return f" with the field {' and the field '.join(map(repr, needed))}" if needed else ""


def _got(value: Any) -> str:
    return "null" if value is None else described(value)


def _text(where: str, value: Any, field: str) -> str:
    if not isinstance(value, str):
        raise InputError(f"{where}: the field {field!r} must be a string, got {_got(value)}")
    return value


def _label(where: str, value: Any, field: str) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        # A column of integers with gaps comes from pandas as floats.
        return str(int(value))
    if not isinstance(value, str | int | float) or value != value:
        raise InputError(f"{where}: the label {field!r} must be a string or a number, got {_got(value)}")
    label = str(value).strip()
    if not label:
        raise InputError(f"{where}: the label {field!r} is empty")
    return label


def _labels(where: str, value: Any, field: str) -> tuple[str, ...]:
    if value is None:
        return ()
    parts = value.split(",") if isinstance(value, str) else value if isinstance(value, list) else [value]
    labels = (_label(where, part, field) for part in parts if not (isinstance(part, str) and not part.strip()))
    return tuple(dict.fromkeys(labels))


def document_of(where: str, row: dict[str, Any], text_field: str) -> Document:
    """Return the document of a row, whose text and id are taken out of it.

    Raises:
        InputError: the text is not a string, or the id neither a string nor an integer; ``where`` begins the message.
    """
    text = _text(where, row.pop(text_field), text_field)
    identifier = row.pop("id", row.pop("_id", None))
    if identifier is not None and (isinstance(identifier, bool) or not isinstance(identifier, str | int)):
        raise InputError(f"{where}: the id must be a string or an integer, got {_got(identifier)}")
    return Document(text, identifier, row)


class _Reader:
    """A reader of the rows of one format."""

    unit = "line"

    def rows(self, source: str | Path, lines: Lines, needed: Mapping[str, str]) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield each row with its number; ``needed`` are the fields each has, with the option that names them."""
        raise NotImplementedError


class _Jsonl(_Reader):
    def rows(self, source: str | Path, lines: Lines, needed: Mapping[str, str]) -> Iterator[tuple[int, dict[str, Any]]]:
        for number, line in lines:
            if not line.strip():
                continue
            where = f"{source_name(source)}, line {number}"
            try:
                row = json.loads(line)
            except ValueError as error:
                raise InputError(f"{where}: not JSON ({error})") from None
            except RecursionError:
                raise InputError(f"{where}: nested too deeply to be read") from None
            if not isinstance(row, dict):
                raise InputError(f"{where}: must be a JSON object{_with(needed)}, got {_got(row)}")
            _require_fields(where, list(row), needed)
            yield number, row


class _Delimited(_Reader):
    def __init__(self, **dialect: Any) -> None:
        self.dialect = dialect

    def cells(self, line: str) -> list[str]:
        """Return the cells of one line; an empty list if it cannot be read."""
        try:
            return next(csv.reader([line], strict=True, **self.dialect), [])
        except csv.Error:
            return []

    def rows(self, source: str | Path, lines: Lines, needed: Mapping[str, str]) -> Iterator[tuple[int, dict[str, Any]]]:
        name = source_name(source)
        table = csv.reader((f"{line}\n" for _, line in lines), strict=True, **self.dialect)
        try:
            header = next((row for row in table if row), None)
            if header is None:
                raise InputError(f"{name}: must begin with a header{_with(needed)}, got an empty file")
            _check_header(name, header, needed)
            for row in table:
                if not row:
                    continue
                if len(row) != len(header):
                    count = f"{len(row)} {'field' if len(row) == 1 else 'fields'}"
                    raise InputError(f"{name}, line {table.line_num}: {count}, but the header has {len(header)}")
                cells = zip(header, row, strict=True)
                yield (
                    table.line_num,
                    {name: cell_value(name, cell, needed) for name, cell in cells if cell or name in needed},
                )
        except csv.Error as error:
            raise InputError(f"{name}, line {table.line_num}: cannot be read ({error})") from None


def _check_header(name: str, header: Sequence[str], needed: Mapping[str, str]) -> None:
    double = next((field for place, field in enumerate(header) if field in header[:place]), None)
    if double is not None:
        raise InputError(f"{name}: the header names the field {double!r} twice")
    _require_fields(name, header, needed)


def cell_value(name: str, cell: str, needed: Mapping[str, str]) -> str | int | float:
    """Return the value of a cell of CSV: a number if it is written like one and no field needed as a string."""
    match = None if name in needed or cell == "-0" else _NUMBER.fullmatch(cell)
    if match is None or (match[1] and name in ("id", "_id")):
        return cell
    return float(cell) if match[1] else int(cell)


class _Parquet(_Reader):
    unit = "row"

    def rows(self, source: str | Path, lines: Lines, needed: Mapping[str, str]) -> Iterator[tuple[int, dict[str, Any]]]:
        import pyarrow
        from pyarrow import parquet

        file = str(source)
        if not os.path.isfile(file):
            raise InputError(f"{file}: no such file")
        try:
            with _seekable(file) as path:
                table = parquet.ParquetFile(path)
                _check_header(file, table.schema_arrow.names, needed)
                batches = (batch.to_pylist() for batch in table.iter_batches(_ROWS_AT_ONCE))
                for number, row in enumerate(chain.from_iterable(batches), 1):
                    plain = {name: plain_value(value) for name, value in row.items()}
                    yield number, {name: value for name, value in plain.items() if value is not None or name in needed}
        except (pyarrow.ArrowException, OSError, EOFError, zlib.error) as error:
            said = getattr(error, "strerror", None) or " ".join(str(error).split())
            raise InputError(f"{file}: cannot be read as Parquet ({said:.120})") from None


@contextmanager
def _seekable(file: str) -> Iterator[str]:
    """Yield the path of an uncompressed file: a temporary copy if the file is gzip."""
    with open(file, "rb") as opened:
        packed = opened.read(2) == GZIP_MAGIC
    if not packed:
        yield file
        return
    with tempfile.NamedTemporaryFile(suffix=".parquet") as copy:
        with gzip.open(file, "rb") as opened:
            shutil.copyfileobj(opened, copy)
        copy.flush()
        yield copy.name


@contextmanager
def open_parquet(file: str) -> Iterator[Any]:
    """Yield the ParquetFile of a file, plain or gzip."""
    from pyarrow import parquet

    with _seekable(file) as path:
        yield parquet.ParquetFile(path)


def plain_value(value: Any) -> Any:
    """Return a value of Parquet as a JSON value: dates as ISO 8601, decimals as numbers, NaN as null."""
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return float(value)
    if isinstance(value, list):
        return [plain_value(item) for item in value]
    if isinstance(value, dict):
        return {name: plain_value(item) for name, item in value.items()}
    return value


_JSONL, _CSV, _TSV = _Jsonl(), _Delimited(), _Delimited(delimiter="\t", quoting=csv.QUOTE_NONE)
READERS: dict[str, _Reader] = {
    ".jsonl": _JSONL,
    ".ndjson": _JSONL,
    ".json": _JSONL,
    ".csv": _CSV,
    ".tsv": _TSV,
    ".parquet": _Parquet(),
}
# The files of a folder that are read; a .json file there is more often a configuration than documents.
FOLDER_SUFFIXES = (".txt", ".jsonl", ".ndjson", ".csv", ".tsv", ".parquet")
