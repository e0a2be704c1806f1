"""The rows of a file or of a stretch of it: lines of text and JSONL, rows of tables and of JSON arrays.

:func:`open_rows` opens a file as a :class:`Table`, one class for each kind of row. ``raw`` yields each row with its
number and as it stands in the file: a line, a list of cells, or an object. A row that cannot be read is an
:class:`InputError`, and the rows after it can still be read. :meth:`Table.fields` returns a row as JSON values.

Cells of CSV, TSV and ``label<TAB>text`` are read twice, because some things are only known at the end: whether all
cells of a column are numbers, whether a writer put the quotation marks of TSV there, and whether the lines are labelled
at all. A small file is held in memory for this, and a pipe is copied to a temporary file.
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
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from itertools import chain, count, groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeAlias, cast

from ctx_embed.errors import InputError, described, listed_names, missing_extra, naming_left_out, quoted
from ctx_embed.files import temporary_files
from ctx_embed.reading.decoding import UnreadableFileError
from ctx_embed.reading.encodings import LONGEST_LINE, UTF_8, WrongBytesWarning, bare, decoded_lines
from ctx_embed.reading.formats import CSV, EXTRA, JSON, JSONL, LABELLED, PARQUET, SPREADSHEET, TEXT, TSV, format_of
from ctx_embed.reading.opening import BROKEN_GZIP, is_packed, opened, said, source_name, suffix_of, unpacked
from ctx_embed.reading.workers import Worker

TEXT_FIELD, LABEL_FIELD = "text", "label"
DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
USUAL = {CSV: ",", TSV: "\t", LABELLED: "\t"}
# Number of characters from which the delimiter of a table is detected.
SAMPLED = 100_000
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
# A file of cells with at most this many bytes is read once, into memory.
_HELD_BYTES = 64 << 20
# Decimals of Parquet with more digits than a float can hold are strings.
_FLOAT_DIGITS = 15
# Python's default limit is too low: a cell may hold a whole book.
csv.field_size_limit(LONGEST_LINE)

Raw: TypeAlias = str | list[str] | dict[str, Any] | InputError


class FieldError(InputError):
    """A table or a row lacks a field that is needed."""


class ReadingWarning(UserWarning):
    """A file is read in another way than its name says, or not all of it is."""


def kind_of(source: str | Path) -> str:
    """Return the kind of rows that the suffix of a source names; text for any other suffix."""
    return format_of(source).rows or TEXT


def got(value: Any) -> str:
    """Return the kind of a JSON value, for a message."""
    return "null" if value is None else described(value)


def outermost(row: Mapping[str, Any], name: str) -> str | None:
    """Return the field of a row that is or holds a field; ``a.b`` may be the field b of the object in a. None: no such.

    A field whose own name has the dot comes first.
    """
    if name in row:
        return name
    for dot in re.finditer(r"\.", name):
        inner = row.get(name[: dot.start()])
        if isinstance(inner, dict) and outermost(inner, name[dot.end() :]) is not None:
            return name[: dot.start()]
    return None


def taken(row: dict[str, Any], name: str) -> Any:
    """Return the value of a field, which may have a dotted name, and remove the field from the row.

    The objects inside the row stay as they are: the row gets changed copies.
    """
    outer = outermost(row, name)
    if outer is None or outer == name:
        return row.pop(name)
    row[outer] = dict(row[outer])
    value = taken(row[outer], name[len(outer) + 1 :])
    if not row[outer]:
        del row[outer]
    return value


class Table:
    """An open file of rows; this class holds lines of text, the others below tables.

    Attributes:
        name: the file, for messages.
        needed: the fields that each row must have, with the option that names each.
        raw: each row with the number of its last line (in Parquet, spreadsheets and JSON arrays, of the row); 0 marks
            an error of the whole file, such as a field missing from its header.
        names: the columns that all rows have, if the file says so.
        notes: what people should know of how the file is read, such as an unexpected delimiter.
        sheets: the sheets of a spreadsheet that are read, each after the number of rows before it.
    """

    unit = "line"

    def __init__(self, name: str, kind: str, needed: Mapping[str, str], raw: Iterator[tuple[int, Raw]]) -> None:
        self.name, self.kind, self.needed, self.raw = name, kind, needed, raw
        self.names: list[str] = []
        self.notes: list[str] = []
        self.sheets: list[tuple[int, str]] = []

    def warn(self) -> None:
        """Warn of the notes."""
        for note in self.notes:
            warnings.warn(ReadingWarning(f"{self.name}: {note}"), stacklevel=1)

    def in_sheet(self, number: int) -> tuple[int, str]:
        """Return the number of a row in its sheet, and the sheet's name; the number itself if there are no sheets."""
        place = bisect_left(self.sheets, (number,))
        start, sheet = self.sheets[place - 1] if place else (0, "")
        return number - start, sheet

    def where(self, number: int) -> str:
        """Return the place of a row, for messages."""
        row, sheet = self.in_sheet(number)
        of_sheet = f", sheet {quoted(sheet)}" if sheet else ""
        return f"{self.name}{of_sheet}, {self.unit} {row}" if number else self.name

    def fields(self, number: int, raw: Raw) -> dict[str, Any] | None:
        """Return the fields of a row as JSON values; None for a blank line.

        Empty cells, nulls and NaN of tables are left out unless the field is needed. An InputError says which row
        cannot be read or lacks a field.
        """
        if isinstance(raw, InputError):
            raise type(raw)(f"{self.where(number)}: {raw}")
        return self._fields(self.where(number), raw)

    def _fields(self, where: str, raw: Any) -> dict[str, Any] | None:
        return {TEXT_FIELD: raw} if raw.strip() else None


