"""A report as one HTML page that needs nothing beside it."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from ctx_embed.eval.reports.tables import Table, notes, tables

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; margin: 0.5rem 0 1.5rem; font-variant-numeric: tabular-nums; }
th, td { padding: 0.25rem 0.8rem; text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
thead, tbody + tbody { border-top: 1px solid #bbb; }
thead th { border-bottom: 1px solid #bbb; }
tbody + tbody { color: #666; }
figure { margin: 0 0 1.5rem; overflow-x: auto; }
div { overflow-x: auto; }
footer { color: #666; font-size: 0.9em; }
@media (prefers-color-scheme: dark) {
  body { background: #181818; color: #ddd; }
  figure { background: #fff; }
}
"""


def as_html(report: dict[str, Any], drawn: Mapping[str, str]) -> str:
    """The page.

    Args:
        report: as :func:`ctx_embed.eval.reports.results.as_json` gives it.
        drawn: plots as SVG by file name.
    """
    figures = [f"<figure>{svg[svg.index('<svg') :]}</figure>" for svg in drawn.values()]
    lines = "".join(f"<li>{escape(line)}</li>" for line in notes(report))
    failures = "".join(f"<li>{escape(line)}</li>" for line in report["failures"])
    hashes = "".join(
        f"<li>{escape(task['name'])}: {task['rows']} rows, {task['sha256']}</li>" for task in report["tasks"]
    )
    packages = ", ".join(f"{name} {number}" for name, number in report["versions"].items())
    body = [
        "<h1>Evaluation</h1>",
        *map(_table, tables(report)),
        *figures,
        f"<ul>{lines}</ul>",
        f"<h2>Not measured</h2><ul>{failures}</ul>" if failures else "",
        f"<details><summary>Data (sha256 of the rows)</summary><ul>{hashes}</ul></details>",
        f"<footer>Measured with {escape(packages)}.</footer>",
    ]
    head = f'<meta charset="utf-8"><title>Evaluation</title><style>{STYLE}</style>'
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head><body>\n'
        + "\n".join(filter(None, body))
        + "\n</body></html>\n"
    )


def tables_as_html(report: dict[str, Any]) -> str:
    """Return the tables and notes of a report as HTML for a notebook; argument as for :func:`as_html`."""
    lines = "".join(f"<li>{escape(line)}</li>" for line in (*notes(report), *report["failures"]))
    return "".join(map(_table, tables(report))) + f"<ul>{lines}</ul>"


def _table(table: Table) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in table.columns)
    bodies = "".join(f"<tbody>{''.join(map(_row, rows))}</tbody>" for rows in table.sections)
    return f"<h2>{escape(table.title)}</h2><div><table><thead><tr>{head}</tr></thead>{bodies}</table></div>"


def _row(row: list[str]) -> str:
    return f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>"
