"""Read documents and labelled texts: row by row, in blocks, or as they arrive, always in bounded memory."""

import json
import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import Any, TypeAlias, TypeVar

from ctx_embed.errors import InputError, listed_names, quoted
from ctx_embed.reading.encodings import bare, decoded_lines
from ctx_embed.reading.formats import LABELLED, PARQUET, SPREADSHEET, TEXT, TSV, format_of
from ctx_embed.reading.opening import BROKEN_GZIP, opened, source_name, unpacked
from ctx_embed.reading.tables import LABEL_FIELD, TEXT_FIELD, Raw, Table, got, kind_of, open_parquet, open_rows, taken
from ctx_embed.texts import Document

Item = TypeVar("Item")
_SAMPLED_BYTES = 1 << 20


@dataclass(frozen=True)
class Fields:
    """The fields with a row's text, id, title and label, by names such as ``body`` or ``message.body``.

    None: ``text``, and ``id`` or ``_id`` and ``title`` if there are such fields. Of several fields with the text, those
    that are filled are joined by line ends. ``fixed``: people cannot name them.
    """

    text: str | Sequence[str] | None = None
    id: str | None = None
    title: str | None = None
    label: str | None = None
    fixed: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", (self.text,) if isinstance(self.text, str) else tuple(self.text or ()))
        given = [*self.texts, *filter(None, (self.id, self.title, self.label))]
        if long := [name for name in given if len(name) > 1000]:  # Each dot may lead into an object.
            raise InputError(f"the name of a field must have at most 1,000 characters, got {quoted(long[0])}")
        if len(given) > len(self.needed):
            raise InputError(f"the names of fields must differ, got {listed_names(given, quoted)}")

    @property
    def texts(self) -> Sequence[str]:
        """The names of the fields with the text."""
        return self.text or (TEXT_FIELD,)

    @property
    def needed(self) -> dict[str, str]:
        """The fields that every row must have, with the option that names each; an empty one if they are fixed."""
        options: dict[str | None, str] = dict.fromkeys(self.texts, "--field")
        options |= {self.id: "--id-field", self.title: "--title-field", self.label: "--label-field"}
        return {name: "" if self.fixed else option for name, option in options.items() if name is not None}


def read_lines(
    source: str | Path, encoding: str | None = None, *, fallback: str | None = None
) -> Iterator[tuple[int, str]]:
    """Yield the lines of a path, URI or ``-``, plain or gzip, with their numbers; see :func:`decoded_lines`."""
    with opened(source) as stream:
        name = source_name(source)
        yield from enumerate(bare(decoded_lines(name, unpacked(stream), encoding=encoding, fallback=fallback)), 1)


# Fields, or the names of those of the text alone.
Named: TypeAlias = Fields | str | Sequence[str] | None


def titled(given: Named) -> Fields:
    """Return the fields of texts that are read with their titles."""
    fields = given if isinstance(given, Fields) else Fields(given)
    return fields if fields.title is None else replace(fields, text=(fields.title, *fields.texts), title=None)


def read_documents(source: str | Path, fields: Named = None, *, encoding: str | None = None) -> Iterator[Document]:
    """Yield the documents of a file, in order and in bounded memory.

    The suffix of a file (also before ``.gz``) names its format: ``.jsonl`` and ``.ndjson`` hold an object per line,
    ``.json`` the same or an array of objects, ``.csv``, ``.tsv``, ``.parquet`` and the suffixes of spreadsheets a
    table. Other files and standard input hold a text per line, unless their content shows one of these formats or
    labels, see :func:`open_rows`. Lines and objects are yielded as soon as they arrive; CSV and TSV are read to their
    end first.

    ``fields`` name those of the text, the id and the title, names alone those of the text; others are metadata. A field
    ``metadata`` that holds an object, as in exports, is replaced by the fields of the object. An InputError says which
    row cannot be read or lacks a field (a ``FieldError``). What people should know of how a file is read, such as an
    unexpected delimiter, is a warning.
    """
    fields = fields if isinstance(fields, Fields) else Fields(fields)
    with open_rows(source, needed=fields.needed, encoding=encoding) as table:
        for _, _, document in documents_in(table, fields):
            yield document
        table.warn()


def documents_in(table: Table, fields: Fields) -> Iterator[tuple[int, Raw, Document]]:
    """Yield the number of each row that is not blank, the row as it stands in the file, and its document."""
    for number, raw in table.raw:
        document = document_of(table, number, raw, fields)
        if document is not None:
            yield number, raw, document


