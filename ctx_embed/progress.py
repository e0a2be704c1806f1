"""Progress on standard error: a bar in a terminal, elsewhere a plain line every ten seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal, TypeVar

T = TypeVar("T")
# Seconds between two lines if standard error is not a terminal, for example under nohup, in CI or in a container.
INTERVAL = 10.0
last_line: float | None = None
# What is shown: nothing, long work, or each piece of work with its seconds.
level: Literal["nothing", "long work", "all"] = "long work"
_subject: ContextVar[str] = ContextVar("subject", default="")


def restart() -> None:
    """Restart the interval until the next line."""
    global last_line
    last_line = time.monotonic()


@contextmanager
def about(subject: str) -> Iterator[None]:
    """Prefix the output of the meters in this block with ``subject``, such as a task and an encoder."""
    token = _subject.set(f"{subject}: ")
    try:
        yield
    finally:
        _subject.reset(token)


def say(line: str) -> None:
    """Print a line on standard error, above a bar if one is shown."""
    if sys.stderr is None or level == "nothing":
        return
    if "tqdm" in sys.modules:
        from tqdm import tqdm

        tqdm.write(line, file=sys.stderr)
    else:
        print(line, file=sys.stderr)
    sys.stderr.flush()
    restart()


class Meter:
    """The progress of one piece of work; a context manager.

    Where standard error is not a terminal, work that ends within ``interval`` seconds prints nothing, and longer work
    prints a last line when it ends. Meters that follow one another share the interval.
    """

    def __init__(
        self,
        what: str,
        total: int | None = None,
        unit: str = "texts",
        *,
        done: int = 0,
        shown: bool = True,
        leave: bool = True,
        interval: float = INTERVAL,
    ) -> None:
        self.what = _subject.get() + what
        self.total, self.unit = total, unit
        self.done = self._before = done
        self._began = time.monotonic()
        self._interval = interval
        self._note = ""
        self._shown = shown and sys.stderr is not None and level != "nothing"
        self._printed = False
        self._bar: Any = None
        if self._shown and sys.stderr.isatty():
            from tqdm import tqdm

            self._bar = tqdm(total=total, initial=done, desc=self.what, unit=f" {unit}", leave=leave)
        elif last_line is None or time.monotonic() - last_line > interval:
            restart()

    def __enter__(self) -> Meter:
        """Return the meter."""
        return self

    def __exit__(self, *error: object) -> None:
        """End the bar, or print the last line."""
        if self._bar is not None:
            self._bar.close()
        elif self._printed or (self._shown and level == "all"):
            self._print(ended=True)

    def each(self, things: Iterable[T]) -> Iterator[T]:
        """Yield items, and count each one when the next is requested."""
        with self:
            for thing in things:
                yield thing
                self.update()

    def update(self, count: int = 1) -> None:
        """Count finished items."""
        self.done += count
        if self._bar is not None:
            self._bar.update(count)
        elif self._shown and last_line is not None and time.monotonic() - last_line >= self._interval:
            self._print()

    def now(self, what: str) -> None:
        """Change the shown name of the work."""
        self.what = _subject.get() + what
        if self._bar is not None:
            self._bar.set_description(self.what)
        elif self._printed:
            say(self.what)

    def note(self, note: str) -> None:
        """Add a figure, such as the loss, to the bar and to the lines."""
        self._note = note
        if self._bar is not None:
            self._bar.set_postfix_str(note)

    def _print(self, ended: bool = False) -> None:
        self._printed = True
        done = f"{self.done:,}" if self.total is None else f"{self.done:,} of {self.total:,}"
        elapsed = time.monotonic() - self._began
        rate = (self.done - self._before) / max(elapsed, 1e-6)
        time_said = f"after {duration(elapsed)}" if ended else ""
        if not ended and self.total is not None and rate:
            time_said = f"{duration((self.total - self.done) / rate)} left"
        speed = f"{rate:,.0f} {self.unit}/s" if rate >= 10 else f"{rate:.2g} {self.unit}/s"
        say(", ".join(filter(None, (f"{self.what}: {done} {self.unit}", speed, time_said, self._note))))


def duration(seconds: float) -> str:
    """Return a time in words: 12 s, 3 min 05 s, 2 h 10 min."""
    minutes, rest = divmod(round(max(seconds, 0)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s" if minutes else f"{rest} s"
