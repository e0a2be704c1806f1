"""Plain text, Markdown, source code, and tables and JSON as the lines they are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from ctx_embed.documents.decoding import decode, read_bytes
from ctx_embed.documents.extracted import Extracted, UnreadableFileError
from ctx_embed.documents.grammars import LANGUAGE_OF

_FIRST_HEADING = re.compile(r"^ {0,3}#\s+(.*?)[\s#]*$|^(\S.*)\n=+[^\S\n]*$", re.MULTILINE)
_FRONT_TITLE = re.compile(r"\A---\n(?:[^\n]*\n)*?title:[^\S\n]*([\"']?)(\S[^\n]*?)\1[^\S\n]*\n")
# A title is looked for in this many characters at the top.
_TITLE_WITHIN = 10_000


def _read(path: str, encoding: str | None) -> str:
    return decode(read_bytes(path), encoding)


def text(path: str, encoding: str | None = None) -> Iterator[Extracted]:
    """Yield the text of a file."""
    yield Extracted(_read(path, encoding), line=1)


def markdown(path: str, encoding: str | None = None) -> Iterator[Extracted]:
    """Yield a Markdown file, with the title of its front matter or its first heading."""
    content = _read(path, encoding)
    yield Extracted(content, "markdown", title=title_of(content), line=1)


def title_of(content: str) -> str | None:
    """Return the title of Markdown: that of the front matter, else the first heading of the first level."""
    start = content[:_TITLE_WITHIN]
    if named := _FRONT_TITLE.match(start):
        return named[2]
    found = _FIRST_HEADING.search(start)
    return None if found is None else (found[1] or found[2] or "").strip() or None


def python(path: str, encoding: str | None = None) -> Iterator[Extracted]:
    """Yield a Python file."""
    yield Extracted(_read(path, encoding), "python", line=1)


def code(path: str, encoding: str | None = None) -> Iterator[Extracted]:
    """Yield a file of source code in any language."""
    yield Extracted(_read(path, encoding), LANGUAGE_OF.get(Path(path).suffix.lower(), "code"), line=1)


def rows(path: str, encoding: str | None = None) -> Iterator[Extracted]:
    """Yield a table or JSON, each line of which is a block."""
    yield Extracted(_read(path, encoding), "rows", line=1)


def binary(path: str, encoding: str | None = None) -> Iterator[Extracted]:
    """Refuse a file that holds no text for people.

    Raises:
        UnreadableFileError: always.
    """
    raise UnreadableFileError("binary", counted=True)


def records(path: str, encoding: str | None = None) -> Iterator[Extracted]:
    """Refuse a file that is a list of records rather than a text.

    Raises:
        UnreadableFileError: always.
    """
    raise UnreadableFileError("holds records, each of which is a document; leave --documents out, or choose records")