def document_of(table: Table, number: int, raw: Raw, fields: Fields) -> Document | None:
    """Return the document of a row; None for a blank line. An InputError says why a row is not a document."""
    row = table.fields(number, raw)
    if row is None:
        return None
    if table.kind == TEXT:
        for name, option in fields.needed.items():
            if fields.text or name != TEXT_FIELD:
                raise InputError(
                    f"{table.name}: lines of text have no field {quoted(name)}; give a table (CSV, TSV, JSONL, Parquet "
                    f"or a spreadsheet), or leave {option} out"
                )
        return Document(row[TEXT_FIELD])
    where = table.where(number)
    text = _text(where, row, fields.texts)
    if fields.title is not None and (title := taken(row, fields.title)) is not None:
        row["title"] = str(title)
    named = "the id" if fields.id is None else f"the id {quoted(fields.id)}"
    identifier = row.pop("id", row.pop("_id", None)) if fields.id is None else taken(row, fields.id)
    is_missing = fields.id is not None and identifier in (None, "")
    if is_missing or isinstance(identifier, bool) or not isinstance(identifier, str | int | None):
        shown = quoted(identifier) if is_missing else got(identifier)
        raise InputError(f"{where}: {named} must be a string or an integer, got {shown}")
    # An object in the field ``metadata`` is replaced by its own fields if all names differ.
    inner = row.get("metadata")
    if isinstance(inner, str):
        with suppress(ValueError, RecursionError):
            inner = json.loads(inner)
    if isinstance(inner, dict):
        others = {name: value for name, value in row.items() if name != "metadata"}
        row = row if others.keys() & inner.keys() else others | inner
    return Document(text, identifier, row)


def read_labelled_rows(
    source: str | Path,
    text_field: Named = None,
    label_field: str | None = None,
    *,
    several: bool = False,
    typed: bool = False,
    encoding: str | None = None,
    skipped: list[str] | None = None,
) -> Iterator[tuple[int, Any, str]]:
    """Yield number, label and text of each row of a labelled file.

    JSON, CSV and Parquet are recognised as by :func:`read_documents`; any other file, ``.tsv`` included, holds lines of
    ``label<TAB>text``, unless a field is named or its first line names both columns: then it is a table.

    ``several``: a text has any number of labels, separated by commas, or in JSONL and Parquet as a list; labels are
    then tuples, which may be empty. ``typed``: keep numbers and booleans of JSONL and Parquet, instead of their text.
    ``skipped``: a list that gets the place of each row without a label, which is left out; None makes it an error.
    """
    label_of = _labels if several else _label
    label_name = label_field or LABEL_FIELD
    fields = replace(titled(text_field), label=label_name)
    with open_rows(source, needed=fields.needed, labelled=True, typed=False, encoding=encoding) as table:
        for number, raw in table.raw:
            where = table.where(number)
            if table.kind == LABELLED and (fields.text or fields.id or label_field):
                line = "\t".join(raw) if isinstance(raw, list) else str(raw)
                columns = " and ".join(map(quoted, (label_name, *fields.texts)))
                raise InputError(f"{where}: {line[:40]!r} does not name the columns {columns}")
            row = table.fields(number, raw)
            if row is None:
                continue
            label, text = taken(row, label_name), _text(where, row, fields.texts)
            if not several and (label is None or label != label or not str(label).strip()):
                if skipped is None:
                    raise InputError(f"{where}: the label {quoted(label_name)} is empty")
                skipped.append(where)
                continue
            yield number, label_of(where, label, label_name, typed), text
        table.warn()


def read_labelled(source: str | Path, *fields: Any, **options: Any) -> tuple[list[Any], list[str]]:
    """Return the labels and texts of a labelled file with at least one row; arguments: :func:`read_labelled_rows`."""
    rows = list(read_labelled_rows(source, *fields, **options))
    if not rows:
        raise InputError(f"{source_name(source)}: no rows; give lines of label<TAB>text")
    _, labels, texts = zip(*rows, strict=True)
    return list(labels), list(texts)


def header_hint(labels: Sequence[str]) -> str:
    """Return advice if only the first label is unique, as a header would be; otherwise an empty string."""
    once = [label for label, count in Counter(labels).items() if count == 1]
    if len(labels) < 2 or once != [labels[0]]:
        return ""
    hint = "if that is a header, name its columns with --field and --label-field"
    return f"the label {quoted(labels[0])} occurs once, on the first line; {hint}"


