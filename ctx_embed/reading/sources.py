"""The files that inputs name (paths, folders, globs, URIs and standard input), and the report of those left out."""

from __future__ import annotations

import os
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from glob import glob, has_magic
from itertools import islice
from pathlib import Path

from ctx_embed.errors import MOST_EXAMPLES, InputError, missing_extra, shortened
from ctx_embed.reading.formats import EXTRA, FORMATS, format_of
from ctx_embed.reading.opening import STANDARD_INPUT, filesystem, is_remote, said, suffix_of
from ctx_embed.reading.walking import File, Rules, is_index, walk

# Suffixes of the files that are read from a folder; .json is not one of them, since such files are often settings.
FOLDER_SUFFIXES = (".txt", *(suffix for suffix, known in FORMATS.items() if known.rows and suffix != ".json"))
# The plural of some reasons in reports.
_PLURALS = {
    "search index": "search indexes",
    "link to a folder": "links to folders",
    "link out of the folder": "links out of the folder",
    "not a regular file": "not regular files",
}
# At most this number of files that could not be read are named.
NAMED = 10
# Maximum characters of a file's path in a message; a longer path is shortened in the middle.
SHOWN = 160


def _printable(text: str) -> str:
    # Names of files may contain line ends, escape sequences and bytes that are not UTF-8.
    return "".join(character if character.isprintable() else "?" for character in text)


@dataclass
class Report:
    """Which files were left out: counted by reason, or named.

    ``skipped`` counts files and folders by reason, of which ``examples`` names the first few; ``lacking`` counts files
    that need the extra ``documents`` by suffix; by path, ``failed`` says why files could not be read, and ``notes`` how
    files were read in another way than usual. ``remarks`` are about folders and globs.
    """

    skipped: Counter[str] = field(default_factory=Counter)
    examples: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    lacking: Counter[str] = field(default_factory=Counter)
    failed: dict[str, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)

    @property
    def left_out(self) -> str:
        """A message that says which files were not read, and why; empty if all were read."""
        said = []
        for reason, count in self.skipped.most_common():
            named = [shortened(source, SHOWN) for source in self.examples[reason]] + ["..."] * (count > MOST_EXAMPLES)
            said.append(f"{count} {_PLURALS.get(reason, reason) if count > 1 else reason} ({', '.join(named)})")
        parts = [f"skipped {', '.join(said)}"] if said else []
        for what, reasons in (("read", self.notes), ("could not read", self.failed)):
            named = [f"{shortened(source, SHOWN)} ({reason})" for source, reason in islice(reasons.items(), NAMED)]
            named += [f"{len(reasons) - NAMED} more"] if len(reasons) > NAMED else []
            parts += [f"{what} {', '.join(named)}"] if named else []
        if self.lacking:
            lacking = ", ".join(f"{count} {suffix}" for suffix, count in self.lacking.most_common())
            parts.append(str(missing_extra(f"left out {lacking}, whose reading", EXTRA)))
        return _printable("; ".join(parts))

    def print(self) -> None:
        """Print the remarks, and which files were not read, on standard error."""
        for line in filter(None, [*(f"Warning: {_printable(remark)}" for remark in self.remarks), self.left_out]):
            print(line, file=sys.stderr)

    def leave_out(self, source: str, reason: str, *, named: bool) -> None:
        """Record that a file was left out, by its name or only in a number."""
        if named:
            self.failed[source] = reason
        else:
            self.skipped[reason] += 1
            self.examples[reason] += [source] * (self.skipped[reason] <= MOST_EXAMPLES)


@dataclass(frozen=True)
class Source:
    """A file: its path or URI, its size in bytes, and the time of its last change in nanoseconds."""

    name: str
    size: int
    modified: int


