"""The rows of a file or of a stretch of it: lines of text and JSONL, rows of CSV, TSV and Parquet.

:func:`open_rows` opens all of them. It yields each row with its number and as it stands in the file (``Raw``): a line,
or the cells of a table. A row that cannot be read is an :class:`InputError`, and the rows after it can still be read.
:meth:`Table.fields` returns the fields of a row as JSON values.
"""

from __future__ import annotations

import csv
import datetime
import decimal
import io
import json
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

from ctx_embed.errors import InputError, described
from ctx_embed.rows.lines import LONGEST_LINE, Lines
from ctx_embed.rows.opening import BROKEN_GZIP, STANDARD_INPUT, opened, said, seekable, source_name, suffix_of, unpacked

TEXT, JSONL, CSV, TSV, PARQUET = "text", "jsonl", "csv", "tsv", "parquet"
KINDS = {".jsonl": JSONL, ".ndjson": JSONL, ".json": JSONL, ".csv": CSV, ".tsv": TSV, ".parquet": PARQUET}
SUFFIXES = {TEXT: ".txt", JSONL: ".jsonl", CSV: ".csv", TSV: ".tsv", PARQUET: ".parquet"}
# Cells of TSV have no quotes and no line ends.
DIALECTS: dict[str, dict[str, Any]] = {CSV: {}, TSV: {"delimiter": "\t", "quoting": csv.QUOTE_NONE}}
# Cells that look like this become numbers; 007 and 1e5 stay strings.
_NUMBER = re.compile(r"-?(?:0|[1-9]\d{0,17})(\.\d+)?")
_ROWS_AT_ONCE = 2048
# Maximum number of fields that an error message lists.
_NAMED_FIELDS = 20
# Python's default limit is too low: a cell may hold a whole book.
csv.field_size_limit(LONGEST_LINE)

Raw: TypeAlias = str | dict[str, Any] | InputError


class FieldError(InputError):
    """A table or a row lacks a field that is needed."""


def kind_of(source: str | Path) -> str:
    """Return the format that the suffix of a source names, see :data:`KINDS`; text for any other suffix."""
    return KINDS.get(suffix_of(source), TEXT)


@dataclass(frozen=True)
class Table:
    """An open file of rows; iterating yields each row with the number of its last line, in Parquet of the row.

    Row number 0 marks an error of the whole file, such as a field missing from its header.

    Args:
        name: the name of the source, for messages.
        kind: the format.
        needed: the fields that each row must have, with the option that names each.
        raw: the rows.
    """

    name: str
    kind: str
    needed: Mapping[str, str]
    raw: Iterator[tuple[int, Raw]]

    def __iter__(self) -> Iterator[tuple[int, Raw]]:
        """Return the rows."""
        return self.raw

    def where(self, number: int) -> str:
        """Return the place of a row, for messages."""
        return f"{self.name}, {'row' if self.kind == PARQUET else 'line'} {number}" if number else self.name

    def read(self) -> Iterator[tuple[int, str, dict[str, Any]]]:
        """Yield number, place and fields of each row that is not blank.

        Raises:
            InputError: a row that cannot be read.
        """
        for number, raw in self.raw:
            fields = self.fields(number, raw)
            if fields is not None:
                yield number, self.where(number), fields

    def fields(self, number: int, raw: Raw) -> dict[str, Any] | None:
        """Return the fields of a row of a table or of JSONL; None for a blank line.

        Empty cells of CSV and TSV, and nulls and NaN of Parquet, are left out unless the field is needed. Cells of CSV
        and TSV that are numbers become numbers unless needed.

        Raises:
            InputError: the row cannot be read or lacks a field; the message says where.
        """
        if isinstance(raw, InputError):
            raise type(raw)(f"{self.where(number)}: {raw}")
        if isinstance(raw, str):
            return self._object(number, raw) if raw.strip() else None
        if self.kind == PARQUET:
            plain = {name: _plain(value) for name, value in raw.items()}
            return {name: value for name, value in plain.items() if value is not None or name in self.needed}
        return {name: self._cell(name, cell) for name, cell in raw.items() if cell or name in self.needed}

    def _cell(self, name: str, cell: str) -> str | int | float:
        match = None if name in self.needed or cell == "-0" else _NUMBER.fullmatch(cell)
        if match is None or (match[1] and name in ("id", "_id")):
            return cell
        return float(cell) if match[1] else int(cell)

    def _object(self, number: int, line: str) -> dict[str, Any]:
        where = self.where(number)
        try:
            row = json.loads(line)
        except ValueError as error:
            raise InputError(f"{where}: not JSON ({error})") from None
        except RecursionError:
            raise InputError(f"{where}: nested too deeply to be read") from None
        if not isinstance(row, dict):
            got = "null" if row is None else described(row)
            raise InputError(f"{where}: must be a JSON object{_with(self.needed)}, got {got}")
        if lacking := _lacking(row, self.needed):
            raise FieldError(f"{where}: {lacking}")
        return row