class Objects(Table):
    """JSON objects: one on each line, or the items of an array."""

    def __init__(self, name: str, kind: str, needed: Mapping[str, str], lines: Iterator[str]) -> None:
        super().__init__(name, kind, needed, _items(lines) if kind == JSON else enumerate(lines, 1))
        self.unit = "row" if kind == JSON else "line"

    def _fields(self, where: str, raw: Any) -> dict[str, Any] | None:
        row = raw
        if self.kind == JSONL:
            if not raw.strip():
                return None
            try:
                row = json.loads(raw)
            except ValueError as error:
                hint = "; give an object on each line, or one array of objects" if raw.strip() in ("{", "[") else ""
                raise InputError(f"{where}: not JSON ({error}){hint}") from None
            except RecursionError:
                raise InputError(f"{where}: nested too deeply to be read") from None
        if not isinstance(row, dict):
            raise InputError(f"{where}: must be a JSON object{_with(self.needed)}, got {got(row)}")
        if lacking := _lacking(row, self.needed):
            raise FieldError(f"{where}: {lacking}")
        return dict(row)


class Cells(Table):
    """Rows of cells: CSV, TSV or ``label<TAB>text``. Cells of a column are numbers if all of them are.

    Attributes:
        delimiter: the character between two cells.
        quoted: whether cells with the delimiter, line ends or quotation marks are quoted.
        header: the first row, in which columns may be without name; empty for ``label<TAB>text``.
    """

    def __init__(self, name: str, kind: str, needed: Mapping[str, str], delimiter: str, quoted: bool) -> None:
        super().__init__(name, kind, needed, iter(()))
        self.delimiter, self.quoted = delimiter, quoted
        self.header: list[str] = []
        self.names = [LABEL_FIELD, TEXT_FIELD]
        self._numbers: Collection[str] = ()

    def begin(self, header: list[str], rows: Iterable[list[str]] | None) -> None:
        """Take the header and, to find out which columns are numbers, all rows."""
        self.header = header
        self.names = _named(header)
        if rows is not None:
            self._numbers = _number_columns(self.names, rows, self.needed)

    def read(self, lines: Iterator[str]) -> Iterator[tuple[int, Raw]]:
        """Yield the rows below the header, none with more cells than that; cells too many must be empty."""
        rows = _split(lines, self.delimiter, self.quoted)
        if self.kind == LABELLED:
            for number, cells in rows:
                if isinstance(cells, InputError):
                    yield number, cells
                elif len(cells) > 1:
                    yield number, [cells[0], "\t".join(cells[1:])]
                elif cells[0].strip():
                    yield number, InputError(f"{cells[0][:40]!r} is not label<TAB>text")
            return
        number, header = next(rows, (0, InputError(f"must begin with a header{_with(self.needed)}, got an empty file")))
        if isinstance(header, InputError):
            yield number, header
            return
        if wrong := _header_error(self.names, self.needed):
            yield 0, wrong
            return
        count = len(self.names)
        # Cells below unnamed columns at the right may be missing.
        least = max((place for place, name in enumerate(self.header, 1) if name.strip()), default=0)
        for number, cells in rows:
            if not isinstance(cells, InputError) and len(cells) != count:
                if len(cells) < least or any(cells[count:]):
                    said = f"{len(cells)} {'field' if len(cells) == 1 else 'fields'}"
                    yield number, InputError(f"{said}, but the header has {count}")
                    continue
                cells = cells[:count]
            yield number, cells

    def _fields(self, where: str, raw: Any) -> dict[str, Any] | None:
        filled = {name: cell for name, cell in zip(self.names, raw, strict=False) if cell or name in self.needed}
        return {name: number_of(cell) if name in self._numbers else cell for name, cell in filled.items()}


