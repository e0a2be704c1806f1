"""Bytes to text: unpack gzip, detect the encoding, refuse files that are not text."""

from __future__ import annotations

import gzip
import re
import time
import zlib

from ctx_embed.documents.extracted import MOST_BYTES, SECONDS, UnreadableFileError
from ctx_embed.files import open_regular
from ctx_embed.rows.encodings import UTF_8, detected, is_binary, marked
from ctx_embed.rows.opening import GZIP_MAGIC

_BLOCK_BYTES = 1 << 20


def read_bytes(path: str, most: int = MOST_BYTES, seconds: float = SECONDS) -> bytes:
    """Return the bytes of a regular file, unpacked if it is gzip.

    Raises:
        UnreadableFileError: the file cannot be read, is larger than ``most`` bytes, or takes more than ``seconds``.
    """
    blocks, size, end = [], 0, time.monotonic() + seconds
    try:
        with open_regular(path) as file:
            stream = gzip.GzipFile(fileobj=file) if file.peek(2)[:2] == GZIP_MAGIC else file
            while size <= most and (block := stream.read(_BLOCK_BYTES)):
                blocks.append(block)
                size += len(block)
                if time.monotonic() > end:
                    raise UnreadableFileError(f"takes longer than {seconds:g} s")
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UnreadableFileError(f"broken gzip ({error})") from None
    except OSError as error:
        raise UnreadableFileError(f"cannot be read ({error.strerror})") from None
    if size > most:
        raise UnreadableFileError(f"larger than {most >> 20} MB")
    return b"".join(blocks)


def decode(raw: bytes, encoding: str | None = None) -> str:
    r"""Return bytes as text with ``\n`` as line ends.

    Args:
        raw: the bytes.
        encoding: the name of their encoding; None: that of a byte order mark, UTF-8, or one that is detected.

    Raises:
        UnreadableFileError: they are not text, or not in that encoding.
    """
    if encoding is None:
        text = raw.decode(_encoding_of(raw), "replace")
    else:
        try:
            text = raw.decode(encoding)
        except UnicodeDecodeError:
            raise UnreadableFileError(f"is not {encoding}; name its encoding") from None
    text = text.removeprefix("\ufeff")
    return re.sub("\r\n?", "\n", text) if "\r" in text else text


def _encoding_of(raw: bytes) -> str:
    """Return the encoding of bytes: that of a byte order mark, UTF-8, or one that is detected.

    Raises:
        UnreadableFileError: they are not text.
    """
    encoding = marked(raw)
    if encoding is None:
        if is_binary(raw):
            raise UnreadableFileError("binary", counted=True)
        try:
            raw.decode(UTF_8)
            return UTF_8
        except UnicodeDecodeError:
            encoding = detected(raw)
    if encoding is None:
        raise UnreadableFileError("binary", counted=True)
    return encoding
