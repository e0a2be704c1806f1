"""List the files of a folder, sorted and in bounded memory, without hidden, ignored and excluded files."""

import fnmatch
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from ctx_embed.errors import InputError, quoted
from ctx_embed.files import PathInside, open_regular

GENERATED = "generated"
# The plural of some reasons in reports.
PLURALS = {
    "search index": "search indexes",
    "link to a folder": "links to folders",
    "link out of the folder": "links out of the folder",
    "not a regular file": "not regular files",
}
# A folder with this file is a search index.
_INDEX_FILE = "index.sqlite"
# Names of files that programs write for programs: minified code, source maps, lists of versions, message classes.
_GENERATED = re.compile(
    r".*\.min\.(?:js|mjs|css)|.*\.(?:js|mjs|css)\.map|.*_pb2(?:_grpc)?\.pyi?|.*\.pb\.(?:go|cc|h)|go\.sum|npm-shrinkwrap\.json"
    r"|(?:package-lock|composer-lock)\.json|pnpm-lock\.yaml|(?:yarn|poetry|uv|pdm|Pipfile|Cargo|composer|Gemfile|flake)\.lock"
)
# Maximum number of lines to read from a .gitignore file.
_MOST_RULES = 10_000
# The latest time that 64-bit nanoseconds can store, in the year 2262; later times are stored as this one.
_LATEST = 2**63 - 1
# Rules with more characters are ignored: no path is that long.
LONGEST_RULE = 1000
# A pair of brackets, an escaped character, or all that follows a bracket that is never closed.
_PART = re.compile(r"\[([!^])?(\]?(?:\\.|[^\]\\])*)\]|\\(.)|\[.*", re.DOTALL)


class Rules:
    """The rules of one .gitignore file, or some globs; the last rule that matches decides.

    A rule is a test for each name of a path (None stands for ``**``), and whether it is negated or for folders alone.
    """

    def __init__(self, lines: Iterable[str]) -> None:
        self.rules: list[tuple[list[Callable[[str], object] | None], bool, bool]] = []
        for line in lines:
            text = line.rstrip("\r\n")
            bare = text.rstrip(" ")
            # An escaped space at the end belongs to the name.
            text = f"{bare} " if bare.endswith("\\") and bare != text else bare
            if not text or text.startswith("#") or len(text) > LONGEST_RULE:
                continue
            negated = text.startswith("!")
            text = text.removeprefix("!")
            only_folders = text.endswith("/")
            text = text.rstrip("/")
            names = text.lstrip("/").split("/")
            if not text.strip("/"):
                continue
            if "/" not in text:
                names.insert(0, "**")
            if names[-1] == "**":
                # Everything in a folder, but not the folder itself.
                names.append("*")
            parts: list[Callable[[str], object] | None] = []
            for name in names:
                if name == "**":
                    # Two ``**`` in a row mean the same as one.
                    parts += [None] if not parts or parts[-1] is not None else []
                elif any(character in name for character in "*?[\\"):
                    # The regular expressions that Python makes of globs never backtrack, however many stars there are.
                    parts.append(re.compile(fnmatch.translate(_PART.sub(_python, name))).match)
                else:
                    parts.append(name.__eq__)
            self.rules.append((parts, negated, only_folders))

    def check(self, path: str, *, within: bool = False) -> bool | None:
        """Return whether the rules choose a path, which ends with a slash if it is a folder; None if none matches.

        With ``within``, a rule that matches a folder chooses all files in it. The time is linear in path and rule.
        """
        names = path.rstrip("/").split("/")
        for parts, negated, only_folders in reversed(self.rules):
            # The parts of the rule that may match the next name.
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


def _python(part: re.Match[str]) -> str:
    """Return a part of a glob in Python's syntax, which negates with ``[!...]`` and escapes with brackets only."""
    if part[2]:
        inside = re.sub(r"\\(.)", r"\1", part[2])
        return f"[{'!' if part[1] else ''}{inside}]"
    if part[3]:
        return _literal(part[3])
    # A bracket that is never closed stands for itself, and so do all after it.
    return re.sub(r"\\(.)|\[", lambda sign: _literal(sign[1] or "["), part[0], flags=re.DOTALL)


def _literal(character: str) -> str:
    return f"[{character}]" if character in "*?[" else character


class File(NamedTuple):
    """A file: its path inside the folder, with ``/``, its size, and its last change in nanoseconds since 1970.

    ``inode`` and ``changed`` (the system's own time of a change, which no program sets) show an edit that keeps both.
    """

    path: str
    source: str
    size: int
    modified: int
    inode: int
    changed: int

    @classmethod
    def of(cls, path: str, source: str, found: os.stat_result) -> "File":
        """Return a file with what the system says of it, as 64-bit integers can store it."""
        modified = max(-_LATEST, min(found.st_mtime_ns, _LATEST))
        return cls(path, source, found.st_size, modified, found.st_ino & _LATEST, found.st_ctime_ns & _LATEST)


