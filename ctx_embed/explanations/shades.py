"""The colours of weights, shared by the terminal, the page and the plot."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# Weights above and below zero, in colours that the colour-blind tell apart (Okabe and Ito).
FOR = (0, 114, 178)
AGAINST = (213, 94, 0)
# The greatest weight is not quite opaque, so that text stays readable on it.
DEEPEST = 0.6
# The deepest colour needs a weight of at least this many times the mean of its line.
EVEN = 2.0
# What is said of a text without known tokens.
NOTHING = "the model knows no token of this text: nothing to explain"


def shades(weights: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return weights from -1 to 1 for their colours.

    They are divided by the greatest magnitude among them, or by :data:`EVEN` times what each would have if all had the
    same, if that is more: a line whose tokens weigh alike is pale, however small its weights are.
    """
    greatest = np.abs(weights).max(initial=0)
    if not greatest > 0:
        return np.zeros(weights.shape)
    shades: NDArray[np.float64] = weights.astype(np.float64) / max(
        float(greatest), EVEN * float(np.abs(weights).mean())
    )
    return shades


def percent(weight: float, digits: int = 1) -> str:
    """Return a weight in %, without the sign of a rounded zero."""
    shown = f"{100 * weight:.{digits}f}"
    return shown.removeprefix("-") if float(shown) == 0 else shown


def printable(token: str) -> str:
    """Return ``token`` with whitespace as spaces and other control characters as U+FFFD."""
    return "".join(c if c.isprintable() else " " if c.isspace() else "�" for c in token)


def title(text: str) -> str:
    """Return the heading of a text's explanation."""
    return printable(text) if text.strip() else "(empty text)"
