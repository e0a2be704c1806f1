"""Bytes to text: unpack gzip, detect the encoding, refuse what is not text."""

from __future__ import annotations

import codecs
import gzip
import re
import zlib

from ctx_embed.documents.extracted import MOST_BYTES, UnreadableFileError

GZIP_MAGIC = b"\x1f\x8b"
# Longer marks first: that of UTF-16 begins that of UTF-32.
_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_LOOKED_AT = 8192
# The encoding is detected from the lines that are not ASCII, up to this number of bytes.
_SAMPLED = 16384
# The encoding to prefer, unless another one fits the language better by this much (0 to 1).
_USUAL, _DOUBTFUL = "cp1252", 0.2
# Bytes that no text has, apart from a few: tabs, line ends, form feeds and escapes are left out.
_CONTROLS = re.compile(rb"[\x00-\x08\x0b\x0e-\x1a\x1c-\x1f\x7f]")


def read_bytes(path: str, most: int = MOST_BYTES) -> bytes:
    """Return the bytes of a file, unpacked if it is gzip.

    Raises:
        UnreadableFileError: it cannot be read, or has more than ``most`` bytes.
    """
    try:
        with open(path, "rb") as file:
            raw = file.read(most + 1)
            if raw[:2] == GZIP_MAGIC:
                file.seek(0)
                with gzip.open(file) as unpacked:
                    raw = unpacked.read(most + 1)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UnreadableFileError(f"broken gzip ({error})") from None
    except OSError as error:
        raise UnreadableFileError(f"cannot be read ({error.strerror})") from None
    if len(raw) > most:
        raise UnreadableFileError(f"larger than {most >> 20} MB")
    return raw


def decode(raw: bytes, encoding: str | None = None) -> str:
    r"""Return bytes as text with ``\n`` as line ends.

    Args:
        raw: the bytes.
        encoding: the name of their encoding; None: that of a byte order mark, UTF-8, or one that is detected.

    Raises:
        UnreadableFileError: they are not text, or not in that encoding.
    """
    if encoding is None:
        text = _decoded(raw)
    else:
        try:
            text = raw.decode(encoding)
        except UnicodeDecodeError:
            raise UnreadableFileError(f"must be {encoding}; name the right encoding") from None
    return re.sub("\r\n?", "\n", text) if "\r" in text else text


def _decoded(raw: bytes) -> str:
    return raw.decode(encoding_of(raw), "replace")


def encoding_of(raw: bytes) -> str:
    """Return the encoding of bytes: that of a byte order mark, UTF-8, or one that is detected.

    Raises:
        UnreadableFileError: they are not text.
    """
    encoding = next((name for mark, name in _MARKS if raw.startswith(mark)), None)
    if encoding is not None:
        return encoding
    start = raw[:_LOOKED_AT]
    if b"\0" in start or 20 * len(_CONTROLS.findall(start)) > len(start):
        raise UnreadableFileError("binary", counted=True)
    try:
        raw.decode("utf-8")
        return "utf-8"
    except UnicodeDecodeError:
        pass
    from charset_normalizer import from_bytes

    sample = b"\n".join(line for line in raw.split(b"\n") if not line.isascii())
    matches = from_bytes(sample[:_SAMPLED])
    best = matches.best()
    if best is None:
        raise UnreadableFileError("binary", counted=True)
    # Short texts fit many encodings: the one of western Windows, nearly Latin-1, is by far the most usual.
    usual = any(
        _USUAL in match.could_be_from_charset
        and match.chaos <= best.chaos
        and match.coherence >= best.coherence - _DOUBTFUL
        for match in matches
    )
    return _USUAL if usual else best.encoding