def find_sources(inputs: Sequence[str | Path], report: Report | None = None) -> list[Source]:
    """Return the files that inputs name; ``-`` is standard input.

    Folders are walked, see :func:`~ctx_embed.reading.walking.walk`, and hold text, tables and JSONL; ``report`` gets
    their other files.
    """
    report = Report() if report is None else report
    files = [file for given in map(str, inputs) for file in (_remote if is_remote(given) else _local)(given, report)]
    if not files:
        raise InputError("no input: give a file, a folder, a glob, a URI or - (standard input)")
    if [file.name for file in files].count(STANDARD_INPUT) > 1:
        raise InputError("standard input is named twice, but can be read only once")
    return files


def _local(given: str, report: Report) -> Iterator[Source]:
    """Yield the files that an input names."""
    names = sorted(glob(given, recursive=True)) if has_magic(given) and not os.path.exists(given) else [given]
    if not names:
        raise InputError(f"{given}: no such file, and nothing matches it")
    for name in names:
        if os.path.isdir(name):
            yield from _folder(name, report)
        elif name == STANDARD_INPUT:
            yield Source(name, 0, 0)
        else:
            try:
                status = os.stat(name)
            except FileNotFoundError:
                raise InputError(f"{name}: no such file") from None
            except (OSError, ValueError) as error:
                raise InputError(f"{name}: cannot be read ({said(error)})") from None
            yield Source(name, status.st_size, status.st_mtime_ns)


def _folder(folder: str, report: Report) -> Iterator[Source]:
    """Yield the files of a folder that hold rows, and report the others."""
    if is_index(folder):
        raise InputError(f"{folder}: is a search index; write its documents with `ctx-embed index export`")
    found = False
    for each in walk(folder):
        name = os.path.join(folder, each.source)
        if not isinstance(each, File):
            report.leave_out(name, each.reason, named=each.failed)
        elif suffix_of(each.path) not in FOLDER_SUFFIXES:
            report.leave_out(name, "not read in a folder: name the file", named=True)
        elif not format_of(each.path).installed:
            report.lacking[suffix_of(each.path)] += 1
        else:
            found = True
            yield Source(each.path, each.size, each.modified)
    if not found:
        left_out = f"; {report.left_out}" if report.left_out else ""
        raise InputError(f"{folder}: a folder must hold a file ending in {', '.join(FOLDER_SUFFIXES)}{left_out}")


def _remote(name: str, report: Report) -> Iterator[Source]:
    from pyarrow import fs

    address, question, options = name.partition("?")
    scheme = address.partition("://")[0]
    steps = address.split("/")
    magic = next((place for place, step in enumerate(steps) if has_magic(step)), None)
    files, root = filesystem("/".join(steps[:magic]) + question + options)
    try:
        info = files.get_file_info(root)
        if info.type == fs.FileType.File:
            infos = [info]
        else:
            infos = files.get_file_info(fs.FileSelector(root, recursive=True, allow_not_found=True))
    except OSError as error:
        raise InputError(f"{name}: cannot be read ({said(error)})") from None
    found = []
    # Paths are compared below the folder, in which the rule of a glob stands at the top.
    rules = None if magic is None else Rules([f"/{'/'.join(steps[magic:])}"])
    for each in sorted((each for each in infos if each.type == fs.FileType.File), key=lambda each: str(each.path)):
        inner = each.path.removeprefix(root).lstrip("/")
        if infos == [info] or (rules is not None and rules.check(inner)):
            found.append(each)
        elif rules is None and "/." in f"/{inner}":
            report.leave_out(each.path, "hidden", named=False)
        elif rules is None and suffix_of(each.path) in FOLDER_SUFFIXES:
            found.append(each)
        elif rules is None:
            report.leave_out(each.path, "not read in a folder: name the file", named=True)
    if not found:
        raise InputError(f"{name}: no such file, and no file in it that ends in {', '.join(FOLDER_SUFFIXES)}")
    for each in found:
        yield Source(f"{scheme}://{each.path}{question}{options}", int(each.size or 0), int(each.mtime_ns or 0))
