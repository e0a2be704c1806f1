"""What an experiment is: cells, the work of each in parts, and what is shown of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ctx_embed.eval.reproduce.inputs import Workplace

# JSON values: what decides the outcome of a cell, and what comes out of it.
Settings = Mapping[str, Any]
Figures = dict[str, Any]
UNKNOWN = "—"
# Of a cross-validation.
FOLDS = 10


@dataclass(frozen=True)
class Cell:
    """One figure of a paper.

    Attributes:
        row, column: where it stands; together they name it.
        settings: all that decides its outcome beside data and seed.
        published: the paper's figure; None where it is not known here.
        beside: figures of others by name, for comparison.
    """

    row: str
    column: str
    settings: Settings
    published: float | None = None
    beside: Mapping[str, float] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Its name in ``--cell`` and among the files: ``row_column`` in lower case, hyphens for all odd characters."""
        return "_".join(re.sub(r"[^a-z0-9.+]+", "-", part.lower()).strip("-") for part in (self.row, self.column))


@dataclass(frozen=True)
class Outcome:
    """A cell and what has been worked out of it: figures by part, and their summary; both empty before any part."""

    cell: Cell
    parts: Mapping[str, Figures]
    figures: Figures


@dataclass(frozen=True)
class Column:
    """A column of the table: its head, and what it shows of a cell; empty: nothing is known."""

    head: str
    show: Callable[[Outcome], str]


@dataclass(frozen=True)
class Experiment:
    """A table or a figure of a paper.

    Attributes:
        name: what ``ctx-embed reproduce`` calls it.
        title: one line.
        source: the paper.
        notes: the choices that the paper leaves open, a line each.
        heads: of the columns that name a cell's row and column.
        cells: in the order of the table.
        parts: the parts of a cell, each kept by itself, given its settings and the number of folds.
        work: the figures of one part of a cell of these settings.
        summary: the figures of a cell of these settings from those of its parts.
        columns: of the table, behind the two that name a cell.
        draw: the plot, of the outcomes that have figures.
        quick: the settings of a cell for a small sample of the same work.
        quick_folds: folds of a quick run.
    """

    name: str
    title: str
    source: str
    notes: tuple[str, ...]
    heads: tuple[str, str]
    cells: tuple[Cell, ...]
    parts: Callable[[Settings, int], Sequence[str]]
    work: Callable[[Settings, str, Workplace], Figures]
    summary: Callable[[Settings, Mapping[str, Figures]], Figures]
    columns: tuple[Column, ...]
    draw: Callable[[Axes, Sequence[Outcome]], None]
    quick: Callable[[Settings], Settings]
    quick_folds: int = 2


def number(name: str, digits: int = 1) -> Callable[[Outcome], str]:
    """Shows the figure of that name with so many digits behind the point and commas between thousands."""

    def show(outcome: Outcome) -> str:
        value = outcome.figures.get(name)
        return "" if value is None else f"{value:,.{digits}f}"

    return show


def published(digits: int = 1) -> Column:
    """The paper's figure, a dash where it is not known here."""

    def show(outcome: Outcome) -> str:
        value = outcome.cell.published
        return UNKNOWN if value is None else f"{value:,.{digits}f}"

    return Column("paper", show)


def difference(name: str, digits: int = 1) -> Column:
    """Ours less the paper's."""

    def show(outcome: Outcome) -> str:
        ours, theirs = outcome.figures.get(name), outcome.cell.published
        return "" if ours is None or theirs is None else f"{ours - theirs:+.{digits}f}"

    return Column("difference", show)
