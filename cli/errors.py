"""The boundary at which errors of users and of the system become one line; bugs keep their traceback."""

from __future__ import annotations

import errno
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from ctx_embed.errors import InputError, installation

# Exit status of a command that Ctrl-C ended.
INTERRUPTED = 128 + signal.SIGINT
# Packages of the default installation that requirements-light.txt leaves out.
LEFT_OUT = {"datasets", "pyarrow", "rich", "scipy", "sentence_transformers", "sklearn", "torch", "transformers"}


@contextmanager
def errors_in_one_line(ctx: click.Context, resume: Callable[[], str]) -> Iterator[None]:
    """Turn errors of the block into click's one line and exit status 1, and Ctrl-C into status 130.

    Args:
        ctx: the context of the command.
        resume: returns how to resume the command after Ctrl-C.

    Raises:
        click.ClickException: the user or the system made an error.
    """
    try:
        yield
    except KeyboardInterrupt:
        # The first line end moves off a progress bar.
        click.echo(f"\nInterrupted; {resume()}.", err=True)
        ctx.exit(INTERRUPTED)
    except InputError as error:
        # The name of a file, or a library's message, may contain line ends.
        raise click.ClickException(" ".join(str(error).split("\n"))) from None
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in LEFT_OUT:
            raise
        raise click.ClickException(
            f"this needs {package}, which the light installation leaves out: {installation()}"
        ) from None
    except OSError as error:
        # A full disk or a name that is too long; click quietly ends on a closed pipe.
        if error.errno in (None, errno.EPIPE):
            raise
        where = f"{error.filename}: " if error.filename else ""
        raise click.ClickException(f"{where}{error.strerror}") from None
