"""Formats of plain text: Markdown, source code, and tables as the lines they are."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ctx_embed.documents.blocks import LISTS, front_matter, title_of
from ctx_embed.documents.decoding import Extracted, UnreadableFileError, read_text
from ctx_embed.documents.walking import GENERATED
from ctx_embed.rows.opening import suffix_of

# Code whose lines are longer than this on average is for browsers, not for people.
_MINIFIED, _LONG_LINE = {".js", ".mjs", ".cjs", ".css"}, 500
# Marks that generators of code write into the first lines.
_GENERATED = re.compile(r"[#/*;-] *@generated\b|[Gg]enerated\b.{0,200}DO NOT EDIT")
_MARKED_WITHIN = 1000


def text(path: str, encoding: str | None = None) -> Iterator[Extracted]:
    """Yield the text of a file."""
    yield Extracted(read_text(path, encoding), line=1)


def markdown(path: str, encoding: str | None = None) -> Iterator[Extracted]:
    """Yield a Markdown file, with the title of its front matter or its first heading, and its tags and aliases."""
    content = read_text(path, encoding)
    lists = {field.name: field.values for field in front_matter(content)[1] if field.name in LISTS and field.values}
    yield Extracted(content, "markdown", title_of(content), 1, metadata=lists)


def code(path: str, encoding: str | None = None) -> Iterator[Extracted]:
    """Yield a file of source code in any language, unless it is minified or says that a program generated it."""
    content, suffix = read_text(path, encoding), suffix_of(path)
    is_minified = suffix in _MINIFIED and len(content) > _LONG_LINE * (2 + content.count("\n"))
    if is_minified or _GENERATED.search(content[:_MARKED_WITHIN]):
        raise UnreadableFileError("minified" if is_minified else GENERATED, counted=True)
    yield Extracted(content, "code", line=1)


def rows(path: str, encoding: str | None = None) -> Iterator[Extracted]:
    """Yield a table or JSON, each line of which is a block."""
    yield Extracted(read_text(path, encoding), "rows", line=1)


def binary(path: str, encoding: str | None = None) -> Iterator[Extracted]:
    """Refuse a file that holds no text for people."""
    raise UnreadableFileError("binary", counted=True)


def records(path: str, encoding: str | None = None) -> Iterator[Extracted]:
    """Refuse a file that is a list of records rather than a text."""
    raise UnreadableFileError("holds records, each of which is a document; leave --documents out, or choose records")
