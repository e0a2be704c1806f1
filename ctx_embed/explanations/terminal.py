"""An explanation in the terminal: each token on the colour of its weight, followed by its weight in %."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ctx_embed.explanations.page import AGAINST, DEEPEST, FOR, NOTHING, percent, printable, shades, title

if TYPE_CHECKING:
    from ctx_embed.explanations.explanation import ContextPath, Explanation


# Tokens below this share of the greatest weight are not coloured.
FAINTEST = 0.05


def renderable(explanation: Explanation, *, contexts: bool = False) -> RenderableType:
    """Return what ``rich.print`` shows: the text, a line of coloured tokens for each step or head, perhaps the path."""
    # `Text` objects, because rich would interpret markup in strings.
    parts: list[RenderableType] = [Text(title(explanation.text), style="bold")]
    if explanation.tokens:
        lines = Table.grid(padding=(0, 2))
        lines.add_column(no_wrap=True)
        for name, weights in explanation.rows():
            lines.add_row(name, _line(explanation.tokens, weights))
        parts.append(lines)
    else:
        parts.append(Text(NOTHING))
    if contexts and explanation.path is not None:
        parts.append(_path(explanation.path))
    return Group(*parts)


def _line(tokens: tuple[str, ...], weights: NDArray[np.float32]) -> Text:
    line = Text()
    for token, weight, shade in zip(tokens, weights.tolist(), shades(weights).tolist(), strict=True):
        base = FOR if shade > 0 else AGAINST
        red, green, blue = (round(255 - abs(shade) * DEEPEST * (255 - part)) for part in base)
        style = "" if abs(shade) < FAINTEST else f"black on rgb({red},{green},{blue})"
        line.append(printable(token), style=style).append(f" {percent(weight, 0)}  ", style="dim")
    line.rstrip()
    return line


def _path(path: ContextPath) -> Table:
    table = Table("step k", "|c^k|", "|z^k|", "cos(c^k, c^(k-1))", "cos(c^k, c^K)", box=None, pad_edge=False)
    for k, (norm, to_last) in enumerate(zip(path.context_norms, path.to_last, strict=True)):
        moved = ("", "") if k == 0 else (f"{path.correction_norms[k - 1]:.3f}", f"{path.to_previous[k - 1]:.3f}")
        table.add_row(str(k), f"{norm:.3f}", *moved, f"{to_last:.3f}")
    return table
