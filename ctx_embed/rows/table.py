"""The rows of a file or of a stretch of it: lines of text and JSONL, rows of tables and of JSON arrays.

:func:`open_rows` yields each row with its number and as it stands in the file (``Raw``): a line, the cells of a table,
or an item of an array. A row that cannot be read is an :class:`InputError`, and the rows after it can still be read.
:meth:`Table.fields` returns the fields of a row as JSON values.

CSV, TSV and ``label<TAB>text`` are read twice, because some things are only known at the end: whether all cells of a
column are numbers, whether a writer put the quotation marks of TSV there, and whether the lines are labelled at all. A
pipe is copied to a temporary file for this.
"""

import csv
import datetime
import decimal
import io
import json
import math
import re
import shutil
import tempfile
import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias, cast

from ctx_embed.errors import InputError, described, listed_names, naming_left_out, quoted
from ctx_embed.rows.encodings import LONGEST_LINE, UTF_8, WrongBytesWarning, decoded_lines
from ctx_embed.rows.opening import BROKEN_GZIP, is_packed, opened, said, source_name, suffix_of, unpacked

# The formats, as people call them.
TEXT, LABELLED, JSONL, JSON = "lines of text", "label<TAB>text", "JSONL", "a JSON array"
CSV, TSV, PARQUET = "CSV", "TSV", "Parquet"
KINDS = {".jsonl": JSONL, ".ndjson": JSONL, ".json": JSONL, ".csv": CSV, ".tsv": TSV, ".parquet": PARQUET}
TEXT_FIELD, LABEL_FIELD = "text", "label"
_DELIMITERS = {CSV: ",", TSV: "\t", LABELLED: "\t"}
# Cells of TSV. In a file from pandas, Excel and the like a cell with a tab, line end or quotation mark is quoted.
_CELL = re.compile(r'(?:\A|\t)("(?:[^"]|"")*"|[^"\t]*)(?=\t|\Z)')
_OPEN_ROW = re.compile(r'(?:(?:"(?:[^"]|"")*"|[^"\t]*)\t)*"(?:[^"]|"")*')
# Characters that only a quoted cell can have.
_QUOTED = re.compile(r'""|[\t\n\r]')
_BETWEEN = re.compile(r"[\s,]*")
_ARRAY = re.compile(r"\s*\[\s*(?:\{|\Z|\]\s*\Z)")
_MOST_LABELS = 10_000
_LONGEST_CELL = 1 << 24
_ROWS_AT_ONCE = 2048
# Decimals of Parquet with more digits than a float can hold are strings.
_FLOAT_DIGITS = 15
# Python's default limit is too low: a cell may hold a whole book.
csv.field_size_limit(LONGEST_LINE)

Raw: TypeAlias = str | dict[str, Any] | InputError


class FieldError(InputError):
    """A table or a row lacks a field that is needed."""


def kind_of(source: str | Path) -> str:
    """Return the format that the suffix of a source names, see :data:`KINDS`; text for any other suffix."""
    return KINDS.get(suffix_of(source), TEXT)


def got(value: Any) -> str:
    """Return the kind of a JSON value, for a message."""
    return "null" if value is None else described(value)


