"""Word and OpenDocument texts as Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterator
from xml.etree import ElementTree

from ctx_embed.documents.extracted import Extracted, UnreadableFileError
from ctx_embed.documents.formats.zipped import opened, parsed

_STYLE = re.compile(r"Heading (\d)")
_TEXT = "{urn:oasis:names:tc:opendocument:xmlns:text:1.0}"
_OFFICE = "{urn:oasis:names:tc:opendocument:xmlns:office:1.0}"
_TABLE = "{urn:oasis:names:tc:opendocument:xmlns:table:1.0}"
_DC = "{http://purl.org/dc/elements/1.1/}"


def _heading(depth: int, text: str) -> str:
    return f"{'#' * max(1, min(depth, 6))} {text}"


def docx(path: str) -> Iterator[Extracted]:
    """Yield a Word document: its headings, paragraphs and tables."""
    from docx import Document
    from docx.opc.exceptions import PackageNotFoundError
    from docx.table import Table

    # Opening it checks that the archive is complete, small enough and not encrypted.
    with opened(path, "Word"):
        pass
    try:
        document = Document(path)
        parts, title = [], document.core_properties.title.strip()
        for block in document.iter_inner_content():
            if isinstance(block, Table):
                parts.append("\n".join(_row([cell.text for cell in row.cells]) for row in block.rows))
                continue
            text = " ".join(block.text.split())
            style = (block.style.name or "") if block.style is not None else ""
            heading = _STYLE.match(style)
            if text and (heading or style == "Title"):
                title = title or text
                text = _heading(int(heading[1]) if heading else 1, text)
            parts.append(text)
    except (PackageNotFoundError, KeyError, ValueError) as error:
        raise UnreadableFileError(f"not Word ({error})") from None
    yield Extracted("\n\n".join(filter(None, parts)), "markdown", title=title or None)


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(' '.join(cell.split()) for cell in cells)} |"


def odt(path: str) -> Iterator[Extracted]:
    """Yield an OpenDocument text: its headings, paragraphs, lists and tables."""
    with opened(path, "OpenDocument") as archive:
        content = parsed(archive, "content.xml").find(f"{_OFFICE}body/{_OFFICE}text")
        named = parsed(archive, "meta.xml").find(f".//{_DC}title") if "meta.xml" in archive.namelist() else None
    if content is None:
        raise UnreadableFileError("not an OpenDocument text")
    title = (named.text or "").strip() if named is not None else ""
    parts = list(_blocks(content))
    if not title:
        title = next((part.lstrip("# ") for part in parts if part.startswith("#")), "")
    yield Extracted("\n\n".join(parts), "markdown", title=title or None)


def _blocks(parent: ElementTree.Element) -> Iterator[str]:
    for child in parent:
        if child.tag == f"{_TEXT}h":
            yield _heading(int(child.get(f"{_TEXT}outline-level", "1")), _inline(child))
        elif child.tag == f"{_TEXT}p":
            if text := _inline(child):
                yield text
        elif child.tag == f"{_TEXT}list":
            yield "\n".join(f"- {_inline(item)}" for item in child)
        elif child.tag == f"{_TABLE}table":
            yield "\n".join(_row([_inline(cell) for cell in row]) for row in child.iter(f"{_TABLE}table-row"))
        else:
            yield from _blocks(child)


def _inline(element: ElementTree.Element) -> str:
    """Return the text of an element in one line; tabs, line breaks and paragraphs become spaces."""
    parts = [element.text or ""]
    for child in element:
        if child.tag in (f"{_TEXT}s", f"{_TEXT}tab", f"{_TEXT}line-break"):
            parts.append(" ")
        elif child.tag not in (f"{_TEXT}note", f"{_OFFICE}annotation"):
            parts.append(_inline(child) + (" " if child.tag == f"{_TEXT}p" else ""))
        parts.append(child.tail or "")
    return " ".join("".join(parts).split())
