"""Front matter: the fields in YAML between two lines of dashes at the top of a Markdown file."""

from __future__ import annotations

import re
from typing import NamedTuple

# Lists of words become metadata, and people also search for them, as they do for a description.
LISTS = {"tags", "aliases", "keywords", "categories"}
_SINGULAR = {"tag": "tags", "alias": "aliases", "keyword": "keywords", "category": "categories"}
_SAID = {*LISTS, "description", "summary", "subtitle"}
_LONGEST = 20_000
_MATTER = re.compile(r"---[^\S\n]*\n(.*?\n)(?:---|\.\.\.)[^\S\n]*(?:\n|\Z)", re.DOTALL)
_FIELD = re.compile(r"([A-Za-z_][\w.-]*)[^\S\n]*:(?:[^\S\n]+([^\n]*))?\Z")
_CONTINUED = re.compile(r"\s*\Z|\s|- |-\Z|#|[\]}]")
_ITEM = re.compile(r"\"([^\"]*)\"|'([^']*)'|([^,\[\]\"']+)")


class Field(NamedTuple):
    """A field of front matter: its name in lower case, its values, and where its lines start and stop in the text."""

    name: str
    values: list[str]
    start: int
    stop: int

    @property
    def is_said(self) -> bool:
        """Whether people search for its words: names of things or a sentence rather than a setting."""
        return self.name in _SAID or (self.name != "title" and any(" " in value for value in self.values))


def front_matter(text: str) -> tuple[int, list[Field]]:
    """Return where the text after the front matter begins, and the fields; 0 and none if there is no front matter.

    A text may also begin with a rule: between two lines of dashes, front matter has nothing but fields of YAML.
    """
    found = _MATTER.match(text[:_LONGEST]) if text.startswith("---") else None
    if found is None:
        return 0, []
    fields: list[tuple[str, list[str], int]] = []
    at = found.start(1)
    for line in found[1].split("\n")[:-1]:
        if named := _FIELD.match(line):
            fields.append((named[1].lower(), [named[2] or ""], at))
        elif not _CONTINUED.match(line) or not (fields or line.startswith("#") or not line.strip()):
            return 0, []
        elif fields:
            fields[-1][1].append(line)
        at += len(line) + 1
    if not fields:
        return 0, []
    stops = [*(start for _, _, start in fields[1:]), at]
    read = [
        Field(_SINGULAR.get(name, name), _values(name, lines), start, start + len(text[start:stop].rstrip()))
        for (name, lines, start), stop in zip(fields, stops, strict=True)
    ]
    return found.end(), read


def _values(name: str, lines: list[str]) -> list[str]:
    """Return the values of a field: a text, a list in brackets or with a dash on each line, or words between commas."""
    first, *rest = (re.sub(r"(?:\A|\s)#\s.*", "", line).strip() for line in lines)
    if first in (">", "|", ">-", "|-"):
        first = ""
    if any(line.startswith("-") for line in rest) and not first:
        items = [line.removeprefix("-") for line in rest]
    elif first.startswith("[") or (_SINGULAR.get(name, name) in LISTS - {"aliases"} and first[:1] not in ("'", '"')):
        items = ["".join(match.groups("")) for match in _ITEM.finditer(" ".join([first, *rest]))]
    else:
        items = [" ".join([first, *rest])]
    unquoted = (re.sub(r"\A(['\"])(.*)\1\Z", r"\2", item.strip(), flags=re.DOTALL) for item in items)
    return list(filter(None, unquoted))
