"""Plain text, Markdown, source code, and tables and JSON as the lines they are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ctx_embed.documents.blocks import title_of
from ctx_embed.documents.decoding import read_text
from ctx_embed.documents.extracted import Extracted, UnreadableFileError
from ctx_embed.documents.front_matter import LISTS, front_matter
from ctx_embed.documents.grammars import LANGUAGE_OF


def text(path: str, encoding: str | None = None) -> Iterator[Extracted]:
    """Yield the text of a file."""
    yield Extracted(read_text(path, encoding), line=1)


def markdown(path: str, encoding: str | None = None) -> Iterator[Extracted]:
    """Yield a Markdown file, with the title of its front matter or its first heading, and its tags and aliases."""
    content = read_text(path, encoding)
    lists = {field.name: field.values for field in front_matter(content)[1] if field.name in LISTS and field.values}
    yield Extracted(content, "markdown", title=title_of(content), line=1, metadata=lists)


def python(path: str, encoding: str | None = None) -> Iterator[Extracted]:
    """Yield a Python file."""
    yield Extracted(read_text(path, encoding), "python", line=1)


def code(path: str, encoding: str | None = None) -> Iterator[Extracted]:
    """Yield a file of source code in any language."""
    yield Extracted(read_text(path, encoding), LANGUAGE_OF.get(Path(path).suffix.lower(), "code"), line=1)


def rows(path: str, encoding: str | None = None) -> Iterator[Extracted]:
    """Yield a table or JSON, each line of which is a block."""
    yield Extracted(read_text(path, encoding), "rows", line=1)


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
