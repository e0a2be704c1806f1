"""Rules like those of .gitignore, matched in time that is linear in the lengths of path and rule."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

# Rules with more characters are ignored: no path is that long.
LONGEST_RULE = 1000
# Brackets, an escaped character, or an open bracket.
_PART = re.compile(r"\[([!^])?(\]?(?:\\.|[^\]\\])*)\]|\\(.)|\[", re.DOTALL)


class Rule(NamedTuple):
    """A line of a .gitignore file: a test for each name in a path from its folder on; None is ``**``, any folders."""

    parts: Sequence[Callable[[str], object] | None]
    negated: bool
    only_folders: bool


class Rules(NamedTuple):
    """The rules of one .gitignore file, or some globs; the last one that matches decides."""

    rules: Sequence[Rule]

    @classmethod
    def of(cls, lines: Iterable[str]) -> Rules:
        """Return the rules in some lines; blank lines and comments have none."""
        return cls([rule for line in lines if (rule := _rule(line)) is not None])

    def check(self, path: str, *, within: bool = False) -> bool | None:
        """Return whether the rules choose a path, which ends with a slash if it is a folder; None if none matches.

        Args:
            path: with ``/`` between the names.
            within: whether a rule that matches a folder chooses all files in it.
        """
        names = path.rstrip("/").split("/")
        for parts, negated, only_folders in reversed(self.rules):
            # The parts that may match the next name.
            places = {0}
            for number, name in enumerate(names, 1):
                # ``**`` may stand for no folder at all.
                places |= {place + 1 for place in places if place < len(parts) and parts[place] is None}
                after = set()
                for place in places - {len(parts)}:
                    part = parts[place]
                    if part is None or part(name):
                        after.add(place + (part is not None))
                places, last = after, number == len(names)
                is_kind = not only_folders or not last or path.endswith("/")
                if len(parts) in places and (last or within) and is_kind:
                    return not negated
        return None


def _rule(line: str) -> Rule | None:
    text = line.rstrip("\r\n")
    bare = text.rstrip(" ")
    # An escaped space at the end belongs to the name.
    text = f"{bare} " if bare.endswith("\\") and bare != text else bare
    if not text or text.startswith("#") or len(text) > LONGEST_RULE:
        return None
    negated = text.startswith("!")
    text = text.removeprefix("!")
    only_folders = text.endswith("/")
    text = text.rstrip("/")
    names = text.lstrip("/").split("/")
    if not text.strip("/"):
        return None
    if "/" not in text:
        names.insert(0, "**")
    if names[-1] == "**":
        # Everything in a folder, but not the folder itself.
        names.append("*")
    parts = [None if name == "**" else _matcher(name) for name in names]
    # Two ``**`` in a row mean the same as one.
    parts = [part for place, part in enumerate(parts) if part is not None or not place or parts[place - 1] is not None]
    return Rule(parts, negated, only_folders)


def _matcher(name: str) -> Callable[[str], object]:
    """Return a test of whether a name matches a glob."""
    if not any(character in name for character in "*?[\\"):
        return name.__eq__
    # The regular expressions that Python makes of globs never backtrack, however many stars a glob has.
    return re.compile(fnmatch.translate(_PART.sub(_python, name))).match


def _python(part: re.Match[str]) -> str:
    """Return a part of a glob as Python writes it: with ``[!...]``, and with signs in brackets rather than escaped."""
    if part[2]:
        inside = re.sub(r"\\(.)", r"\1", part[2])
        return f"[{'!' if part[1] else ''}{inside}]"
    # A bracket that is never closed stands for itself.
    sign = part[3] or "["
    return f"[{sign}]" if sign in "*?[" else sign