class Skipped(NamedTuple):
    """A file or folder that was left out, with its path inside the folder."""

    source: str
    reason: str
    # Whether it is a folder that could not be listed; its files are then unknown.
    unreadable: bool = False
    # Whether reading it was attempted and failed; a message then names it.
    failed: bool = False


# The .gitignore files that apply: the folder of each, and its patterns.
_Rules = tuple[tuple[str, Rules], ...]


def patterns(globs: Sequence[str]) -> Callable[[str], bool] | None:
    """Return a test of whether a path within a folder matches globs, written as in .gitignore; None without globs."""
    if not globs:
        return None
    for glob in globs:
        if not Rules([glob]).rules:
            raise InputError(f"--include and --exclude must be globs such as '*.md', got {quoted(glob)}")
    rules = Rules(globs)
    return lambda path: rules.check(path, within=True) is True


def is_index(folder: str | Path) -> bool:
    """Return whether a folder is a search index."""
    return os.path.isfile(os.path.join(folder, _INDEX_FILE))


def walk(
    folder: str | Path, include: Sequence[str] = (), exclude: Sequence[str] = (), follow_links: bool = False
) -> Iterator[File | Skipped]:
    """Yield the regular files of a folder and what is skipped, sorted by ``source`` (by code points).

    It skips hidden files, search indexes, files that a .gitignore in the folder names and, without ``include``, files
    whose names say that a program wrote them. It follows links to files in the folder, with ``follow_links`` also to
    files outside, but never links to folders. Globs are as in .gitignore.
    """
    included, excluded = patterns(include), patterns(exclude)
    root = os.path.join(os.path.realpath(folder), "")
    try:
        listings = list(filter(None, [_listing(os.fspath(folder), "", ())]))
    except OSError as error:
        raise InputError(f"{folder}: cannot be listed ({error.strerror})") from None
    while listings:
        rules, entries = listings[-1]
        found = next(entries, None)
        if found is None:
            listings.pop()
            continue
        entry, source, is_folder = found
        named = f"{source}/" if is_folder else source
        said = (rule.check(named[len(prefix) :]) for prefix, rule in reversed(rules))
        # The names of office programs' lock files begin with ~$.
        if entry.name.startswith((".", "~$")):
            yield Skipped(source, "hidden")
        elif source.encode("utf-8", "replace").decode() != source:
            yield Skipped(source, "its name is not UTF-8", failed=True)
        elif next((ignored for ignored in said if ignored is not None), False):
            yield Skipped(source, "ignored by .gitignore")
        elif excluded is not None and excluded(named):
            yield Skipped(source, "excluded")
        elif is_folder:
            try:
                listing = _listing(entry.path, f"{source}/", rules)
            except OSError as error:
                yield Skipped(source, f"cannot be listed ({error.strerror})", unreadable=True, failed=True)
                continue
            if listing is None:
                yield Skipped(source, "search index")
            else:
                listings.append(listing)
        elif included is not None and not included(source):
            yield Skipped(source, "not included")
        elif included is None and _GENERATED.fullmatch(entry.name):
            yield Skipped(source, GENERATED)
        else:
            try:
                is_link = not follow_links and entry.is_symlink()
                leaves = is_link and not os.path.realpath(entry.path).startswith(root)
                status = None if leaves else entry.stat()
            except OSError as error:
                yield Skipped(source, f"cannot be read ({error.strerror})", failed=True)
                continue
            if status is None:
                yield Skipped(source, "link out of the folder")
            elif stat.S_ISREG(status.st_mode):
                path = PathInside(entry.path, "" if follow_links else root)
                yield File.of(path, source, status)
            else:
                yield Skipped(source, "link to a folder" if stat.S_ISDIR(status.st_mode) else "not a regular file")


def _listing(
    path: str, prefix: str, rules: _Rules
) -> tuple[_Rules, Iterator[tuple[os.DirEntry[str], str, bool]]] | None:
    """Return the rules that hold in a folder and its sorted entries; None for a search index inside the folder."""
    with os.scandir(path) as scanned:
        entries = [(entry, entry.is_dir(follow_symlinks=False)) for entry in scanned]
    names = {entry.name for entry, _ in entries}
    if prefix and _INDEX_FILE in names:
        return None
    if ".gitignore" in names:
        # Like git, ignore a .gitignore file that cannot be read.
        with suppress(OSError), open_regular(os.path.join(path, ".gitignore")) as file:
            lines = file.read(_MOST_RULES * 100).decode("utf-8", "replace").split("\n")
            rules = (*rules, (prefix, Rules(islice(lines, _MOST_RULES))))
    # Add a slash to the name of a folder, so that it sorts like the paths of its files.
    ordered = sorted((f"{entry.name}/" if is_folder else entry.name, entry, is_folder) for entry, is_folder in entries)
    return rules, ((entry, f"{prefix}{entry.name}", is_folder) for _, entry, is_folder in ordered)
