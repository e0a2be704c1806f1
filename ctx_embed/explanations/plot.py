"""Explanations as one PNG (extra ``plots``): a heat map of tokens by steps or heads, and the path of the context."""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ctx_embed.errors import InputError, missing_extra
from ctx_embed.explanations.shades import AGAINST, DEEPEST, FOR, NOTHING, percent, printable, shades, title

if TYPE_CHECKING:
    from ctx_embed.explanations.explanation import ContextPath, Explanation


# Sizes in inches.
CELL, MARGIN, PATH_HEIGHT, LEAST_WIDTH = 0.32, 1.1, 1.9, 6.0
DOTS_PER_INCH = 120
# matplotlib is limited to 2^16 dots a side and needs four bytes a dot; few viewers open larger pictures than these.
MOST_DOTS_A_SIDE = 30_000
MOST_DOTS = 100_000_000
# Cells show their numbers only in panels of up to this many cells, because numbers are slow to draw.
MOST_NUMBERS = 2500
LONGEST_LABEL, LONGEST_TITLE = 24, 80


class _Panel(NamedTuple):
    """A heat map (rows, tokens) coloured a row at a time, or the path."""

    title: str
    labels: Sequence[str]
    tokens: Sequence[str]
    weights: NDArray[np.float32]
    path: ContextPath | None = None

    @property
    def height(self) -> float:
        return PATH_HEIGHT if self.path else CELL * (len(self.labels) + 2) + (MARGIN if self.tokens else 0)

    @property
    def width(self) -> float:
        return LEAST_WIDTH if self.path else max(LEAST_WIDTH, 2 * MARGIN + CELL * len(self.tokens))


def png(explanations: Sequence[Explanation], model: str | None = None) -> bytes:
    """Return the picture; ``model`` is the name to show for the model.

    Raises:
        InputError: the extra ``plots`` is not installed, or the picture would be too large.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise missing_extra("a PNG", "plots") from None
    panels = [panel for explanation in explanations for panel in _panels(explanation)]
    width, height = max(panel.width for panel in panels), sum(panel.height for panel in panels)
    if (
        max(width, height) * DOTS_PER_INCH > MOST_DOTS_A_SIDE
        or width * height * DOTS_PER_INCH * DOTS_PER_INCH > MOST_DOTS
    ):
        texts = "1 text" if len(explanations) == 1 else f"{len(explanations)} texts"
        tokens = sum(len(explanation.tokens) for explanation in explanations)
        raise InputError(f"{tokens} tokens in {texts} are too many for a PNG: explain fewer, or write .html")
    figure = Figure((width, height), layout="constrained")
    stream = io.BytesIO()
    # A token may be in a script that the font lacks, or contain a dollar sign, which would start a formula.
    with warnings.catch_warnings(), matplotlib.rc_context({"text.parse_math": False}):
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        rows = figure.subplots(len(panels), squeeze=False, height_ratios=[panel.height for panel in panels])[:, 0]
        for axes, panel in zip(rows, panels, strict=True):
            (_draw_path if panel.path else _draw_weights)(axes, panel)
        if model is not None:
            figure.suptitle(f"Model {_short(model, LONGEST_TITLE)}", x=0.01, ha="left", fontsize=9, color="#555555")
        figure.savefig(stream, format="png", dpi=DOTS_PER_INCH)
    return stream.getvalue()


def _panels(explanation: Explanation) -> list[_Panel]:
    tokens = [_short(token) for token in explanation.tokens]
    text = _short(title(explanation.text), LONGEST_TITLE)
    if not tokens:
        return [_Panel(f"{text}: {NOTHING}", [], [], np.zeros((0, 0), np.float32))]
    if explanation.between_tokens:
        return [_Panel(f"{name}: {text}", tokens, tokens, weights) for name, weights in explanation.parts()]
    names, weights = zip(*explanation.rows(), strict=True)
    panels = [_Panel(text, names, tokens, np.stack(weights))]
    return (
        panels
        if explanation.path is None
        else [
            *panels,
            _Panel("cosines", [], [], panels[0].weights, explanation.path),
            _Panel("norms", [], [], panels[0].weights, explanation.path),
        ]
    )


def _short(text: str, length: int = LONGEST_LABEL) -> str:
    text = printable(text)
    return text if len(text) <= length else text[: length - 1] + "…"


def _draw_weights(axes: Any, panel: _Panel) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    axes.set_title(panel.title, fontsize=9, loc="left")
    if not panel.tokens:
        axes.set_axis_off()
        return
    against, for_ = (tuple(1 - DEEPEST * (1 - part / 255) for part in colour) for colour in (AGAINST, FOR))
    colours = LinearSegmentedColormap.from_list("weights", [against, (1, 1, 1), for_])
    axes.imshow(np.stack([shades(row) for row in panel.weights]), cmap=colours, vmin=-1, vmax=1, aspect="auto")
    axes.set_xticks(range(len(panel.tokens)), panel.tokens, rotation=90, fontsize=8)
    axes.set_yticks(range(len(panel.labels)), panel.labels, fontsize=8)
    if panel.weights.size > MOST_NUMBERS:
        return
    for row, weights in enumerate(panel.weights.tolist()):
        for column, weight in enumerate(weights):
            axes.text(column, row, percent(weight, 0), ha="center", va="center", fontsize=6)


def _draw_path(axes: Any, panel: _Panel) -> None:
    """Draw the cosines or the norms of a path, as the panel's title says."""
    path = panel.path
    assert path is not None
    steps = range(len(path.context_norms))
    lines: Sequence[tuple[int, str, str, Sequence[float]]] = {
        "cosines": [
            (1, "cos(c^k, c^(k-1))", "#0072B2", path.to_previous),
            (0, "cos(c^k, c^K)", "#D55E00", path.to_last),
        ],
        "norms": [
            (0, "|c^k|: length of the context", "#0072B2", path.context_norms),
            (1, "|z^k|: length of what step k adds", "#D55E00", path.correction_norms),
        ],
    }[panel.title]
    for begin, label, colour, values in lines:
        axes.plot(steps[begin:], values, label=label, color=colour, marker="o", markersize=4)
    axes.set_xticks(steps)
    axes.tick_params(labelsize=8)
    axes.set_xlabel("step k", fontsize=8)
    axes.set_ylabel("cosine" if panel.title == "cosines" else "norm", fontsize=8)
    axes.grid(alpha=0.3)
    if panel.title == "norms":
        axes.set_ylim(bottom=0)
    else:
        axes.set_ylim(top=1.05)
    axes.legend(fontsize=7, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False)
