"""Where the documents of an index come from: text, JSONL, CSV, TSV and Parquet, plain or gzip, files and folders."""

from __future__ import annotations

import csv
import datetime
import decimal
import gzip
import json
import math
import os
import re
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ctx_embed.errors import InputError
from ctx_embed.index.edit import Embedded
from ctx_embed.texts import GZIP_MAGIC, Document, read_documents, read_lines

# A cell is read as a number where it is written as one in the usual way: 007 and 1e5 stay strings.
_NUMBER = re.compile(r"-?(?:0|[1-9]\d{0,17})(\.\d+)?")
_ROWS_AT_ONCE = 2048
_SAMPLED_BYTES = 1 << 20
# A cell of a table may hold a whole book.
csv.field_size_limit(2**31 - 1)


def expanded(sources: Sequence[str | Path]) -> list[str]:
    """The files that sources name, those of folders by name, hidden ones left out; ``-`` is standard input.

    Raises:
        InputError: no source, a folder without files that can be read, or standard input named twice.
    """
    files: list[str] = []
    for source in sources:
        if str(source) != "-" and os.path.isdir(source):
            found = sorted(_files_of(source))
            if not found:
                raise InputError(f"{source}: a folder without a file of {', '.join(('.txt', *READERS))}")
            files += found
        else:
            files.append(str(source))
    if not files:
        raise InputError("no source of documents, a file, a folder or - is needed")
    if files.count("-") > 1:
        raise InputError("standard input is named twice, it can be read once")
    return files


def _files_of(source: str | Path) -> Iterator[str]:
    for folder, inner, names in os.walk(source):
        inner[:] = [name for name in inner if not name.startswith(".")]
        for name in names:
            if _suffix(name) in (*READERS, ".txt") and not name.startswith("."):
                yield os.path.join(folder, name)


def read_sources(
    files: Sequence[str], text_field: str = "text", embedding_field: str | None = None
) -> Iterator[Document]:
    """The documents of some files, in order and in bounded memory.

    The name of a file (also with ``.gz``) says what it holds: ``.jsonl``, ``.ndjson`` and ``.json`` an object a line,
    ``.csv`` and ``.tsv`` a table with a header, ``.parquet`` a table, and any other name a text a line, blank lines
    skipped. A row's ``id`` (or ``_id``) is its id; all fields beside it, the text and the embedding are its metadata,
    see :func:`unwrapped`; empty cells of CSV and TSV, nulls and NaN of Parquet are left out, numbers read as such.

    Args:
        files: paths, or ``-``.
        text_field: the field that holds the text.
        embedding_field: the field that holds the embedding, made by the model of the index; None: there is none.

    Raises:
        InputError: a file that cannot be read; the place is named.
    """
    for file in files:
        read = READERS.get(_suffix(file))
        documents = read_documents(file, text_field) if read is None else read(file, text_field)
        if embedding_field is not None:
            documents = _with_embeddings(file, documents, embedding_field)
        for document in documents:
            if "metadata" in document.metadata:
                yield replace(document, metadata=unwrapped(document.metadata))
            else:
                yield document


def unwrapped(fields: dict[str, Any]) -> dict[str, Any]:
    """Metadata as an export writes them: an object, or its JSON, in one field ``metadata``; others as they are."""
    if list(fields) != ["metadata"]:
        return fields
    inner = fields["metadata"]
    if isinstance(inner, str):
        with suppress(ValueError, RecursionError):
            inner = json.loads(inner)
    return inner if isinstance(inner, dict) else fields


def _with_embeddings(file: str, documents: Iterator[Document], field: str) -> Iterator[Document]:
    for number, document in enumerate(documents, 1):
        if document.metadata.get(field) is None:
            names = ", ".join(map(repr, document.metadata)) or "none"
            missing = "null in the field" if field in document.metadata else "no field"
            raise InputError(f"{file}, document {number}: {missing} {field!r} for the embedding (fields: {names})")
        metadata = {name: value for name, value in document.metadata.items() if name != field}
        yield Embedded(document.text, document.id, metadata, document.metadata[field])


def _suffix(name: str) -> str:
    return os.path.splitext(str(name).lower().removesuffix(".gz"))[1]


