"""Find the structure of a text: blocks that should stay whole, and how good a cut before each would be."""

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

# Depths: the smaller the depth of a block, the better a cut before it. Every page begins a new passage.
PAGE, SECTION, NONE = 0, 1, 9
_LINE = re.compile(r"[^\n\f]+")
# A run of lines that are not blank.
_RUN = re.compile(r"(?:^|(?<=\f))[^\S\n\f]*[^\s][^\n\f]*(?:\n[^\S\n\f]*[^\s][^\n\f]*)*", re.MULTILINE)
_HEADING = re.compile(r" {0,3}(#{1,6})(?:\s|$)")
_UNDERLINE = re.compile(r" {0,3}(=+|-+)\s*$")
FENCE = re.compile(r"\s*(`{3,}|~{3,}|<!--(?!.*-->))")
_COMMENT = "<!--"
# A heading is the title of a text if it starts within this many characters.
_TITLE_WITHIN = 10_000
# Lines that end a block of code or continue the one above; no passage should begin with them.
_CONTINUES = re.compile(r"\s*(?:[})\]]|end\b|else\b|elif\b|except\b|finally\b|catch\b|#(?:endif|else|elif)\b)")
# Lines that belong to the definition right below them: comments, decorators, attributes.
_ABOVE = re.compile(
    r"\s*(?:#(?!\s*(?:include|if|ifn?def|define|pragma|import)\b)|//|/\*|\*|--|@\w|\[\w+(?:\(.*\))?\]\s*$|template\b)"
)
_MODIFIERS = (
    "abstract|async|const|declare|default|export|extern|final|inline|internal|override|partial|private|protected|pub"
    "|public|sealed|static|unsafe|virtual"
)
# The end of a function in a variable: arguments, which may stand in parentheses, and an arrow.
_ARROW = r"[\w\s,:]*(?:\)\s*)?=>"
# The first line of a definition: a keyword, a function in a variable, or a name with arguments and a body.
# No two repeated parts match the same characters next to each other, so that the time does not grow with a power.
_DEFINES = re.compile(
    rf"\s*(?:(?:(?:{_MODIFIERS})(?:\([\w ]+\))?\s+)*(?:"
    r"(?:class|def|enum|fn|fun|func|function|impl|interface|macro_rules!|mod|module|namespace|record|struct|trait|union)\b"
    rf"|type\s+\w|(?:const|let|var)\s+\w+\s*=(?:\s*(?:async\s*)?(?:function\b|\({_ARROW})|{_ARROW})"
    rf"|\w+\s*=(?:\s*\()?{_ARROW})|(?:(?:(?:{_MODIFIERS})\s+)*(?:{_MODIFIERS})\([\w ]+\)\s+)*"
    r"(?!(?:case|catch|do|else|for|foreach|if|lock|loop|match|new|return|switch|throw|try|unless|until|using|when|while|with)\b)"
    r"[\w~][\w\s*&<>:,.\[\]?~]*(?:\([^;{}]*\)[^;{}=)]*\{|(?<=\w)\s+[\w<>\[\]?]+\s*\{))"
)
# Definitions are looked for in this many characters at the start of a line.
_LONGEST_HEAD = 300


class Block(NamedTuple):
    """A part of a text, ``text[start:stop]``. It is cut only if it is too long for a passage."""

    start: int
    stop: int
    # How good a cut before it would be: 0 at a page, 1 to 8 at a heading or function of that depth, 9 elsewhere.
    depth: int = NONE
    # Whether it consists of sentences; if not, it is cut between lines.
    prose: bool = True


def prose(text: str) -> list[Block]:
    """Return the paragraphs of a text, which blank lines separate."""
    return _paged(text, (Block(*match.span()) for match in _RUN.finditer(text)))


def rows(text: str) -> list[Block]:
    """Return the lines of a text that are not blank."""
    lines = (match.span() for match in _LINE.finditer(text) if not match[0].isspace())
    return _paged(text, (Block(*span, prose=False) for span in lines))


