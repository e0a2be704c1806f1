"""The files that inputs name: files, folders, globs and URIs."""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from glob import glob, has_magic
from pathlib import Path

from ctx_embed.errors import InputError
from ctx_embed.files import PathInside
from ctx_embed.rows.opening import GZIP_MAGIC, STANDARD_INPUT, filesystem, is_remote, opened, said, suffix_of
from ctx_embed.rows.table import PARQUET, kind_of, open_parquet

# Suffixes of the files that are read from a folder; .json is not one of them, since such files are often settings.
FOLDER_SUFFIXES = (".txt", ".jsonl", ".ndjson", ".csv", ".tsv", ".parquet")
_SAMPLED_BYTES = 1 << 20


@dataclass(frozen=True)
class Source:
    """A file.

    Args:
        name: its path or URI; ids derived from rows begin with it.
        size: in bytes.
        modified: the time of its last change, in nanoseconds.
    """

    name: str
    size: int
    modified: int


def expanded(inputs: Sequence[str | Path]) -> list[str]:
    """Return the files that inputs name: files, folders, globs and URIs; ``-`` is standard input.

    The files of a folder are sorted; hidden ones are left out.

    Raises:
        InputError: no input, a folder without files that can be read, a glob that matches none, or standard input named
            twice.
    """
    files = [name for given in inputs for name in _names(str(given))]
    if not files:
        raise InputError("no input: give a file, a folder, a glob, a URI or - (standard input)")
    if files.count(STANDARD_INPUT) > 1:
        raise InputError("standard input is named twice, but can be read only once")
    return files


def find_sources(inputs: Sequence[str | Path]) -> list[Source]:
    """Return the files that inputs name, as :func:`expanded` does, but each only once, and not standard input."""
    if STANDARD_INPUT in map(str, inputs):
        raise InputError("standard input cannot be read twice, so encoding to a store needs files")
    found = [source for given in inputs for source in _found(str(given))]
    if not found:
        raise InputError("no input: give a file, a folder, a glob or a URI")
    return list({source.name: source for source in found}.values())


def is_inside(name: str, folder: str) -> bool:
    """Return whether a file lies in a folder. Both are paths, or both are URIs."""
    if is_remote(name) or is_remote(folder):
        return name.startswith(folder.rstrip("/") + "/")
    return os.path.abspath(name).startswith(os.path.join(os.path.abspath(folder), ""))


def _found(name: str) -> Iterator[Source]:
    if is_remote(name):
        yield from _remote(name)
        return
    for file in _names(name):
        try:
            status = os.stat(file)
        except FileNotFoundError:
            raise InputError(f"{file}: no such file") from None
        except (OSError, ValueError) as error:
            raise InputError(f"{file}: cannot be read ({error})") from None
        yield Source(file, status.st_size, status.st_mtime_ns)


def _names(given: str) -> Iterator[str]:
    """Yield the files that an input names; of a folder the regular ones, not hidden, without links out of it."""
    if is_remote(given):
        yield from (source.name for source in _remote(given))
        return
    names = sorted(glob(given, recursive=True)) if has_magic(given) and not os.path.exists(given) else [given]
    if not names:
        raise InputError(f"{given}: no such file, and nothing matches it")
    for each in names:
        if each == STANDARD_INPUT or not os.path.isdir(each):
            yield each
            continue
        found, top = [], os.path.join(os.path.realpath(each), "")
        for folder, inner, files in os.walk(each):
            inner[:] = [name for name in inner if not name.startswith(".")]
            for name in files:
                path = os.path.join(folder, name)
                is_wanted = suffix_of(name) in FOLDER_SUFFIXES and not name.startswith(".") and os.path.isfile(path)
                if is_wanted and (not os.path.islink(path) or os.path.realpath(path).startswith(top)):
                    found.append(PathInside(path, top))
        if not found:
            raise InputError(f"{each}: a folder must hold a file ending in {', '.join(FOLDER_SUFFIXES)}")
        yield from sorted(found)


def _remote(name: str) -> Iterator[Source]:
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
    infos = [each for each in infos if each.type == fs.FileType.File]
    if magic is not None:
        # ``*`` matches within a folder, ``**/`` across folders.
        parts = re.split(r"(\*\*/|\*|\?)", "/".join([root.rstrip("/"), *steps[magic:]]))
        meanings = {"**/": "(?:.*/)?", "*": "[^/]*", "?": "[^/]"}
        matching = re.compile("".join(meanings.get(part, re.escape(part)) for part in parts))
        infos = [each for each in infos if matching.fullmatch(each.path)]
    elif infos != [info]:
        infos = [
            each
            for each in infos
            if suffix_of(each.path) in FOLDER_SUFFIXES and "/." not in f"/{each.path.removeprefix(root)}"
        ]
    if not infos:
        raise InputError(f"{name}: no such file, and no file in it that ends in {', '.join(FOLDER_SUFFIXES)}")
    for each in sorted(infos, key=lambda each: str(each.path)):
        yield Source(f"{scheme}://{each.path}{question}{options}", int(each.size or 0), int(each.mtime_ns or 0))


def estimated_count(files: Sequence[str]) -> int | None:
    """Estimate the number of rows of files from their sizes and first lines; return None if that is impossible."""
    total = 0.0
    for file in files:
        if not os.path.isfile(file):
            return None
        try:
            with opened(file) as stream:
                if kind_of(file) == PARQUET:
                    with open_parquet(file, stream) as table:
                        total += table.metadata.num_rows
                    continue
                sample = stream.read(_SAMPLED_BYTES)
                unpacked = zlib.decompressobj(31).decompress(sample) if sample[:2] == GZIP_MAGIC else sample
        except (InputError, zlib.error):
            return None
        lines = sum(1 for line in unpacked.split(b"\n") if line.strip())
        total += lines * os.path.getsize(file) / max(len(sample), 1)
    return round(total) or None
