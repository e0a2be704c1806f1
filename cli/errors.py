"""Turn errors of users and of the system into one line; bugs keep their traceback."""

from __future__ import annotations

import errno
import io
import os
import re
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

from ctx_embed.cli.output import printable
from ctx_embed.errors import InputError, UnknownTextsWarning, left_out, without_secrets

# Exit status of a command that Ctrl-C ended.
INTERRUPTED = 128 + signal.SIGINT
# Seconds that a command gets to clean up after Ctrl-C; then the process ends as if it were killed.
GRACE = 0.7


class _Interruption:
    """The message after Ctrl-C, which is printed only once."""

    def __init__(self, resume: Callable[[], str]) -> None:
        self._resume = resume
        self._lock = threading.Lock()

    def say(self) -> None:
        with self._lock:
            if resume := self._resume():
                # The message starts with a line end because a progress bar may be on the current line.
                click.echo(f"\nInterrupted; {resume}.", err=True)
            self._resume = lambda: ""


_interruption = _Interruption(lambda: "nothing was changed")


@contextmanager
def errors_in_one_line(resume: Callable[[], str]) -> Iterator[None]:
    """Turn errors in the block into one line by click and exit status 1, and Ctrl-C into status 130.

    Args:
        resume: returns how to resume the command after Ctrl-C; empty: Ctrl-C ends it without a message.

    Raises:
        click.ClickException: the user or the system made an error.
    """
    global _interruption
    _interruption = _Interruption(resume)
    try:
        yield
    except KeyboardInterrupt:
        _interruption.say()
        raise click.exceptions.Exit(INTERRUPTED) from None
    except InputError as error:
        # An address given as a path may contain a password.
        raise click.ClickException(_on_one_line(without_secrets(str(error)))) from None
    except ModuleNotFoundError as error:
        said = left_out("this", error)
        if said is None:
            raise
        raise click.ClickException(said) from None
    except (MemoryError, RuntimeError) as error:
        # torch has no type for the error that memory is missing.
        if not isinstance(error, MemoryError) and not re.search("allocate memory|out of memory", str(error)):
            raise
        raise click.ClickException("there is not enough memory: end other programs, or give less at a time") from None
    except OSError as error:
        # A full disk or a name that is too long, for example; click itself exits quietly on a closed pipe.
        if error.errno in (None, errno.EPIPE):
            raise
        where = f"{error.filename}: " if error.filename else ""
        said = "standard output is closed" if error.errno == errno.EBADF else error.strerror
        raise click.ClickException(_on_one_line(f"{where}{said}")) from None


def _on_one_line(text: str) -> str:
    """Return a message without line ends and escape sequences, which names of files and libraries may bring along."""
    return printable(" ".join(text.split("\n")))


def open_closed_streams() -> None:
    """Replace standard streams that were closed at the start, so that no other file gets their descriptors.

    Writing results to a closed standard output is an error; messages to a closed standard error are dropped.
    """
    for name, flags in (("stdin", os.O_RDONLY), ("stdout", os.O_RDONLY), ("stderr", os.O_WRONLY)):
        if getattr(sys, name) is None:
            # Open stdout only for reading, so that writing fails; without a buffer it does not fail again at exit.
            raw = open(os.open(os.devnull, flags), "rb" if name == "stdin" else "wb", buffering=0)  # noqa: SIM115
            setattr(sys, name, io.TextIOWrapper(raw, encoding="utf-8", write_through=True))


# The warnings about texts that a model cannot read: one for each batch of texts, or each text alone.
_unknown_texts: list[UnknownTextsWarning] = []


def warn_in_one_line() -> None:
    """Show warnings as one line on standard error, without the line of code that raised them.

    Warnings about the unknown texts of a batch wait for :func:`warn_of_unknown_texts`.
    """

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        if isinstance(message, UnknownTextsWarning):
            _unknown_texts.append(message)
        if not isinstance(message, UnknownTextsWarning) or message.texts == 1:
            click.echo(f"Warning: {printable(' '.join(str(message).split()))}", err=True)

    warnings.showwarning = show
    # Two batches may have the same numbers.
    warnings.simplefilter("always", UnknownTextsWarning)


def warn_of_unknown_share(share: float) -> None:
    """Warn if this share of the tokens that were embedded is unknown, unless the model itself named the texts."""
    from ctx_embed.text.unknown import warning

    if not _unknown_texts and (said := warning(share)):
        click.echo(said, err=True)


def warn_of_unknown_texts() -> None:
    """Show one warning for all batches in which the model could not read some texts."""
    for zeros in (True, False):
        found = [warning for warning in _unknown_texts if warning.zeros == zeros and warning.texts != 1]
        if len(found) > 1:
            # Batches without such texts are not among them.
            found = [UnknownTextsWarning(sum(warning.count for warning in found), None, zeros)]
        for warning in found:
            click.echo(f"Warning: {warning}", err=True)
    _unknown_texts.clear()


def answer_interrupts() -> None:
    """Let Ctrl-C end the process within a second, even while it waits for threads or runs compiled code.

    Python raises KeyboardInterrupt only when compiled code returns, which may take many seconds. Files on disk are
    complete at any moment, so ending the process is as safe as a kill.
    """
    hears, rings = os.pipe()
    os.set_blocking(rings, False)
    signal.set_wakeup_fd(rings, warn_on_full_buffer=False)

    def end_late() -> None:
        while number := os.read(hears, 1):
            # Servers handle the signal themselves.
            if number[0] == signal.SIGINT and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                time.sleep(GRACE)
                _interruption.say()
                os._exit(INTERRUPTED)

    threading.Thread(target=end_late, daemon=True).start()
