"""Labels: strings, integers, floats or booleans, all of one type; text files know only how they are spelled."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from ctx_embed.errors import InputError

Label = str | int | float


def require_labels(labels: Iterable[Any]) -> None:
    """Raise an error unless labels are strings, numbers or booleans of one type; integers and floats are one.

    Raises:
        InputError: a label is of another type, or the types differ.
    """
    kinds = set()
    for label in labels:
        if not isinstance(label, str | int | float) or (isinstance(label, float) and not math.isfinite(label)):
            raise InputError(f"labels must be strings, finite numbers or booleans, got {label!r}")
        kinds.add(type(label))
    if len(kinds) > 1 and kinds != {int, float}:
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise InputError(f"labels must be of one type, got {names}")


def first_labels(labels: Sequence[Label]) -> str:
    """Return the first five labels as text, for a message; an empty string if there are none."""
    return ", ".join([*map(repr, labels[:5]), *["..."] * (len(labels) > 5)])


def spellings(label: Label) -> list[str]:
    """Return the texts that mean a label, the usual one first: a string itself, True as 1, 1 as 1.0."""
    if isinstance(label, str):
        return [label]
    if isinstance(label, bool):
        return ["True", "true", "TRUE", "1", "1.0"] if label else ["False", "false", "FALSE", "0", "0.0"]
    whole = math.isfinite(label) and label == int(label)
    return list(dict.fromkeys([str(label), *([str(int(label)), f"{int(label)}.0"] if whole else [])]))


class Classes:
    """Finds the class that a label means, whatever its type: "1", 1 and 1.0 are the class 1."""

    def __init__(self, labels: Sequence[Label]) -> None:
        self._by_spelling: dict[str, Label] = {}
        for label in labels:
            for text in spellings(label):
                self._by_spelling.setdefault(text, label)

    def meant(self, label: Label) -> Label | None:
        """Return the class; None if no class is spelled like the label."""
        return next((self._by_spelling[text] for text in spellings(label) if text in self._by_spelling), None)