@dataclass(frozen=True)
class Table:
    """An open file of rows.

    ``needed`` are the fields that each row must have, with the option that names each. ``raw`` yields each row with the
    number of its last line (in Parquet and JSON, of the row); 0 marks an error of the whole file, such as a field
    missing from its header. Cells of the columns ``numbers`` are read as numbers. If ``quoted``, TSV has quoted cells.
    """

    name: str
    kind: str
    needed: Mapping[str, str]
    raw: Iterator[tuple[int, Raw]]
    numbers: Collection[str] = ()
    quoted: bool = False

    def where(self, number: int) -> str:
        """Return the place of a row, for messages."""
        return f"{self.name}, {'row' if self.kind in (PARQUET, JSON) else 'line'} {number}" if number else self.name

    def fields(self, number: int, raw: Raw) -> dict[str, Any] | None:
        """Return the fields of a row of a table or of JSON; None for a blank line.

        Empty cells of CSV and TSV, and nulls and NaN of Parquet, are left out unless the field is needed. Cells of CSV
        and TSV are numbers if all of their column are. An InputError says which row cannot be read or lacks a field.
        """
        where, row = self.where(number), cast(Any, raw)
        if isinstance(raw, InputError):
            raise type(raw)(f"{where}: {raw}")
        if self.kind == PARQUET:
            plain = {name: _plain(value) for name, value in row.items()}
            return {name: value for name, value in plain.items() if value is not None or name in self.needed}
        if self.kind not in (JSON, JSONL) and not isinstance(raw, str):
            filled = {name: cell for name, cell in row.items() if cell or name in self.needed}
            return {name: number_of(cell) if name in self.numbers else cell for name, cell in filled.items()}
        if self.kind != JSON:
            if not row.strip():
                return None
            try:
                row = json.loads(row)
            except ValueError as error:
                hint = "; give an object on each line, or one array of objects" if row.strip() in ("{", "[") else ""
                raise InputError(f"{where}: not JSON ({error}){hint}") from None
            except RecursionError:
                raise InputError(f"{where}: nested too deeply to be read") from None
        if not isinstance(row, dict):
            raise InputError(f"{where}: must be a JSON object{_with(self.needed)}, got {got(row)}")
        if lacking := _lacking(row, self.needed):
            raise FieldError(f"{where}: {lacking}")
        return dict(row)


@contextmanager
def open_rows(
    source: str | Path,
    *,
    kind: str | None = None,
    needed: Mapping[str, str] | None = None,
    labelled: bool = False,
    encoding: str | None = None,
) -> Iterator[Table]:
    """Open the rows of a file, plain or gzip, local or remote.

    The suffix names the format of tables, JSONL and JSON; other files and standard input have the format that their
    first line shows: a JSON object, the beginning of a JSON array, or a header that names the needed columns. Lines
    with one tab each are ``label<TAB>text`` if labels are repeated (with ``labelled``, always); so are those of TSV
    without a header.
    """
    name, needed = source_name(source), needed or {}
    with ExitStack() as stack:
        stream = stack.enter_context(opened(source))
        if (kind or kind_of(source)) == PARQUET:
            file = stack.enter_context(open_parquet(name, stream))
            yield Table(name, PARQUET, needed, _parquet_rows(file, name, needed))
            return
        begin = stream.tell() if stream.seekable() else None
        if is_packed(stream):
            begin, stream = 0 if begin == 0 else None, unpacked(stream)
        lines = decoded_lines(name, stream, encoding=encoding)
        # Up to the first line that is not blank, which shows the format.
        ahead = [""]
        while not ahead[-1].strip() and (line := next(lines, None)) is not None:
            ahead.append(line)
        kind = kind or _recognised(ahead[-1], KINDS.get(suffix_of(source)), needed)
        lines = chain(ahead[1:], lines)
        if kind == TEXT and labelled:
            kind = LABELLED
        if kind == JSON:
            yield Table(name, JSON, needed, _items(lines))
        elif kind not in _DELIMITERS:
            yield Table(name, kind, needed, enumerate(lines, 1))
        else:
            if begin is None:
                begin, encoding = 0, UTF_8
                stream = cast("io.BufferedReader", stack.enter_context(tempfile.TemporaryFile()))
                stream.writelines(f"{line}\n".encode() for line in lines)

            def again() -> Iterator[str]:
                stream.seek(begin)
                return decoded_lines(name, stream, encoding=encoding)

            with warnings.catch_warnings():
                # Reading the rows will warn of these bytes.
                warnings.simplefilter("ignore", WrongBytesWarning)
                quoted = kind == CSV or _has_quoted_cells(again())
                rows = (cells for _, cells in _split(again(), kind, quoted) if not isinstance(cells, InputError))
                header = next(rows, [])
                if kind == TSV and not needed.keys() <= set(header):
                    labels = _labels(chain([header], rows)) if labelled or needed.keys() <= {TEXT_FIELD} else None
                    kind = LABELLED if labelled or labels else TSV
                elif kind == LABELLED and not labelled and not _labels(chain([header], rows)):
                    kind = TEXT
                numbers = () if kind == LABELLED else _number_columns(header, rows, needed)
            raw = enumerate(again(), 1) if kind == TEXT else _table_rows(again(), kind, quoted, needed)
            yield Table(name, kind, needed, raw, numbers, quoted)


