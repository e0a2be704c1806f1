"""The command `ctx-embed`: its groups, which import commands on demand, and its boundary, which prints errors as one
line; bugs keep their traceback.
"""

import errno
import functools
import io
import os
import re
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import click

from ctx_embed import __version__, progress
from ctx_embed.cli.terminal import guard
from ctx_embed.errors import InputError, UnknownTextsWarning, left_out, shortened, unknown_name, without_secrets

# The commands, named like their modules, with their lines in the help, so that `--help` imports none of them.
COMMANDS = {
    "dedupe": "Write files without near-duplicate rows.",
    "demo": "Index the docstrings of the Python standard library and answer a few queries.",
    "distill": "Train an encoder to reproduce a teacher's embeddings.",
    "encode": "Embed texts into a file, or millions into a directory or database.",
    "eval": "Evaluate encoders on classification, similarity and retrieval tasks.",
    "explain": "Show which tokens an encoder attends to in texts.",
    "export": "Write for other programs: ONNX, static embeddings, the search of a static site.",
    "grep": "Search files by meaning and by words, without an index.",
    "index": "Build and query search indexes.",
    "mcp": "Offer the search of an index to assistants (Model Context Protocol).",
    "predict": "Predict the labels of texts with a trained classifier.",
    "serve": "Serve embeddings and indexes over HTTP, with a search page.",
    "systems": "List the systems that can be trained, distilled and evaluated.",
    "train": "Train an encoder and a linear head on labelled text.",
    "vocab": "Learn a vocabulary from text.",
}
# Commands that have commands, and what people call commands of ours.
GROUPS = ("index", "eval", "export")
MEANT = {"search": "index query", "find": "index query", "add": "index build", "embed": "encode", "classify": "predict"}
MEANT |= {"list": "index get", "rm": "index delete", "stats": "index info", "check": "index verify"}
# How to resume an interrupted command.
RESUME = {
    "index build": "repeat the command with --resume to continue where it stopped",
    "encode": "repeat the command; with --to it continues where it stopped",
    "index sync": "repeat the command to continue where it stopped",
    "train": "repeat the command to continue after the last complete epoch",
    "distill": "repeat the command to continue where it stopped",
    "eval run": "repeat the command to continue; finished scores are stored",
}
# The key under which a click context stores the name of the running command.
RUNNING = "ctx_embed.running"
# What a command says on standard error besides errors and warnings.
LEVELS = {
    ("-q", "--quiet"): "Show no progress.",
    ("-v", "--verbose"): "Show each piece of work with its seconds, and where in the program an error was raised.",
}
# Maximum value of a count option: libraries fail for numbers of more than 64 bits.
LARGEST = 2**31 - 1
# Maximum characters of an error message, which may quote several arguments and paths.
LONGEST_MESSAGE = 4000
# Exit status of a command that Ctrl-C ended.
INTERRUPTED = 128 + signal.SIGINT
# Minimum address space of a command in bytes: with less, linear algebra crashes or waits for ever when it is loaded.
# Below PLENTY, one thread computes, because linear algebra reserves some 30 MB for each.
LEAST_MEMORY, PLENTY = 512 << 20, 2 << 30
# Seconds that a command gets to clean up after Ctrl-C; then the process ends as if it were killed.
GRACE = 0.7


def counted(number: int, noun: str) -> str:
    """Return ``1 document``, ``2 documents``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def printable(text: str, other: str = "?") -> str:
    """Return a text whose line ends, escape sequences and other control characters are replaced."""
    return "".join(character if character.isprintable() else other for character in text)


def one_line(text: str, length: int) -> str:
    """Return the beginning of a text without control characters."""
    # Read only the beginning: the text may be a whole book.
    line = " ".join(printable(text[: 4 * length], " ").split())
    return line if len(line) <= length and len(text) <= 4 * length else line[: length - 1] + "…"


# How to resume the running command after Ctrl-C; empty once that has been said.
_resume: Callable[[], str] = lambda: "nothing was changed"  # noqa: E731
_saying = threading.Lock()


def _say_interrupted() -> None:
    """Print once how to resume the command."""
    global _resume
    with _saying:
        if said := _resume():
            # The message starts with a line end because a progress bar may be on the current line.
            click.echo(f"\nInterrupted; {said}.", err=True)
        _resume = str


@contextmanager
def errors_in_one_line(resume: Callable[[], str], status: int = 1) -> Iterator[None]:
    """Turn errors in the block into one line by click and an exit status, and Ctrl-C into status 130.

    ``resume`` returns how to resume the command after Ctrl-C; empty: Ctrl-C ends it without a message.
    """
    global _resume
    _resume = resume
    try:
        yield
    except KeyboardInterrupt:
        _say_interrupted()
        raise click.exceptions.Exit(INTERRUPTED) from None
    except InputError as error:
        # An address given as a path may contain a password.
        said = without_secrets(str(error))
    except click.UsageError as error:
        error.message = shortened(error.message, LONGEST_MESSAGE)  # type: ignore[misc]  # click shows that of the instance
        raise
    except ModuleNotFoundError as error:
        if (needed := left_out(f"ctx-embed {click.get_current_context().invoked_subcommand}", error)) is None:
            raise
        said = needed
    except (MemoryError, RuntimeError, ImportError) as error:
        # torch raises a plain RuntimeError if there is not enough memory, and Python an ImportError for its libraries.
        if not isinstance(error, MemoryError) and not re.search("(allocate|out of) memory|failed to map", str(error)):
            raise
        said = "there is not enough memory: end other programs, or give less at a time"
    except OSError as error:
        # A full disk or a name that is too long, for example; click itself exits quietly on a closed pipe.
        if error.errno in (None, errno.EPIPE):
            raise
        where = f"{error.filename}: " if error.filename else ""
        said = f"{where}{'standard output is closed' if error.errno == errno.EBADF else error.strerror}"
    else:
        return
    if progress.level == "all":
        traceback.print_exc()
    # Names of files and libraries may bring along line ends and escape sequences.
    failure = click.ClickException(printable(shortened(said.replace("\n", " "), LONGEST_MESSAGE)))
    failure.exit_code = status  # type: ignore[misc]  # click reads that of the instance
    raise failure


# The warnings about texts that a model cannot read: one for each batch of texts, or for a text by itself.
_unknown_texts: list[UnknownTextsWarning] = []


class Count(click.IntRange):
    """An integer of at most 31 bits; click alone would accept any integer."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number; raise a usage error for one that is out of range."""
        number = super().convert(value, param, ctx)
        if number > LARGEST:
            self.fail(f"{number} is more than {LARGEST}.", param, ctx)
        return number