class Records(Table):
    """Rows with values of several types: Parquet and spreadsheets."""

    unit = "row"

    def _fields(self, where: str, raw: Any) -> dict[str, Any] | None:
        row = {name: value for name, cell in raw.items() if (value := _plain(cell)) is not None or name in self.needed}
        if lacking := _lacking(row, self.needed):
            # Within an object that is null.
            raise FieldError(f"{where}: {lacking}")
        if self.kind == SPREADSHEET:
            # As in CSV, a text may be a number, or empty.
            row |= {name: "" if row[name] is None else str(row[name]) for name in self.needed}
        return row


@contextmanager
def open_rows(
    source: str | Path,
    *,
    kind: str | None = None,
    needed: Mapping[str, str] | None = None,
    labelled: bool = False,
    typed: bool = True,
    encoding: str | None = None,
) -> Iterator[Table]:
    """Open the rows of a file, plain or gzip, local or remote.

    The suffix names the format of tables, JSONL and JSON; other files and standard input have the format that their
    first line shows: a JSON object, the beginning of a JSON array, or a header that names the needed columns. Lines
    with one tab each are ``label<TAB>text`` if labels are repeated (with ``labelled``, always); so are those of TSV
    without a header. Without ``typed``, cells stay strings, and a file of them need not be read to its end first.
    """
    name, needed = source_name(source), needed or {}
    with ExitStack() as stack:
        stream = stack.enter_context(opened(source))
        given = kind or kind_of(source)
        if given == PARQUET:
            file = stack.enter_context(open_parquet(name, stream))
            of_bytes = [field.name for field in file.schema_arrow if _holds_bytes(field.type)]
            table = Records(name, PARQUET, needed, _parquet_rows(file, name, needed, of_bytes))
            table.names = [column for column in file.schema_arrow.names if column not in of_bytes]
            table.notes += [f"left out the column {quoted(column)}, which holds bytes" for column in of_bytes]
            yield table
            return
        if given == SPREADSHEET:
            sheets = Records(name, SPREADSHEET, needed, iter(()))
            sheets.raw = stack.enter_context(closing(_sheet_rows(sheets, source, stream)))
            yield sheets
            return
        begin, packed = stream.tell() if stream.seekable() else None, stream
        if is_packed(stream):
            begin, stream = 0 if begin == 0 else None, unpacked(stream)
        lines = decoded_lines(name, stream, encoding=encoding)
        # Up to the first line that is not blank, which shows the format.
        ahead = [""]
        while not ahead[-1].strip() and (line := next(lines, None)) is not None:
            ahead.append(line)
        kind = kind or _recognised(ahead[-1], format_of(source).rows, needed)
        lines = chain(ahead[1:], lines)
        if kind == TEXT and labelled:
            kind = LABELLED
        if kind in (JSON, JSONL):
            yield Objects(name, kind, needed, bare(lines))
        elif kind not in USUAL:
            yield Table(name, kind, needed, enumerate(bare(lines), 1))
        else:
            if begin is None:
                begin, encoding = 0, UTF_8
                stream = cast("io.BufferedReader", stack.enter_context(tempfile.TemporaryFile()))
                # A file of its own: what it cannot write, the other does not try again at its end.
                with temporary_files(), open(stream.fileno(), "wb", closefd=False) as copy:
                    copy.writelines(f"{line}\n".encode() for line in lines)
            else:
                size = packed.seek(0, io.SEEK_END) - begin
                packed.seek(begin)
                if size <= _HELD_BYTES:
                    begin, stream = 0, unpacked(io.BufferedReader(io.BytesIO(packed.read())))

            def again() -> Iterator[str]:
                stream.seek(begin)
                return decoded_lines(name, stream, encoding=encoding)

            with warnings.catch_warnings():
                # Reading the rows will warn of these bytes.
                warnings.simplefilter("ignore", WrongBytesWarning)
                cells = _cells(name, kind, needed, again, labelled, typed)
            if cells is None:
                yield Table(name, TEXT, needed, enumerate(bare(again()), 1))
            else:
                cells.raw = cells.read(again())
                yield cells