@contextmanager
def open_rows(
    source: str | Path,
    *,
    kind: str | None = None,
    columns: Collection[str] | None = None,
    needed: Mapping[str, str] | None = None,
    encoding: str | None = None,
    fallback: str | None = None,
    start: int = 0,
    stop: int | None = None,
    first: int = 1,
) -> Iterator[Table]:
    """Open the rows of a file, plain or gzip, local or remote.

    Args:
        source: a path, a URI such as ``s3://bucket/file``, or ``-`` for standard input.
        kind: the format; None: the one that the suffix names; empty: the one that the first line shows. The first line
            decides for standard input, too, and for files of unknown suffix if ``columns`` are given.
        columns: the columns that make a first line the header of CSV or TSV.
        needed: see :class:`Table`.
        encoding: the encoding of any format but Parquet, see :class:`Lines`.
        fallback: the encoding of a file that is not UTF-8; None: detected.
        start: the first byte to read, or the first row group.
        stop: the byte or row group after the last one; None: the end of the file.
        first: the number of the first row.

    Raises:
        InputError: the source cannot be opened.
    """
    name, needed = source_name(source), needed or {}
    chosen = KINDS.get(suffix_of(source)) if kind is None else kind
    with opened(source) as stream:
        if chosen == PARQUET:
            yield Table(name, PARQUET, needed, _parquet(name, stream, needed, start, stop, first))
            return
        if stop is not None:
            stream.seek(start)
            stream = io.BufferedReader(io.BytesIO(stream.read(stop - start)))
        else:
            stream = unpacked(stream)
        lines = Lines(name, stream, encoding=encoding, fallback=fallback, first=first)
        if kind == "" or (chosen is None and (str(source) == STANDARD_INPUT or columns is not None)):
            chosen = _recognised(lines.first_text(), columns)
        if chosen in DIALECTS:
            yield Table(name, chosen, needed, _cells(lines, chosen, needed))
        else:
            yield Table(name, chosen or TEXT, needed, ((lines.number, lines.error or line) for line in lines))


def _recognised(first: str | None, columns: Collection[str] | None) -> str | None:
    """Return the format of which ``first`` can be the first line; None: lines of text."""
    if first is None:
        return None
    try:
        if isinstance(json.loads(first), dict):
            return JSONL
    except (ValueError, RecursionError):
        pass
    return next((kind for kind in (TSV, CSV) if columns and set(columns) <= set(_header(first, kind))), None)


def _header(line: str, kind: str) -> list[str]:
    try:
        return next(csv.reader([line], strict=True, **DIALECTS[kind]), [])
    except csv.Error:
        return []


def _cells(lines: Lines, kind: str, needed: Mapping[str, str]) -> Iterator[tuple[int, Raw]]:
    table = csv.reader((f"{line}\n" for line in lines), strict=True, **DIALECTS[kind])
    header: list[str] | None = None
    while True:
        before = lines.number
        try:
            cells = next(table)
        except StopIteration:
            break
        except csv.Error as error:
            yield lines.number, InputError(f"cannot be read ({error})")
            continue
        if not cells:
            continue
        if lines.broken > before:
            yield lines.broken, _utf8_error(lines)
        elif header is None:
            header = cells
            if wrong := _header_error(header, needed):
                yield 0, wrong
                return
        elif len(cells) != len(header):
            count = f"{len(cells)} {'field' if len(cells) == 1 else 'fields'}"
            yield lines.number, InputError(f"{count}, but the header has {len(header)}")
        else:
            yield lines.number, dict(zip(header, cells, strict=True))
    if header is None:
        yield 0, InputError(f"must begin with a header{_with(needed)}, got an empty file")


def _utf8_error(lines: Lines) -> InputError:
    return lines.error or InputError("must be UTF-8; convert the file or name its encoding")


def _parquet(
    name: str, stream: io.BufferedReader, needed: Mapping[str, str], start: int, stop: int | None, first: int
) -> Iterator[tuple[int, Raw]]:
    import pyarrow

    number = first
    try:
        with open_parquet(stream) as table:
            if wrong := _header_error(table.schema_arrow.names, needed):
                yield 0, wrong
                return
            groups = list(range(start, table.metadata.num_row_groups if stop is None else stop))
            for batch in table.iter_batches(_ROWS_AT_ONCE, row_groups=groups):
                for row in batch.to_pylist():
                    yield number, row
                    number += 1
    except (pyarrow.ArrowException, OSError, OverflowError, ValueError, *BROKEN_GZIP) as error:
        raise InputError(f"{name}: cannot be read as Parquet ({said(error):.120})") from None


@contextmanager
def open_parquet(stream: io.BufferedReader) -> Iterator[Any]:
    """Yield the ParquetFile of a stream, unpacked if it is gzip."""
    from pyarrow import parquet

    with seekable(stream) as file:
        yield parquet.ParquetFile(file)


def _header_error(header: Sequence[str], needed: Mapping[str, str]) -> InputError | None:
    seen: set[str] = set()
    for field in header:
        if field in seen:
            return InputError(f"the header names the field {field!r:.80} twice")
        seen.add(field)
    said = _lacking(header, needed)
    return FieldError(said) if said else None


def _lacking(names: Iterable[str], needed: Mapping[str, str]) -> str | None:
    """Return an error message if a needed field is missing among the names, or None."""
    for name, option in needed.items():
        if name not in names:
            known = [repr(field)[:80] for field in islice(names, _NAMED_FIELDS + 1)]
            known[_NAMED_FIELDS:] = ["..."] if len(known) > _NAMED_FIELDS else []
            return f"no field {name!r} (fields: {', '.join(known) or 'none'}); name the right one with {option}"
    return None


def _with(needed: Mapping[str, str]) -> str:
    return f" with the field {' and the field '.join(map(repr, needed))}" if needed else ""


def _plain(value: Any) -> Any:
    """Return a value of Parquet as a JSON value: dates as ISO 8601, decimals as numbers, NaN as null."""
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
