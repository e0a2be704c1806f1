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
    marked,
    require_encoding,
    settled,
    warn_of_wrong_bytes,
)
from ctx_embed.rows.opening import BROKEN_GZIP, said

# Maximum bytes of a line, so that memory stays bounded for any file.
LONGEST_LINE = 256 << 20


class Lines(Iterator[str]):
    r"""The lines of a stream, without their ends; only ``\n`` ends a line.

    Args:
        name: the name of the source, for messages.
        stream: bytes, not compressed.
        encoding: the name of their encoding. None: the one that a byte order mark names; without a mark, UTF-8 or
            ``fallback``, decided by the first line that is not UTF-8 and the buffered bytes after it. A wrong byte then
            costs one character, and a warning names the first one.
        fallback: the encoding of a stream that is not UTF-8; None: detected.
        first: the number of the first line.

    Attributes:
        number: the number of the last line; one less than ``first`` before any line was read.

    Raises:
        InputError: while reading: broken gzip, an error of the system, a line of more than 256 MB, or wrong bytes.
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
        require_encoding(encoding)
        self.name = name
        self.number = first - 1
        self._ahead: deque[str] = deque()
        self._lines = self._decoded(stream, encoding, fallback)

    def __next__(self) -> str:
        """Return the next line."""
        line = self._ahead.popleft() if self._ahead else self._next()
        self.number += 1
        return line

    def _next(self) -> str:
        try:
            return next(self._lines)
        except (OSError, *BROKEN_GZIP) as error:
            wrong, why = ("broken gzip", error) if isinstance(error, BROKEN_GZIP) else ("cannot be read", said(error))
            number = self.number + len(self._ahead)
            raise InputError(f"{self.name}: {wrong} after line {number} ({why})") from None

    def first_text(self) -> str | None:
        """Return the first line that is not blank without consuming it; None if there is none."""
        with suppress(StopIteration):
            while not self._ahead or not self._ahead[-1].strip():
                self._ahead.append(self._next())
            return self._ahead[-1]
        return None

    def _decoded(self, stream: io.BufferedReader, named: str | None, fallback: str | None) -> Iterator[str]:
        number, mark = self.number, "" if self.number else "\ufeff"
        encoding = named or (marked(stream.peek(4)[:4]) if mark else None)
        if encoding is not None and not has_byte_lines(encoding):
            yield from self._characters(stream, encoding)
            return
        warned = False
        while raw := stream.readline(LONGEST_LINE + 1):
            number += 1
            if len(raw) > LONGEST_LINE:
                raise InputError(f"{self.name}: a line has more than {LONGEST_LINE >> 20} MB; break it up")
            line = raw.removesuffix(b"\n").removesuffix(b"\r")
            try:
                text = line.decode(encoding or UTF_8)
                if encoding is None and not line.isascii():
                    encoding = UTF_8
            except UnicodeDecodeError as wrong:
                # Look ahead only where needed, since that may have to wait for a pipe.
                sample = raw if encoding else raw + stream.peek(SAMPLE_BYTES)[:SAMPLE_BYTES]
                encoding = encoding or settled(sample, fallback)
                if named or is_binary(sample):
                    remedy = f"{encoding}; give the right encoding"
                    if encoding == UTF_8:
                        remedy = (
                            f"UTF-8 (see byte {wrong.start + 1} of the line); convert the file or name its encoding"
                        )
                    raise InputError(f"{self.name}, line {number}: must be {remedy}") from None
                text = line.decode(encoding, REPAIR if encoding == UTF_8 else "replace")
                if not warned and (encoding == UTF_8 or "\ufffd" in text):
                    warn_of_wrong_bytes(self.name, line, wrong.start, number, encoding)
                    warned = True
            yield text.removeprefix(mark)
            mark = ""

    def _characters(self, stream: io.BufferedReader, encoding: str) -> Iterator[str]:
        text = io.TextIOWrapper(stream, encoding=encoding, newline="\n")
        mark = "\ufeff"
        try:
            while line := text.readline(LONGEST_LINE):
                yield line.removesuffix("\n").removesuffix("\r").removeprefix(mark)
                mark = ""
        except UnicodeError:
            raise InputError(f"{self.name}: must be {encoding}; give the right encoding") from None
        finally:
            # Leave the stream open: the caller closes it, and may have closed it already.
            with suppress(ValueError):
                text.detach()
