"""Command-line options from dataclasses whose fields :func:`ctx_embed.options.option` declared."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, Field
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import click

from ctx_embed.cli.options import Command, Finite
from ctx_embed.options import declared, types_of


def options_of(
    *kinds: Any, but: Iterable[str] = (), cases: Mapping[str, Any] | None = None, hidden: bool = False
) -> Callable[[Command], Command]:
    """Return a decorator that adds the options of dataclasses to a command.

    A field may state ``flag``, ``metavar``, ``default_is`` (the default in words) and ``command=False`` (no option).

    Args:
        *kinds: dataclasses, or instances that hold the defaults, in the order in which the help lists their options.
        but: fields that do not become options.
        cases: by name, instances whose defaults the help lists beside each other. The options then default to None, and
            the command chooses the case.
        hidden: leave the options out of the help.
    """

    def add(command: Command) -> Command:
        for kind in reversed(kinds):
            options = kind if isinstance(kind, type) else type(kind)
            for known in reversed([*declared(options)]):
                if known.name not in but and known.metadata["shown"].get("command", True):
                    default = known.default if isinstance(kind, type) else getattr(kind, known.name)
                    values = {case: getattr(each, known.name) for case, each in (cases or {}).items()}
                    command = _option(known, types_of(options)[known.name], default, values, hidden)(command)
        return command

    return add


def section(title: str | None, *classes: type) -> list[str]:
    """Return the names of the options in a section of the help; for None, of options without a section."""
    return [
        known.name
        for options in classes
        for known in declared(options)
        if known.metadata["shown"].get("section") == title and known.metadata["shown"].get("command", True)
    ]


def _option(
    known: Field[Any], kind: Any, default: Any, values: Mapping[str, Any], hidden: bool
) -> Callable[[Command], Command]:
    """Return a decorator that adds the option of a field; ``values`` are its defaults by case."""
    shown = known.metadata["shown"]
    flag = shown.get("flag", f"--{known.name.replace('_', '-')}")
    settings: dict[str, Any] = {"help": known.metadata["meaning"], "hidden": hidden}
    if kind is bool:
        flag, settings["is_flag"] = (flag, True) if default is False else (f"{flag}/--no-{known.name}", None)
    elif get_origin(kind) is Literal:
        settings["type"] = click.Choice(get_args(kind))
    elif kind in (int, float):
        limits = known.metadata["limits"]
        least, most = limits.get("above", limits.get("at least")), limits.get("at most", limits.get("below"))
        is_open = {"min_open": "above" in limits, "max_open": "below" in limits}
        settings["type"] = (click.IntRange if kind is int else Finite)(least, most, **is_open)
        settings["metavar"] = shown.get("metavar")
    else:
        settings["metavar"] = shown.get("metavar", "FILE")
        several = get_origin(kind) is Sequence or shown.get("repeated")
        settings["help"] += " May be repeated." if shown.get("repeated") else ""
        settings |= {"multiple": True} if several else {"type": Path if kind is Path else str}
    if "default_is" in shown or values:
        words = [f"{case} {value}".strip() for case, value in values.items()]
        of_cases = "; ".join(words) if len(set(values.values())) > 1 else str(next(iter(values.values()), ""))
        settings["help"] += f"  [default: {shown.get('default_is') or of_cases}]"
        default = None
    if default is MISSING:
        return click.option(flag, known.name, required=True, **settings)
    return click.option(flag, known.name, default=default, **settings)
