"""The files that inputs name: files, folders, globs and URIs."""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
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
    files: list[str] = []
    for given in inputs:
        name = str(given)
        files += [source.name for source in _remote(name)] if is_remote(name) else _local(name)
    if not files:
        raise InputError("no input: give a file, a folder, a glob, a URI or - (standard input)")
    if files.count(STANDARD_INPUT) > 1:
        raise InputError("standard input is named twice, but can be read only once")
    return files


def find_sources(inputs: Sequence[str | Path]) -> list[Source]:
    """Return the files that inputs name, as :func:`expanded` does, but each only once.

    Raises:
        InputError: a file does not exist, or is standard input. See also :func:`expanded`.
    """
    found: dict[str, Source] = {}
    if STANDARD_INPUT in map(str, inputs):
        raise InputError("standard input cannot be read twice, so encoding to a store needs files")
    for given in inputs:
        name = str(given)
        for source in _remote(name) if is_remote(name) else map(_source, _local(name)):
            found.setdefault(source.name, source)
    if not found:
        raise InputError("no input: give a file, a folder, a glob or a URI")
    return list(found.values())


def is_inside(name: str, folder: str) -> bool:
    """Return whether a file lies in a folder. Both are paths, or both are URIs."""
    if is_remote(name) or is_remote(folder):
        return name.startswith(folder.rstrip("/") + "/")
    return os.path.abspath(name).startswith(os.path.join(os.path.abspath(folder), ""))


def _source(file: str) -> Source:
    try:
        status = os.stat(file)
    except FileNotFoundError:
        raise InputError(f"{file}: no such file") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{file}: cannot be read ({error})") from None
    return Source(file, status.st_size, status.st_mtime_ns)


def _local(name: str) -> list[str]:
    names = [name]
    if has_magic(name) and not os.path.exists(name):
        names = sorted(glob(name, recursive=True))
        if not names:
            raise InputError(f"{name}: no such file, and nothing matches it")
    files: list[str] = []
    for each in names:
        if each != STANDARD_INPUT and os.path.isdir(each):
            found = sorted(_files_of(each))
            if not found:
                raise InputError(f"{each}: a folder must hold a file ending in {', '.join(FOLDER_SUFFIXES)}")
            files += found
        else:
            files.append(each)
    return files


def _files_of(source: str) -> Iterator[str]:
    """Yield the regular files of a folder, without hidden ones and links that lead out of it."""
    top = os.path.join(os.path.realpath(source), "")
    for folder, inner, names in os.walk(source):
        inner[:] = [name for name in inner if not name.startswith(".")]
        for name in names:
            path = os.path.join(folder, name)
            if suffix_of(name) not in FOLDER_SUFFIXES or name.startswith(".") or not os.path.isfile(path):
                continue
            if not os.path.islink(path) or os.path.realpath(path).startswith(top):
                yield PathInside(path, top)


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
        matching = _pattern("/".join([root.rstrip("/"), *steps[magic:]]))
        infos = [each for each in infos if matching.fullmatch(each.path)]
    elif infos != [info]:
        infos = [each for each in infos if suffix_of(each.path) in FOLDER_SUFFIXES and not _hidden(each.path, root)]
    if not infos:
        raise InputError(f"{name}: no such file, and no file in it that ends in {', '.join(FOLDER_SUFFIXES)}")
    for each in sorted(infos, key=lambda each: str(each.path)):
        yield Source(f"{scheme}://{each.path}{question}{options}", int(each.size or 0), int(each.mtime_ns or 0))


def _hidden(path: str, root: str) -> bool:
    return any(step.startswith(".") for step in path.removeprefix(root).split("/"))


def _pattern(path: str) -> re.Pattern[str]:
    """Return the regular expression of a glob, in which ``*`` matches within a folder and ``**/`` across folders."""
    parts = re.split(r"(\*\*/|\*|\?)", path)
    meanings = {"**/": "(?:.*/)?", "*": "[^/]*", "?": "[^/]"}
    return re.compile("".join(meanings.get(part, re.escape(part)) for part in parts))


def estimated_count(files: Sequence[str]) -> int | None:
    """Estimate the number of rows of files from their sizes and first lines; return None if that is impossible."""
    total = 0.0
    for file in files:
        if not os.path.isfile(file):
            return None
        rows = _rows_of_parquet(file) if kind_of(file) == PARQUET else _estimated_lines(file)
        if rows is None:
            return None
        total += rows
    return round(total) or None


def _estimated_lines(file: str) -> float | None:
    with open(file, "rb") as opened:
        sample = opened.read(_SAMPLED_BYTES)
    packed = len(sample)
    if sample[:2] == GZIP_MAGIC:
        try:
            sample = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(sample)
        except zlib.error:
            return None
    lines = sum(1 for line in sample.split(b"\n") if line.strip())
    return lines * os.path.getsize(file) / max(packed, 1)


def _rows_of_parquet(file: str) -> int | None:
    """Return the number of rows that a Parquet file states; None if it is damaged."""
    with suppress(InputError), opened(file) as stream, open_parquet(file, stream) as table:
        return int(table.metadata.num_rows)
    return None