def _delimited(**dialect: Any) -> Callable[[str, str], Iterator[Document]]:
    """What reads a table of lines in a dialect of the csv module."""

    def read(file: str, text_field: str) -> Iterator[Document]:
        rows = csv.reader((f"{line}\n" for _, line in read_lines(file)), strict=True, **dialect)
        try:
            header = next(rows, None)
            if header is None:
                raise InputError(f"{file}: empty, a header with the field {text_field!r} is needed")
            _check_header(file, header, text_field)
            for row in rows:
                where = f"{file}, line {rows.line_num}"
                if not row:
                    continue
                if len(row) != len(header):
                    raise InputError(f"{where}: {len(row)} fields, the header has {len(header)}")
                yield _of_cells(dict(zip(header, row, strict=True)), text_field)
        except csv.Error as error:
            raise InputError(f"{file}, line {rows.line_num}: cannot be read ({error})") from None

    return read


def _check_header(file: str, header: Sequence[str], text_field: str) -> None:
    double = next((name for place, name in enumerate(header) if name in header[:place]), None)
    if double is not None:
        raise InputError(f"{file}: the field {double!r} stands twice in the header")
    if text_field not in header:
        names = ", ".join(map(repr, header)) or "none"
        raise InputError(f"{file}: no field {text_field!r} (fields: {names}), name the right one with --field")


def _of_cells(cells: dict[str, str], text_field: str) -> Document:
    text = cells.pop(text_field)
    identifier = _value(cells.pop("id", cells.pop("_id", "")))
    metadata = {name: _value(cell) for name, cell in cells.items() if cell}
    return Document(text, (str(identifier) if isinstance(identifier, float) else identifier) or None, metadata)


def _value(cell: str) -> str | int | float:
    match = _NUMBER.fullmatch(cell)
    if match is None or cell == "-0":
        return cell
    return float(cell) if match[1] else int(cell)


def _parquet(file: str, text_field: str) -> Iterator[Document]:
    import pyarrow
    from pyarrow import parquet

    if not os.path.isfile(file):
        raise InputError(f"{file}: no such file")
    try:
        with _seekable(file) as path:
            table = parquet.ParquetFile(path)
            _check_header(file, table.schema_arrow.names, text_field)
            number = 0
            for batch in table.iter_batches(_ROWS_AT_ONCE):
                for number, row in enumerate(batch.to_pylist(), number + 1):  # noqa: B020
                    yield _of_row(f"{file}, row {number}", row, text_field)
    except (pyarrow.ArrowException, OSError, EOFError, zlib.error) as error:
        said = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise InputError(f"{file}: cannot be read as Parquet ({said:.120})") from None


@contextmanager
def _seekable(file: str) -> Iterator[str]:
    """The path of a file without gzip: a temporary copy where it is packed."""
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


def _of_row(where: str, row: dict[str, Any], text_field: str) -> Document:
    text = row.pop(text_field)
    if not isinstance(text, str):
        raise InputError(f"{where}: field {text_field!r} is a {type(text).__name__}, a string is needed")
    identifier = row.pop("id", row.pop("_id", None))
    if identifier is not None and (isinstance(identifier, bool) or not isinstance(identifier, str | int)):
        raise InputError(f"{where}: the id is a {type(identifier).__name__}, a string or an integer is needed")
    plain = {name: _plain(value) for name, value in row.items()}
    return Document(text, identifier, {name: value for name, value in plain.items() if value is not None})


def _plain(value: Any) -> Any:
    """A value of Parquet as JSON has it: dates as ISO 8601, decimals as numbers, NaN (a missing number) as null."""
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return float(value)
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return value


READERS: dict[str, Callable[[str, str], Iterator[Document]]] = {
    ".jsonl": read_documents,
    ".ndjson": read_documents,
    ".csv": _delimited(),
    ".tsv": _delimited(delimiter="\t", quoting=csv.QUOTE_NONE),
    ".parquet": _parquet,
}


def _rows_of_parquet(file: str) -> int | None:
    """What a file of Parquet says of its size; None where it is packed or damaged."""
    import pyarrow
    from pyarrow import parquet

    try:
        return int(parquet.read_metadata(file).num_rows)
    except (pyarrow.ArrowException, OSError):
        return None


def estimated_count(files: Sequence[str]) -> int | None:
    """About how many documents some files hold, from their sizes and beginnings; None where nobody can know."""
    total = 0.0
    for file in files:
        if not os.path.isfile(file):
            return None
        if _suffix(file) == ".parquet":
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
