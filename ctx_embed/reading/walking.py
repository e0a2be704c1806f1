"""List the files of a folder, sorted and in bounded memory, without hidden, ignored and excluded files."""

import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

from ctx_embed.errors import InputError, quoted
from ctx_embed.files import PathInside, open_regular
from ctx_embed.texts import composed

GENERATED = "generated"
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
# The signs of a glob: a set, which begins with any character and may hold classes, an escaped character, or any other.
_SIGN = re.compile(
    r"\[(?P<negated>[!^]?)(?P<set>\]?(?:\[:[^\]]*:\]|\\.|[^\]\\])*)\]|\\(?P<escaped>.)|(?P<plain>[^\[\\])", re.DOTALL
)
_SPACES = re.compile(r"\A((?:\\.|[^\\])*?) +\Z", re.DOTALL)
_GLUED = re.compile(r"([^*?\[\\]*[^*?\[\\/])\*\*+(?:/|\Z)(.*)", re.DOTALL)
_MEMBER = re.compile(r"\[:([^\]]*):\]|\\?(.)(?:-\\?((?!\Z).))?", re.DOTALL)
_CLASSES = {
    "alnum": "0-9A-Za-z",
    "alpha": "A-Za-z",
    "blank": " \\t",
    "cntrl": "\\x00-\\x1f\\x7f",
    "digit": "0-9",
    "graph": "!-~",
    "lower": "a-z",
    "print": " -~",
    "punct": "!-/:-@\\[-`{-~",
    "space": " \\t-\\r",
    "upper": "A-Z",
    "xdigit": "0-9A-Fa-f",
}


class Rules:
    """The rules of one .gitignore file, or some globs; the last rule that matches decides.

    A rule is a test for each name of a path (None stands for ``**``), and whether it is negated or for folders alone.
    As in git, a rule with a set that is never closed or a backslash at its end matches nothing.
    """

    def __init__(self, lines: Iterable[str]) -> None:
        self.rules: list[tuple[list[Callable[[str], object] | None], bool, bool]] = []
        for line in lines:
            text = line.removesuffix("\n").removesuffix("\r")
            if not text or text.startswith("#") or len(text) > LONGEST_RULE:
                continue
            # An escaped space at the end belongs to the name.
            text = _SPACES.sub(r"\1", text)
            negated = text.startswith("!")
            text = text.removeprefix("!")
            only_folders = text.endswith("/")
            text = text.removesuffix("/")
            # Two stars after the letters that begin a path may stand for slashes.
            if "/" in text and (glued := _GLUED.fullmatch(text)):
                begin, rest = glued.groups()
                texts = [f"{begin}*/**/{rest}", f"{begin}{rest}"] if rest else [f"{begin}*", f"{begin}*/**"]
            else:
                texts = [text]
            for each in texts:
                names = _names(each.removeprefix("/"))
                if names is None or not each:
                    continue
                if "/" not in each:
                    names.insert(0, "**")
                if names[-1] == "**":
                    # Everything in a folder, but not the folder itself.
                    names.append("*")
                parts: list[Callable[[str], object] | None] = []
                for name in names:
                    # Two ``**`` in a row mean the same as one.
                    if name != "**":
                        parts.append(_test(name))
                    elif not parts or parts[-1] is not None:
                        parts.append(None)
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


def _names(rule: str) -> list[str] | None:
    """Return the parts of a rule between slashes, not those in sets; None if it matches nothing."""
    names, stop = [""], 0
    for sign in _SIGN.finditer(rule):
        if sign.start() > stop:
            return None
        stop = sign.end()
        if sign[0] == "/":
            names.append("")
        else:
            names[-1] += sign[0]
    return [re.sub(r"\A\*{3,}\Z", "**", name) for name in names] if stop == len(rule) else None


def _test(name: str) -> Callable[[str], object]:
    """Return a test for a name of a path. It never backtracks, however many stars there are."""
    # The regular expressions between stars.
    between = [""]
    for sign in _SIGN.finditer(name):
        if sign["plain"] == "*":
            between.append("")
        elif sign["set"] is None:
            between[-1] += "." if sign["plain"] == "?" else re.escape(sign["escaped"] or sign["plain"])
        else:
            members = ""
            for named, first, last in _MEMBER.findall(sign["set"]):
                # The first letter of a range counts even if the last one comes before it.
                members += f"{re.escape(first)}-{re.escape(max(first, last))}" if first else _CLASSES.get(named, "")
            matched = f"[{members}]" if members else r"[^\s\S]"
            between[-1] += f"(?!{matched})." if sign["negated"] else matched
    begin, *others = between
    # Each part is looked for once: its first place after a star is as good as any other.
    inner = "".join(f"(?=(?P<g{number}>.*?{part}))(?P=g{number})" for number, part in enumerate(others[:-1]) if part)
    end = f".*{others[-1]}" if others else ""
    return re.compile(rf"{begin}{inner}{end}\Z", re.DOTALL).match


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