def _recognised(first: str, kind: str | None, needed: Mapping[str, str]) -> str:
    """Return the format of a file whose suffix may name a ``kind`` and whose first line is ``first``."""
    if kind not in (None, JSONL):
        return kind
    if _ARRAY.match(first):
        return JSON
    with suppress(ValueError, RecursionError):
        if kind == JSONL or isinstance(json.loads(first), dict):
            return JSONL
    for table in (TSV, CSV):
        _, header = next(_split([first], table, quoted=True), (0, []))
        # A first line "text" may be a text itself; a line that lists this word among others is a header.
        if not isinstance(header, list) or (len(header) == 1 and TEXT_FIELD in needed):
            continue
        if needed and needed.keys() <= set(header):
            return table
    return LABELLED if "\t" in first else TEXT


# CSV, TSV, and label<TAB>text


def _has_quoted_cells(lines: Iterable[str]) -> bool:
    """Return whether a program quoted cells of TSV: all that need quotation marks have them, and no others.

    If all cells of the header are quoted, any others may be, too.
    """
    found = header = False
    row: list[str] = []
    size = 0
    for line in lines:
        opens = not row and line.count('"') % 2 == 1
        size = len(line) + (size if row else 0)
        if (opens and not _OPEN_ROW.fullmatch(line)) or size > _LONGEST_CELL:
            return False
        if opens or (row and line.count('"') % 2 == 0):
            row.append(line)
            continue
        text, row = "\n".join([*row, line]), []
        if '"' in text:
            cells = _CELL.findall(text)
            header = header or (not found and all(cell.startswith('"') for cell in cells))
            marked = [cell[1:-1] for cell in cells if cell.startswith('"')]
            if "\t".join(cells) != text or not (header or all(cell == "" or _QUOTED.search(cell) for cell in marked)):
                return False
        found = True
    return header or (found and not row)


def _split(lines: Iterable[str], kind: str, quoted: bool) -> Iterator[tuple[int, list[str] | InputError]]:
    """Yield the number of each line that is not empty, and its cells. A quoted cell may have several lines."""
    if not quoted:
        yield from ((number, line.split(_DELIMITERS[kind])) for number, line in enumerate(lines, 1) if line)
        return
    table = csv.reader((f"{line}\n" for line in lines), strict=True, delimiter=_DELIMITERS[kind])
    while True:
        try:
            cells = next(table)
        except StopIteration:
            return
        except csv.Error as error:
            yield table.line_num, InputError(f"cannot be read ({error})")
            continue
        if cells:
            yield table.line_num, cells


def _labels(rows: Iterable[list[str]]) -> bool:
    """Return whether all rows are a label and a text: labels occur twice on average, and the first row is no header."""
    labels: Counter[str] = Counter()
    first = None
    for cells in rows:
        if not any(cell.strip() for cell in cells):
            continue
        if len(cells) != 2 or not all(cell.strip() for cell in cells) or len(labels) > _MOST_LABELS:
            return False
        labels[cells[0].strip()] += 1
        first = first or cells[0].strip()
    is_header = len(labels) > 1 and [label for label, count in labels.items() if count == 1] == [first]
    return len(labels) < labels.total() and 2 * len(labels) <= labels.total() + 1 and not is_header


def _number_columns(header: Sequence[str], rows: Iterable[list[str]], needed: Mapping[str, str]) -> set[str]:
    """Return the columns in which each cell is empty or a number that would be written as it was read."""
    open_columns = {place: name for place, name in enumerate(header) if name not in needed}
    filled: set[int] = set()
    for cells in rows:
        if len(cells) != len(header):
            continue
        for place, name in list(open_columns.items()):
            if cell := cells[place]:
                number = number_of(cell)
                filled.add(place)
                if number is None or (name in ("id", "_id") and isinstance(number, float)):
                    del open_columns[place]
    return {name for place, name in open_columns.items() if place in filled}


def number_of(cell: str) -> int | float | None:
    """Return a cell as a number; None for a text, and for a number that would be written in another way."""
    for kind, longest in ((int, 18), (float, 24)):
        with suppress(ValueError):
            if len(cell) <= longest and str(number := kind(cell)) == cell and math.isfinite(number):
                return number
    return None


