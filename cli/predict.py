"""`ctx-embed predict`: labels and probabilities from a trained classifier."""

from __future__ import annotations

import io
import json
import re
import shlex
import sys
import zipfile
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from itertools import chain, count, islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple, TextIO
from xml.parsers import expat
from xml.sax.saxutils import escape

import click

from ctx_embed.cli.main import command, counted, printable
from ctx_embed.cli.options import encoding_option, label_option, output_option, text_options
from ctx_embed.errors import InputError, missing_extra
from ctx_embed.reading.decoding import parsed
from ctx_embed.reading.formats import PARQUET
from ctx_embed.reading.office import elements, references, value_of
from ctx_embed.reading.opening import opened, source_name, suffix_of, unpacked
from ctx_embed.reading.rows import Fields, documents_in, titled
from ctx_embed.reading.tables import USUAL, Cells, Table, open_parquet, open_rows
from ctx_embed.texts import well_formed
from ctx_embed.writing import cells_writer, json_of

if TYPE_CHECKING:
    from ctx_embed.classify.predictor import Predictor

# Number of texts that are read and predicted at a time.
AT_ONCE = 8192
# A table may have this many cells for each filled one, and for 10,000 more.
MOST_EMPTY = 1000
# Maximum rows and columns of a sheet and characters of a cell in Excel.
MOST_ROWS, MOST_COLUMNS, MOST_CHARACTERS = 1 << 20, 1 << 14, 32_767
# The range of a sheet.
DIMENSION = re.compile(rb"<(?:\w+:)?dimension\b[^>]*>")
# Workbooks that end in .xlsx have no macros.
MACROS = "vbaProject.bin"
MACROS_OF_TYPE = b"vnd.ms-excel.sheet.macroEnabled", b"vnd.openxmlformats-officedocument.spreadsheetml.sheet"


class Row(NamedTuple):
    """A row of the output: the number and fields of the input's row, its text, and what the classifier says of it."""

    number: int
    given: dict[str, Any]
    text: str
    found: dict[str, Any]

    def cells(self, digits: str = ".4f") -> list[str]:
        """Return labels and probabilities, separated by commas, and with --explain the reasons for the labels."""
        if self.found["probabilities"] is None:
            return ["", "", *[""] * ("explanations" in self.found)]
        labels = self.found["labels"] if "labels" in self.found else [self.found["label"]]
        shown = ",".join(f"{round(self.found['probabilities'][str(label)], 4):{digits}}" for label in labels)
        reasons = "; ".join(map(_reason, self.found.get("explanations", ())))
        return [",".join(map(str, labels)), shown, *[reasons] * ("explanations" in self.found)]

    def fields(self, columns: Iterable[str] = ()) -> dict[str, Any]:
        """Return all fields of the row; those of the classifier have the names that :func:`_free` gives them."""
        free = _free(self.found, {*columns, *self.given})
        return {**self.given, **{free[name]: value for name, value in self.found.items()}}


def _free(names: Iterable[str], taken: Collection[str]) -> dict[str, str]:
    """Return a name for each of the classifier's fields: ``predicted_label`` and so on if the input has one of them."""
    names = list(names)
    marks = chain(("", "predicted_"), (f"predicted_{number}_" for number in count(2)))
    mark = next(mark for mark in marks if not any(f"{mark}{name}" in taken for name in names))
    return {name: f"{mark}{name}" for name in names}


def _reason(explanation: dict[str, Any]) -> str:
    of_meaning, words = (
        ", ".join(f"{name} {part:+.2f}" for name, part in explanation[parts].items()) or "none"
        for parts in ("of_meaning", "words")
    )
    label, logit, meaning, bias = (explanation[name] for name in ("label", "logit", "meaning", "bias"))
    # Adding 0 turns -0 into 0.
    of_words = round(logit - meaning - bias, 2) + 0.0
    parts = f"meaning {meaning:+.2f} ({of_meaning}), words {of_words:+.2f} ({words}), bias {bias:+.2f}"
    return f"{label} {logit:+.2f} = {parts}"


def _write_lines(file: TextIO, rows: Iterator[Row], table: Table) -> None:
    """Write label, probability and text separated by tabs, for people; with --explain, the reasons follow the text."""
    for row in rows:
        label, probability, *why = row.cells()
        # A tab or newline inside a label or text would tear the line.
        cells = (printable(cell, " ") for cell in (label, probability, row.text, *why))
        file.write("\t".join(cells) + "\n")


