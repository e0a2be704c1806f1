"""Experiments: cells, their computation in parts, and their presentation in tables and plots."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from papers.inputs import Workplace

# Settings determine the outcome of a cell, Figures are its outcome; both hold JSON values.
Settings = Mapping[str, Any]
Figures = dict[str, Any]
UNKNOWN = "—"
# What the papers say, by paper and place; nothing else on the page is theirs.
PAPERS: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("published.json").read_text(encoding="utf-8"))


def of_paper(paper: str, place: str) -> Any:
    """Return what a paper says in a place: a table, or a table and the figure in it."""
    (found,) = (values for name, values in PAPERS[paper].items() if name.startswith(place))
    return found


# Number of folds in a cross-validation, and those of them that a quick run computes.
FOLDS, QUICK_FOLDS = 10, 2


@dataclass(frozen=True)
class Cell:
    """One number in a paper's table or figure, named by its row and column.

    The settings are everything besides data and seed that determines its outcome. ``published`` is the paper's value,
    None if we could not find it; ``beside`` are other published values by name: of other systems, sets or measures.
    """

    row: str
    column: str
    settings: Settings
    published: float | None = None
    beside: Mapping[str, float] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """The name in ``--cell`` and of files: ``row_column`` in lower case, with hyphens for special characters."""
        return "_".join(re.sub(r"[^a-z0-9.+]+", "-", part.lower()).strip("-") for part in (self.row, self.column))


@dataclass(frozen=True)
class Outcome:
    """A cell and its results so far: by part, and their summary; both empty before the first part."""

    cell: Cell
    parts: Mapping[str, Figures]
    figures: Figures


@dataclass(frozen=True)
class Column:
    """A column of the table: its heading, and a function from a cell's outcome to its text, empty if unknown."""

    head: str
    show: Callable[[Outcome], str]


# The results of those cells of an experiment that have any, by row and column.
Found = Mapping[tuple[str, str], Figures]


class Verdict(Enum):
    """Whether a paper's claim holds in our results. The value is the wording in reports."""

    HOLDS = "The claim holds."
    IN_PART = "The claim holds in part."
    FAILS = "The claim does not hold."

    @staticmethod
    def of(*checks: bool) -> Verdict:
        """Return the verdict on a claim of several parts, each true or false."""
        return Verdict.HOLDS if all(checks) else Verdict.IN_PART if any(checks) else Verdict.FAILS


@dataclass(frozen=True)
class Claim:
    """What a table or figure of a paper claims, in one sentence with its figures, and its check against our results.

    The check returns what we measured, one sentence, and the verdict, None where the paper claims nothing; it raises
    KeyError while cells that it needs have no results.
    """

    text: str
    check: Callable[[Found], tuple[str, Verdict | None]]

    def line(self, outcomes: Sequence[Outcome]) -> str:
        """Return the line that opens a report: claim, measurement and verdict."""
        try:
            measured, verdict = self.check(
                {(outcome.cell.row, outcome.cell.column): outcome.figures for outcome in outcomes if outcome.figures}
            )
        except KeyError:
            return f"The paper: {self.text} Measured here: not all of the cells that decide it yet."
        return f"The paper: {self.text} Measured here: {measured}" + (f" **{verdict.value}**" if verdict else "")


@dataclass(frozen=True)
class Experiment:
    """A table or a figure of a paper.

    Attributes:
        name: the name in ``python -m papers``.
        title: a one-line title.
        source: the paper.
        claim: what the paper concludes from it.
        notes: our choices where the paper leaves them open, a line each.
        heads: headings of the columns that name a cell's row and column.
        cells: the cells in the order of the table.
        parts: returns the parts of a cell, each stored separately, from its settings and the number of folds.
        work: computes the results of one part of a cell from its settings.
        summary: returns the results of a cell from its settings and the results of its parts.
        columns: the columns of the table after the two that name a cell.
        draw: draws the plot of the outcomes that have results.
        quick: returns a cell's settings for a small sample of the same work.
        paper: returns a cell's settings as the paper has them where ours differ; None if they do not.
    """

    name: str
    title: str
    source: str
    claim: Claim
    notes: tuple[str, ...]
    heads: tuple[str, str]
    cells: tuple[Cell, ...]
    parts: Callable[[Settings, int], Sequence[str]]
    work: Callable[[Settings, str, Workplace], Figures]
    summary: Callable[[Settings, Mapping[str, Figures]], Figures]
    columns: tuple[Column, ...]
    draw: Callable[[Axes, Sequence[Outcome]], None]
    quick: Callable[[Settings], Settings]
    paper: Callable[[Settings], Settings] | None = None


def _shown(value: float | None, digits: int, unknown: str = "") -> str:
    return unknown if value is None else f"{value:,.{digits}f}"


def number(name: str, digits: int = 1) -> Callable[[Outcome], str]:
    """Return a formatter of the value called ``name``, with ``digits`` decimals and commas between thousands."""
    return lambda outcome: _shown(outcome.figures.get(name), digits)


def published(digits: int = 1) -> Column:
    """Return the column of the paper's values, a dash if we could not find one."""
    return Column("paper", lambda outcome: _shown(outcome.cell.published, digits, UNKNOWN))


def difference(name: str, digits: int = 1) -> Column:
    """Return the column of our value minus the paper's."""

    def show(outcome: Outcome) -> str:
        ours, theirs = outcome.figures.get(name), outcome.cell.published
        return "" if ours is None or theirs is None else f"{ours - theirs:+.{digits}f}"

    return Column("difference", show)


def beside(name: str, digits: int = 1) -> Column:
    """Return the column of another published value, by its name in :attr:`Cell.beside`."""
    return Column(name, lambda outcome: _shown(outcome.cell.beside.get(name), digits, UNKNOWN))


def span(values: Sequence[float]) -> str:
    """Return the minimum and maximum of some values as text: "7.5 to 8.0", or one number if they are equal."""
    least, most = f"{min(values):.1f}", f"{max(values):.1f}"
    return least if least == most else f"{least} to {most}"


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
