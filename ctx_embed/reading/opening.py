"""A source of bytes, opened: a path, a URI, standard input, or a file that another one holds."""

from __future__ import annotations

import gzip
import io
import os
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ctx_embed.errors import InputError, naming_left_out, without_secrets
from ctx_embed.files import POINTER, PathInside, is_pointer, open_regular

if TYPE_CHECKING:
    from pyarrow import fs

GZIP_MAGIC = b"\x1f\x8b"
BROKEN_GZIP = (EOFError, gzip.BadGzipFile, zlib.error)
STANDARD_INPUT = "-"
_BUFFER_BYTES = 1 << 16


class Held(str):
    """The name of a file with its content in memory, and how many files it is in."""

    content: bytes
    depth: int

    def __new__(cls, name: str, content: bytes, depth: int = 0) -> Held:
        """Return the name."""
        held = super().__new__(cls, name)
        held.content, held.depth = content, depth
        return held


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
    if str(source) == STANDARD_INPUT and not isinstance(source, Held):
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
        if isinstance(source, Held):
            stream: Any = io.BytesIO(source.content)
        elif is_remote(source):
            files, path = filesystem(str(source))
            stream = files.open_input_file(path)
        elif os.path.isdir(source):
            raise InputError(f"{source}: must be a file, got a folder")
        else:
            # A regular file must not block, as some in /proc would; a pipe that is named may.
            is_regular = isinstance(source, PathInside) or os.path.isfile(source)
            stream = open_regular(source) if is_regular else open(source, "rb")  # noqa: SIM115
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
