"""The lines of a stream as text, in the encoding that a byte order mark names, in UTF-8, or in a detected one."""

import codecs
import io
import re
import warnings
from collections.abc import Iterable, Iterator
from contextlib import suppress

from ctx_embed.errors import InputError, quoted
from ctx_embed.reading.opening import BROKEN_GZIP, said

UTF_8 = "utf-8"
# The name of our error handler for UTF-8 with some wrong bytes.
REPAIR = "ctx_embed.repair"
# Number of bytes from which an encoding is detected.
SAMPLE_BYTES = 1 << 16
# Maximum bytes of a line, so that memory stays bounded for any file.
LONGEST_LINE = 256 << 20
# Longer byte order marks first: the mark of UTF-32 starts like that of UTF-16.
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
# The preferred encoding. Another encoding must fit the language better by more than this margin (0 to 1).
_USUAL, _DOUBTFUL = "cp1252", 0.2
# Of a text in an Asian encoding, at least one byte in this many is not ASCII.
ASCII, _LEAST_PART = bytes(range(128)), 3
# The bytes of a character in UTF-8 after the first one, at most three.
CONTINUATION = bytes(range(0x80, 0xC0))
# Control characters that text hardly contains; tabs, line ends, form feeds and escapes are common in text.
_CONTROLS = re.compile(rb"[\x00-\x08\x0b\x0e-\x1a\x1c-\x1f\x7f]")
# A killed process or a full disk leaves runs of NUL bytes in a log.
_NULS = re.compile(rb"\0+")
_NOT_ASCII = re.compile("[^\0-\x7f]")
# With fewer wrong bytes than one in this many (English with a few accents), a text is read as UTF-8 with stray bytes.
_BYTES_FOR_A_WRONG_ONE = 100
# Stray bytes of text pasted from Windows: its quotation marks, dashes and letters. Others may be parts of UTF-8.
_STRAY = {
    bytes([byte]): bytes([byte]).decode(_USUAL)
    for byte in (0x80, 0x82, 0x84, 0x85, 0x8B, *range(0x91, 0x98), 0x99, 0x9B, *range(0xC0, 0xFF))
}


def require_encoding(encoding: str | None) -> None:
    """Raise an InputError for an encoding whose name Python does not know; None is allowed."""
    try:
        "".encode(encoding or UTF_8)
    except (LookupError, ValueError):
        raise InputError(
            f"unknown encoding {quoted(encoding)}; Python knows names such as latin-1, cp1252, utf-16"
        ) from None


def marked(start: bytes) -> str | None:
    """Return the encoding that a byte order mark at the start of a file names, or None."""
    return next((name for mark, name in _MARKS if start.startswith(mark)), None)


def is_binary(start: bytes) -> bool:
    """Return whether the first bytes of a file are not text. A text, such as a log, may have a few NUL bytes."""
    # If a log is emptied while a program writes to it, NUL bytes take the place of what it held.
    first = len(start) - len(start.lstrip(b"\0"))
    looked = _NULS.sub(b"\0", start[max(first - 1, 0) :][:_LOOKED_AT])
    return 20 * len(_CONTROLS.findall(looked)) > len(looked) or start[257:262] == b"ustar"


def settled(sample: bytes, fallback: str | None = None) -> str:
    """Return the encoding of a file from :data:`SAMPLE_BYTES` of it, which begin with a line that is not ASCII.

    It is UTF-8 if all but a few bytes are (see :data:`REPAIR`) or they are not text; else ``fallback``, or detected.
    """
    # Only a full sample may end within a character.
    text = codecs.getincrementaldecoder(UTF_8)("surrogateescape").decode(sample, len(sample) < SAMPLE_BYTES)
    others = _NOT_ASCII.findall(text)
    wrong = sum("\udc80" <= character <= "\udcff" for character in others)
    if 2 * wrong <= len(others):
        return UTF_8
    if fallback is None and wrong == len(others) and _BYTES_FOR_A_WRONG_ONE * wrong <= len(sample):
        return UTF_8
    if fallback is not None or is_binary(sample):
        return fallback or UTF_8
    from charset_normalizer import from_bytes
    from charset_normalizer.utils import is_multi_byte_encoding

    content = b"\n".join(line for line in sample.split(b"\n") if not line.isascii())[:_ANALYSED]
    matches = from_bytes(content)
    best = matches.best()
    # A word or two may fit an Asian encoding, which hardly has so many ASCII letters.
    if len(content.translate(None, ASCII)) * _LEAST_PART <= len(content):
        if best is None or is_multi_byte_encoding(best.encoding):
            return _USUAL
    elif best is None:
        return UTF_8
    # Short texts fit many encodings; of these cp1252 (Windows, western Europe) is by far the most common.
    usual = any(
        _USUAL in match.could_be_from_charset
        and match.chaos <= best.chaos
        and match.coherence >= best.coherence - _DOUBTFUL
        for match in matches
    )
    return _USUAL if usual else best.encoding


