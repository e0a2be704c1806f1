"""The titles of progress bars: the task and the encoder that are being evaluated."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_subject: ContextVar[str] = ContextVar("subject", default="")


@contextmanager
def named(subject: str) -> Iterator[None]:
    """Put ``subject`` before the titles of progress bars inside the block."""
    token = _subject.set(subject)
    try:
        yield
    finally:
        _subject.reset(token)


def title(what: str) -> str:
    """Return the title of a progress bar: the subject, if any, and what is being done."""
    subject = _subject.get()
    return f"{subject}: {what}" if subject else what
