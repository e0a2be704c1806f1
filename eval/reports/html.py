"""A report as one self-contained HTML page."""

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
figure { margin: 0 0 1.5rem; overflow-x: auto; padding: 0.5rem; }
figure svg { width: 100%; max-width: 56rem; height: auto; }
figcaption { color: #555; font-size: 0.9em; }
div { overflow-x: auto; }
footer { color: #666; font-size: 0.9em; }
@media (prefers-color-scheme: dark) {
  body { background: #181818; color: #ddd; }
  figure { background: #fff; }
}
"""


DESCRIPTIONS = {
    "default": "the model included in ctx-embed",
    "minilm": "all-MiniLM-L6-v2, a Transformer of 22 million parameters",
    "tfidf": "TF-IDF of words, fitted in each training fold",
    "majority": "always the most frequent class",
    "random": "random vectors",
}
CAPTIONS = {
    "quality_by_speed.svg": "Mean score against speed on one machine; up and to the right is better.",
    "heat_map.svg": "Scores. Each column is coloured on its own, from its worst encoder (pale) to its best (dark).",
    "learning_curves.svg": "Accuracy of the probe by the number of rows it was trained on.",
}


def as_html(report: dict[str, Any], images: Mapping[str, str]) -> str:
    """Return the HTML page.

    Args:
        report: as returned by :func:`ctx_embed.eval.results.as_json`.
        images: plots as SVG by file name.
    """
    figures = [
        f"<figure>{svg[svg.index('<svg') :]}<figcaption>{escape(CAPTIONS.get(name, ''))}</figcaption></figure>"
        for name, svg in images.items()
    ]
    names = [entry["name"] for entry in report["encoders"]]
    heading = f"Evaluation of {', '.join(names)}"
    measured = f" on {report['date']}" if "date" in report else ""
    encoders = "".join(map(_encoder, report["encoders"]))
    lines = "".join(f"<li>{escape(line)}</li>" for line in notes(report))
    failures = "".join(f"<li>{escape(line)}</li>" for line in report["failures"])
    hashes = "".join(
        f"<li>{escape(task['name'])}: {task['rows']} rows, {task['sha256']}</li>" for task in report["tasks"]
    )
    packages = ", ".join(f"{name} {number}" for name, number in report["versions"].items())
    body = [
        f"<h1>{escape(heading)}</h1>",
        f"<p>Measured{measured} with ctx-embed. The best score of each task is bold.</p>",
        f"<ul>{encoders}</ul>",
        *map(table_as_html, tables(report)),
        *figures,
        f"<ul>{lines}</ul>",
        f"<h2>Not measured</h2><ul>{failures}</ul>" if failures else "",
        f"<details><summary>Data (sha256 of the rows)</summary><ul>{hashes}</ul></details>",
        f"<footer>Measured with {escape(packages)}.</footer>",
    ]
    head = f'<meta charset="utf-8"><title>{escape(heading)}</title><style>{STYLE}</style>'
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head><body>\n'
        + "\n".join(filter(None, body))
        + "\n</body></html>\n"
    )


def tables_as_html(report: dict[str, Any]) -> str:
    """Return the tables and notes of a report as HTML for a notebook; argument as for :func:`as_html`."""
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


def _encoder(entry: dict[str, Any]) -> str:
    """Return the description of an encoder as a list item."""
    parts = [DESCRIPTIONS[entry["name"]]] if entry["name"] in DESCRIPTIONS else []
    if entry.get("fingerprint"):
        parts.append(f"fingerprint {entry['fingerprint'][:12]}")
    return f"<li><b>{escape(entry['name'])}</b>{': ' if parts else ''}{escape(', '.join(parts))}</li>"