def _table_rows(lines: Iterator[str], kind: str, quoted: bool, needed: Mapping[str, str]) -> Iterator[tuple[int, Raw]]:
    header: list[str] | None = None
    for number, cells in _split(lines, kind, quoted):
        if isinstance(cells, InputError):
            yield number, cells
        elif kind == LABELLED:
            if len(cells) > 1:
                yield number, {LABEL_FIELD: cells[0], TEXT_FIELD: "\t".join(cells[1:])}
            elif cells[0].strip():
                yield number, InputError(f"{cells[0][:40]!r} is not label<TAB>text")
        elif header is None:
            header = cells
            if wrong := _header_error(header, needed):
                yield 0, wrong
                return
        elif len(cells) != len(header):
            count = f"{len(cells)} {'field' if len(cells) == 1 else 'fields'}"
            yield number, InputError(f"{count}, but the header has {len(header)}")
        else:
            yield number, dict(zip(header, cells, strict=True))
    if header is None and kind != LABELLED:
        yield 0, InputError(f"must begin with a header{_with(needed)}, got an empty file")


# JSON arrays


def _items(lines: Iterator[str]) -> Iterator[tuple[int, Raw]]:
    """Yield the items of an array, each as soon as it is complete."""
    decoder = json.JSONDecoder()
    text = next(line for line in lines if line.strip()).partition("[")[2]
    at = wanted = number = 0
    for line in chain([""], lines, [None]):
        text += "" if line is None else f"{line}\n"
        # A long item is tried again when it has twice as many characters, which keeps the time linear.
        if line is not None and len(text) < wanted:
            continue
        with suppress(ValueError, RecursionError):
            while (at := _BETWEEN.match(text, at).end()) < len(text):  # type: ignore[union-attr]
                if text[at] == "]":
                    return
                item, at = decoder.raw_decode(text, at)
                number += 1
                yield number, item
        text, at, wanted = text[at:], 0, 2 * (len(text) - at)
    yield number + 1, InputError(f"not JSON, or cut short (ends with {text[:40].strip()!r})")


# Parquet


@contextmanager
def open_parquet(name: str, stream: io.BufferedReader) -> Iterator[Any]:
    """Yield the ParquetFile of a stream; gzip and pipes are copied to a temporary file."""
    with ExitStack() as stack:
        with _reading_parquet(name):
            from pyarrow import parquet

            seekable: Any = stream
            if is_packed(stream) or not stream.seekable():
                seekable = stack.enter_context(tempfile.TemporaryFile())
                shutil.copyfileobj(unpacked(stream), seekable)
                seekable.seek(0)
            file = parquet.ParquetFile(seekable)
        yield file


@contextmanager
def _reading_parquet(name: str) -> Iterator[None]:
    with naming_left_out(f"{name}: Parquet"):
        import pyarrow
    try:
        yield
    except (pyarrow.ArrowException, OSError, OverflowError, ValueError, *BROKEN_GZIP) as error:
        raise InputError(f"{name}: cannot be read as Parquet ({said(error):.120})") from None


def _parquet_rows(table: Any, name: str, needed: Mapping[str, str]) -> Iterator[tuple[int, Raw]]:
    from pyarrow import string, types

    schema = table.schema_arrow
    if wrong := _header_error(schema.names, needed):
        yield 0, wrong
        return
    texts = [at for at, kind in enumerate(schema.types) if types.is_decimal(kind) and kind.precision > _FLOAT_DIGITS]
    first = 1
    with _reading_parquet(name):
        for batch in table.iter_batches(_ROWS_AT_ONCE):
            for at in texts:
                batch = batch.set_column(at, schema.names[at], batch.column(at).cast(string()))
            yield from enumerate(batch.to_pylist(), first)
            first += batch.num_rows


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


def _header_error(header: Sequence[str], needed: Mapping[str, str]) -> InputError | None:
    if twice := [name for name, count in Counter(header).items() if count > 1]:
        return InputError(f"the header names the field {quoted(twice[0])} twice")
    said = _lacking(header, needed)
    return FieldError(said) if said else None


def _lacking(names: Collection[str], needed: Mapping[str, str]) -> str | None:
    """Return an error message if a needed field is missing among the names, or None."""
    for name, option in needed.items():
        if name not in names:
            return f"no field {quoted(name)} (fields: {listed_names(names, repr)}); name the right one with {option}"
    return None


def _with(needed: Mapping[str, str]) -> str:
    return f" with the field {' and the field '.join(map(quoted, needed))}" if needed else ""
