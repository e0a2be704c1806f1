"""Options declared once, each with type, range and meaning, for Python, recipes, commands and HTTP alike."""

import inspect
import math
import operator
from collections.abc import Callable, Iterator
from dataclasses import MISSING, Field, field, fields
from functools import cache
from numbers import Integral, Real
from types import MappingProxyType, NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from ctx_embed.errors import InputError, quoted, unknown_name

Function = TypeVar("Function", bound=Callable[..., Any])
Options = TypeVar("Options")
# The shipped model, what runs a model, and how vectors are stored, by name.
DEFAULT, BACKENDS, DTYPE_NAMES = "default", ("numpy", "torch"), ("float32", "float16", "int8")
KINDS = {int: "a whole number", float: "a finite number", bool: "True or False"}
WITHIN = {"at least": operator.ge, "at most": operator.le, "above": operator.gt, "below": operator.lt}


def option(
    default: Any = MISSING,
    meaning: str = "",
    *,
    least: float | None = None,
    most: float | None = None,
    above: float | None = None,
    below: float | None = None,
    **shown: Any,
) -> Any:
    """Return a dataclass field for an option, with its meaning in a sentence and the range of its numbers.

    ``shown`` says how the command line shows it, see :func:`ctx_embed.cli.options.options_of`.
    """
    limits = {"at least": least, "at most": most, "above": above, "below": below}
    metadata = {"meaning": meaning, "limits": {word: limit for word, limit in limits.items() if limit is not None}}
    return field(default=default, metadata={**metadata, "shown": shown})


def declared(options: type) -> Iterator[Field[Any]]:
    """Yield those fields of a dataclass that :func:`option` made."""
    return (known for known in fields(options) if "meaning" in known.metadata)


@cache
def types_of(options: type) -> MappingProxyType[str, Any]:
    """Return the type of each field, without ``None``."""
    types = get_type_hints(options)
    for name, kind in types.items():
        some = [part for part in get_args(kind) if part is not NoneType]
        if NoneType in get_args(kind) and len(some) == 1:
            types[name] = some[0]
    return MappingProxyType(types)


def require_size(name: str, value: object) -> None:
    """Raise an error unless a value is a positive integer that NumPy and torch can count to."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"{name} must be a positive integer, got {quoted(value)}")
    if value >= 2**63:
        raise InputError(f"{name} must be below 2^63, got {quoted(value)}")


def require_valid(options: Any, owner: str = "") -> None:
    """Check numbers, choices, switches and ranges; an error names the first wrong option and its owner."""
    kinds = types_of(type(options))  # type: ignore[arg-type]  # a class is hashable
    for known in declared(type(options)):
        value, kind = getattr(options, known.name), kinds[known.name]
        if value is None and known.default is None:
            continue
        if get_origin(kind) is Literal and value not in get_args(kind):
            raise unknown_name(f"{known.name}{owner}", value, get_args(kind))
        if kind in KINDS:
            limits = known.metadata["limits"]
            if kind is bool or isinstance(value, bool):
                fits = kind is bool and isinstance(value, bool)
            else:
                is_real = kind is float and isinstance(value, Real) and math.isfinite(value)
                fits = is_real or isinstance(value, Integral)
            if not fits or not all(WITHIN[word](value, limit) for word, limit in limits.items()):
                needed = " and ".join(f"{word} {'2^32' if limit == 2**32 else limit}" for word, limit in limits.items())
                needed = needed if fits else ", ".join(filter(None, (KINDS[kind], needed)))
                raise InputError(f"{known.name}{owner} must be {needed}, got {quoted(value)}")


def documented(options: type[Options]) -> type[Options]:
    """Add the meaning of each option to the docstring of a dataclass."""
    lines = []
    for known in declared(options):
        meaning = str(known.metadata["meaning"])
        is_word = meaning.split()[0][1:].islower()
        lines.append(f"    {known.name}: {meaning[0].lower() + meaning[1:] if is_word else meaning}")
    options.__doc__ = inspect.cleandoc(options.__doc__ or "") + "\n\nArgs:\n" + "\n".join(lines) + "\n"
    return options


def takes(*classes: type, but: tuple[str, ...] = ()) -> Callable[[Function], Function]:
    """Return a decorator that shows the options of dataclasses, except ``but``, in a function's signature."""

    def decorate(function: Function) -> Function:
        signature = inspect.signature(function)
        named = [
            parameter for parameter in signature.parameters.values() if parameter.kind is not parameter.VAR_KEYWORD
        ]
        left_out = {*but, *signature.parameters}
        more = [
            inspect.Parameter(
                known.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if known.default is MISSING else known.default,
                annotation=get_type_hints(options)[known.name],
            )
            for options in classes
            for known in declared(options)
            if known.name not in left_out
        ]
        function.__signature__ = signature.replace(parameters=[*named, *more])  # type: ignore[attr-defined]
        return function

    return decorate
