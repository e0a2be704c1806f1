"""Bytes to text: unpack gzip, detect the encoding, refuse files that are not text."""

from __future__ import annotations

import gzip
import re
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader

from ctx_embed.documents.extracted import MOST_BYTES, SECONDS, UnreadableFileError
from ctx_embed.files import POINTER, POINTER_BYTES, is_pointer, open_regular
from ctx_embed.rows.encodings import REPAIR, SAMPLE_BYTES, UTF_8, is_binary, marked, settled, warn_of_wrong_bytes
from ctx_embed.rows.opening import GZIP_MAGIC

_BLOCK_BYTES = 1 << 20
_NULS = re.compile("\0+")


@contextmanager
def opened(path: str) -> Iterator[BufferedReader]:
    """Open a regular file that does not lead out of its folder and is no pointer of git-lfs."""
    try:
        with open_regular(path) as file:
            if is_pointer(file.peek(POINTER_BYTES)):
                raise UnreadableFileError(POINTER)
            yield file
    except gzip.BadGzipFile:
        raise
    except OSError as error:
        raise UnreadableFileError(f"cannot be read ({error.strerror})") from None


def read_bytes(path: str, most: int = MOST_BYTES, seconds: float = SECONDS) -> bytes:
    """Return the bytes of a regular file, unpacked if it is gzip: at most so many, read in so many seconds."""
    blocks, size, end = [], 0, time.monotonic() + seconds
    try:
        with opened(path) as file:
            stream = gzip.GzipFile(fileobj=file) if file.peek(2)[:2] == GZIP_MAGIC else file
            while size <= most and (block := stream.read(_BLOCK_BYTES)):
                blocks.append(block)
                size += len(block)
                if time.monotonic() > end:
                    raise UnreadableFileError(f"takes longer than {seconds:g} s")
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UnreadableFileError(f"broken gzip ({error})") from None
    if size > most:
        raise UnreadableFileError(f"larger than {most >> 20} MB")
    return b"".join(blocks)


def read_text(path: str, encoding: str | None = None) -> str:
    """Return the text of a file, see :func:`decode`."""
    return decode(read_bytes(path), encoding, path)


def decode(raw: bytes, encoding: str | None = None, name: str | None = None) -> str:
    r"""Return bytes as text with ``\n`` as line ends.

    Args:
        raw: the bytes.
        encoding: the name of their encoding; None: that of a byte order mark, UTF-8, or one that is detected. A few
            bytes that are not UTF-8 cost one character each, and so do NUL bytes.
        name: the name of the file, to warn of such bytes; None: no warning.

    Raises:
        UnreadableFileError: they are not text, or not in that encoding.
    """
    given, encoding = encoding, encoding or marked(raw)
    if encoding is None and is_binary(raw):
        raise UnreadableFileError("binary", counted=True)
    try:
        text = raw.decode(encoding or UTF_8)
    except UnicodeDecodeError as error:
        if given:
            raise UnreadableFileError(f"is not {given}; name its encoding") from None
        chosen = encoding or settled(raw[max(0, error.start - SAMPLE_BYTES) : error.start + SAMPLE_BYTES])
        text = raw.decode(chosen, REPAIR if chosen == UTF_8 else "replace")
        if chosen == UTF_8 and name is not None:
            warn_of_wrong_bytes(name, raw, error.start)
    if "\0" in text:
        if name is not None:
            warn_of_wrong_bytes(name, raw, max(0, raw.find(b"\0")))
        text = _NULS.sub(" ", text)
    text = text.removeprefix("\ufeff")
    return re.sub("\r\n?", "\n", text) if "\r" in text else text
