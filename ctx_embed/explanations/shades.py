"""The colours of weights, shared by the terminal and the page."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# Colours of positive and negative weights, safe for the colour-blind (Okabe and Ito).
FOR = (0, 114, 178)
AGAINST = (213, 94, 0)
# Opacity of the deepest colour; text on it stays readable.
DEEPEST = 0.6
# Only a weight of at least this many times the mean magnitude of its line has the deepest colour.
EVEN = 2.0
# Shown for a text that the model cannot read.
NOTHING = "the model knows too few words of this text: nothing to explain"


def shades(weights: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the weights of a line scaled to -1 to 1, for their colours.

    The divisor is the greatest magnitude or, if larger, :data:`EVEN` times the mean magnitude, so that a line of
    similar weights is pale.
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