def _set_level(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    """Say less or more on standard error from here on."""
    if value:
        if progress.level != "long work":
            raise click.UsageError("--quiet and --verbose cannot be combined", ctx)
        progress.level = "nothing" if parameter.name == "quiet" else "all"


class CliCommand(click.Command):
    """A command whose help lists its options in sections, with defaults and ranges, and that has --quiet and --verbose.

    An option is listed in its ``section``, see :func:`ctx_embed.cli.options.options_of`, or else in "Options".
    """

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.context_settings = {"show_default": True, **self.context_settings}
        for names, text in LEVELS.items():
            self.params.append(
                click.Option(names, is_flag=True, expose_value=False, is_eager=True, callback=_set_level, help=text)
            )
        for option in self.params:
            if isinstance(option.type, click.IntRange) and option.type.max is None:
                option.type = Count(option.type.min, min_open=option.type.min_open)
            if option.metavar is None and isinstance(option.type, click.IntRange | click.FloatRange):
                option.metavar = "N" if isinstance(option.type, click.IntRange) else "X"

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; raise a usage error for a text given twice, of which click alone keeps the last."""
        given = self.make_parser(ctx).parse_args([*args])[2]
        for option in self.params:
            if option.type is click.STRING and not option.multiple and given.count(option) > 1 and option.nargs == 1:
                raise click.UsageError(f"{option.opts[-1]} may be given once, got it {given.count(option)} times", ctx)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, and with --verbose say how long it took."""
        began = time.monotonic()
        result = super().invoke(ctx)
        if progress.level == "all":
            click.echo(f"{ctx.command_path} took {time.monotonic() - began:.2f} s", err=True)
        return result

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options of each section below its title."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for option in self.get_params(ctx):
            if isinstance(option, click.Option) and (record := option.get_help_record(ctx)):
                rows = sections.setdefault(getattr(option, "section", "Options"), [])
                rows.append((record[0], record[1].replace("]  [", "; ")))
        for title, rows in sections.items():
            with formatter.section(title):
                formatter.write_dl(rows)


command = functools.partial(click.command, cls=CliCommand)


class Group(click.Group):
    """A group that imports commands at their first use, and suggests the nearest one for an unknown name.

    Args:
        homes: the module below ``ctx_embed.cli`` that holds each command.
    """

    command_class = CliCommand

    def __init__(self, *args: Any, homes: Mapping[str, str] | None = None, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.homes = homes or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, sorted."""
        return sorted([*self.homes, *self.commands])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of that name, or None."""
        if cmd_name not in self.homes:
            return super().get_command(ctx, cmd_name)
        held = vars(import_module(f"ctx_embed.cli.{self.homes[cmd_name]}")).values()
        return next(each for each in held if isinstance(each, click.Command) and each.name == cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the arguments start with; raise a usage error for an unknown one."""
        known = self.list_commands(ctx)
        if args[0] not in known and not ctx.resilient_parsing:
            meant = MEANT.get(args[0])
            for name in GROUPS:
                group = self.get_command(ctx, name) if name in known else None
                if isinstance(group, Group) and args[0] in group.list_commands(ctx):
                    meant = meant or f"{name} {args[0]}"
            said = f"unknown command '{args[0]}': did you mean '{meant}'?"
            raise click.UsageError(said if meant else str(unknown_name("command", args[0], known)), ctx)
        ctx.meta.setdefault(RUNNING, []).append(args[0])
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands, each with its whole first sentence; those of the first group without importing them."""
        names = [] if ctx.parent is None else self.list_commands(ctx)
        commands = [(name, each.get_short_help_str(1000)) for name in names if (each := self.get_command(ctx, name))]
        with formatter.section("Commands"):
            formatter.write_dl(commands or sorted(COMMANDS.items()))


def _respect_memory_limit() -> None:
    """Compute with one thread in little address space (``ulimit -v``); raise InputError if there is too little."""
    try:
        import resource
    except ImportError:  # Windows has no such limit.
        return
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if 0 <= limit < LEAST_MEMORY:
        needed = f"needs an address space of {LEAST_MEMORY >> 20} MB, got {limit >> 20} MB"
        raise InputError(f"ctx-embed {needed}; raise the limit with `ulimit -v {LEAST_MEMORY >> 10}` or more")
    if 0 <= limit < PLENTY:
        os.environ |= dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"), "1")


class MainGroup(Group):
    """The group of all commands, at the boundary to the user."""

    def make_context(self, *args: Any, **settings: Any) -> click.Context:
        """Parse the arguments; report an error if --help or --version cannot write to standard output."""
        with errors_in_one_line(lambda: "nothing was changed"):
            return super().make_context(*args, **settings)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; print a user's or system error as one line and exit with 1."""
        progress.level, progress.last_line = "long work", None
        with errors_in_one_line(lambda: RESUME.get(" ".join(ctx.meta.get(RUNNING, [])), "nothing was changed")):
            _respect_memory_limit()
            try:
                return super().invoke(ctx)
            finally:
                # One warning for all batches in which the model could not read some texts.
                for zeros in (True, False):
                    found = [warning for warning in _unknown_texts if warning.zeros == zeros and warning.texts != 1]
                    if len(found) > 1:
                        # How many texts there were is unknown: batches without such texts give no warning.
                        first = [text for warning in found for text in warning.first]
                        found = [UnknownTextsWarning(first, sum(warning.count for warning in found), None, zeros)]
                    for warning in found:
                        click.echo(f"Warning: {warning}", err=True)
                _unknown_texts.clear()


def print_version(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    """If the option is given, print the version and whether the C kernel or NumPy embeds texts."""
    if value and not ctx.resilient_parsing:
        from ctx_embed.kernel import kernel_name

        click.echo(f"ctx-embed, version {__version__}\nkernel: {kernel_name()}")
        ctx.exit()


@click.command(
    cls=MainGroup, homes={name: name for name in COMMANDS}, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.option(
    "-V",
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=print_version,
    help="Show the version and the kernel, and exit.",
)
def main() -> None:
    """Fast sentence embeddings for English text, with the Contextualizer.

    The default model knows English only. Train or distill a model on your own texts for other languages.

    \b
    Example: ctx-embed index build notes.txt notes.index
    Example: ctx-embed index query notes.index "a question"

    Shell completion for bash (zsh and fish likewise): eval "$(_CTX_EMBED_COMPLETE=bash_source ctx-embed)"
    """


def run() -> None:
    """Run the installed command; SIGTERM, like Ctrl-C, leaves no temporary files behind."""
    # Replace standard streams that were closed at the start, so that no other file gets their descriptors. Writing
    # results to a closed standard output is an error; messages to a closed standard error are dropped.
    for name, flags in (("stdin", os.O_RDONLY), ("stdout", os.O_RDONLY), ("stderr", os.O_WRONLY)):
        if getattr(sys, name) is None:
            # Open stdout only for reading, so that writing fails; without a buffer it does not fail again at exit.
            raw = open(os.open(os.devnull, flags), "rb" if name == "stdin" else "wb", buffering=0)  # noqa: SIM115
            setattr(sys, name, io.TextIOWrapper(raw, encoding="utf-8", write_through=True))
    guard()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))

    # Python raises KeyboardInterrupt only when compiled code returns or a thread ends, which may take many seconds, so
    # a thread ends the process within a second. Files on disk are complete at any moment, so this is as safe as a kill.
    hears, rings = os.pipe()
    os.set_blocking(rings, False)
    signal.set_wakeup_fd(rings, warn_on_full_buffer=False)

    def end_late() -> None:
        while number := os.read(hears, 1):
            # Servers handle the signal themselves.
            if number[0] == signal.SIGINT and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                time.sleep(GRACE)
                _say_interrupted()
                os._exit(INTERRUPTED)

    threading.Thread(target=end_late, daemon=True).start()

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        """Show a warning as one line, without the line of code; warnings about a batch's texts wait for the end."""
        if isinstance(message, UnknownTextsWarning):
            _unknown_texts.append(message)
        if not isinstance(message, UnknownTextsWarning) or message.texts == 1:
            click.echo(f"Warning: {printable(' '.join(str(message).split()))}", err=True)

    warnings.showwarning = show
    # Two batches may give equal warnings.
    warnings.simplefilter("always", UnknownTextsWarning)
    main()
