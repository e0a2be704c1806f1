"""Documents from files, paragraphs, lines or records, with their ids and metadata."""

import datetime
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from ctx_embed.documents.blocks import KINDS, Block, rows
from ctx_embed.documents.decoding import Extracted, UnreadableFileError
from ctx_embed.documents.formats import suffix_of
from ctx_embed.documents.walking import File
from ctx_embed.errors import InputError
from ctx_embed.rows.reading import read_documents, read_numbered_documents
from ctx_embed.rows.table import KINDS as TABLES, FieldError
from ctx_embed.texts import Document

FILES, PARAGRAPHS, LINES, RECORDS = "files", "paragraphs", "lines", "records"
# Formats whose records may become documents.
RECORD_SUFFIXES = set(TABLES)


@dataclass(frozen=True)
class Structured(Document):
    """A document with its blocks in order. It may be cut between blocks; without blocks it is one passage."""

    blocks: Sequence[Block] = ()


def holds_records(path: str, unit: str | None, text_field: str | None) -> bool:
    """Return whether each record of a table or JSONL becomes a document: if ``unit`` says so, or if it has a text."""
    if suffix_of(path) not in RECORD_SUFFIXES or unit not in (None, RECORDS):
        return False
    try:
        next(read_documents(path, text_field), None)
    except InputError as error:
        # A .json file may hold settings instead of texts.
        is_other = isinstance(error, FieldError) or suffix_of(path) == ".json"
        if unit is None and is_other and suffix_of(path) != ".parquet":
            return False
        raise _unreadable(error, path) from None
    return True


def record_documents(file: File, text_field: str | None) -> Iterator[Document]:
    """Yield the documents of a file of records; raise UnreadableFileError if one of them cannot be read."""
    general = {"source": file.source, "modified": modified(file.modified)}
    try:
        for number, document in read_numbered_documents(file.path, text_field):
            identifier = f"{file.source}:{number}" if document.id is None else document.id
            line = {} if suffix_of(file.source) == ".parquet" else {"line": number}
            yield Document(document.text, identifier, {**general, **line, **document.metadata})
    except InputError as error:
        raise _unreadable(error, file.path) from None


def documents_of(file: File, texts: Iterable[Extracted], unit: str | None) -> Iterator[Document]:
    """Yield the documents of a file; the id of a paragraph or line is the source, a colon and its line in the text."""
    for extracted in texts:
        identifier = f"{file.source}{extracted.part}"
        # The members of an archive are found as if it were a folder.
        source = identifier if extracted.part.startswith("/") else file.source
        general = {**extracted.metadata, "source": source, "modified": modified(file.modified)}
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
            number = 1 + line + page
            yield Structured(text[block.start : block.stop], f"{identifier}:{number}", {**general, **place})


def modified(nanoseconds: int) -> str:
    """Return a time as ISO 8601 in UTC, to the second; a time outside the calendar becomes the start of 1970."""
    with suppress(OverflowError, ValueError, OSError):
        return datetime.datetime.fromtimestamp(nanoseconds // 1_000_000_000, datetime.timezone.utc).isoformat()
    return "1970-01-01T00:00:00+00:00"


def _unreadable(error: Exception, path: str) -> UnreadableFileError:
    """Return an error with the same message, without the path at its beginning."""
    return UnreadableFileError(str(error).removeprefix(path).lstrip(":, "))