def _write_jsonl(file: TextIO, rows: Iterator[Row], table: Table) -> None:
    file.writelines(f"{json_of(row.fields(table.names))}\n" for row in rows)


def _write_json(file: TextIO, rows: Iterator[Row], table: Table) -> None:
    file.write("[")
    for number, row in enumerate(rows):
        file.write((",\n" if number else "\n") + json_of(row.fields(table.names)))
    file.write("\n]\n")


def _columns(rows: Iterator[Row], table: Table) -> tuple[list[Row], list[str], list[str]]:
    """Return the rows, the names of their fields, and the names of the classifier's columns, alike in all sheets."""
    found = list(rows)
    names = list(dict.fromkeys([*table.names, *(name for row in found for name in row.given)]))
    own = ["label", "probability", *["explanation"] * ("explanations" in found[0].found)]
    filled, cells = sum(len(row.given) for row in found), len(found) * len(names)
    if cells > MOST_EMPTY * (filled + 10_000):
        raise InputError(f"a table of these rows would have {cells:,} cells, {filled:,} of them filled; write .jsonl")
    return found, names, list(_free(own, names).values())


def _write_table(file: TextIO, rows: Iterator[Row], table: Table, kind: str) -> None:
    """Write the columns of the input, cell by cell and in its form if it has this kind, and those of the classifier."""
    found, names, own = _columns(rows, table)
    form = (table.delimiter, table.quoted) if isinstance(table, Cells) and table.kind == kind else (USUAL[kind], True)
    write = cells_writer(file, *form)
    header = table.header if isinstance(table, Cells) and table.header else names
    write([*header, *own])
    for row in found:
        values = [row.given.get(name, "") for name in names]
        cells = [value if isinstance(value, str) else json_of(value) for value in values]
        # Readers take a number with trailing zeros, such as a version 1.10, as text.
        write([*cells, *row.cells(digits="")])


def _write_parquet(file: TextIO, rows: Iterator[Row], table: Table) -> None:
    """Write the table of the input as it is, with the classifier's columns at the end."""
    import pyarrow
    from pyarrow import parquet

    found, names, _ = _columns(rows, table)
    if table.kind != PARQUET or table.name == source_name("-"):
        try:
            fields = [row.fields(names) for row in found]
            columns = {**dict.fromkeys(names), **fields[0]}
            whole = pyarrow.table({name: [each.get(name) for each in fields] for name in columns})
        except pyarrow.ArrowException as error:
            raise InputError(f"a column of Parquet must have values of one type ({error}); write .jsonl") from None
        parquet.write_table(whole, file.buffer)
        return
    with opened(table.name) as stream, open_parquet(table.name, stream) as source:
        whole = source.read()
    for name, free in _free(found[0].found, whole.column_names).items():
        whole = whole.append_column(free, pyarrow.array([row.found[name] for row in found]))
    parquet.write_table(whole, file.buffer)


def _write_workbook(file: TextIO, rows: Iterator[Row], table: Table) -> None:
    """Write the workbook of the input as it is, or a new one, with the classifier's columns at the end of sheets."""
    import openpyxl

    found, names, header = _columns(rows, table)
    lines = list[list[Any]]()
    for row in found:
        label, probability, *why = row.cells(digits="")
        lines.append([label, float(probability) if probability and "," not in probability else probability, *why])
    if suffix_of(table.name) in (".xlsx", ".xlsm"):
        added: dict[str, dict[int, list[Any]]] = {sheet: {0: header} for _, sheet in table.sheets}
        for row, cells in zip(found, lines, strict=True):
            number, sheet = table.in_sheet(row.number)
            added[sheet][number] = cells
        with opened(table.name) as stream, zipfile.ZipFile(io.BytesIO(unpacked(stream).read())) as given:
            _extend(given, added, file.buffer)
            table.notes += ["left out the macros"] * any(name.endswith(MACROS) for name in given.namelist())
        return
    book = openpyxl.Workbook()
    # The rows of other tables are numbered anew, below the header.
    if (wide := len(names) + len(header)) > MOST_COLUMNS:
        raise InputError(f"a sheet has at most {MOST_COLUMNS:,} columns, got {wide:,}; write .csv or .parquet")
    whole = ([*map(row.given.get, names), *cells] for row, cells in zip(found, lines, strict=True))
    for number, values in enumerate(chain([[*names, *header]], whole), 1):
        for column, value in enumerate(values, 1):
            if value is not None:
                cell = book.active.cell(number, column, _shown(number, value))
                # No text becomes a formula.
                cell.data_type = "s" if isinstance(cell.value, str) else cell.data_type
    book.save(file.buffer)


