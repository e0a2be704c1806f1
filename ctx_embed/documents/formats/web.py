"""HTML pages and EPUB books as Markdown."""

from __future__ import annotations

import posixpath
import re
import zipfile
from collections.abc import Iterator
from html.parser import HTMLParser
from urllib.parse import unquote
from xml.etree import ElementTree

from ctx_embed.documents.decoding import decode, read_bytes
from ctx_embed.documents.extracted import Extracted, UnreadableFileError
from ctx_embed.documents.formats.zipped import member, opened, parsed

_UNSEEN = {"script", "style", "head", "template", "noscript", "svg", "nav"}
_HEADINGS = {f"h{depth}": "#" * depth for depth in range(1, 7)}
_BLOCKS = """
address article aside blockquote body dd div dl dt figure footer form header hr li main ol p pre section table tr ul
"""
_BREAKING = {*_HEADINGS, *_BLOCKS.split()}
_CONTAINER = "META-INF/container.xml"
_TITLE = re.compile(r"<title[^>]*>([^<]*)</title>", re.IGNORECASE)


class _Text(HTMLParser):
    """Collects the text of a page: blocks apart, headings with their marks, code as it is."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []
        self._unseen: list[str] = []
        self._code = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _UNSEEN:
            self._unseen.append(tag)
        elif tag == "br":
            self.parts.append("\n")
        elif tag in _BREAKING:
            self.parts.append("\n" if tag in ("li", "tr", "dt", "dd") else "\n\n")
            if tag == "li":
                self.parts.append("- ")
            elif tag in _HEADINGS:
                self.parts.append(f"{_HEADINGS[tag]} ")
            elif tag == "pre":
                self._code += 1
                self.parts.append("```\n")
        elif tag in ("td", "th"):
            self.parts.append(" ")

    def handle_endtag(self, tag: str) -> None:
        if self._unseen:
            if tag == self._unseen[-1]:
                self._unseen.pop()
        elif tag == "pre" and self._code:
            self._code -= 1
            self.parts.append("\n```\n\n")
        elif tag in _BREAKING and tag not in ("li", "tr", "dt", "dd", "hr"):
            self.parts.append("\n\n")

    def handle_data(self, data: str) -> None:
        if not self._unseen:
            self.parts.append(data if self._code else re.sub(r"\s+", " ", data))


def text_of(page: str) -> str:
    """Return all text of an HTML page as Markdown, without scripts, styles and navigation."""
    parser = _Text()
    parser.feed(page)
    parser.close()
    lines = (line.rstrip() for line in "".join(parser.parts).split("\n"))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()


def html(path: str) -> Iterator[Extracted]:
    """Yield the main text of an HTML page as Markdown; all its text if no main text is found."""
    import trafilatura

    page = decode(read_bytes(path))
    tree = trafilatura.load_html(page)
    if tree is None:
        raise UnreadableFileError("not HTML")
    main = trafilatura.extract(tree, output_format="markdown", include_comments=False, favor_recall=True, fast=True)
    title = _TITLE.search(page)
    yield Extracted(main or text_of(page), "markdown", title=_line(title[1]) if title else None)


def _line(text: str) -> str | None:
    from html import unescape

    return " ".join(unescape(text).split()) or None


def epub(path: str) -> Iterator[Extracted]:
    """Yield the chapters of an EPUB book, in reading order, as one Markdown text."""
    with opened(path, "EPUB") as book:
        container = parsed(book, _CONTAINER)
        root = next((found.get("full-path") for found in container.iter() if _name(found) == "rootfile"), None)
        if root is None:
            raise UnreadableFileError("not EPUB (no root file)")
        package = parsed(book, root)
        parts = {_name(found): found for found in package}
        if not {"manifest", "spine"} <= parts.keys():
            raise UnreadableFileError("not EPUB (no list of chapters)")
        places = {item.get("id"): item.get("href") or "" for item in parts["manifest"]}
        chapters = [places.get(item.get("idref"), "") for item in parts["spine"]]
        texts = [_chapter(book, posixpath.join(posixpath.dirname(root), unquote(name))) for name in chapters if name]
        metadata = parts.get("metadata")
        named = [] if metadata is None else [found.text for found in metadata if _name(found) == "title"]
    yield Extracted("\n\n".join(texts), "markdown", title=_line(named[0]) if named and named[0] else None)


def _chapter(book: zipfile.ZipFile, name: str) -> str:
    return text_of(decode(member(book, posixpath.normpath(name))))


def _name(element: ElementTree.Element) -> str:
    return element.tag.rpartition("}")[2]
