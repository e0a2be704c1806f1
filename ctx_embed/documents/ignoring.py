"""Rules like those of .gitignore, matched in time that is linear in the lengths of path and rule."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

# Rules with more characters are ignored: no path is that long.
LONGEST_RULE = 1000
_BRACKETS = re.compile(r"\[(!|\^)?(\]?(?:\\.|[^\]\\])*)\]")

# A test of whether a name matches; None stands for ``**``, any number of folders.
_Part = Callable[[str], object] | None


@dataclass(frozen=True)
class Rule:
    """A line of a .gitignore file.

    Args:
        parts: what each name in a path must match, starting in the folder of the rule.
        negated: whether matching files are included again.
        only_folders: whether it matches folders only.
    """

    parts: tuple[_Part, ...]
    negated: bool
    only_folders: bool

    def matches(self, names: list[str], is_folder: bool, within: bool) -> bool:
        """Return whether a path matches.

        Args:
            names: the names in the path: of its folders, and of the file.
            is_folder: whether the last name is a folder.
            within: whether the path also matches if one of its folders does.
        """
        end = len(self.parts)
        places = self._after_stars({0})
        for number, name in enumerate(names, 1):
            following = set()
            for place in places - {end}:
                part = self.parts[place]
                if part is None:
                    following.add(place)
                elif part(name):
                    following.add(place + 1)
            places = self._after_stars(following)
            last = number == len(names)
            if end in places and (last or within) and (not self.only_folders or is_folder or not last):
                return True
        return False

    def _after_stars(self, places: set[int]) -> set[int]:
        """Return the places, and for each at a ``**`` also the next place: ``**`` may stand for no folder at all."""
        for place in sorted(places):
            while place < len(self.parts) and self.parts[place] is None:
                place += 1
                places.add(place)
        return places


@dataclass(frozen=True)
class Rules:
    """The rules of one .gitignore file, or some globs; the last one that matches decides."""

    rules: tuple[Rule, ...]

    @classmethod
    def of(cls, lines: Iterable[str]) -> Rules:
        """Return the rules in some lines; blank lines and comments have none."""
        return cls(tuple(rule for line in lines if (rule := _rule(line)) is not None))

    def check(self, path: str, *, within: bool = False) -> bool | None:
        """Return whether the rules choose a path, which ends with a slash if it is a folder; None if none matches.

        Args:
            path: with ``/`` between the names.
            within: whether a rule that matches a folder chooses all files in it.
        """
        names = path.rstrip("/").split("/")
        is_folder = path.endswith("/")
        for rule in reversed(self.rules):
            if rule.matches(names, is_folder, within):
                return not rule.negated
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
    return Rule(tuple(parts), negated, only_folders)


def _matcher(name: str) -> Callable[[str], object]:
    """Return a test of whether a name matches a glob."""
    if not any(character in name for character in "*?[\\"):
        return name.__eq__
    # The regular expressions that Python makes of globs never backtrack, however many stars a glob has.
    return re.compile(fnmatch.translate(_python_glob(name))).match


def _python_glob(glob: str) -> str:
    r"""Return a glob in Python's form, which has ``[!...]`` but neither ``[^...]`` nor ``\``."""
    found = []
    place = 0
    while place < len(glob):
        brackets = _BRACKETS.match(glob, place)
        if brackets:
            inside = re.sub(r"\\(.)", r"\1", brackets[2])
            found.append(f"[{'!' if brackets[1] else ''}{inside}]")
            place = brackets.end()
        elif glob[place] == "\\" and place + 1 < len(glob):
            found.append(f"[{glob[place + 1]}]" if glob[place + 1] in "*?[" else glob[place + 1])
            place += 2
        else:
            # A bracket that is never closed stands for itself.
            found.append("[[]" if glob[place] == "[" else glob[place])
            place += 1
    return "".join(found)