def _shown(row: int, value: Any) -> str | float | None:
    """Return a value as a sheet can hold it."""
    from openpyxl.cell.cell import ILLEGAL_CHARACTERS_RE

    if row > MOST_ROWS:
        raise InputError(f"a sheet has at most {MOST_ROWS:,} rows; write .csv or .parquet")
    text: str | float | None = value if isinstance(value, str | int | float | None) else json_of(value)
    if isinstance(text, str):
        text = re.sub("[\ud800-\udfff\ufffe\uffff]", "\ufffd", ILLEGAL_CHARACTERS_RE.sub("\ufffd", text))
        if len(text) > MOST_CHARACTERS:
            raise InputError(f"row {row}: a cell of a sheet has at most {MOST_CHARACTERS:,} characters; write .csv")
    return text


def _extend(book: zipfile.ZipFile, added: Mapping[str, Mapping[int, Sequence[Any]]], file: IO[bytes]) -> None:
    """Copy a workbook with cells at the end of rows of its sheets. All else stays, byte by byte, but for macros."""
    (main,) = (part for kind, _, part in references(book, "") if kind == "officeDocument")
    parts = {identifier: part for _, identifier, part in references(book, main)}
    sheets = {value_of(each, "name"): parts[value_of(each, "id")] for each in elements(parsed(book, main), {"sheet"})}
    cells = {sheets[name] if name else next(iter(sheets.values())): rows for name, rows in added.items()}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as new:
        for name in book.namelist():
            content = book.read(name)
            if name in cells:
                content = _with_cells(content, cells[name])
            elif name == "[Content_Types].xml" or name.endswith(".rels"):
                content = re.sub(rb"<(?:Relationship|Override)\b[^>]*vbaProject[^>]*>", b"", content)
                content = content.replace(*MACROS_OF_TYPE)
            if not name.endswith(MACROS):
                new.writestr(name, content)


def _with_cells(sheet: bytes, added: Mapping[int, Sequence[Any]]) -> bytes:
    """Return a sheet with cells behind the last column that is filled; row 0 stands for the first filled one."""
    from openpyxl.utils import column_index_from_string, get_column_letter

    # Where the cells of a row stand, by their columns.
    lines: dict[int, dict[int, slice]] = defaultdict(dict)
    filled = set[tuple[int, int]]()
    row, column, start, prefix = 0, 0, 0, ""
    parser = expat.ParserCreate()

    def begin(name: str, attributes: Mapping[str, str]) -> None:
        nonlocal row, column, start, prefix
        kind = name.rpartition(":")[2]
        if kind == "row":
            row, column = int(attributes.get("r", row + 1)), 0
        elif kind == "c":
            letters = attributes.get("r", "").rstrip("0123456789")
            column, start = column_index_from_string(letters) if letters else column + 1, parser.CurrentByteIndex
            prefix = name[:-1]
        elif kind in ("v", "is", "f"):
            filled.add((row, column))

    def end(name: str) -> None:
        if name == f"{prefix}c":
            # After an empty cell, or before the tag that closes one.
            stop, tag = parser.CurrentByteIndex, f"</{name}".encode()
            lines[row][column] = slice(start, sheet.index(b">", stop) + 1 if sheet.startswith(tag, stop) else stop)

    parser.StartElementHandler, parser.EndElementHandler = begin, end
    try:
        parser.Parse(sheet.decode(), True)
        header, after = min(filled)[0], max(column for _, column in filled) + 1
        if absent := added.keys() - lines.keys() - {0}:
            raise ValueError(f"no cells of row {min(absent)}")
    except (expat.ExpatError, ValueError) as error:
        raise InputError(f"a sheet of the workbook cannot get more columns ({error}); write .csv") from None
    parts, at = [], 0
    for number, values in sorted((number or header, values) for number, values in added.items()):
        cells = lines[number]
        written = {column: sheet[cell] for column, cell in cells.items()}
        for column, value in enumerate(values, after):
            text = _shown(number, value)
            shown = f"<{prefix}v>{text}</{prefix}v>"
            if isinstance(text, str):
                shown = f'<{prefix}is><{prefix}t xml:space="preserve">{escape(text)}</{prefix}t></{prefix}is>'
            kind = ' t="inlineStr"' * isinstance(text, str)
            place = f"{get_column_letter(column)}{number}"
            written[column] = f'<{prefix}c r="{place}"{kind}>{shown}</{prefix}c>'.encode()
        parts += [
            sheet[at : min(cell.start for cell in cells.values())],
            *(written[column] for column in sorted(written)),
        ]
        at = max(cell.stop for cell in cells.values())
    # The range of the sheet, which may be missing, has grown.
    return DIMENSION.sub(b"", b"".join([*parts, sheet[at:]]), count=1)