def _cells(
    name: str, kind: str, needed: Mapping[str, str], again: Callable[[], Iterator[str]], labelled: bool, typed: bool
) -> Cells | None:
    """Return the table of a file of cells, whose lines ``again`` gives, with its header read; None for other lines."""
    delimiter = USUAL[kind] if kind == LABELLED else _delimiter(again(), USUAL[kind])
    quoted = kind == CSV or delimiter != "\t" or _has_quoted_cells(again())
    rows = (cells for _, cells in _split(again(), delimiter, quoted) if not isinstance(cells, InputError))
    header = next(rows, [])
    if kind == TSV and not needed.keys() <= set(header):
        labelled = labelled or (needed.keys() <= {TEXT_FIELD} and _labels(chain([header], rows)))
        kind = LABELLED if labelled else TSV
    elif kind == LABELLED and not labelled and not _labels(chain([header], rows)):
        return None
    table = Cells(name, kind, needed, delimiter, quoted)
    if delimiter != USUAL[kind]:
        table.notes.append(f"fields are separated by {DELIMITERS[delimiter]}")
    if kind != LABELLED:
        table.begin(header, rows if typed else None)
    return table


def _delimiter(lines: Iterable[str], usual: str) -> str:
    """Return the usual delimiter, unless the header then has one field: then the one that suits most records best."""
    sample: list[str] = []
    size = 0
    for line in lines:
        sample.append(line)
        size += len(line) + 1
        if size > SAMPLED:
            break
    best = (0.5, usual)
    for delimiter in [usual, *DELIMITERS]:
        records = [cells for _, cells in _split(sample, delimiter, quoted=True)]
        # The last record may be cut.
        counts = [
            0 if isinstance(cells, InputError) else len(cells) for cells in records[: -1 if size > SAMPLED else None]
        ]
        if counts and counts[0] > 1:
            if delimiter == usual:
                return usual
            best = max(best, (counts.count(counts[0]) / len(counts), delimiter), key=lambda each: each[0])
    return best[1]


def _recognised(first: str, kind: str | None, needed: Mapping[str, str]) -> str:
    """Return the format of a file whose suffix may name a ``kind`` and whose first line is ``first``."""
    if kind not in (None, JSONL):
        return kind
    if _ARRAY.match(first):
        return JSON
    with suppress(ValueError, RecursionError):
        if kind == JSONL or isinstance(json.loads(first), dict):
            return JSONL
    for delimiter in ("\t", ",", ";", "|"):
        _, header = next(_split([first], delimiter, quoted=True), (0, []))
        # A first line "text" may be a text itself; a line that lists this word among others is a header.
        if not isinstance(header, list) or (len(header) == 1 and TEXT_FIELD in needed):
            continue
        if needed and needed.keys() <= set(header):
            return TSV if delimiter == "\t" else CSV
    return LABELLED if "\t" in first else TEXT


# CSV, TSV, and label<TAB>text


def _has_quoted_cells(lines: Iterable[str]) -> bool:
    """Return whether a program quoted cells of TSV: all that need quotation marks have them, and no others.

    If all cells of the header are quoted, any others may be, too.
    """
    found = header = False
    row: list[str] = []
    size = 0
    for line in bare(lines):
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


def _split(lines: Iterable[str], delimiter: str, quoted: bool) -> Iterator[tuple[int, list[str] | InputError]]:
    """Yield the number of each line that is not empty, and its cells. A quoted cell may have several lines."""
    if not quoted:
        yield from ((number, line.split(delimiter)) for number, line in enumerate(bare(lines), 1) if line)
        return
    table = csv.reader((f"{line}\n" for line in lines), strict=True, delimiter=delimiter)
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
        # Unnamed columns at the right may be many, and missing.
        for place, name in list(islice(open_columns.items(), len(cells))):
            if place < len(cells) and (cell := cells[place]):
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
        with _reading_parquet(name), temporary_files():
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


def _parquet_rows(
    table: Any, name: str, needed: Mapping[str, str], left_out: Sequence[str]
) -> Iterator[tuple[int, Raw]]:
    from pyarrow import string, types

    kept = [field for field in table.schema_arrow if field.name not in left_out]
    if wrong := _header_error(
        [field.name for field in kept], needed, {field.name: _inside(field.type) for field in kept}
    ):
        yield 0, wrong
        return
    texts = [at for at, each in enumerate(kept) if types.is_decimal(each.type) and each.type.precision > _FLOAT_DIGITS]
    first = 1
    with _reading_parquet(name):
        for batch in table.iter_batches(_ROWS_AT_ONCE, columns=[field.name for field in kept]):
            for at in texts:
                batch = batch.set_column(at, kept[at].name, batch.column(at).cast(string()))
            yield from enumerate(batch.to_pylist(), first)
            first += batch.num_rows


