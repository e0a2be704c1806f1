"""The encoding of text: named by a byte order mark, UTF-8, or detected."""

from __future__ import annotations

import codecs
import re

from ctx_embed.errors import InputError

UTF_8 = "utf-8"
# Number of bytes from which an encoding is detected.
SAMPLE_BYTES = 1 << 16
# Longer byte-order marks first: that of UTF-32 begins with that of UTF-16.
_MARKS = (
    (codecs.BOM_UTF8, UTF_8),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_LOOKED_AT = 8192
# Maximum number of bytes to analyse from lines that are not ASCII.
_ANALYSED = 16384
# The preferred encoding; another one must fit the language better by more than this margin (0 to 1).
_USUAL, _DOUBTFUL = "cp1252", 0.2
# Control characters that hardly occur in text; tabs, line ends, form feeds and escapes do occur.
_CONTROLS = re.compile(rb"[\x00-\x08\x0b\x0e-\x1a\x1c-\x1f\x7f]")


def require_encoding(encoding: str) -> None:
    """Raise an error for an encoding whose name Python does not know.

    Raises:
        InputError: with a few names.
    """
    try:
        "".encode(encoding)
    except (LookupError, ValueError):
        raise InputError(f"unknown encoding {encoding!r}; Python knows names such as latin-1, cp1252, utf-16") from None


def has_byte_lines(encoding: str) -> bool:
    r"""Return whether the byte ``\n`` ends a line in this encoding; it does not in UTF-16."""
    return "\n".encode(encoding) == b"\n"


def marked(start: bytes) -> str | None:
    """Return the encoding that a byte order mark at the start of a file names, or None."""
    return next((name for mark, name in _MARKS if start.startswith(mark)), None)


def is_binary(start: bytes) -> bool:
    """Return whether the first bytes of a file are not text."""
    start = start[:_LOOKED_AT]
    return b"\0" in start or 20 * len(_CONTROLS.findall(start)) > len(start)


def detected(sample: bytes) -> str | None:
    """Return the encoding of text that is neither ASCII nor UTF-8; None if the sample is not text."""
    from charset_normalizer import from_bytes

    if is_binary(sample):
        return None
    matches = from_bytes(b"\n".join(line for line in sample.split(b"\n") if not line.isascii())[:_ANALYSED])
    best = matches.best()
    if best is None:
        return None
    # Short texts fit many encodings; of these cp1252 (Windows, western Europe) is by far the most common.
    usual = any(
        _USUAL in match.could_be_from_charset
        and match.chaos <= best.chaos
        and match.coherence >= best.coherence - _DOUBTFUL
        for match in matches
    )
    return _USUAL if usual else best.encoding


def settled(sample: bytes, fallback: str | None = None) -> str:
    """Return the encoding of a file.

    Args:
        sample: bytes of the file from its first line that is not ASCII; :data:`SAMPLE_BYTES` are enough.
        fallback: the encoding of a file that is not UTF-8; None: detected.

    Returns:
        UTF-8 if the first line of the sample, or at least half of its lines that are not ASCII, are UTF-8, or if the
        sample is not text.
    """
    *whole, cut = sample.split(b"\n")
    lines = [line for line in whole if not line.isascii()] or [cut]
    valid = [is_utf8(line, cut=not whole) for line in lines]
    if valid[0] or 2 * sum(valid) >= len(valid):
        return UTF_8
    return fallback or detected(sample) or UTF_8


def is_utf8(line: bytes, *, cut: bool = False) -> bool:
    """Return whether a line is UTF-8; a line that was ``cut`` may end within a character."""
    try:
        codecs.getincrementaldecoder(UTF_8)().decode(line, final=not cut)
    except UnicodeDecodeError:
        return False
    return True
