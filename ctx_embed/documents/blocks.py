"""The structure of a text: blocks that should stay whole, and how good a cut before each would be."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from ctx_embed.documents.front_matter import front_matter
from ctx_embed.documents.grammars import LANGUAGES, definitions

# Depths: the smaller the depth of a block, the better a cut before it. Every page begins a new passage.
PAGE, SECTION, NONE = 0, 1, 9
# Code longer than this is cut at blank lines only: a parser needs 100 times the size of the code in memory.
_LARGEST_PARSED = 1_000_000

_LINE = re.compile(r"[^\n\f]+")
# A run of lines that are not blank.
_RUN = re.compile(r"(?:^|(?<=\f))[^\S\n\f]*[^\s][^\n\f]*(?:\n[^\S\n\f]*[^\s][^\n\f]*)*", re.MULTILINE)
_HEADING = re.compile(r" {0,3}(#{1,6})(?:\s|$)")
_UNDERLINE = re.compile(r" {0,3}(=+|-+)\s*$")
_FENCE = re.compile(r"\s*(`{3,}|~{3,}|<!--(?!.*-->))")
_COMMENT = "<!--"
# A heading is the title of a text if it begins within so many characters.
_TITLE_WITHIN = 10_000
# Lines that end a block of code or continue the one above; no passage should begin with them.
_CONTINUES = re.compile(r"\s*(?:[})\]]|end\b|else\b|elif\b|except\b|finally\b|catch\b)")


class Block(NamedTuple):
    """A part of a text. It is cut only if it is too long for a passage.

    Args:
        start: position of its first character.
        stop: position after its last character.
        depth: how good a cut before it would be (a smaller depth is a better cut): 0 at a page, 1 to 8 at a heading
            or function of that depth, 9 elsewhere.
        prose: whether it consists of sentences; if not, it is cut between lines.
    """

    start: int
    stop: int
    depth: int = NONE
    prose: bool = True


def prose(text: str) -> list[Block]:
    """Return the paragraphs of a text, which blank lines separate."""
    return _paged(text, (Block(*match.span()) for match in _RUN.finditer(text)))


def rows(text: str) -> list[Block]:
    """Return the lines of a text that are not blank."""
    lines = (match.span() for match in _LINE.finditer(text) if not match[0].isspace())
    return _paged(text, (Block(*span, prose=False) for span in lines))


def code(text: str) -> list[Block]:
    """Return the parts of source code between blank lines. The less a part is indented, the smaller its depth."""
    found = []
    for match in _RUN.finditer(text):
        indent = len(match[0].expandtabs()) - len(match[0].expandtabs().lstrip())
        depth = NONE if _CONTINUES.match(match[0]) else min(SECTION + indent, NONE - 1)
        found.append(Block(*match.span(), depth, prose=False))
    return _paged(text, iter(found))


def python(text: str) -> list[Block]:
    """Return the parts of Python code between blank lines, cut at functions (depth 1, methods 2) and classes too."""
    if len(text) > _LARGEST_PARSED or "\f" in text:
        return code(text)
    try:
        with warnings.catch_warnings():
            # Python warns about invalid escapes in strings, which do not matter here.
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return code(text)
    begins = [0, *(match.end() for match in re.finditer("\n", text))]
    depths: dict[int, int] = {}
    _functions(tree.body, SECTION, text, begins, depths)
    return _cut(text, depths)


def parsed(text: str, language: str) -> list[Block]:
    """Return the parts of code in another language, cut at functions and classes too if its grammar is installed."""
    if len(text) > _LARGEST_PARSED or "\f" in text:
        return code(text)
    lines = definitions(text, language, NONE - 1)
    if not lines:
        return code(text)
    begins = [0, *(match.end() for match in re.finditer("\n", text))]
    return _cut(text, {begins[line]: depth for line, depth in lines.items()})


def _cut(text: str, depths: dict[int, int]) -> list[Block]:
    """Return the parts between blank lines, cut also where ``depths`` says; it maps each place to its depth."""
    cuts = sorted(depths)
    found: list[Block] = []
    at = 0
    for match in _RUN.finditer(text):
        start, stop = match.span()
        while at < len(cuts) and cuts[at] < stop:
            if cuts[at] > start:
                found.append(Block(start, cuts[at] - 1, depths.get(start, NONE), prose=False))
                start = cuts[at]
            at += 1
        found.append(Block(start, stop, depths.get(start, NONE), prose=False))
    return found


def _functions(body: list[ast.stmt], depth: int, text: str, begins: list[int], depths: dict[int, int]) -> None:
    """Record in ``depths`` the places where functions and classes of a body begin, and the statements after them."""
    after = False
    for node in body:
        defines = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        if defines or after:
            decorators = [decorator.lineno for decorator in getattr(node, "decorator_list", [])]
            line = min([node.lineno, *decorators]) - 1
            # Comments right above belong to the definition.
            while line and text[begins[line - 1] : begins[line]].lstrip().startswith("#"):
                line -= 1
            depths.setdefault(begins[line], depth)
        if isinstance(node, ast.ClassDef):
            _functions(node.body, depth + 1, text, begins, depths)
        after = defines


def markdown(text: str) -> list[Block]:
    """Return the headings, paragraphs, tables, code and comments of Markdown, and tags of its front matter."""
    end, fields = front_matter(text)
    said = [Block(field.start, field.stop, prose=False) for field in fields if field.is_said]
    return said + _paged(text, _markdown(text, end))


def title_of(text: str) -> str | None:
    """Return the title of Markdown: that of the front matter, else the first heading of the first level."""
    end, fields = front_matter(text)
    for field in fields:
        if field.name == "title" and field.values:
            return field.values[0]
    start = text[: end + _TITLE_WITHIN]
    for block in _markdown(start, end):
        if block.depth == SECTION:
            heading = start[block.start : block.stop]
            words = heading.strip().strip("#") if _HEADING.match(heading) else heading.rpartition("\n")[0]
            if words.strip():
                return " ".join(words.split())
    return None


def _markdown(text: str, at: int) -> Iterator[Block]:
    fence, begun = "", -1
    start = stop = depth = -1
    table = False
    for match in _LINE.finditer(text, at):
        line = match[0]
        if fence:
            end = line.strip()
            if "-->" in line if fence == _COMMENT else end.startswith(fence) and not end.strip(fence[0]):
                yield Block(begun, match.end(), NONE, prose=False)
                fence = ""
            continue
        opening, heading = _FENCE.match(line), _HEADING.match(line)
        # Whether the line continues the block above, without a blank line between.
        follows = start >= 0 and match.start() == stop + 1 and depth == NONE
        if follows and not table and (underline := _UNDERLINE.match(line)) and not _blank(line):
            yield Block(start, match.end(), SECTION if underline[1][0] == "=" else SECTION + 1)
            start = -1
        elif follows and not (opening or heading or _blank(line)):
            stop = match.end()
        else:
            if start >= 0:
                yield Block(start, stop, depth, not table)
                start = -1
            if opening:
                fence, begun = opening[1], match.start()
            elif not _blank(line):
                start, stop = match.span()
                depth = len(heading[1]) if heading else NONE
                table = line.lstrip().startswith("|")
    if fence:
        yield Block(begun, len(text.rstrip()), NONE, prose=False)
    elif start >= 0:
        yield Block(start, stop, depth, not table)


def _blank(line: str) -> bool:
    return not line or line.isspace()


def _paged(text: str, blocks: Iterator[Block]) -> list[Block]:
    """Return blocks. The first one after each form feed gets the depth of a page."""
    if "\f" not in text:
        return list(blocks)
    found: list[Block] = []
    for block in blocks:
        between = text[found[-1].stop : block.start] if found else ""
        found.append(block._replace(depth=PAGE) if "\f" in between else block)
    return found


KINDS: dict[str, Callable[[str], list[Block]]] = {
    "prose": prose,
    "markdown": markdown,
    "python": python,
    "code": code,
    "rows": rows,
    **{language: partial(parsed, language=language) for language in LANGUAGES},
}
