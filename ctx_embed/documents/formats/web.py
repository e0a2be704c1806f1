"""HTML pages and EPUB books as Markdown."""

from __future__ import annotations

import posixpath
import re
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from html import unescape
from urllib.parse import unquote
from xml.etree import ElementTree

from ctx_embed.documents.blocks import title_of
from ctx_embed.documents.decoding import decode, read_text
from ctx_embed.documents.extracted import Extracted, UnreadableFileError
from ctx_embed.documents.formats.zipped import member, opened, parsed

_UNSEEN = {"script", "style", "head", "title", "template", "noscript", "svg", "nav"}
_HEADINGS = {f"h{depth}": "#" * depth for depth in range(1, 7)}
_BLOCKS = """
address article aside blockquote body dd div dl dt figure footer form header hr li main ol p pre section table tr ul
"""
_BREAKING = {*_HEADINGS, *_BLOCKS.split()}
# Tags that end a line rather than a block.
_LINES = ("li", "tr", "dt", "dd")
# The contents of these tags are not HTML.
_RAW = {name: re.compile(rf"</{name}\b", re.IGNORECASE) for name in ("script", "style")}
_TAG = re.compile(r"<(/?)([a-zA-Z][^\s/>]*)")
_QUOTE_OR_END = re.compile(r"=\s*[\"']|>")
# How comments and other hidden parts begin and end.
_MARKS = (("<!--", "-->"), ("<!", ">"), ("<?", ">"), ("</", ">"))
_CONTAINER = "META-INF/container.xml"
_WHOLE = re.compile(r"<(?:html|body|head)[\s>]", re.IGNORECASE)
# Finding the main text takes up to 50 microseconds a tag, and parsing takes quadratic time in the attributes of a tag.
_MOST_TAGS, _MOST_IN_A_TAG = 100_000, 50_000


class _Text:
    """Collects the text of a page as Markdown: blank lines between blocks, # before headings, code in fences."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.title: str | None = None
        self._unseen: list[str] = []
        self._code = 0

    def start(self, tag: str) -> None:
        """Take an opening tag."""
        if tag in _UNSEEN:
            self._unseen.append(tag)
        elif self._unseen:
            return
        elif tag == "br":
            self.parts.append("\n")
        elif tag in _BREAKING:
            self.parts.append("\n" if tag in _LINES else "\n\n")
            if tag == "li":
                self.parts.append("- ")
            elif tag in _HEADINGS:
                self.parts.append(f"{_HEADINGS[tag]} ")
            elif tag == "pre":
                self._code += 1
                self.parts.append("```\n")
        elif tag in ("td", "th"):
            self.parts.append(" ")

    def end(self, tag: str) -> None:
        """Take a closing tag."""
        if self._unseen:
            if tag == self._unseen[-1]:
                self._unseen.pop()
        elif tag == "pre" and self._code:
            self._code -= 1
            self.parts.append("\n```\n\n")
        elif tag in _BREAKING and tag not in (*_LINES, "hr"):
            self.parts.append("\n\n")

    def text(self, text: str) -> None:
        """Take the text between two tags."""
        if self._unseen in (["title"], ["head", "title"]):
            self.title = self.title or _line(text)
        if text and not self._unseen:
            with suppress(ValueError):  # A character reference with thousands of digits.
                text = unescape(text)
            self.parts.append(text if self._code else re.sub(r"\s+", " ", text))


def text_of(page: str) -> str:
    """Return all text of an HTML page as Markdown, without scripts, styles and navigation, see :func:`_scanned`."""
    lines = (line.rstrip() for line in "".join(_scanned(page).parts).split("\n"))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()


def _scanned(page: str) -> _Text:
    """Return what a page says.

    Reads each character once, even of broken pages, for which Python's own parser takes quadratic time. A tag or a
    comment that is never closed ends the page, as the HTML standard says.
    """
    found = _Text()
    at = 0
    while (start := page.find("<", at)) >= 0:
        tag = _TAG.match(page, start)
        mark = next((end for begin, end in _MARKS if page.startswith(begin, start)), None)
        if tag is None and mark is None:
            # An ordinary character, as in "a < b".
            found.text(page[at : start + 1])
            at = start + 1
            continue
        found.text(page[at:start])
        at = _after_tag(page, tag.end())[0] if tag else page.find(mark or ">", start + 2) + len(mark or ">")
        if at < start + 2:
            at = len(page)
        elif tag is not None and tag[1]:
            found.end(tag[2].lower())
        elif tag is not None:
            name = tag[2].lower()
            found.start(name)
            if name in _RAW:
                closing = _RAW[name].search(page, at)
                at = closing.start() if closing else len(page)
    found.text(page[at:])
    return found


def _after_tag(page: str, at: int) -> tuple[int, int]:
    """Return the place after the ``>`` that ends a tag, -1 if there is none, and its length without quoted values."""
    length = 0
    while match := _QUOTE_OR_END.search(page, at):
        length += match.end() - at
        at = match.end()
        if match[0] == ">":
            return at, length
        at = page.find(match[0][-1], at) + 1
        if not at:
            break
    return -1, length + (len(page) - at if at else 0)


def _costly(page: str) -> bool:
    """Return whether trafilatura might need many seconds for a page: it has too many tags, or attributes in a tag."""
    if page.count("<") > _MOST_TAGS:
        return True
    at = 0
    while len(page) > _MOST_IN_A_TAG and at >= 0 and (tag := _TAG.search(page, at)):
        at, length = _after_tag(page, tag.end())
        if length > _MOST_IN_A_TAG:
            return True
    return False


def html(path: str) -> Iterator[Extracted]:
    """Yield the main text of an HTML page as Markdown; all its text if no main text is found or the page is huge."""
    import trafilatura

    page = read_text(path)
    main = title = None
    # A fragment has no menus to leave out.
    tree = trafilatura.load_html(page) if _WHOLE.search(page) and not _costly(page) else None
    if tree is not None:
        main = trafilatura.extract(tree, output_format="markdown", include_comments=False, favor_recall=True, fast=True)
        title = tree.findtext(".//head/title")
    else:
        title = _scanned(page).title
    text = main or text_of(page)
    yield Extracted(text, "markdown", title=(_line(title) if title else None) or title_of(text))


def _line(text: str) -> str | None:
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