WRITERS: dict[str, Callable[[TextIO, Iterator[Row], Table], None]] = {
    ".jsonl": _write_jsonl,
    ".json": _write_json,
    ".csv": partial(_write_table, kind="CSV"),
    ".tsv": partial(_write_table, kind="TSV"),
    ".parquet": _write_parquet,
    ".xlsx": _write_workbook,
}


@command()
@click.argument("model", metavar="MODEL")
@click.argument("source", metavar="INPUT")
@text_options
@label_option
@encoding_option
@output_option("Write FILE.jsonl, .json, .csv, .tsv, .parquet or .xlsx instead.", metavar="FILE")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array.")
@click.option("--jsonl", "as_jsonl", is_flag=True, help="Print one JSON object per line.")
@click.option("--evaluate", is_flag=True, help="INPUT is labelled: print precision, recall, F1 and confusion matrix.")
@click.option(
    "--explain", is_flag=True, help="Show how much the meaning, words and pairs of words speak for each label."
)
@click.option(
    "--device",
    metavar="NAME",
    help="Device as in sentence-transformers, e.g. cuda.  [default: the CPU, without torch if possible]",
)
def predict(
    model: str,
    source: str,
    text_field: Fields,
    label_field: str | None,
    encoding: str | None,
    output: Path | None,
    as_json: bool,
    as_jsonl: bool,
    evaluate: bool,
    explain: bool,
    device: str | None,
) -> None:
    """Predict the labels of the texts of INPUT with a MODEL folder made by `ctx-embed train`.

    INPUT is text (one text per line), CSV, TSV, JSON, Parquet or a spreadsheet, plain or gzip, or - for standard
    input. Of a table it reads the columns that MODEL has learned from, if they are there. The output has a row for each
    row of INPUT, in order: the label, its probability and the text, separated by tabs; several labels are separated by
    commas. Files and JSON give back the fields of INPUT, cell by cell, and then the label and its probability, in JSON
    and Parquet those of all labels; these are called `predicted_label` and so on if INPUT has fields of these names.

    With --explain, each row also says why. The logit of a label, minus the mean logit of all labels, is the sum of
    three parts: the meaning, the words and pairs of words, and a bias. The words in brackets after the meaning are
    those whose removal would change it most.

    With --evaluate, INPUT has lines label<TAB>text or is a table with labels, as for `ctx-embed train`, and the report
    is printed; -o FILE also writes the predictions.

    \b
    Example: ctx-embed predict reviews-model new.txt
    Example: echo "great food" | ctx-embed predict reviews-model - --jsonl
    Example: ctx-embed predict reviews-model new.txt --explain
    Example: ctx-embed predict reviews-model test.tsv --evaluate
    """
    if as_json and as_jsonl:
        raise click.UsageError("--json and --jsonl cannot be combined")
    if output and (as_jsonl or (as_json and not evaluate)):
        raise click.UsageError("the name of -o FILE sets the format; leave out --json and --jsonl")
    if evaluate and as_jsonl:
        raise click.UsageError(
            "--evaluate prints only its report; add --json to get it as JSON, -o FILE to write the predictions"
        )
    if label_field and not evaluate:
        raise click.UsageError("--label-field needs --evaluate")
    if output and output.suffix.lower() not in WRITERS:
        raise InputError(f"cannot write {output}: its name must end in {', '.join(WRITERS)}")
    if output and output.suffix.lower() == ".xlsx" and find_spec("openpyxl") is None:
        raise missing_extra(f"writing {output}", "documents")
    from ctx_embed.classify.labelled import Labelled, first_labels
    from ctx_embed.classify.predictor import Predictor
    from ctx_embed.files import replaced_file, require_file, require_other_file
    from ctx_embed.training.run import RECORD

    if output:
        require_file(output)
        require_other_file(output, source)
    if source != "-" and not Path(source).exists():
        text = "" if Path(source).suffix else f"; for one text: echo {shlex.quote(source)} | ctx-embed predict MODEL -"
        raise InputError(f"{source}: no such file{text}")
    predictor = Predictor.load(model, device)
    head = predictor.head
    printed = not (as_json or as_jsonl or (output and output.suffix.lower() in (".jsonl", ".json")))
    if head.multi_label and printed and (torn := next((label for label in head.labels if "," in str(label)), None)):
        raise InputError(f"the label {torn!r} has a comma, which separates labels in lines; add --jsonl")
    data, fields = None, titled(text_field)
    if not fields.text and source != "-":
        # The columns that the classifier has learned from, unless the first row has the usual one alone.
        with suppress(OSError, ValueError, LookupError):
            columns = json.loads((Path(model) / RECORD).read_bytes())["fields"]
            usual, fields = fields, replace(fields, text=columns["text"])
            for tried in (fields, usual):
                with (
                    suppress(OSError, ValueError, LookupError, StopIteration),
                    open_rows(source, needed=tried.needed, typed=False, encoding=encoding) as table,
                ):
                    number, raw, _ = next(documents_in(table, tried))
                    fields, names = tried, table.fields(number, raw) or ()
                    if tried is not usual and evaluate and not label_field and columns["label"] in names:
                        label_field = columns["label"]
                    break
    if evaluate:
        data = Labelled.read(source, fields, label_field, several=head.multi_label, encoding=encoding)
        data = data.matched(head.labels)
        if unknown := data.unknown(head.labels):
            if not data.label_set() & set(head.labels):
                raise InputError(
                    f"{source_name(source)}: the classifier knows none of its labels ({unknown}), "
                    f"only {first_labels(head.labels)}"
                )
            click.echo(f"Warning: labels that the classifier does not know count as wrong: {unknown}", err=True)
    found: list[Any] = []
    with open_rows(source, needed=fields.needed, labelled=evaluate, encoding=encoding) as table:
        given = _given(table, fields, output is not None and output.suffix.lower() in (".csv", ".tsv"))
        if data and source == "-":
            # Standard input has been read.
            given = ((0, {"text": text}, text) for text in data.texts)
        if (first := next(given, None)) is None:
            raise InputError(f"{source_name(source)}: no texts to label")
        predicted = predicted_rows(predictor, chain([first], given), found if evaluate else None, explain)
        tally = count()
        rows = (row for row, _ in zip(predicted, tally, strict=False))
        if output:
            with replaced_file(output) as beside, beside.open("w", encoding="utf-8", newline="") as file:
                WRITERS[output.suffix.lower()](file, rows, table)
            # With --evaluate, only the report goes to standard output.
            click.echo(f"{counted(next(tally), 'prediction')} in {output}", err=evaluate)
        elif not evaluate:
            (_write_json if as_json else _write_jsonl if as_jsonl else _write_lines)(sys.stdout, rows, table)
        else:
            deque(rows, maxlen=0)
        table.warn()
    if data:
        from ctx_embed.classify.labelled import as_text, report

        result = report(found, data, head.labels)
        click.echo(json.dumps(result, ensure_ascii=False) if as_json else as_text(result))


