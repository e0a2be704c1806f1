"""HTML pages and notebooks as Markdown."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from html import unescape

from ctx_embed.reading.blocks import title_of
from ctx_embed.reading.decoding import Extracted, UnreadableFileError, read_text
from ctx_embed.reading.markup import plain_markdown

# Tags such as menus, whose contents nobody reads, and the attribute that marks any tag as one of these.
_UNSEEN = frozenset({"script", "style", "title", "template", "noscript", "svg", "datalist", "nav", "footer", "role"})
# A footer in one of these is part of what it says; any other is the page's. So is a header.
_SECTIONS = {"article", "aside", "blockquote", "details", "dialog", "fieldset", "figure", "main", "section"}
_ROLES = frozenset({"banner", "contentinfo", "menu", "menubar", "navigation", "search"})
_ATTRIBUTE = re.compile(r"""([^\s"'/=]+)(?:\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'>]+)))?""")
_HEADINGS = {f"h{depth}": "#" * depth for depth in range(1, 7)}
# What begins a new line, and what is a word of its own, in browsers (the HTML standard's chapter on rendering).
_BLOCKS = """
address article aside blockquote body caption center dd details dialog dir div dl dt fieldset figcaption figure footer
form header hgroup hr legend li listing main menu nav ol optgroup option p plaintext pre search section summary table tr
ul xmp
"""
_BOXES = "audio button canvas iframe input meter object progress select td textarea th video"
_BREAKING, _WORDS = {*_HEADINGS, *_BLOCKS.split()}, {*_BOXES.split()}
# Tags that end a line rather than a block.
_LINES = ("li", "tr", "dt", "dd", "option")
# The contents of these tags are not HTML.
_RAW = {"script": re.compile(r"</script\b", re.IGNORECASE), "style": re.compile(r"</style\b", re.IGNORECASE)}
# Tags that have no contents.
_VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}
_TAG = re.compile(r"<(/?)([a-zA-Z][^\s/>]*)")
_QUOTE_OR_END = re.compile(r"=\s*[\"']|>")
# The marks at the start and end of comments and other hidden parts.
_MARKS = (("<!--", "-->"), ("<!", ">"), ("<?", ">"), ("</", ">"))
# A sign that links to a heading.
_SIGN = "\xb6"


class _Text:
    """Collects the text of a page as Markdown: blank lines between blocks, # before headings, code in fences."""

    def __init__(self, unseen: frozenset[str]) -> None:
        self.unseen = unseen
        self.parts: list[str] = []
        self.title: str | None = None
        # The unseen tags that are open, in order, and how many of each name.
        self.within: list[str] = []
        self._open: Counter[str] = Counter()
        self._sections = 0
        # Where the page's header begins among the parts.
        self._header: int | None = None
        self._code = 0

    def start(self, tag: str, attributes: str) -> None:
        """Take an opening tag."""
        is_menu = False
        if "role" in self.unseen and "role" in attributes.lower():
            # Only the first role of an element is used.
            values = {name.lower(): "".join(value) for name, *value in reversed(_ATTRIBUTE.findall(attributes))}
            is_menu = not _ROLES.isdisjoint(unescape(values.get("role", "")).lower().split()[:1])
        # Inside an unseen tag, count tags of the same name, to find where it ends.
        is_footer = tag == "footer" and self._sections > 0
        is_unseen = (tag in self.unseen and not is_footer) or self._open[tag] > 0 or is_menu
        if is_unseen and tag not in _VOID and not attributes.endswith("/>"):
            self.within.append(tag)
            self._open[tag] += 1
        elif is_unseen or self.within:
            return
        elif tag == "br":
            self.parts.append("\n")
        elif tag in _BREAKING:
            self.parts.append("\n" if tag in _LINES else "\n\n")
            self._sections += tag in _SECTIONS
            if tag == "header" and not self._sections:
                self._header = len(self.parts)
            if tag == "li":
                self.parts.append("- ")
            elif tag in _HEADINGS:
                self.parts.append(f"{_HEADINGS[tag]} ")
            elif tag == "pre":
                self._code += 1
                self.parts.append("```\n")
        else:
            self._space(tag)

    def end(self, tag: str) -> None:
        """Take a closing tag."""
        if self.within:
            if tag == self.within[-1]:
                self._open[self.within.pop()] -= 1
        elif tag == "pre" and self._code:
            self._code -= 1
            self.parts.append("\n```\n\n")
        elif tag in _BREAKING and tag not in (*_LINES, "hr"):
            if tag == "header" and self._header is not None:
                # A header without the title of the page is a menu.
                if "# " not in self.parts[self._header :]:
                    del self.parts[self._header :]
                self._header = None
            self._sections = max(0, self._sections - (tag in _SECTIONS))
            self.parts.append("\n\n")
        else:
            self._space(tag)

    def _space(self, tag: str) -> None:
        if (tag in _WORDS or tag in _LINES) and self.parts and self.parts[-1][-1:] not in ("\n", " "):
            self.parts.append(" ")

    def text(self, text: str) -> None:
        """Add the text between two tags."""
        if self.within == ["title"]:
            self.title = self.title or " ".join(unescape(text).split())
        if text and not self.within:
            with suppress(ValueError):  # A character reference with thousands of digits.
                text = unescape(text)
            if not self._code:
                text = re.sub(r"\s+", " ", text)
                text = text.lstrip() if not self.parts or self.parts[-1][-1:] in ("\n", " ") else text
            self.parts.append(text)

    def markdown(self) -> str:
        """Return the text read so far as Markdown, without blank lines in a row."""
        lines = (line.rstrip().removesuffix(_SIGN).rstrip() for line in "".join(self.parts).split("\n"))
        return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()


