"""Groups of commands that suggest names, commands whose help has sections, and the name of the running command."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

import click

# Under this name a click context holds the command that is running, as a list of names.
RUNNING = "ctx_embed.running"


class Group(click.Group):
    """A group that knows other names of its commands and suggests the nearest one for an unknown name.

    Attributes:
        aliases: for another name, the command and perhaps options that it stands for.
        hints: for a name that is not a command here, the advice to print.
    """

    aliases: Mapping[str, Sequence[str]] = {}
    hints: Mapping[str, str] = {}

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the arguments start with; raise a usage error for an unknown one."""
        name, *rest = args
        known = self.list_commands(ctx)
        if name not in known and name in self.aliases:
            args = [*self.aliases[name], *rest]
        elif name not in known and not ctx.resilient_parsing:
            if name in self.hints:
                raise click.UsageError(f"unknown command {name!r}: {self.hints[name]}", ctx)
            if name.startswith("-"):
                raise click.NoSuchOption(name, ctx=ctx)
            near = difflib.get_close_matches(name.lower(), [*known, *self.aliases], n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise click.UsageError(f"unknown command {name!r}: {hint}known are {', '.join(known)}", ctx)
        ctx.meta.setdefault(RUNNING, []).append(args[0])
        return super().resolve_command(ctx, args)


class Sectioned(click.Command):
    """A command whose help lists its options in sections.

    Args:
        sections: for each title the names of its options; the last section also gets options that are not named.
    """

    def __init__(self, *args: Any, sections: Mapping[str, Sequence[str]], **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.sections = sections

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options of each section below its title."""
        options = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
        records = {option.name: record for option in options if (record := option.get_help_record(ctx))}
        named = {title: [records.pop(name) for name in names] for title, names in self.sections.items()}
        named[list(named)[-1]] += records.values()
        for title, rows in named.items():
            with formatter.section(title):
                formatter.write_dl(rows)


def running(ctx: click.Context) -> str:
    """Return the names of the command that is running, as they are typed."""
    names: list[Any] = ctx.meta.get(RUNNING, [])
    return " ".join(names)
