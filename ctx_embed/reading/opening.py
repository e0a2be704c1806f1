"""The files that inputs name (paths, folders, globs, URIs and standard input), opened as streams of bytes."""

from __future__ import annotations

import gzip
import io
import os
import re
import sys
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from glob import glob, has_magic
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ctx_embed.errors import InputError, naming_left_out, without_secrets
from ctx_embed.files import POINTER, PathInside, is_pointer, open_regular

if TYPE_CHECKING:
    from pyarrow import fs

GZIP_MAGIC = b"\x1f\x8b"
BROKEN_GZIP = (EOFError, gzip.BadGzipFile, zlib.error)
STANDARD_INPUT = "-"
# Suffixes of the files that are read from a folder; .json is not one of them, since such files are often settings.
FOLDER_SUFFIXES = (".txt", ".jsonl", ".ndjson", ".csv", ".tsv", ".parquet", ".xlsx", ".xlsm", ".xlsb", ".xls", ".ods")
_BUFFER_BYTES = 1 << 16


def source_name(source: str | Path) -> str:
    """Return the name of a source for messages."""
    return "standard input" if str(source) == STANDARD_INPUT else str(source)


def suffix_of(source: str | Path) -> str:
    """Return the suffix that names a file's format, in lower case: the one before ``.gz``."""
    name = str(source)
    address = name.partition("?")[0] if is_remote(name) else name
    return os.path.splitext(address.lower().removesuffix(".gz"))[1]


def is_remote(source: str | Path) -> bool:
    """Return whether a source is a URI such as ``s3://bucket/file``."""
    return "://" in str(source)


def filesystem(path: str) -> tuple[fs.FileSystem, str]:
    """Return the file system of a path or of a URI such as ``s3://bucket/folder``, and the path in it."""
    with naming_left_out(without_secrets(path)):
        import pyarrow
        from pyarrow import fs
    if not is_remote(path):
        return fs.LocalFileSystem(), os.path.abspath(path)
    try:
        found, inner = fs.FileSystem.from_uri(path)
    except (pyarrow.ArrowException, OSError, ValueError, ImportError) as error:
        raise InputError(f"{without_secrets(path)}: cannot be reached ({said(error)})") from None
    return found, inner


def said(error: BaseException) -> str:
    """Return the message of an error in one line, shortened."""
    return getattr(error, "strerror", None) or f"{' '.join(without_secrets(str(error)).split()):.200}"


@contextmanager
def opened(source: str | Path) -> Iterator[io.BufferedReader]:
    """Yield a source as a buffered binary stream, which can seek unless it is standard input or a pipe."""
    if str(source) == STANDARD_INPUT:
        if sys.stdin is None:
            raise InputError("standard input is closed")
        try:
            # Use a separate buffer: at exit Python closes that of sys.stdin, while a thread may still wait for a line.
            stdin: Any = open(sys.stdin.fileno(), "rb", closefd=False)  # noqa: SIM115
        except (OSError, ValueError):
            stdin = sys.stdin.buffer
        yield stdin if hasattr(stdin, "peek") else io.BufferedReader(stdin, _BUFFER_BYTES)
        return
    try:
        if is_remote(source):
            files, path = filesystem(str(source))
            stream: Any = files.open_input_file(path)
        elif os.path.isdir(source):
            raise InputError(f"{source}: must be a file, got a folder")
        else:
            # A regular file must not block, as some in /proc would; a pipe may.
            stream = open_regular(source) if os.path.isfile(source) else open(source, "rb")  # noqa: SIM115
    except FileNotFoundError:
        raise InputError(f"{source}: no such file") from None
    except InputError:
        raise
    except (OSError, ValueError) as error:
        raise InputError(f"{source}: cannot be read ({said(error)})") from None
    with stream:
        buffered = stream if hasattr(stream, "peek") else io.BufferedReader(stream, _BUFFER_BYTES)
        if stream.seekable() and is_pointer(buffered):
            raise InputError(f"{source}: {POINTER}")
        yield buffered


def is_packed(stream: io.BufferedReader) -> bool:
    """Return whether a stream begins like gzip."""
    return stream.peek(2)[:2] == GZIP_MAGIC


def unpacked(stream: io.BufferedReader) -> io.BufferedReader:
    """Return a stream, decompressed if it begins like gzip."""
    return cast("io.BufferedReader", gzip.GzipFile(fileobj=stream)) if is_packed(stream) else stream


@dataclass(frozen=True)
class Source:
    """A file: its path or URI, its size in bytes, and the time of its last change in nanoseconds."""

    name: str
    size: int
    modified: int


def find_sources(inputs: Sequence[str | Path]) -> list[Source]:
    """Return the files that inputs name. Files of a folder are sorted, without hidden ones; ``-`` is standard input."""
    files = [file for given in map(str, inputs) for file in (_remote if is_remote(given) else _local)(given)]
    if not files:
        raise InputError("no input: give a file, a folder, a glob, a URI or - (standard input)")
    if [file.name for file in files].count(STANDARD_INPUT) > 1:
        raise InputError("standard input is named twice, but can be read only once")
    return files


def _local(given: str) -> Iterator[Source]:
    """Yield the files that an input names; for a folder its regular files, without hidden files and links out of it."""
    names = sorted(glob(given, recursive=True)) if has_magic(given) and not os.path.exists(given) else [given]
    if not names:
        raise InputError(f"{given}: no such file, and nothing matches it")
    for each in names:
        found = [each]
        if os.path.isdir(each):
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
        for path in sorted(found):
            if path == STANDARD_INPUT:
                yield Source(path, 0, 0)
                continue
            try:
                status = os.stat(path)
            except FileNotFoundError:
                raise InputError(f"{path}: no such file") from None
            except (OSError, ValueError) as error:
                raise InputError(f"{path}: cannot be read ({said(error)})") from None
            yield Source(path, status.st_size, status.st_mtime_ns)


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
        parts = re.split(r"(\*\*/|\*|\?)", "/".join([root.rstrip("/"), *steps[magic:]]))
        infos = [each for each in infos if _matches(each.path, parts)]
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


def _matches(path: str, parts: Sequence[str]) -> bool:
    """Return whether a path matches a glob: ``*`` within a folder, ``**/`` across folders, in linear time."""
    # Where the parts so far may end.
    places, closed = {0}, f"{path}/"
    for part in parts:
        if part == "**/":
            slashes = (at for at in range(min(places, default=len(path)), len(path)) if path[at] == "/")
            places |= {at + 1 for at in slashes}
        elif part == "*":
            after: set[int] = set()
            for place in sorted(places):
                if place not in after:
                    after.update(range(place, closed.index("/", place) + 1))
            places = after
        elif part == "?":
            places = {place + 1 for place in places if path[place : place + 1] not in ("", "/")}
        else:
            places = {place + len(part) for place in places if path.startswith(part, place)}
    return len(path) in places