class WrongBytesWarning(UserWarning):
    """Some bytes of a text are wrong in its encoding; each is read as one character."""


def warn_of_wrong_bytes(name: str, raw: bytes, place: int, first: int = 1, encoding: str = UTF_8) -> None:
    """Warn that a file, or some lines of it from number ``first`` on, have wrong bytes, the first at ``place``."""
    line, start = first + raw.count(b"\n", 0, place), raw.rfind(b"\n", 0, place) + 1
    wrong = f"not {encoding.upper() if encoding == UTF_8 else encoding}" if raw[place] else "not text"
    where = f"{name}, line {line}: byte {place - start + 1} (0x{raw[place]:02x})"
    warnings.warn(WrongBytesWarning(f"{where} is {wrong}; the rest of the file was read"), stacklevel=2)


def _repaired(error: UnicodeError) -> tuple[str, int]:
    """Return the character for bytes that are not UTF-8: Windows' character for a stray byte, else U+FFFD."""
    if not isinstance(error, UnicodeDecodeError):
        raise error
    cut = error.reason == "unexpected end of data"
    stray = error.object[error.start : error.end]
    return "\ufffd" if cut else _STRAY.get(stray, "\ufffd"), error.end


codecs.register_error(REPAIR, _repaired)


def bare(lines: Iterable[str]) -> Iterator[str]:
    """Yield lines without the carriage returns at their ends."""
    return (line.removesuffix("\r") for line in lines)


def decoded_lines(
    name: str, stream: io.BufferedReader, *, encoding: str | None, fallback: str | None = None
) -> Iterator[str]:
    r"""Yield the lines of a stream, without ``\n``, which alone ends a line; ``\r`` before it may belong to a cell.

    If neither ``encoding`` nor a byte order mark says otherwise, lines are UTF-8 up to the first one that is not. That
    line and the buffered bytes after it decide between UTF-8 and ``fallback`` (None: a detected encoding). Each wrong
    byte is one character; a warning names the first. A broken stream, or a line of more than 256 MB, is an InputError.
    """
    require_encoding(encoding)
    number, mark, warned, named = 0, "\ufeff", False, encoding
    try:
        encoding = named or marked(stream.peek(4)[:4])
        # In UTF-16, for example, the single byte of a line end does not end a line.
        if encoding is not None and "\n".encode(encoding) != b"\n":
            wrapper = io.TextIOWrapper(stream, encoding=encoding, newline="\n")
            try:
                while written := wrapper.readline(LONGEST_LINE):
                    number += 1
                    yield written.removesuffix("\n").removeprefix(mark)
                    mark = ""
            except UnicodeError:
                raise InputError(f"{name}: must be {encoding}; give the right encoding") from None
            finally:
                # Leave the stream open: the caller closes it, and may have closed it already.
                with suppress(ValueError):
                    wrapper.detach()
            return
        while raw := stream.readline(LONGEST_LINE + 1):
            number += 1
            if len(raw) > LONGEST_LINE:
                raise InputError(f"{name}: a line has more than {LONGEST_LINE >> 20} MB; break it up")
            line = raw.removesuffix(b"\n")
            try:
                text = line.decode(encoding or UTF_8)
                if encoding is None and not line.isascii():
                    encoding = UTF_8
            except UnicodeDecodeError as wrong:
                # Look ahead only where needed, since that may have to wait for a pipe.
                sample = raw if encoding else raw + stream.peek(SAMPLE_BYTES)[:SAMPLE_BYTES]
                encoding = encoding or settled(sample, fallback)
                if named or is_binary(sample):
                    place = f"(see byte {wrong.start + 1} of the line); convert the file or name its encoding"
                    remedy = f"UTF-8 {place}" if encoding == UTF_8 else f"{encoding}; give the right encoding"
                    raise InputError(f"{name}, line {number}: must be {remedy}") from None
                text = line.decode(encoding, REPAIR if encoding == UTF_8 else "replace")
                if not warned and (encoding == UTF_8 or "\ufffd" in text):
                    warn_of_wrong_bytes(name, line, wrong.start, number, encoding)
                    warned = True
            yield text.removeprefix(mark)
            mark = ""
    except (OSError, *BROKEN_GZIP) as error:
        what, why = ("broken gzip", error) if isinstance(error, BROKEN_GZIP) else ("cannot be read", said(error))
        raise InputError(f"{name}: {what} after line {number} ({why})") from None
