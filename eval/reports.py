"""The reports of an evaluation: tables and notes. Importing it needs no torch."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ctx_embed.errors import InputError
from ctx_embed.training.labelled_texts import warning

FORMAT_VERSION = 1
TITLES = {
    "probe": "Accuracy in %, mean ± standard deviation over the folds",
    "similarity": "Spearman's rank correlation times 100",
    "retrieval": "nDCG@10 times 100 (recall@100, MRR@10)",
}
FLOOR = "majority class"
# Encoders by the rows that say the same of them, which are then left out.
SAME = {FLOOR: "majority", "all-MiniLM-L6-v2": "minilm"}
COSTS = ("texts_per_second", "parameters", "peak_megabytes")
# Marks the score of an encoder that was trained on more than this share of the task's texts, with labels.
SEEN, SEEN_SHARE = "†", 0.01


def read_results(path: Path) -> dict[str, Any]:
    """Read a saved :attr:`ctx_embed.eval.Evaluation.report`: a file, or ``results.json`` in a folder."""
    file = path / "results.json" if path.is_dir() else path
    try:
        report: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{file}: cannot be read ({error.strerror}); eval run -o DIR writes such a file") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{file}: not JSON ({error})") from None
    found = report.get("format_version") if isinstance(report, dict) else None
    if found != FORMAT_VERSION:
        raise InputError(f"{file}: the format must be {FORMAT_VERSION}, got {found}; run `ctx-embed eval run` again")
    return report


@dataclass(frozen=True)
class Table:
    """A title, column headings, and rows of cells by section. The first column names the rows."""

    title: str
    columns: list[str]
    sections: list[list[list[str]]] = field(default_factory=list)


def tables(report: dict[str, Any]) -> list[Table]:
    """Return a table for each kind of task with results, then the differences from the first encoder, and the costs."""
    shown = [_scores(report, kind, title) for kind, title in TITLES.items()]
    costed = [(entry["name"], entry["cost"]) for entry in report["encoders"] if entry["cost"]]
    costs = [[name, *(_number(cost[measure], 0) for measure in COSTS)] for name, cost in costed]
    cost = Table("Cost", ["", "texts/s", "parameters", "peak memory in MB"], [costs]) if costs else None
    compared = {
        (result["encoder"], result["task"]): result["versus"] for result in report["results"] if "versus" in result
    }
    differences = None
    if compared:
        first, *others = [entry["name"] for entry in report["encoders"]]
        tasks = [task["name"] for task in report["tasks"] if any(name == task["name"] for _, name in compared)]
        rows = [[name, *(_difference(compared.get((name, task))) for task in tasks)] for name in others]
        rows = [row for row in rows if any(row[1:])]
        differences = Table(f"Difference from {first} in points, with p-value", ["", *tasks], [rows])
    return [table for table in (*shown, differences, cost) if table is not None]


def _scores(report: dict[str, Any], kind: str, title: str) -> Table | None:
    tasks = [task for task in report["tasks"] if task["kind"] == kind]
    results = {(result["encoder"], result["task"]): result for result in report["results"]}
    names = [entry["name"] for entry in report["encoders"]]
    if not any((name, task["name"]) in results for name in names for task in tasks):
        return None
    measured = [[name] for name in names]
    for row in measured:
        for task in tasks:
            result, cell = results.get((row[0], task["name"])), ""
            if result is not None:
                cell = f"{result['mean']:.1f}{_seen(result, task['rows'])}"
                if "measures" in result:
                    _, *others = result["measures"].values()
                    cell += f" ({', '.join(f'{value:.1f}' for value in others)})"
                elif len(result["score"].get("folds", ())) > 1:
                    cell += f" ± {result['std']:.1f}"
            row.append(cell)
    floors = [FLOOR, *(_number(task.get("floor")) for task in tasks)]
    published = [
        [source, *(_number(task["published"].get(source)) for task in tasks)] for source in report["published_sources"]
    ]
    said = {name: [cell.partition(" ")[0] for cell in cells] for name, *cells in measured}
    others = [row for row in (floors, *published) if said.get(SAME.get(row[0], "")) != row[1:]]
    sections = [[row for row in rows if any(row[1:])] for rows in (measured, others)]
    columns = ["", *(task["name"] for task in tasks)]
    return Table(title, columns, [rows for rows in sections if rows])


def _difference(versus: dict[str, float] | None) -> str:
    if versus is None:
        return ""
    p = "p < 0.001" if versus["p"] < 0.001 else f"p {versus['p']:.3f}"
    return f"{versus['value']:+.1f} ({p})"


def _seen(result: dict[str, Any], rows: int) -> str:
    return SEEN if result.get("labelled", 0) > SEEN_SHARE * rows else ""


def _number(value: float | None, digits: int = 1) -> str:
    return "" if value is None else f"{value:,.{digits}f}"


def notes(report: dict[str, Any]) -> list[str]:
    """Return the lines below the tables: the protocol, the sources of scores, warnings about the data, and failures."""
    seeds = ", ".join(map(str, report["seeds"]))
    probed = any(task["kind"] == "probe" and not task.get("per_label") for task in report["tasks"])
    folds = f"{report['folds']} outer folds, " if report["folds"] else ""
    lines = [f"protocol {report['protocol']} ({report['protocol_title']}), {folds}seed {seeds}"] if probed else []
    cited: dict[str, list[str]] = {}
    for name, source in report["published_sources"].items():
        cited.setdefault(source, []).append(name)
    lines += [f"{', '.join(names)}: {source}" for source, names in cited.items()]
    lines += [entry["remark"] for entry in report["encoders"] if entry.get("remark")]
    for task in report["tasks"]:
        lines += [f"{task['name']}: {remark}" for remark in task.get("remarks", ())]
        if task["kind"] == "similarity" and task["without"]:
            subsets = task["rows_by_subset"]
            lines.append(
                f"{task['name']}: mean over {len(subsets)} subsets ({', '.join(subsets)}), "
                f"without {task['left_out']} pairs that also occur in {task['without']}"
            )
        if task.get("per_label"):
            draw = f"{task['per_label']} training rows of each label"
            lines.append(f"{task['name']}: MTEB's protocol, the mean and deviation over ten draws of {draw}")
        if repeated := task.get("repeated"):
            tested = task["rows_by_subset"].get("test", task["rows"])
            where = "texts occur more than once and may fall on both sides of a split"
            if "test" in task["rows_by_subset"]:
                where = "test texts also occur in the training part"
            lines.append(f"{task['name']}: {repeated:,} of {tested:,} {where}")
    rows = {task["name"]: task["rows"] for task in report["tasks"]}
    lines += [
        f"{_seen(result, rows[result['task']])} "
        f"{warning(result['encoder'], result['task'], result['labelled'], rows[result['task']])}".lstrip()
        for result in report["results"]
        if result.get("labelled")
    ]
    return [*lines, *(f"failed: {line}" for line in report["failures"])]


def as_markdown(report: dict[str, Any]) -> str:
    """Return the tables and the notes."""
    parts = ["# Evaluation", *(f"{heading(table)}\n\n{markdown_rows(table)}" for table in tables(report))]
    parts.append("\n".join(f"- {_escaped(line)}" for line in notes(report)))
    packages = ", ".join(f"{name} {number}" for name, number in report["versions"].items())
    parts.append(f"Measured with {packages}.")
    return "\n\n".join(part for part in parts if part) + "\n"


def heading(table: Table) -> str:
    """Return a table's title as a second-level heading."""
    return f"## {_escaped(table.title)}"


def markdown_rows(table: Table) -> str:
    """Return a table's headings and rows."""
    lines = [table.columns, ["---", *["--:"] * (len(table.columns) - 1)]]
    lines += [row for rows in table.sections for row in rows]
    return "\n".join(f"| {' | '.join(map(_escaped, line))} |" for line in lines)


def _escaped(text: str) -> str:
    # Escape characters that would end a cell or be read as markup.
    for mark in "\\|*_<[":
        text = text.replace(mark, f"\\{mark}")
    return text.replace("\n", " ")
