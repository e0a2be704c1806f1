"""The command `ctx-embed`, which imports its subcommands on demand and turns errors into one line."""

from __future__ import annotations

import signal
import sys
from importlib import import_module
from typing import Any

import click

from ctx_embed import __version__
from ctx_embed.cli.errors import (
    answer_interrupts,
    errors_in_one_line,
    open_closed_streams,
    warn_in_one_line,
    warn_of_unknown_texts,
)
from ctx_embed.cli.groups import RUNNING, Group
from ctx_embed.progress import restart

# The commands, named like their modules, with their lines in the help, so that `--help` imports none of them.
COMMANDS = {
    "dedupe": "Write files without near-duplicate rows.",
    "demo": "Index the docstrings of the Python standard library and answer a few queries.",
    "distill": "Train an encoder to reproduce a teacher's embeddings.",
    "encode": "Embed texts into a file, or millions into a directory or database.",
    "eval": "Evaluate encoders on classification, similarity and retrieval tasks.",
    "explain": "Show which tokens an encoder attends to in texts.",
    "export": "Write a model for other programs: ONNX, static embeddings.",
    "grep": "Search files by meaning and by words, without an index.",
    "index": "Build and query search indexes.",
    "mcp": "Offer the search of an index to assistants (Model Context Protocol).",
    "predict": "Predict the labels of texts with a trained classifier.",
    "serve": "Serve embeddings and indexes over HTTP, with a search page.",
    "systems": "List the systems that can be trained, distilled and evaluated.",
    "train": "Train an encoder and a linear head on labelled text.",
    "vocab": "Learn a vocabulary from text.",
}


# How to resume an interrupted command.
RESUME = {
    "index build": "repeat the command with --resume to continue where it stopped",
    "encode": "repeat the command; with --to it continues where it stopped",
    "index sync": "repeat the command to continue where it stopped",
    "train": "repeat the command to continue after the last complete epoch",
    "distill": "repeat the command to continue where it stopped",
    "eval run": "repeat the command to continue; finished scores are stored",
}


class LazyGroup(Group):
    """A group whose commands are modules of ``ctx_embed.cli``, imported at the first use of each."""

    other_names = {"embed": "encode"}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, sorted."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of that name, or None."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(import_module(f"ctx_embed.cli.{cmd_name}"), cmd_name)
        return command

    def others(self, ctx: click.Context) -> dict[str, str]:
        """Return the commands of `index`, since people often leave out the word `index`."""
        from ctx_embed.cli.index import index

        names = {name: name for name in index.list_commands(ctx)} | index.other_names
        return {name: f"index {command}" for name, command in names.items()}

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(sorted(COMMANDS.items()))

    def make_context(self, *args: Any, **settings: Any) -> click.Context:
        """Parse the arguments; report an error if --help or --version cannot write to standard output."""
        with errors_in_one_line(lambda: "nothing was changed"):
            return super().make_context(*args, **settings)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; print a user's or system error as one line and exit with 1."""
        restart()
        with errors_in_one_line(lambda: RESUME.get(" ".join(ctx.meta.get(RUNNING, [])), "nothing was changed")):
            try:
                return super().invoke(ctx)
            finally:
                warn_of_unknown_texts()


def print_version(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    """Print the version, and what embeds texts here, if the option is given."""
    if value and not ctx.resilient_parsing:
        from ctx_embed.kernel import kernel_name

        click.echo(f"ctx-embed, version {__version__}\nkernel: {kernel_name()}")
        ctx.exit()


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
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
    open_closed_streams()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    answer_interrupts()
    warn_in_one_line()
    main()