def scanned(page: str, unseen: frozenset[str] = _UNSEEN) -> _Text:
    """Return the text of a page. A tag or comment that is never closed ends it; a menu that is never closed is read."""
    # Each character is read once. Python's own parser takes quadratic time for broken pages.
    found = _Text(unseen)
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
        if tag:
            # The tag ends at the first ``>`` outside quotes.
            at = tag.end()
            while (match := _QUOTE_OR_END.search(page, at)) and match[0] != ">":
                at = page.find(match[0][-1], match.end()) + 1 or len(page)
            at = match.end() if match else -1
        else:
            at = page.find(mark or ">", start + 2) + len(mark or ">")
        if at < start + 2:
            at = len(page)
        elif tag is not None and tag[1]:
            found.end(tag[2].lower())
        elif tag is not None:
            name = tag[2].lower()
            found.start(name, page[tag.end() : at])
            if name in _RAW and not page.startswith("/>", at - 2):
                closing = _RAW[name].search(page, at)
                at = closing.start() if closing else len(page)
    found.text(page[at:])
    endless = unseen & {name if name in unseen else "role" for name in found.within} - _RAW.keys()
    return scanned(page, unseen - endless) if endless else found


def html(path: str) -> Iterator[Extracted]:
    """Yield a whole HTML page as Markdown: guessing its main text, as news readers do, would lose parts of manuals."""
    found = scanned(read_text(path))
    text = found.markdown()
    yield Extracted(text, "markdown", title=found.title or title_of(text))


def notebook(path: str) -> Iterator[Extracted]:
    """Yield the cells of a notebook: text as it is, code in fences, no outputs."""
    try:
        content = json.loads(read_text(path))
        sheets = [content] if "cells" in content else content["worksheets"]
        cells = [cell for sheet in sheets for cell in sheet["cells"]]
        language = str(content.get("metadata", {}).get("kernelspec", {}).get("language", ""))
        texts = []
        for cell in cells:
            source = cell.get("source", cell.get("input", ""))
            text = ("".join(source) if isinstance(source, list) else str(source)).strip()
            if not text:
                continue
            texts.append(f"```{language}\n{text}\n```" if cell["cell_type"] == "code" else plain_markdown(text))
    except (ValueError, RecursionError) as error:
        raise UnreadableFileError(f"not a notebook ({error})") from None
    except (KeyError, TypeError, AttributeError):
        raise UnreadableFileError("not a notebook") from None
    text = "\n\n".join(texts)
    yield Extracted(text, "markdown", title=title_of(text))