def _given(table: Table, fields: Fields, as_cells: bool) -> Iterator[tuple[int, dict[str, Any], str]]:
    """Yield number and fields of each row, ``as_cells`` the cells as they stand in the file, and its text."""
    for number, raw, document in documents_in(table, fields):
        if as_cells and isinstance(raw, list):
            yield number, dict(zip(table.names, raw, strict=False)), document.text
        else:
            yield number, table.fields(number, raw) or {}, document.text


def predicted_rows(
    predictor: Predictor, given: Iterable[tuple[int, dict[str, Any], str]], found: list[Any] | None, explain: bool
) -> Iterator[Row]:
    """Yield a row for each text, given with its fields, without a label if it is blank; append predictions to found."""
    head = predictor.head
    waiting = iter(given)
    while batch := list(islice(waiting, AT_ONCE)):
        texts = [well_formed(text) for *_, text in batch]
        logits = predictor.logits(texts)
        chosen = head.chosen(logits)
        if found is not None:
            found.extend(chosen)
        of_texts = head.probabilities(logits).tolist()
        for (number, fields, _), text, label, probabilities in zip(batch, texts, chosen, of_texts, strict=True):
            said: dict[str, Any] = {"labels": list(label)} if head.multi_label else {"label": label}
            said["probabilities"] = dict(zip(map(str, head.labels), probabilities, strict=True))
            if explain:
                said["explanations"] = [
                    {**vars(each), "words": dict(each.words), "of_meaning": dict(each.of_meaning)}
                    for each in (predictor.explain(text) if text.strip() else ())
                ]
            # No file holds halves of emoji.
            whole = {well_formed(key): well_formed(c) if isinstance(c, str) else c for key, c in fields.items()}
            yield Row(number, whole, text, said if text.strip() else dict.fromkeys(said))
