"""The files of an evaluation's report: JSON, Markdown, LaTeX, CSV, and a plot. Importing it needs no torch."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ctx_embed.errors import InputError, missing_extra
from ctx_embed.eval.reports import COSTS, as_markdown, notes, tables
from ctx_embed.files import replaced_file
from ctx_embed.writing import CSV_END, CsvOutput

if TYPE_CHECKING:
    from ctx_embed.eval.evaluation import Evaluation

COLUMNS = ("encoder", "source", "task", "metric", "score", "low", "high", "std", "difference", "p", *COSTS)
PLOTS = (".svg", ".png")
LATEX = str.maketrans(
    {
        "\\": "\\textbackslash{}",
        "~": "\\textasciitilde{}",
        "^": "\\textasciicircum{}",
        "±": "$\\pm$",
        "†": "$\\dagger$",
        # After the end of a row these two would belong to it.
        "[": "{[}",
        "*": "{*}",
        "<": "$<$",
        ">": "$>$",
        **{mark: f"\\{mark}" for mark in "&%$#_{}"},
    }
)


def as_latex(report: dict[str, Any]) -> str:
    """Return the tables for LaTeX, and the notes as comments."""
    lines = [f"% {' '.join(line.split())}" for line in ("Needs \\usepackage{booktabs}.", *notes(report))]
    for table in tables(report):
        lines += ["", "\\begin{table}", "\\centering", f"\\caption{{{table.title.translate(LATEX)}}}"]
        lines += [f"\\begin{{tabular}}{{l{'r' * (len(table.columns) - 1)}}}", "\\toprule"]
        for rows in ([table.columns], *table.sections):
            lines += [f"{' & '.join(cell.translate(LATEX) for cell in row)} \\\\" for row in rows]
            lines.append("\\bottomrule" if rows is table.sections[-1] else "\\midrule")
        lines += ["\\end{tabular}", "\\end{table}"]
    return "\n".join(lines) + "\n"


def as_csv(report: dict[str, Any]) -> str:
    """Return a table of all scores, measured and published, unrounded, with intervals, differences and costs."""
    costs = {entry["name"]: entry["cost"] or {} for entry in report["encoders"]}
    tasks = {task["name"]: task for task in report["tasks"]}
    file = io.StringIO(newline="")
    writer = csv.DictWriter(CsvOutput(file), COLUMNS, restval="", extrasaction="ignore", lineterminator=CSV_END)
    writer.writeheader()
    for result in report["results"]:
        low, high = result["interval"]
        own = {"source": "measured", "metric": tasks[result["task"]]["metric"], "score": result["mean"]}
        versus = {"difference": result["versus"]["value"], "p": result["versus"]["p"]} if "versus" in result else {}
        writer.writerow({**result, **own, **costs[result["encoder"]], **versus, "low": low, "high": high})
    for name, task in tasks.items():
        for encoder, score in task["published"].items():
            own = {"encoder": encoder, "source": "published", "metric": task["metric"], "score": score}
            writer.writerow({"task": name, **own})
    return file.getvalue()


def require_plots() -> None:
    """Raise an error unless matplotlib is installed."""
    from importlib.util import find_spec

    if find_spec("matplotlib") is None:
        raise missing_extra("a plot", "plot")


def _draw(report: dict[str, Any], file: Path, kind: str) -> None:
    """Draw each encoder's mean over the tasks against its speed and its size, with 95 % intervals."""
    require_plots()
    import matplotlib
    from matplotlib.figure import Figure

    tasks = [task["name"] for task in report["tasks"]]
    found = {(result["encoder"], result["task"]): result for result in report["results"]}
    points = []
    for entry in report["encoders"]:
        results = [found.get((entry["name"], task)) for task in tasks]
        if entry["cost"] and tasks and all(results):
            mean = sum(result["mean"] for result in results) / len(tasks)  # type: ignore[index]
            # The tasks have different rows, so their errors are independent.
            errors = [
                math.hypot(*(result["mean"] - result["interval"][end] for result in results)) / len(tasks)  # type: ignore[index]
                for end in (0, 1)
            ]
            points.append((entry["name"], mean, errors, entry["cost"]))
    if not points:
        raise InputError("a plot needs an encoder with a score on every task and a measured cost, got none")
    with matplotlib.rc_context({"svg.hashsalt": "ctx-embed"}):
        figure = Figure(figsize=(9, 4), layout="constrained")
        axes = figure.subplots(1, 2, sharey=True)
        for axis, cost, label in zip(axes, COSTS, ("texts per second", "parameters"), strict=False):
            for name, mean, errors, costs in points:
                if costs[cost]:
                    axis.errorbar(costs[cost], mean, [[error] for error in errors], marker="o", capsize=3)
                    axis.annotate(
                        name, (costs[cost], mean), xytext=(6, 4), textcoords="offset points", parse_math=False
                    )
            axis.set_xscale("log")
            axis.set_xlabel(label)
            axis.margins(x=0.2)
        axes[0].set_ylabel(tasks[0] if len(tasks) == 1 else f"mean of {len(tasks)} tasks")
        figure.savefig(file, format=kind, metadata={"Date": None} if kind == "svg" else {})


WRITERS: dict[str, Callable[[dict[str, Any]], str]] = {
    ".json": lambda report: json.dumps(report, indent=2, ensure_ascii=False) + "\n",
    ".md": as_markdown,
    ".tex": as_latex,
    ".csv": as_csv,
}


def write_report(evaluation: Evaluation | dict[str, Any], path: str | Path) -> None:
    """Write a report: a file of the format that its suffix names, or results.json and results.md into a folder.

    Args:
        evaluation: an evaluation, or its :attr:`~ctx_embed.eval.evaluation.Evaluation.report`.
        path: a file with one of the suffixes .json (the report), .md and .tex (tables), .csv (a row for each score),
            .svg and .png (quality against speed and size; extra ``plot``); or a folder, created if missing. The
            parent must exist.

    Raises:
        InputError: a file cannot be written, or there is nothing to draw.
    """
    report = evaluation if isinstance(evaluation, dict) else evaluation.report
    path = Path(path)
    files = {path: path.suffix.lower()}
    if path.suffix.lower() not in (*WRITERS, *PLOTS):
        files = {path / "results.json": ".json", path / "results.md": ".md"}
        try:
            path.mkdir(exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot create the folder {path}: {error.strerror}") from None
    for file, suffix in files.items():
        with replaced_file(file) as temporary:
            if suffix in PLOTS:
                _draw(report, temporary, suffix[1:])
            else:
                # Names may hold halves of surrogate pairs, which no file can; they become question marks.
                content = WRITERS[suffix](report)
                temporary.write_text(content, encoding="utf-8", errors="replace", newline="")