def read_fields(
    path: str | Path,
    shape: str,
    columns: Sequence[int] = (),
    *,
    scored: int | None = None,
    head: bool = False,
    more: bool = False,
) -> list[tuple[str, ...]]:
    """Return the fields of all lines that are not blank. ``shape`` shows them; with ``more``, further ones may follow.

    A row has only the fields ``columns``, in this order, the first one stripped; by default it has all, as they are.
    The field ``scored`` must be a number. With ``head``, the first line names the fields. A file that is not UTF-8 is
    read as Latin-1, as old data sets need.
    """
    count = shape.count("<TAB>") + 1
    rows: list[tuple[str, ...]] = []
    for number, line in read_lines(path, fallback="latin-1"):
        if not line.strip() or (head and number == 1):
            continue
        row = tuple(line.split("\t"))
        wrong = len(row) < count or (len(row) > count and not more)
        if wrong or (scored is not None and not is_number(row[scored])):
            raise InputError(f"{path}, line {number}: must be {shape}, got {line[:40]!r}")
        rows.append((row[columns[0]].strip(), *(row[place] for place in columns[1:])) if columns else row)
    if not rows:
        raise InputError(f"{path}: must have lines of {shape}, got none")
    return rows


def is_number(text: str) -> bool:
    """Return whether a text is a finite number."""
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def read_columns(source: str | Path) -> Iterator[str]:
    """Yield every text of a file: the string fields of rows, else the tab-separated columns of lines."""
    if kind_of(source) in (TEXT, TSV):
        # Read TSV as plain lines: it may lack a header.
        for _, line in read_lines(source):
            yield from line.split("\t")
        return
    with open_rows(source) as table:
        for number, raw in table.raw:
            row = table.fields(number, raw) or {}
            yield from (value for value in row.values() if isinstance(value, str))


def _text(where: str, row: dict[str, Any], fields: Sequence[str]) -> str:
    """Return the text of a row, whose fields are removed; one of several may be null or empty."""
    parts = {field: taken(row, field) for field in fields}
    for field, value in parts.items():
        if not isinstance(value, str) and (len(parts) == 1 or value is not None):
            raise InputError(f"{where}: the field {quoted(field)} must be a string, got {got(value)}")
    return "\n".join(filter(None, parts.values()))


def _label(where: str, value: Any, field: str, typed: bool) -> Any:
    if typed and isinstance(value, int | float) and value == value:
        return value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        # pandas writes integers as floats if some are missing.
        return str(int(value))
    if not isinstance(value, str | int | float) or value != value:
        raise InputError(f"{where}: the label {quoted(field)} must be a string or a number, got {got(value)}")
    return str(value).strip()


def _labels(where: str, value: Any, field: str, typed: bool) -> tuple[Any, ...]:
    if value is None:
        return ()
    parts = value.split(",") if isinstance(value, str) else value if isinstance(value, list) else [value]
    filled = (part for part in parts if not isinstance(part, str) or part.strip())
    labels = [_label(where, part, field, typed) for part in filled]
    if len(labels) > len(set(labels)) and set(labels) <= {0, 1}:
        raise InputError(
            f"{where}: {quoted(field)} must list the labels of the text, got 0 and 1 for each "
            "class; list those with a 1"
        )
    return tuple(dict.fromkeys(labels))


class Estimate(int):
    """A number that is printed as ``about 12,000``."""

    def __str__(self) -> str:
        return f"about {int(self)}"

    def __format__(self, spec: str) -> str:
        return f"about {int(self):{spec}}"


def estimated_count(files: Sequence[str]) -> Estimate | None:
    """Estimate the number of rows of files from their sizes and first lines; return None if that is impossible."""
    total = 0.0
    for file in files:
        if not os.path.isfile(file) or format_of(file).rows == SPREADSHEET:
            return None
        try:
            with opened(file) as stream:
                if format_of(file).rows == PARQUET:
                    with open_parquet(file, stream) as table:
                        total += table.metadata.num_rows
                    continue
                # What is read of a stretch of gzip may be more than was asked for.
                lines = list(filter(bytes.strip, unpacked(stream).read(_SAMPLED_BYTES).split(b"\n")))
                total += len(lines) * os.path.getsize(file) / max(stream.tell(), 1)
        except (InputError, OSError, *BROKEN_GZIP):
            return None
    return Estimate(round(total)) or None


def in_blocks(items: Iterable[Item], most: int) -> Iterator[list[Item]]:
    """Yield items in lists of at most ``most``."""
    stream = iter(items)
    while block := list(islice(stream, most)):
        yield block


def arriving(items: Iterable[Item], most: int) -> Iterator[list[Item]]:
    """Yield lists of the items that have arrived so far, at most ``most``, without waiting for the rest of a pipe."""
    queue: Queue[list[Item] | BaseException | None] = Queue(most)

    def read() -> None:
        try:
            for item in items:
                queue.put([item])
            queue.put(None)
        except BaseException as error:
            queue.put(error)

    # A daemon, because it may wait for a pipe forever and must not keep the process alive.
    Thread(target=read, daemon=True).start()
    found: list[Item] | BaseException | None = []
    while isinstance(found, list):
        block: list[Item] = []
        with suppress(Empty):
            while len(block) < most and isinstance(found := queue.get(block=not block), list):
                block += found
        if block:
            yield block
    if found is not None:
        raise found
