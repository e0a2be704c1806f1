"""Deadlines: when the work of a thread must end, which reading, embedding and searching look at as they go."""

import math
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

from ctx_embed.errors import LateError

Item = TypeVar("Item")
# Items and characters between two looks at the deadline: less than 10 ms of work.
AT_ONCE, CHARACTERS_AT_ONCE = 1 << 10, 1 << 13
# When the work of this thread must end, and how many seconds it has in all.
_DEADLINE: ContextVar[tuple[float, float]] = ContextVar("deadline", default=(math.inf, math.inf))


@contextmanager
def within(seconds: float | None) -> Iterator[None]:
    """Give the block a deadline, which all work below obeys; None or a later one changes nothing."""
    deadline = _DEADLINE.get() if seconds is None else min(_DEADLINE.get(), (time.monotonic() + seconds, seconds))
    token = _DEADLINE.set(deadline)
    try:
        yield
    finally:
        _DEADLINE.reset(token)


def require_time() -> None:
    """Raise LateError if the deadline has passed."""
    stop, seconds = _DEADLINE.get()
    if time.monotonic() > stop:
        raise LateError(f"took longer than {seconds:g} s; ask for less, or give it a later deadline")


def timely(items: Iterable[Item]) -> Iterator[Item]:
    """Yield the items, with a look at the deadline before each 1,024 of them."""
    for number, item in enumerate(items):
        if not number % AT_ONCE:
            require_time()
        yield item


def in_pieces(text: str, cut: re.Pattern[str] | None = None) -> Iterator[str]:
    """Yield a text in pieces that stop where ``cut`` does (None: anywhere), with a look at the deadline before each.

    ``cut`` looks at one character beyond the one or two that it matches.
    """
    start = 0
    while start < len(text):
        require_time()
        stop = start + CHARACTERS_AT_ONCE
        while cut is not None and stop < len(text):
            require_time()
            end = stop + CHARACTERS_AT_ONCE
            # At the end it does not see the character beyond.
            if (found := cut.search(text, stop, end)) and found.end() < end:
                stop = found.end()
                break
            stop = end - 2
        yield text[start:stop]
        start = stop