def _inside(kind: Any) -> dict[str, Any] | None:
    """Return the fields of a type of Arrow as a row has them: None for a value, a dictionary for an object."""
    return {field.name: _inside(field.type) for field in kind} if str(kind).startswith("struct<") else None


def _holds_bytes(kind: Any) -> bool:
    """Return whether values of a type of Arrow are bytes or have some inside."""
    inner = [kind.field(place).type for place in range(kind.num_fields)]
    inner += [getattr(kind, name) for name in ("value_type", "storage_type") if hasattr(kind, name)]
    return "binary" in str(kind).partition("<")[0] or any(map(_holds_bytes, inner))


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


# Spreadsheets


def _sheet_rows(table: Table, source: str | Path, stream: io.BufferedReader) -> Generator[tuple[int, Raw], None, None]:
    """Yield the rows of all sheets; a sheet without the needed fields is left out, if another one has them."""
    if not format_of(source).installed:
        raise missing_extra(f"{table.name}: a spreadsheet", EXTRA)
    lacking, known = dict[str, list[str]](), set[str]()
    try:
        with tempfile.TemporaryDirectory() as folder, Worker() as worker:
            path = Path(folder, f"copy{suffix_of(source)}")
            with temporary_files(), path.open("wb") as copy:
                shutil.copyfileobj(unpacked(stream), copy)
            for sheet, group in groupby(worker.ask(str(path)), key=itemgetter(0)):
                of_sheet = iter(group)
                _, start, _, header = next(of_sheet)
                names = _named(["" if cell is None else str(cell) for cell in header])
                if wrong := _header_error(names, table.needed):
                    if not isinstance(wrong, FieldError):
                        yield 0, wrong
                        return
                    lacking[sheet] = names
                    continue
                table.names += [name for name in names if name not in known]
                known.update(names)
                table.sheets.append((start, sheet))
                of_row = {"sheet": sheet} if sheet and "sheet" not in names else {}
                for _, _, number, cells in of_sheet:
                    named = chain(names, map("column {}".format, count(len(names) + 1)))
                    yield number, {**of_row, **dict(zip(named, cells, strict=False))}
    except UnreadableFileError as error:
        raise InputError(f"{table.name}: {error}") from None
    if table.sheets:
        table.notes += [
            f"left out the sheet {quoted(sheet)} ({_lacking(dict.fromkeys(names), table.needed)})"
            for sheet, names in lacking.items()
        ]
    elif lacking:
        every = dict.fromkeys(chain.from_iterable(lacking.values()))
        yield 0, FieldError(str(_lacking(every, table.needed)))
    else:
        yield 0, InputError(f"must begin with a header{_with(table.needed)}, got an empty file")


# Headers


def _named(header: Sequence[str]) -> list[str]:
    """Return the names of columns; those without one are called after their place. Spreadsheets write empty ones."""
    return [name if name.strip() else f"column {place}" for place, name in enumerate(header, 1)]


def _header_error(
    header: Sequence[str], needed: Mapping[str, str], fields: Mapping[str, Any] | None = None
) -> InputError | None:
    """Return what is wrong with a header whose columns hold ``fields``; None if it can be used."""
    if twice := [name for name, count in Counter(header).items() if count > 1]:
        return InputError(f"the header names the field {quoted(twice[0])} twice")
    said = _lacking(dict.fromkeys(header) if fields is None else fields, needed)
    return FieldError(said) if said else None


def _lacking(row: Mapping[str, Any], needed: Mapping[str, str]) -> str | None:
    """Return an error message if a row lacks needed fields, or None."""
    if not (lacking := {name: option for name, option in needed.items() if outermost(row, name) is None}):
        return None
    said = f"no field {listed_names(lacking, quoted)} (fields: {listed_names(dotted(row), repr)})"
    options, ones = ", ".join(dict.fromkeys(filter(None, lacking.values()))), "ones" if len(lacking) > 1 else "one"
    each = ", once for each" * any("," in name for name in lacking)
    return f"{said}; name the right {ones} with {options}{each}" if options else said


def dotted(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a row and of the objects in it, by dotted names."""
    found: dict[str, Any] = {}
    for name, value in row.items():
        inner = dotted(value) if isinstance(value, dict) else {}
        found |= {f"{name}.{field}": inner_value for field, inner_value in inner.items()} or {name: value}
    return found


def _with(needed: Mapping[str, str]) -> str:
    return f" with the field {' and the field '.join(map(quoted, needed))}" if needed else ""
