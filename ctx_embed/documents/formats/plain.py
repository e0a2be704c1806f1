"""Formats of plain text: Markdown, reStructuredText, source code, and tables as the lines they are."""

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
# reStructuredText: roles and links. Each repetition has a maximum, so that matching takes linear time for any text.
_INLINE = re.compile(r"(:[\w.+:-]{1,60}:)?(?<!`)`([^`]{1,1000})`(__?)?(?!`)")
_TARGET = re.compile(r"\s<[^<>]*>\Z")
_DIRECTIVE = re.compile(r"(\s*)\.\. ([\w.+:-]{1,60}?)::(?:\s+(.*))?\Z")
_CODE = {"code", "code-block", "sourcecode", "parsed-literal", "math", "highlight"}
_OPTION = re.compile(r"\s+:[\w-]+:")
_UNSEEN = re.compile(r"\s*\.\.(?: (?!\[)|\s*\Z)")
_UNDERLINE = re.compile(r"([!-/:-@\[-`{-~])\1+\s*\Z")
_RULER = re.compile(r"\s*[-=+|][-=+|\s]*\Z")


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


def restructured_text(path: str, encoding: str | None = None) -> Iterator[Extracted]:
    """Yield reStructuredText as Markdown with the same lines, without comments, targets, roles and rulers.

    docutils would take quadratic time for nearly every construct, and loses the line numbers.
    """
    source = _INLINE.sub(_words, read_text(path, encoding)).split("\n")
    # A fence that closes at the end of the text adds a line.
    lines = [*source, ""]
    styles: list[tuple[str, bool]] = []
    at = 0
    while at < len(source):
        line = lines[at]
        directive = _DIRECTIVE.match(line)
        if directive and directive[2] not in _CODE:
            lines[at] = f"{directive[1]}{directive[2]}: {directive[3] or ''}".rstrip()
        elif directive or (line.rstrip().endswith("::") and not _UNSEEN.match(line)):
            start, stop = _indented(lines, at)
            # Fences replace the line above the code (a directive or a blank line) and the blank line below it.
            fence = at if directive else start - 1
            if directive:
                while start < stop and _OPTION.match(lines[start]):
                    start += 1
                lines[at:start] = [""] * (start - at)
            else:
                lines[at] = "" if line.strip() == "::" else line.rstrip()[:-1]
            if start < stop and not lines[fence].strip() and not lines[stop].strip():
                lines[fence], lines[stop] = f"```{directive[3] or '' if directive else ''}", "```"
            at = max(at, stop - 1)
        elif _UNSEEN.match(line):
            _, stop = _indented(lines, at)
            lines[at:stop] = [""] * (stop - at)
        elif heading := _heading(source, at):
            if heading not in styles:
                styles.append(heading)
            lines[at : at + 2] = [f"{'#' * min(1 + styles.index(heading), 6)} {line.strip()}", ""]
        elif _RULER.match(line):
            lines[at] = ""
        at += 1
    text = "\n".join(lines if lines[-1] else lines[:-1])
    yield Extracted(text, "markdown", title=title_of(text), line=1)


def _words(found: re.Match[str]) -> str:
    """Return the words of a role or a link, with the same number of lines."""
    role, words, link = found.groups()
    if not (role or link):
        return found[0]
    target = _TARGET.search(words)
    return words[: target.start()] + "\n" * target[0].count("\n") if target else words.lstrip("~!")


def _indented(lines: list[str], at: int) -> tuple[int, int]:
    """Return where the block that a line introduces starts and stops: the lines below it that are indented more."""
    indent = len(lines[at]) - len(lines[at].lstrip())
    inside: list[int] = []
    for number in range(at + 1, len(lines)):
        if words := lines[number].lstrip():
            if len(lines[number]) - len(words) <= indent:
                break
            inside.append(number)
    return (inside[0], inside[-1] + 1) if inside else (at + 1, at + 1)


def _heading(lines: list[str], at: int) -> tuple[str, bool] | None:
    """Return the style of a heading, its underline's character and whether there is a line above, or None."""
    title = lines[at].strip()
    below = lines[at + 1].rstrip() if at + 1 < len(lines) else ""
    above = lines[at - 1].rstrip() if at else ""
    found = _UNDERLINE.match(below)
    if not title or not found or len(below) < min(len(title), 4) or above not in ("", below):
        return None
    if _UNDERLINE.match(title) or (not above and title[0] != lines[at][0]):
        return None
    return found[1], bool(above)
