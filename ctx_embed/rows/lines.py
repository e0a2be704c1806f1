"""The lines of a stream as text."""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Iterator
from contextlib import suppress

from ctx_embed.errors import InputError
from ctx_embed.rows.encodings import (
    REPAIR,
    SAMPLE_BYTES,
    UTF_8,
    has_byte_lines,
    is_binary,
    is_utf8,
    marked,
    require_encoding,
    settled,
    warn_of_wrong_bytes,
)
from ctx_embed.rows.opening import BROKEN_GZIP, said

# Maximum bytes of a line, so that memory stays bounded for any file.
LONGEST_LINE = 256 << 20

_Line = tuple[str, InputError | None]


class Lines(Iterator[str]):
    r"""The lines of a stream, without their ends; only ``\n`` ends a line.

    For a line that cannot be decoded, ``error`` is set and the line has lone surrogates in place of the wrong bytes.

    Args:
        name: the name of the source, for messages.
        stream: bytes, not compressed.
        encoding: the name of their encoding. None: the one that a byte order mark names; without a mark, UTF-8 or
            ``fallback``, decided by the first line that is not ASCII and the buffered bytes after it.
        fallback: the encoding of a stream that is not UTF-8; None: detected.
        first: the number of the first line.

    Attributes:
        number: the number of the last line; one less than ``first`` before any line was read.
        error: why the last line could not be decoded, or None.
        broken: the number of the last line that could not be decoded, or 0.

    Raises:
        InputError: while reading: broken gzip, an error of the system, a line of more than 256 MB, or an encoding
            without byte lines (such as UTF-16) that is not that of the file.
    """

    def __init__(
        self,
        name: str,
        stream: io.BufferedReader,
        *,
        encoding: str | None = None,
        fallback: str | None = None,
        first: int = 1,
    ) -> None:
        self.name = name
        self.number = first - 1
        self.error: InputError | None = None
        self.broken = 0
        self._ahead: deque[_Line] = deque()
        if encoding is not None:
            require_encoding(encoding)
        self._lines = self._read(stream, encoding, fallback)

    def __next__(self) -> str:
        """Return the next line."""
        text, self.error = self._ahead.popleft() if self._ahead else self._line()
        self.number += 1
        if self.error is not None:
            self.broken = self.number
        return text

    def _line(self) -> _Line:
        after = self.number + len(self._ahead)
        try:
            return next(self._lines)
        except BROKEN_GZIP as error:
            raise InputError(f"{self.name}: broken gzip after line {after} ({error})") from None
        except OSError as error:
            raise InputError(f"{self.name}: cannot be read after line {after} ({said(error)})") from None

    def first_text(self) -> str | None:
        """Return the first line that is not blank without consuming it; None if there is none."""
        with suppress(StopIteration):
            while not self._ahead or not self._ahead[-1][0].strip():
                self._ahead.append(self._line())
            return self._ahead[-1][0]
        return None

    def _read(self, stream: io.BufferedReader, encoding: str | None, fallback: str | None) -> Iterator[_Line]:
        named, number = encoding, self.number
        start = number == 0
        if start:
            encoding = encoding or marked(stream.peek(4)[:4])
        if encoding is not None and not has_byte_lines(encoding):
            yield from self._decoded(stream, encoding)
            return
        repairing = warned = False
        while raw := stream.readline(LONGEST_LINE + 1):
            number += 1
            if len(raw) > LONGEST_LINE:
                raise InputError(f"{self.name}: a line has more than {LONGEST_LINE >> 20} MB; break it up")
            line = raw.removesuffix(b"\n").removesuffix(b"\r")
            if not repairing and named is None and not line.isascii() and not is_utf8(line):
                # Look ahead only where needed, since that may have to wait for a pipe.
                sample = raw + stream.peek(SAMPLE_BYTES)[:SAMPLE_BYTES]
                encoding = encoding or settled(sample, fallback)
                repairing = encoding == UTF_8 and not is_binary(sample)
            elif encoding is None and not line.isascii():
                encoding = UTF_8
            try:
                text, error = line.decode(encoding or UTF_8), None
            except UnicodeDecodeError as wrong:
                if repairing:
                    text, error = line.decode(UTF_8, REPAIR), None
                    if not warned:
                        warn_of_wrong_bytes(self.name, line, wrong.start, number)
                    warned = True
                else:
                    text = line.decode("ascii", "surrogateescape")
                    error = _wrong_encoding(encoding or UTF_8, wrong.start + 1)
            yield text.removeprefix("\ufeff") if start else text, error
            start = False

    def _decoded(self, stream: io.BufferedReader, encoding: str) -> Iterator[_Line]:
        text = io.TextIOWrapper(stream, encoding=encoding, newline="\n")
        mark = "\ufeff"
        try:
            while line := text.readline(LONGEST_LINE):
                yield line.removesuffix("\n").removesuffix("\r").removeprefix(mark), None
                mark = ""
        except UnicodeError:
            raise InputError(f"{self.name}: must be {encoding}; give the right encoding") from None
        finally:
            # Leave the stream open: the caller closes it, and may have closed it already.
            with suppress(ValueError):
                text.detach()


def _wrong_encoding(encoding: str, place: int) -> InputError:
    if encoding != UTF_8:
        return InputError(f"must be {encoding}; give the right encoding")
    return InputError(
        f"must be {encoding.upper()} (see byte {place} of the line); convert the file or name its encoding"
    )
