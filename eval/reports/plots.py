"""The plots of a report as SVG: quality against speed, encoders by tasks, learning curves (extra ``plots``)."""

from __future__ import annotations

import io
from collections.abc import Callable
from statistics import mean
from typing import TYPE_CHECKING, Any

from ctx_embed.errors import missing_extra
from ctx_embed.eval.reports.tables import TITLES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Colours that colour-blind people can distinguish (Okabe and Ito).
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
LONGEST_NAME = 28
METRICS = {"probe": "accuracy in %", "similarity": "Spearman x 100", "retrieval": "nDCG@10 x 100"}


def plots(report: dict[str, Any]) -> dict[str, str]:
    """Return the plots for which the report has scores, as SVG by file name.

    Args:
        report: as returned by :func:`ctx_embed.eval.results.as_json`.

    Raises:
        InputError: the extra ``plots`` is not installed.
    """
    try:
        import matplotlib
    except ImportError:
        raise missing_extra("a plot", "plots") from None
    found = {}
    for name, draw in _PLOTS.items():
        figure = draw(report)
        if figure is not None:
            stream = io.StringIO()
            # Fixed ids, so that the same report always produces the same bytes.
            with matplotlib.rc_context({"svg.hashsalt": "ctx-embed", "svg.fonttype": "none"}):
                figure.savefig(stream, format="svg", bbox_inches="tight", metadata={"Date": None})
            found[f"{name}.svg"] = stream.getvalue()
    return found


def _axes(width: float, height: float) -> tuple[Figure, Any]:
    from matplotlib.figure import Figure

    figure = Figure((width, height))
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _short(name: str) -> str:
    # matplotlib would read a dollar sign as the start of a formula.
    name = name if len(name) <= LONGEST_NAME else "…" + name[1 - LONGEST_NAME :]
    return name.replace("$", r"\$")


def _means(report: dict[str, Any], kind: str) -> dict[str, dict[str, float]]:
    """Return the mean scores on the tasks of one kind, by encoder and task."""
    tasks = {task["name"] for task in report["tasks"] if task["kind"] == kind}
    found: dict[str, dict[str, float]] = {}
    for result in report["results"]:
        if result["task"] in tasks:
            found.setdefault(result["encoder"], {})[result["task"]] = result["mean"]
    return found


def quality_by_speed(report: dict[str, Any]) -> Figure | None:
    """Plot the mean score over the first kind of task with results against texts per second (logarithmic).

    Encoders that lack a task are left out, since their mean would be over other tasks. Encoders without parameters,
    such as the majority class, are left out too: next to them all others would look alike.
    """
    speeds = {
        entry["name"]: entry["cost"]["texts_per_second"]
        for entry in report["encoders"]
        if entry["cost"] and not _learns_nothing(entry)
    }
    kind = next((kind for kind in TITLES if _means(report, kind)), None)
    if kind is None or len(speeds) < 2:
        return None
    means = _means(report, kind)
    tasks = set().union(*means.values())
    points = [
        (name, speeds[name], mean(of.values())) for name, of in means.items() if name in speeds and {*of} == tasks
    ]
    figure, axes = _axes(7, 4.5)
    axes.set_xscale("log")
    for place, (name, speed, quality) in enumerate(points):
        axes.plot(speed, quality, "o", color=COLOURS[place % len(COLOURS)])
        axes.annotate(_short(name), (speed, quality), xytext=(5, 5), textcoords="offset points", fontsize=8)
    axes.margins(x=0.2, y=0.1)
    axes.set_title("Quality and speed", fontsize=11, loc="left")
    axes.set_xlabel("texts per second (logarithmic)", fontsize=9)
    of_tasks = _short(min(tasks)) if len(tasks) == 1 else f"mean over {', '.join(sorted(map(_short, tasks)))}"
    axes.set_ylabel(f"{METRICS[kind]}, {of_tasks}", fontsize=9)
    axes.tick_params(labelsize=8)
    axes.grid(alpha=0.3)
    return figure


def _learns_nothing(entry: dict[str, Any]) -> bool:
    return bool(entry["cost"]) and entry["cost"]["parameters"] == 0


def heat_map(report: dict[str, Any]) -> Figure | None:
    """Plot encoders by tasks, each column coloured from the worst to the best score of an encoder with parameters."""
    names = [entry["name"] for entry in report["encoders"]]
    learning = [entry["name"] for entry in report["encoders"] if not _learns_nothing(entry)] or names
    tasks = [task["name"] for task in report["tasks"]]
    figures = {(result["encoder"], result["task"]): result["mean"] for result in report["results"]}
    if not figures:
        return None
    figure, axes = _axes(2.5 + 0.8 * len(tasks), 1 + 0.4 * len(names))
    shades = []
    for name in names:
        row = []
        for task in tasks:
            column = [figures[other, task] for other in learning if (other, task) in figures]
            spread = max(column) - min(column) if column else 0.0
            known = (name, task) in figures
            row.append((figures[name, task] - min(column)) / spread if known and spread else float("nan"))
        shades.append(row)
    axes.imshow(shades, cmap="Blues", vmin=-0.2, vmax=1.8, aspect="auto")
    for y, name in enumerate(names):
        for x, task in enumerate(tasks):
            if (name, task) in figures:
                axes.text(x, y, f"{figures[name, task]:.1f}", ha="center", va="center", fontsize=8)
    axes.set_xticks(range(len(tasks)), [_short(task) for task in tasks], rotation=30, ha="right", fontsize=8)
    axes.set_yticks(range(len(names)), [_short(name) for name in names], fontsize=8)
    axes.set_title("Encoders by tasks", fontsize=11, loc="left")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return figure


def learning_curves(report: dict[str, Any]) -> Figure | None:
    """Plot accuracy by training rows: a panel for each task, a line for each encoder."""
    curves: dict[str, dict[str, list[tuple[int, float]]]] = {}
    for point in report["curves"]:
        curves.setdefault(point["task"], {}).setdefault(point["encoder"], []).append((point["rows"], point["mean"]))
    if not curves:
        return None
    from matplotlib.figure import Figure

    names = [entry["name"] for entry in report["encoders"]]
    figure = Figure((3.5 * len(curves), 3.2), layout="constrained")
    for axes, (task, lines) in zip(figure.subplots(1, len(curves), squeeze=False)[0], curves.items(), strict=True):
        for name, points in lines.items():
            x, y = zip(*sorted(points), strict=True)
            axes.plot(x, y, "o-", ms=3, label=_short(name), color=COLOURS[names.index(name) % len(COLOURS)])
        axes.set_xscale("log")
        axes.set_title(_short(task), fontsize=9)
        axes.set_xlabel("training rows", fontsize=9)
        axes.tick_params(labelsize=8)
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel("accuracy in %", fontsize=9)
    figure.axes[-1].legend(fontsize=7, frameon=False)
    return figure


_PLOTS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "quality_by_speed": quality_by_speed,
    "heat_map": heat_map,
    "learning_curves": learning_curves,
}
