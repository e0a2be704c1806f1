"""The tables of a report as HTML."""

from __future__ import annotations

from html import escape
from typing import Any

from ctx_embed.eval.reports.tables import Table, notes, tables


def tables_as_html(report: dict[str, Any]) -> str:
    """Return the tables and notes of a report (:func:`ctx_embed.eval.results.as_json`) as HTML for a notebook."""
    lines = "".join(f"<li>{escape(line)}</li>" for line in (*notes(report), *report["failures"]))
    return "".join(map(table_as_html, tables(report))) + f"<ul>{lines}</ul>"


def table_as_html(table: Table, introduction: str = "") -> str:
    """Return a heading, an introduction (HTML) and the table."""
    head = "".join(f"<th>{escape(column)}</th>" for column in table.columns)
    bodies = "".join(
        f"<tbody>{''.join(_row(row, table, first=not number) for row in rows)}</tbody>"
        for number, rows in enumerate(table.sections)
    )
    return (
        f"<h2>{escape(table.title)}</h2>{introduction}<div><table><thead><tr>{head}</tr></thead>{bodies}</table></div>"
    )


def _row(row: list[str], table: Table, first: bool) -> str:
    cells = [
        f"<b>{escape(cell)}</b>" if first and (row[0], column) in table.best else escape(cell)
        for column, cell in zip(table.columns, row, strict=True)
    ]
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
