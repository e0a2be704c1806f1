"""Markdown as people read it: front matter is metadata, character references are characters, targets are left out."""

import datetime
import re
import sys
from html import unescape
from html.entities import html5
from typing import Any

import yaml

from ctx_embed.reading.blocks import FENCE, markdown, title_of
from ctx_embed.reading.decoding import Extracted

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# Front matter: YAML between lines of dashes, or TOML between lines of plus signs, at the top of a file.
_MATTER = re.compile(r"(---|\+\+\+)[^\S\n]*\n(.*?)^(?:\1|\.\.\.)[^\S\n]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)
_LONGEST_MATTER = 20_000
# A line of front matter, for front matter that is neither YAML nor TOML, such as ``title: One: two``.
_FIELD = re.compile(r"^([A-Za-z_][\w.-]*)(?::[^\S\n]|[^\S\n]*=)[^\S\n]*(\S(?:.*\S)?)", re.MULTILINE)
# Values nested deeper become text; more values than this, which aliases of YAML can make of a line, are not read.
_DEEPEST, _MOST_VALUES, _MOST_COPIED = 8, 10_000, 1_000
# What is read otherwise than it is written, after code spans, comments and escapes, which are kept.
_TARGET = r"<[^<>\n]*>|[^\s()<\\]*(?:(?:\\.|\((?:[^\s()\\]|\\.)*\))[^\s()<\\]*)*"
_TITLE = r"\"[^\"]*\"|'[^']*'|\([^()]*\)"
_INLINE = re.compile(
    rf"""
    (?P<kept>(?<!`)(?P<ticks>`+)(?!`)(?:(?!\n\s*\n).){{1,2000}}?(?<!`)(?P=ticks)(?!`)|<!--(?:(?!<!--).)*?-->|\\[!-/:-@\[-`{{-~])
    | (?<=\])\(\s{{0,9}}(?:{_TARGET})(?:\s{{1,9}}(?:{_TITLE}))?\s{{0,9}}\)
    | [ \t](?:href|src|srcset|poster)=(?:"[^"]*"|'[^']*')
    | \bdata:[\w.+-]+/[\w.+-]+(?:;[\w=.+-]+)*,[^\s)"'<>]*
    | &(?P<reference>\#[0-9]{{1,7}}|\#[xX][0-9a-fA-F]{{1,6}}|[A-Za-z][A-Za-z0-9]{{1,31}});
    """,
    re.DOTALL | re.VERBOSE,
)
_DEFINITIONS = re.compile(
    rf"(?:[ ]{{0,3}}\[(?!\^)[^\]\n]+\]:[ \t]*(?:<[^<>\n]*>|[^\s<]\S*)(?:[ \t]+(?:{_TITLE}))?[ \t]*(?:\n|\Z))+"
)
_ITEM = re.compile(r"^[ \t]*(?:[-*+]|\d{1,9}[.)])[ \t]+\S", re.MULTILINE)
_INDENTED = re.compile(r"(?:(?: {4}|\t).*(?:\n|\Z))+")


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Copies few values where ``<<`` merges what aliases name, which may be ten times as many with each line."""

    copied = 0

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Replace the merge keys of a mapping; raise ValueError if that copies too many values."""
        own = len(node.value)
        super().flatten_mapping(node)
        self.copied += len(node.value) - own
        if self.copied > _MOST_COPIED:
            raise ValueError


def read_markdown(content: str) -> Extracted:
    """Return the text of Markdown after its front matter, whose fields become metadata."""
    start, fields = front_matter(content)
    text, title = plain_markdown(content[start:]), fields.get("title")
    title = title_of(text) if title is None or isinstance(title, dict | list) else " ".join(str(title).split())
    return Extracted(text, "markdown", title, 1 + content.count("\n", 0, start), metadata=fields)


def front_matter(content: str) -> tuple[int, dict[str, Any]]:
    """Return where the text after the front matter begins, and the fields; 0 and none if there is no front matter.

    The first line of dashes may also be a horizontal rule, below which no fields stand.
    """
    found = _MATTER.match(content[:_LONGEST_MATTER])
    if found is None:
        return 0, {}
    try:
        read: Any = yaml.load(found[2], _Loader) if found[1] == "---" else tomllib.loads(found[2])
        fields = None if read is None else _value(read, _DEEPEST, iter(range(_MOST_VALUES)))
    except Exception:  # PyYAML also raises other errors than its own, such as those of impossible dates.
        fields = dict(_FIELD.findall(found[2])) if _FIELD.match(found[2].lstrip()) else None
    if isinstance(fields, dict) or not found[2]:
        return found.end(), fields or {}
    return 0, {}


def _value(value: Any, depth: int, numbers: Any) -> Any:
    """Return a value as JSON has it; dates are ISO 8601. Raise StopIteration if there are too many values."""
    next(numbers)
    if depth and isinstance(value, dict):
        return {str(name): _value(each, depth - 1, numbers) for name, each in value.items()}
    if depth and isinstance(value, list | tuple | set):
        return [_value(each, depth - 1, numbers) for each in value]
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if value is None or isinstance(value, bool | str) or (isinstance(value, int | float) and abs(value) < 2**63):
        return value
    return "" if isinstance(value, dict | list | tuple | set) else str(value)


def plain_markdown(text: str) -> str:
    """Return Markdown with the same lines, without targets of links and pictures, and with references as characters."""
    parts, at, in_list = [], 0, False
    for block in markdown(text):
        part = text[block.start : block.stop]
        is_code = _INDENTED.fullmatch(part) is not None
        in_list = in_list if is_code else _ITEM.search(part) is not None
        if not FENCE.match(part) and (in_list or not is_code):
            if found := _DEFINITIONS.match(part):
                part = "\n" * found[0].count("\n") + part[found.end() :]
            part = _INLINE.sub(_read, part)
        parts += [text[at : block.start], part]
        at = block.stop
    return "".join([*parts, text[at:]])


def _read(found: re.Match[str]) -> str:
    """Return what is read of a part of Markdown, with as many line ends."""
    name = found["reference"]
    if found["kept"] or (name and name[0] != "#" and f"{name};" not in html5):
        return found[0]
    return re.sub(r"\s", " ", unescape(found[0])) if name else "\n" * found[0].count("\n")
