"""The plots of experiments: bars of accuracies, lines over a size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from papers.experiment import Outcome

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Colours that colour-blind people can distinguish (Okabe and Ito).
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
# Returns the points of an outcome's line.
Points = Callable[[Outcome], tuple[Sequence[float], Sequence[float]]]


def bars(name: str, label: str) -> Callable[[Axes, Sequence[Outcome]], None]:
    """Return a plot of bars of one metric by column, a colour for each row, with standard deviations and the paper's
    values as lines."""

    def draw(axes: Axes, outcomes: Sequence[Outcome]) -> None:
        shown = [outcome for outcome in outcomes if name in outcome.figures]
        rows = list(dict.fromkeys(outcome.cell.row for outcome in shown))
        columns = list(dict.fromkeys(outcome.cell.column for outcome in shown))
        width = 0.8 / max(1, len(rows))
        values = []
        for outcome in shown:
            row = rows.index(outcome.cell.row)
            place = columns.index(outcome.cell.column) + (row - (len(rows) - 1) / 2) * width
            value, theirs = outcome.figures[name], outcome.cell.published
            deviation = outcome.figures.get("std") or 0.0
            axes.bar(
                place,
                value,
                0.9 * width,
                yerr=outcome.figures.get("std"),
                color=COLOURS[row % len(COLOURS)],
                label=outcome.cell.row,
            )
            values += [value - deviation, value + deviation]
            if theirs is not None:
                axes.hlines(theirs, place - width / 2, place + width / 2, color="black", label="paper")
                values.append(theirs)
        axes.set_xticks(range(len(columns)), columns)
        axes.set_ylabel(label)
        # Do not start at 0, where all bars would look alike; leave room for the error bars.
        room = max(1.0, 0.15 * (max(values) - min(values)))
        axes.set_ylim(max(0.0, min(values) - room), max(values) + room)

    return draw


def lines(
    points: Points, x_label: str, y_label: str, *, logarithmic: bool = False
) -> Callable[[Axes, Sequence[Outcome]], None]:
    """Return a plot with a line for each row through the points of its outcomes."""

    def draw(axes: Axes, outcomes: Sequence[Outcome]) -> None:
        of_rows: dict[str, tuple[list[float], list[float]]] = {}
        for outcome in outcomes:
            xs, ys = points(outcome)
            line = of_rows.setdefault(outcome.cell.row, ([], []))
            line[0].extend(xs)
            line[1].extend(ys)
        for number, (row, line) in enumerate(of_rows.items()):
            axes.plot(*line, marker="o", markersize=3, color=COLOURS[number % len(COLOURS)], label=row)
        if logarithmic:
            axes.set_xscale("log")
            axes.set_yscale("log")
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)
        axes.grid(alpha=0.3)

    return draw
