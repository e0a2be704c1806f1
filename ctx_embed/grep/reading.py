"""The texts of files, folders and pipes, one after another; large files come in pieces."""

from __future__ import annotations

import codecs
import io
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ctx_embed.documents.decoding import Extracted, UnreadableFileError
from ctx_embed.documents.extraction import Extraction
from ctx_embed.documents.formats import format_of
from ctx_embed.documents.units import RECORD_SUFFIXES, holds_records
from ctx_embed.documents.walking import File, is_index, patterns, walk
from ctx_embed.errors import InputError
from ctx_embed.index.following.records import Synced
from ctx_embed.rows.encodings import (
    REPAIR,
    SAMPLE_BYTES,
    UTF_8,
    is_binary,
    marked,
    require_encoding,
    settled,
    warn_of_wrong_bytes,
)
from ctx_embed.rows.opening import BROKEN_GZIP, STANDARD_INPUT, opened, said, suffix_of, unpacked
from ctx_embed.rows.reading import read_numbered_documents
from ctx_embed.texts import well_formed

# The name of standard input in hits.
STANDARD_INPUT_NAME = "(standard input)"
# A plain file of more bytes than this, and every pipe, is read in pieces of about this many.
PIECE_BYTES = 1 << 20
# The structure of a piece: a piece may begin anywhere, so it has neither front matter nor a complete syntax tree.
_ASCII = bytes(range(128))
_PIECE_KINDS = {"plain:rows": "rows", "plain:code": "code"}


class Text(NamedTuple):
    """A text, or a piece of one, of the file ``name``."""

    name: str
    extracted: Extracted
    # The number of characters before it in the file.
    start: int = 0
    # Whether it is a record, all of which counts as one line of the file.
    one_line: bool = False


@dataclass(frozen=True)
class Sources:
    """Files, folders and pipes to read, see :func:`ctx_embed.grep.grep`; ``report`` says which could not be read."""

    paths: Sequence[str]
    include: Sequence[str] = ()
    exclude: Sequence[str] = ()
    follow_links: bool = False
    encoding: str | None = None
    report: Synced = field(default_factory=Synced, compare=False)

    def __post_init__(self) -> None:
        if not self.paths:
            raise InputError("there must be at least one file or folder to search in, got none")
        for path in self.paths:
            if path != STANDARD_INPUT and not os.path.exists(path):
                raise InputError(f"{path}: no such file or folder")
            if os.path.isdir(path) and is_index(path):
                raise InputError(f"{path}: is a search index; search it with ctx-embed index query {path} QUESTION")
        patterns(self.include)
        patterns(self.exclude)
        if self.encoding is not None:
            require_encoding(self.encoding)

    def texts(self) -> Iterator[Text]:
        """Yield the texts of all files in order."""
        with Extraction() as extraction:
            for source, found in extraction.read((source, source.whole) for source in self._sources()):
                self.report.added += 1
                name, path, whole = source
                try:
                    if isinstance(found, Exception):
                        raise found
                    if whole is not None:
                        yield from (Text(name, extracted) for extracted in found)
                    elif path != STANDARD_INPUT and os.path.isfile(path) and holds_records(path, None, None):
                        for number, document in read_numbered_documents(path, encoding=self.encoding):
                            extracted = Extracted(document.text, title=document.metadata.get("title"), line=number)
                            yield Text(name, extracted, one_line=True)
                    elif suffix_of(path) == ".parquet":
                        raise UnreadableFileError("its records have no field `text`")
                    else:
                        kind = _PIECE_KINDS.get(format_of(path).reader, "prose")
                        with opened(path) as stream:
                            for text, start, line in pieces(unpacked(stream), self.encoding, name=name):
                                yield Text(name, Extracted(text, kind, line=line), start)
                except UnreadableFileError as error:
                    if not error.counted or path in self.paths:
                        self.report.failed[name] = str(error)
                except BROKEN_GZIP as error:
                    self.report.failed[name] = f"broken gzip ({error})"
                except OSError as error:
                    self.report.failed[name] = f"cannot be read ({said(error)})"
                except InputError as error:
                    self.report.failed[name] = str(error).removeprefix(path).lstrip(":, ")

    def _sources(self) -> Iterator[_Source]:
        for path in self.paths:
            if path == STANDARD_INPUT:
                yield _Source(STANDARD_INPUT_NAME, path, None)
            elif os.path.isdir(path):
                for each in walk(path, self.include, self.exclude, self.follow_links):
                    name = each.source if path == os.curdir else os.path.join(path, each.source)
                    if isinstance(each, File):
                        yield from self._file(name, each.path, each.size)
                    elif each.failed:
                        self.report.failed[name] = each.reason
            elif stat.S_ISREG((found := os.stat(path)).st_mode):
                yield from self._file(path, path, found.st_size)
            else:
                yield _Source(path, path, None)

    def _file(self, name: str, path: str, size: int) -> Iterator[_Source]:
        chosen = format_of(path)
        if not chosen.installed:
            self.report.lacking[suffix_of(path)] += 1
        elif chosen.reader.startswith("plain:") and chosen.reader != "plain:binary":
            large = size > PIECE_BYTES or path.lower().endswith(".gz") or suffix_of(path) in RECORD_SUFFIXES
            yield _Source(name, path, None if large or self.encoding is not None else path)
        else:
            yield _Source(name, path, path)


class _Source(NamedTuple):
    """A file: its name in hits, its path, and the path again if it is read as a whole."""

    name: str
    path: str
    whole: str | None


def pieces(
    stream: io.BufferedReader, encoding: str | None = None, size: int = PIECE_BYTES, name: str = STANDARD_INPUT_NAME
) -> Iterator[tuple[str, int, int]]:
    """Yield the pieces of a text, cut after a blank line, a line or a word, with the characters and lines before each.

    ``size`` bytes are read at a time; ``name`` is that of the file, to warn of bytes that are not UTF-8.
    """
    raw = stream.read(size)
    encoding = encoding or marked(raw)
    if encoding is None and is_binary(raw):
        raise UnreadableFileError("binary", counted=True)
    first = len(raw) - len(raw.lstrip(_ASCII))
    chosen = encoding or (UTF_8 if first == len(raw) else settled(raw[first:][:SAMPLE_BYTES]))
    errors = REPAIR if chosen == UTF_8 else "replace"
    decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder(chosen)(errors), translate=True)
    rest, start, line, warned = "", 0, 1, False
    while raw:
        following = stream.read(size)
        if chosen == UTF_8 and not warned:
            # The ends may lie within a character.
            begin = next((place for place, byte in enumerate(raw[:4]) if byte & 0xC0 != 0x80), 0)
            try:
                codecs.utf_8_decode(raw[begin:], "strict", False)
                wrong = raw.find(b"\0")
            except UnicodeDecodeError as error:
                wrong = begin + error.start
            if wrong >= 0:
                warn_of_wrong_bytes(name, raw, wrong, line + rest.count("\n"))
                warned = True
        text = rest + decoder.decode(raw, final=not following).replace("\0", " ")
        if not start:
            text = text.removeprefix("\ufeff")
        end = len(text)
        for mark in ("\n\n", "\n", " ") if following else ():
            if (place := text.rfind(mark, len(text) // 2)) >= 0:
                end = place + len(mark)
                break
        if end:
            yield well_formed(text[:end]), start, line
        rest, start, line, raw = text[end:], start + end, line + text.count("\n", 0, end), following
