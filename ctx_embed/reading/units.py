"""Documents from files, paragraphs, lines or records, with their ids and metadata."""

import datetime
import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from ctx_embed.errors import listed_names, quoted
from ctx_embed.reading.blocks import KINDS, Block, rows
from ctx_embed.reading.decoding import Extracted, UnreadableFileError, reasons
from ctx_embed.reading.formats import format_of
from ctx_embed.reading.opening import suffix_of
from ctx_embed.reading.rows import Fields, documents_in
from ctx_embed.reading.tables import SAMPLED, FieldError, Table, dotted, open_rows
from ctx_embed.reading.walking import File
from ctx_embed.texts import Document, well_formed

FILES, PARAGRAPHS, LINES, RECORDS = "files", "paragraphs", "lines", "records"
# Letters of scripts that put no spaces between words.
_UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]")
_LETTER = re.compile(r"[^\W\d_]")


@dataclass(frozen=True)
class Structured(Document):
    """A document with its blocks in order. It may be cut between blocks; without blocks it is one passage."""

    blocks: Sequence[Block] = ()


def records_of(path: str, unit: str | None, fields: Fields) -> tuple[Fields, list[str]] | None:
    """Return the fields of the records of a file, each of which becomes a document, and notes; None if it is text.

    If no field is named and none is called ``text``, the only column of prose is the text. An UnreadableFileError names
    the columns if there is not exactly one. A ``.json`` file without prose may hold settings, and is text in any case.
    """
    if format_of(path).rows is None or unit not in (None, RECORDS):
        return None
    may_be_text = unit is None and suffix_of(path) == ".json"
    try:
        with reasons(path):
            with open_rows(path, needed=fields.needed) as table:
                try:
                    next(documents_in(table, fields), None)
                except FieldError:
                    if fields.text:
                        raise
                else:
                    return fields, table.notes
            with open_rows(path) as table:
                columns = _sampled(table)
    except UnreadableFileError:
        if may_be_text and (not fields.text or records_of(path, unit, replace(fields, text=None)) is None):
            return None
        raise
    prose = [name for name, values in columns.items() if is_prose(values)]
    if len(prose) == 1 and not is_prose(prose):
        return replace(fields, text=prose[0]), [*table.notes, f"text from {quoted(prose[0])}"]
    if not prose and may_be_text:
        return None
    which = f"{len(prose)} columns of prose" if prose else "no column of prose"
    raise UnreadableFileError(
        f"no column 'text', and {which}; name one or more of {listed_names(columns, quoted)} with --field"
    )


def _sampled(table: Table) -> dict[str, list[Any]]:
    """Return the columns, by dotted names, of the first rows that have some 100,000 characters."""
    columns: dict[str, list[Any]] = {}
    size = 0
    for number, raw in table.raw:
        for name, value in dotted(table.fields(number, raw) or {}).items():
            columns.setdefault(name, []).append(value)
            size += len(str(value))
        if size > SAMPLED:
            break
    return columns


def is_prose(values: Sequence[Any]) -> bool:
    """Return whether at least half of the values are sentences, and most of these differ.

    A sentence has four words, or two and a full stop, or eight letters of a script that puts no spaces between words.
    """
    sentences = set()
    for value in values:
        text = value[:1000].strip() if isinstance(value, str) else ""
        words = sum(1 for word in text.split() if _LETTER.search(word) and "://" not in word)
        ends = words >= 2 and text[-1] in ".!?\u2026"
        if (ends or words >= 4 or len(_UNSPACED.findall(text)) >= 8) and text[0] not in "{[<":
            sentences.add(text)
    return len(values) <= 2 * len(sentences) > 0


def record_documents(file: File, fields: Fields, notes: list[str]) -> Iterator[Document]:
    """Yield the documents of a file of records, and add its notes; raise UnreadableFileError if one cannot be read."""
    identified = part_ids(file.source)
    with reasons(file.path), open_rows(file.path, needed=fields.needed) as table:
        for number, _, document in documents_in(table, fields):
            content = json.dumps([document.text, document.metadata], sort_keys=True, default=str)
            identifier = identified(content) if document.id is None else document.id
            place = {table.unit: table.in_sheet(number)[0]}
            yield Document(document.text, identifier, {**_general(file), **place, **document.metadata})
        notes[:] = dict.fromkeys([*notes, *table.notes])


def part_ids(source: str) -> Callable[[str], str]:
    """Return a function that gives the parts of a file ids by their content: wherever a part moves, its id stays.

    An id is the source, a colon and a hash; parts of equal content are counted.
    """
    seen: Counter[str] = Counter()

    def identified(content: str) -> str:
        digest = hashlib.blake2b(well_formed(content).encode(), digest_size=6).hexdigest()
        seen[digest] += 1
        return f"{source}:{digest}" + (f"-{seen[digest]}" if seen[digest] > 1 else "")

    return identified


def documents_of(file: File, texts: Iterable[Extracted], unit: str | None) -> Iterator[Document]:
    """Yield the documents of a file; paragraphs and lines have ids by their content, see :func:`part_ids`."""
    parts: dict[str, Callable[[str], str]] = {}
    for extracted in texts:
        identifier = f"{file.source}{extracted.part}"
        identified = parts.setdefault(identifier, part_ids(identifier))
        # The members of an archive are found as if it were a folder.
        source = identifier if extracted.part.startswith("/") else file.source
        general = {**extracted.metadata, **_general(file), "source": source}
        if extracted.title:
            general["title"] = extracted.title
        text, blocks = extracted.text, (rows if unit == LINES else KINDS[extracted.kind])(extracted.text)
        if unit not in (PARAGRAPHS, LINES):
            place = {} if extracted.line is None else {"line": extracted.line}
            place |= {"page": 1} if extracted.pages else {}
            yield Structured(text, identifier, {**general, **place}, blocks)
            continue
        at = line = page = 0
        for block in blocks:
            # Form feeds end pages and lines; the lines of a file do not count them.
            page += text.count("\f", at, block.start)
            line += text.count("\n", at, block.start)
            at = block.start
            place = {} if extracted.line is None else {"line": extracted.line + line}
            place |= {"page": 1 + page} if extracted.pages else {}
            part = text[block.start : block.stop]
            yield Structured(part, identified(part.strip()), {**general, **place})


def _general(file: File) -> dict[str, Any]:
    return {"source": file.source, "modified": modified(file.modified)}


def modified(nanoseconds: int) -> str:
    """Return a time as ISO 8601 in UTC, to the second; a time outside the calendar becomes the start of 1970."""
    with suppress(OverflowError, ValueError, OSError):
        return datetime.datetime.fromtimestamp(nanoseconds // 1_000_000_000, datetime.timezone.utc).isoformat()
    return "1970-01-01T00:00:00+00:00"
