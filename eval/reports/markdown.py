"""A report as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ctx_embed.eval.reports.tables import Table, notes, tables


def as_markdown(report: dict[str, Any], images: Sequence[str] = ()) -> str:
    """Return the tables, links to the plots in ``images``, and the notes."""
    parts = ["# Evaluation", *map(markdown_table, tables(report))]
    parts += [f"![{name.rpartition('.')[0].replace('_', ' ')}]({name})" for name in images]
    parts.append("\n".join(f"- {_cell(line)}" for line in notes(report)))
    packages = ", ".join(f"{name} {number}" for name, number in report["versions"].items())
    parts.append(f"Measured with {packages}.")
    return "\n\n".join(part for part in parts if part) + "\n"


def markdown_table(table: Table) -> str:
    """Return a table under a second-level heading."""
    return f"{heading(table)}\n\n{markdown_rows(table)}"


def heading(table: Table) -> str:
    """Return a table's title as a second-level heading."""
    return f"## {_cell(table.title)}"


def markdown_rows(table: Table) -> str:
    """Return a table's headings and rows."""
    lines = [table.columns, ["---", *["--:"] * (len(table.columns) - 1)]]
    lines += [row for rows in table.sections for row in rows]
    return "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)


def _cell(text: str) -> str:
    # Escape characters that would end a cell or be read as markup.
    for mark in "\\|*_<[":
        text = text.replace(mark, f"\\{mark}")
    return text.replace("\n", " ")
