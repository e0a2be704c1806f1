"""Commands whose help has sections, and groups that suggest names and record which command is running."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import click

# The key under which a click context stores the names of the running command.
RUNNING = "ctx_embed.running"
# Maximum value of a count option: libraries fail for numbers of more than 64 bits.
LARGEST = 2**31 - 1


class Count(click.IntRange):
    """An integer of at most 31 bits; click alone would accept any integer."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number; raise a usage error for one that is out of range."""
        number = super().convert(value, param, ctx)
        if number > LARGEST:
            self.fail(f"{number} is more than {LARGEST}.", param, ctx)
        return number


class CliCommand(click.Command):
    """A command whose help lists its options in sections, with defaults and ranges.

    Args:
        sections: the names of the options below each title; the last section also gets all other options.
        removed: for each option that there was, what to use instead.
        missing: for each option that users know from other programs, what to use instead.
    """

    def __init__(
        self,
        *args: Any,
        sections: Mapping[str, Sequence[str]] | None = None,
        removed: Mapping[str, str] | None = None,
        missing: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(*args, **settings)
        self.context_settings = {"show_default": True, **self.context_settings}
        self.sections = sections or {"Options": ()}
        self.instead = {name: f"{name} was removed: {said}" for name, said in (removed or {}).items()}
        self.instead |= {name: f"there is no option {name}: {said}" for name, said in (missing or {}).items()}
        for option in self.params:
            if isinstance(option.type, click.IntRange) and option.type.max is None:
                option.type = Count(option.type.min, min_open=option.type.min_open)
            if option.metavar is None and isinstance(option.type, click.IntRange | click.FloatRange):
                option.metavar = "N" if isinstance(option.type, click.IntRange) else "X"

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments and return the rest; say of an option that is not there what to use instead."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if error.option_name not in self.instead:
                raise
            raise click.UsageError(self.instead[error.option_name], ctx) from None

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options of each section below its title."""
        options = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
        records = {option.name: record for option in options if (record := option.get_help_record(ctx))}
        named = {title: [records.pop(name) for name in names] for title, names in self.sections.items()}
        named[list(named)[-1]] += records.values()
        for title, rows in named.items():
            with formatter.section(title):
                formatter.write_dl([(names, text.replace("]  [", "; ")) for names, text in rows])


command = functools.partial(click.command, cls=CliCommand)


class Group(click.Group):
    """A group that suggests the nearest command for an unknown name.

    Attributes:
        other_names: for names that other programs use, the command that does this here.
        removed: for each command that there was, what to use instead.
    """

    command_class = CliCommand
    group_class = type
    other_names: Mapping[str, str] = {}
    removed: Mapping[str, str] = {}

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the arguments start with; raise a usage error for an unknown one."""
        name, known = args[0], self.list_commands(ctx)
        if name not in known and not ctx.resilient_parsing:
            if name in self.removed:
                raise click.UsageError(f"the command {name!r} was removed: {self.removed[name]}", ctx)
            if name.startswith("-"):
                raise click.NoSuchOption(name, ctx=ctx)
            others = {**self.others(ctx), **self.other_names}
            near = difflib.get_close_matches(name.lower(), [*known, *others], n=1)
            hint = f"did you mean {others.get(near[0], near[0])!r}? " if near else ""
            raise click.UsageError(f"unknown command {name!r}: {hint}known are {', '.join(known)}", ctx)
        ctx.meta.setdefault(RUNNING, []).append(name)
        return super().resolve_command(ctx, args)

    def others(self, ctx: click.Context) -> dict[str, str]:
        """Return commands of other groups that the user may mean, by name; called only for an unknown name."""
        return {}

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands, each with its whole first sentence."""
        commands = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        with formatter.section("Commands"):
            formatter.write_dl([(name, each.get_short_help_str(1000)) for name, each in commands.items() if each])
