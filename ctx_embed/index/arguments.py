"""Checks of arguments that searches and changes share, and the deadline of a search."""

from __future__ import annotations

import math
import numbers
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from ctx_embed.errors import InputError, LateError, described

if TYPE_CHECKING:
    from ctx_embed.index.storage.vectors import Vectors

# When the work of this thread must end, and how many seconds it has in all.
_DEADLINE: ContextVar[tuple[float, float]] = ContextVar("deadline", default=(math.inf, math.inf))


@contextmanager
def within(seconds: float | None) -> Iterator[None]:
    """Give the block a deadline, which SQLite and the loops of a search obey; None, or a later one, changes nothing."""
    deadline = _DEADLINE.get() if seconds is None else min(_DEADLINE.get(), (time.monotonic() + seconds, seconds))
    token = _DEADLINE.set(deadline)
    try:
        yield
    finally:
        _DEADLINE.reset(token)


def is_late() -> bool:
    """Return whether the deadline has passed."""
    return time.monotonic() > _DEADLINE.get()[0]


def require_time() -> None:
    """Raise an error if the deadline has passed.

    Raises:
        LateError: it has.
    """
    if is_late():
        raise LateError(f"took longer than {_DEADLINE.get()[1]:g} s; ask for less, or give it a later deadline")


def checked_count(name: str, value: Any, least: int) -> None:
    """Check the value of an argument that counts something.

    Raises:
        InputError: it is not an integer of at least ``least``.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
        raise InputError(f"{name} must be an integer of at least {least}, got {value!r:.60}")


def unknown_fields_message(unknown: Mapping[str, Sequence[str]]) -> str:
    """Return a message about the result of :meth:`SearchIndex.unknown_fields`; empty if all fields are known."""
    for name, known in unknown.items():
        return f"no document has a field {name!r} (fields: {', '.join(known) or 'none'})"
    return ""


def as_list(values: Any, name: str, needed: str) -> list[Any]:
    """Return ``values`` as a list: given a list, an array, a series of any library, or a generator.

    Raises:
        InputError: they are not iterable, or they are a string, a dictionary or a table, which is surely a mistake.
    """
    if hasattr(values, "columns"):
        columns = ", ".join(repr(str(column)) for column in list(values.columns)[:5])
        remedy = "its rows as dictionaries" if name == "metadata" else f"one of its columns ({columns})"
        raise InputError(f"{name} must be {needed}, got {described(values)}; give {remedy}")
    if isinstance(values, str | bytes | dict) or not isinstance(values, Iterable):
        raise InputError(f"{name} must be {needed}, got {described(values)}")
    return values.to_pylist() if hasattr(values, "to_pylist") else list(values)


def unit_vector(embedding: Any, dimension: int, name: str) -> Vectors:
    """Return a given embedding (dimension,) scaled to unit length; a zero vector stays zero.

    Args:
        embedding: numbers.
        dimension: the dimension of the index.
        name: the beginning of messages.

    Raises:
        InputError: it is not a vector of that dimension, or not finite.
    """
    import numpy as np

    try:
        vector = np.asarray(embedding)
        if vector.dtype.kind not in "fiu":
            raise TypeError
        vector = vector.astype(np.float64)
    except (TypeError, ValueError, RuntimeError):  # torch raises RuntimeError for a tensor with a gradient.
        raise InputError(f"{name} must be a list of numbers") from None
    if vector.shape != (dimension,):
        raise InputError(f"{name} must have shape ({dimension},), got {vector.shape}")
    with np.errstate(over="ignore"):
        length = float(np.linalg.norm(vector))
    if not np.isfinite(length):
        raise InputError(f"{name} must have a finite length, got {length}")
    return (vector / (length or 1)).astype(np.float32)