def code(text: str) -> list[Block]:
    """Return the parts of source code between blank lines; also cut before and after definitions.

    A definition is recognised by words in its first line that many languages share. It ends where a line is indented
    no more than that line. The less a part is indented, the smaller its depth.
    """
    found: list[Block] = []
    # The indentation of the definition above, if it has not ended.
    inside: int | None = None
    for run in _RUN.finditer(text):
        start, above, defined = run.start(), -1, False
        for line in _LINE.finditer(text, *run.span()):
            head = line[0][:_LONGEST_HEAD].expandtabs()
            indent = len(head) - len(head.lstrip())
            if _ABOVE.match(head):
                above = line.start() if above < 0 else above
                continue
            begin = line.start() if above < 0 else above
            above = -1
            if _CONTINUES.match(head):
                continue
            defines = _DEFINES.match(head) is not None
            ends = inside is not None and indent <= inside
            if begin > start and (defines or ends):
                found.append(_part(text, start, begin - 1, defined))
                start, defined = begin, False
            defined = defined or (defines and begin == start)
            inside = indent if defines else None if ends else inside
        found.append(_part(text, start, run.end(), defined))
    return _paged(text, iter(found))


def _part(text: str, start: int, stop: int, defined: bool) -> Block:
    first = text[start : min(stop, start + _LONGEST_HEAD)].expandtabs()
    indent = len(first) - len(first.lstrip())
    depth = NONE if _CONTINUES.match(first) else min(SECTION + indent + (indent > 0 and not defined), NONE - 1)
    return Block(start, stop, depth, prose=False)


def markdown(text: str) -> list[Block]:
    """Return the headings, paragraphs, tables, code and comments of Markdown."""
    return _paged(text, _markdown(text))


def title_of(text: str) -> str | None:
    """Return the title of Markdown: the first heading of the first level."""
    start = text[:_TITLE_WITHIN]
    for block in _markdown(start):
        if block.depth == SECTION:
            heading = start[block.start : block.stop]
            words = heading.strip().strip("#") if _HEADING.match(heading) else heading.rpartition("\n")[0]
            if words.strip():
                return " ".join(words.split())
    return None


def _markdown(text: str) -> Iterator[Block]:
    fence, begun = "", -1
    start = stop = depth = -1
    table = False
    for match in _LINE.finditer(text):
        line = match[0]
        if fence:
            end = line.strip()
            if "-->" in line if fence == _COMMENT else end.startswith(fence) and not end.strip(fence[0]):
                yield Block(begun, match.end(), NONE, prose=False)
                fence = ""
            continue
        opening, heading = FENCE.match(line), _HEADING.match(line)
        # Whether the line continues the block above, without a blank line between.
        follows = start >= 0 and match.start() == stop + 1 and depth == NONE
        if follows and not table and (underline := _UNDERLINE.match(line)) and line.strip():
            yield Block(start, match.end(), SECTION if underline[1][0] == "=" else SECTION + 1)
            start = -1
        elif follows and not (opening or heading or not line.strip()):
            stop = match.end()
        else:
            if start >= 0:
                yield Block(start, stop, depth, not table)
                start = -1
            if opening:
                fence, begun = opening[1], match.start()
            elif line.strip():
                start, stop = match.span()
                depth = len(heading[1]) if heading else NONE
                table = line.lstrip().startswith("|")
    if fence:
        yield Block(begun, len(text.rstrip()), NONE, prose=False)
    elif start >= 0:
        yield Block(start, stop, depth, not table)


def _paged(text: str, blocks: Iterator[Block]) -> list[Block]:
    """Return the blocks; the first one after each form feed gets the depth of a page."""
    if "\f" not in text:
        return list(blocks)
    found: list[Block] = []
    for block in blocks:
        between = text[found[-1].stop : block.start] if found else ""
        found.append(block._replace(depth=PAGE) if "\f" in between else block)
    return found


KINDS: dict[str, Callable[[str], list[Block]]] = {"prose": prose, "markdown": markdown, "code": code, "rows": rows}
