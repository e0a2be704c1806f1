"""How a weight is coloured, alike in the terminal, on a page and in a plot."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# Weights above and below zero, in colours that the colour-blind tell apart (Okabe and Ito).
FOR = (0, 114, 178)
AGAINST = (213, 94, 0)
# The greatest weight is not quite opaque, so that text stays readable on it.
DEEPEST = 0.6


def shades(weights: NDArray[np.float32]) -> NDArray[np.float64]:
    """Weights divided by the greatest magnitude among them: from -1 to 1, all 0 where they are."""
    greatest = np.abs(weights).max(initial=0)
    return weights / greatest if greatest > 0 else np.zeros(weights.shape)


def printable(token: str) -> str:
    """``token`` with line ends and the like as spaces, and what else would act on a terminal as U+FFFD."""
    return "".join(c if c.isprintable() else " " if c.isspace() else "�" for c in token)


def title(text: str) -> str:
    """The heading over what a text's tokens weigh."""
    return printable(text) if text.strip() else "(empty text)"


def absence(has_path: bool) -> str:
    """What is said of a text without tokens."""
    return "no tokens: the embedding is the first context c^0" if has_path else "no tokens: nothing was looked at"
