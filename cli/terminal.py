"""Standard output and error in a terminal: control characters become escapes, whichever command prints them."""

import codecs
import io
import re
import sys
from typing import Any, TextIO

# C0 without tabs and line ends, DEL, C1, marks that reorder text, and lone surrogates.
_CONTROLS = r"(?!\r\n)[\0-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
# Progress bars write each state at once: it starts or ends with \r, or moves the cursor up.
_BARS = r"\A\r|\r\Z|\A\n*(?:\x1b\[A)+\Z"
# Colours, a link, and the removal of a line: what this package's own lines contain, see styled().
_STYLES = r"\x1b\[[\d;]*m|\x1b\]8;;[!-~]*\x1b\\|\r\x1b\[K"


class _Guarded(io.RawIOBase):
    """Writes bytes to a terminal's stream, with control characters as escapes, which JSON reads too: ``\\u009b``."""

    def __init__(self, stream: TextIO, allowed: str) -> None:
        self.stream = stream
        self._pattern = re.compile(f"({allowed})|{_CONTROLS}")
        self._decoder = codecs.getincrementaldecoder(stream.encoding)("backslashreplace")

    def write(self, content: Any) -> int:
        text = self._decoder.decode(content)
        self.stream.write(self._pattern.sub(lambda found: found[1] or f"\\u{ord(found[0]):04x}", text))
        return memoryview(content).nbytes

    def flush(self) -> None:
        # Python flushes it once more when it ends, then without its stream.
        if not self.stream.closed:
            self.stream.flush()

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return self.stream.fileno()


def _guarded(stream: TextIO, allowed: str) -> TextIO:
    raw: Any = _Guarded(stream, allowed)
    return io.TextIOWrapper(raw, stream.encoding, "backslashreplace", "\n", line_buffering=True, write_through=True)


def guard() -> None:
    """Replace standard output and error, where they are terminals. Files and pipes get all characters as they are."""
    for name, allowed in (("stdout", r"(?!)"), ("stderr", _BARS)):
        stream: TextIO = getattr(sys, name)
        if stream.isatty():
            setattr(sys, name, _guarded(stream, allowed))


def styled(stream: TextIO) -> TextIO:
    """Return standard output or error for lines with colours and links, whose other parts were made printable."""
    guarded = getattr(stream, "buffer", None)
    return _guarded(guarded.stream, _STYLES) if isinstance(guarded, _Guarded) else stream