class Globs:
    """Globs written as in .gitignore, of paths within a folder; ``unused`` are those that have matched none so far."""

    def __init__(self, globs: Sequence[str]) -> None:
        # In a shell, ./ stands for the folder itself.
        self._rules = {glob: Rules([re.sub(r"\A(!?)(?:\./)+", r"\1/", composed(glob))]) for glob in globs}
        self.unused = list(self._rules)
        for glob, rules in self._rules.items():
            if not rules.rules:
                raise InputError(f"--include and --exclude must be globs such as '*.md', got {quoted(glob)}")

    def match(self, path: str) -> bool:
        """Return whether the last glob that matches a path, if any, is not negated."""
        path, chosen = composed(path), False
        for glob, rules in self._rules.items():
            if (matched := rules.check(path, within=True)) is not None:
                chosen = matched
                self.unused = [each for each in self.unused if each != glob]
        return chosen


def _octets(text: str) -> str:
    """Return a character for each byte of a name, which git compares: its ``?`` is a byte."""
    return text if text.isascii() else composed(text).encode("utf-8", "surrogateescape").decode("latin-1")


def is_index(folder: str | Path) -> bool:
    """Return whether a folder is a search index."""
    return os.path.isfile(os.path.join(folder, _INDEX_FILE))


def walk(
    folder: str | Path,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    follow_links: bool = False,
    remarks: list[str] | None = None,
) -> Iterator[File | Skipped]:
    """Yield the regular files of a folder and what is skipped, sorted by ``source`` (in NFC, by code points).

    It skips hidden files, search indexes, files that a .gitignore in the folder names and, without ``include``, files
    whose names say that a program wrote them. It follows links to files in the folder, with ``follow_links`` also to
    files outside, but never links to folders. Globs are as in .gitignore; ``remarks`` get those that match nothing.
    """
    included, excluded = Globs(include), Globs(exclude)
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
            if not listings and remarks is not None:
                remarks += [f"--include {quoted(glob)} matches no file" for glob in included.unused]
                remarks += [f"--exclude {quoted(glob)} matches nothing" for glob in excluded.unused]
            continue
        entry, source, is_folder, is_twin = found
        named = f"{source}/" if is_folder else source
        is_excluded = excluded.match(named)
        said = (rule.check(_octets(named[len(prefix) :])) for prefix, rule in reversed(rules))
        # The names of office programs' lock files begin with ~$.
        if entry.name.startswith((".", "~$")):
            yield Skipped(source, "hidden")
        elif source.encode("utf-8", "replace").decode() != source:
            yield Skipped(source, "its name is not UTF-8", failed=True)
        elif is_twin:
            yield Skipped(source, "another name differs only in how its accents are written", failed=True)
        elif next((ignored for ignored in said if ignored is not None), False):
            yield Skipped(source, "ignored by .gitignore")
        elif is_excluded:
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
        elif include and not included.match(source):
            yield Skipped(source, "not included")
        elif not include and _GENERATED.fullmatch(entry.name):
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
) -> tuple[_Rules, Iterator[tuple[os.DirEntry[str], str, bool, bool]]] | None:
    """Return the rules that hold in a folder and its sorted entries; None for a search index inside the folder.

    An entry has its path in NFC, whether it is a folder, and whether the one before has the same path in NFC.
    """
    with os.scandir(path) as scanned:
        entries = [(entry, entry.is_dir(follow_symlinks=False)) for entry in scanned]
    names = {entry.name for entry, _ in entries}
    if prefix and _INDEX_FILE in names:
        return None
    if ".gitignore" in names:
        # Like git, ignore a .gitignore file that cannot be read.
        with suppress(OSError), open_regular(os.path.join(path, ".gitignore")) as file:
            lines = file.read(_MOST_RULES * 100).decode("utf-8-sig", "surrogateescape").split("\n")
            rules = (*rules, (prefix, Rules(map(_octets, islice(lines, _MOST_RULES)))))
    # Add a slash to the name of a folder, so that it sorts like the paths of its files.
    ordered = sorted((composed(entry.name) + "/" * folder, entry.name, entry, folder) for entry, folder in entries)
    before = chain([""], (name for name, *_ in ordered))
    return rules, (
        (entry, f"{prefix}{name.rstrip('/')}", folder, name == last)
        for last, (name, _, entry, folder) in zip(before, ordered, strict=False)
    )
