"""Checks of arguments that searches and changes share."""

from __future__ import annotations

import numbers
from collections.abc import Iterable
from typing import Any

import numpy as np

from ctx_embed.errors import InputError, described
from ctx_embed.index.storage.shards import Vectors


def checked_count(name: str, value: Any, least: int) -> None:
    """Check the value of an argument that counts something.

    Raises:
        InputError: it is no integer of at least ``least``.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
        raise InputError(f"{name} must be an integer of at least {least}, got {value!r}")


def as_list(values: Any, name: str, needed: str) -> list[Any]:
    """Return ``values`` as a list.

    Raises:
        InputError: they are not iterable, or a string or a dictionary, which are iterable but not meant.
    """
    if isinstance(values, str | bytes | dict) or not isinstance(values, Iterable):
        raise InputError(f"{name} must be {needed}, got {described(values)}")
    return list(values)


def unit_vector(embedding: Any, dimension: int, name: str, *, zeros: bool = False) -> Vectors:
    """Return a given embedding (dimension,) scaled to unit length; messages begin with its ``name``.

    Args:
        embedding: numbers.
        dimension: how many.
        name: of the embedding.
        zeros: accept zeros, the embedding of a text without tokens that the model knows.

    Raises:
        InputError: it is not a vector of that dimension, not finite, or of length 0.
    """
    try:
        vector = np.asarray(embedding)
        if vector.dtype.kind not in "fiu":
            raise TypeError
        vector = vector.astype(np.float64)
    except (TypeError, ValueError, RuntimeError):  # The last one is of torch, for a tensor with a gradient.
        raise InputError(f"{name} must be a list of numbers") from None
    if vector.shape != (dimension,):
        raise InputError(f"{name} must have shape ({dimension},), got {vector.shape}")
    with np.errstate(over="ignore"):
        length = float(np.linalg.norm(vector))
    if zeros and length == 0:
        return np.zeros(dimension, np.float32)
    if not np.isfinite(length) or length == 0:
        raise InputError(f"{name} must have a finite length above 0, got {length}")
    return (vector / length).astype(np.float32)
