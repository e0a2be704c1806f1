"""The report of an experiment: ``results.json``, ``README.md`` and ``plot.png``."""

import hashlib
import json
import os
import platform
import re
import shlex
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from ctx_embed import __version__
from ctx_embed.errors import InputError, missing_extra
from ctx_embed.eval.reports import Table, heading, markdown_rows
from ctx_embed.files import locked, replaced_file, require_file
from papers.experiment import UNKNOWN, Outcome
from papers.runner import Results, RunOptions

FORMAT_VERSION = 1
RESULTS, README, PLOT, LOCK = "results.json", "README.md", "plot.png", ".lock"
PACKAGES = ("torch", "sentence-transformers", "tokenizers", "numpy")


def as_json(results: Results) -> dict[str, Any]:
    """Return all cells, unrounded: settings, the paper's value, our results in summary and by part."""
    experiment = results.experiment
    return {
        "format_version": FORMAT_VERSION,
        "experiment": experiment.name,
        "title": experiment.title,
        "source": experiment.source,
        "claim": results.claim,
        "command": command_of(results),
        "commit": _origins(results, "commit"),
        "processor": _origins(results, "processor"),
        "notes": list(experiment.notes),
        "quick": results.options.quick,
        "changes": dict(results.options.changes),
        "seed": results.seed,
        "tokenizer": results.tokenizer and results.tokenizer.name,
        "threads": torch.get_num_threads(),
        "versions": {
            "python": platform.python_version(),
            "ctx_embed": __version__,
            **{package: version(package) for package in PACKAGES},
        },
        "cells": [
            {
                "cell": outcome.cell.key,
                "row": outcome.cell.row,
                "column": outcome.cell.column,
                "settings": dict(outcome.cell.settings),
                "published": outcome.cell.published,
                "beside": dict(outcome.cell.beside),
                "figures": outcome.figures,
                "parts": dict(outcome.parts),
            }
            for outcome in results.outcomes
        ],
    }


def _origins(results: Results, name: str) -> str | None:
    """Return where the stored parts were computed: all of their commits or processors, None if unknown."""
    parts = [part for outcome in results.outcomes for part in outcome.parts.values()]
    return ", ".join(sorted({part[name] for part in parts if part.get(name)})) or None


def table_of(results: Results) -> Table:
    """Return the table with a row for each cell; a dash marks unknown values."""
    experiment = results.experiment

    def row(outcome: Outcome) -> list[str]:
        return [
            outcome.cell.row,
            outcome.cell.column,
            *(column.show(outcome) or UNKNOWN for column in experiment.columns),
        ]

    heads = [*experiment.heads, *(column.head for column in experiment.columns)]
    return Table(f"{experiment.name}: {experiment.title}", heads, [[row(outcome) for outcome in results.outcomes]])


def as_markdown(results: Results, plot: str | None = None) -> str:
    """Return the claim, the table, a link to the plot, and the notes under a second-level heading."""
    experiment = results.experiment
    lines = [f"- {experiment.source}.", *(f"- {note}" for note in experiment.notes)]
    if changes := results.options.changes:
        lines.append("- Changed: " + ", ".join(f"{name} {value}" for name, value in changes.items()) + ".")
    if results.tokenizer:
        lines.append(f"- The vocabulary is that of {results.tokenizer.name}.")
    if results.options.quick:
        lines.insert(0, "- **A quick run on a small sample: it only checks that everything runs; ignore the numbers.**")
    lines.append(
        f"- Seed {results.seed}, {torch.get_num_threads()} thread(s), ctx-embed {__version__}, "
        f"torch {version('torch')}; {UNKNOWN}: not computed, or a published value that we could not find."
    )
    image = [f"![{experiment.title}]({plot})"] if plot else []
    table = table_of(results)
    return (
        "\n\n".join(
            [heading(table), results.claim, markdown_rows(table), *image, f"`{command_of(results)}`", "\n".join(lines)]
        )
        + "\n"
    )


def command_of(results: Results) -> str:
    """Return the command that gives these results."""
    flags = _flags(results.options, results.seed, results.tokenizer)
    return shlex.join(["python", "-m", "papers", results.experiment.name, *(word for flag in flags for word in flag)])


def _flags(options: RunOptions, seed: int, tokenizer: Path | None) -> list[tuple[str, ...]]:
    """Return the command's options that determine its results, each with its value as the command line reads it."""
    changes = {name: value if isinstance(value, str) else json.dumps(value) for name, value in options.changes.items()}
    return [
        *([("--quick",)] if options.quick else []),
        *([("--paper",)] if options.paper else []),
        *(("--option", f"{name}={value}") for name, value in changes.items()),
        *([("--seed", str(seed))] if seed else []),
        *([("--tokenizer", tokenizer.name)] if tokenizer else []),
    ]


def report_folder(folder: Path, options: RunOptions, seed: int, tokenizer: Path | None) -> Path:
    """Return the report's folder: ``folder``, or one in it for a quick run, other options, seeds or vocabularies."""
    flags = ["-".join(flag).removeprefix("--").removeprefix("option-") for flag in _flags(options, seed, tokenizer)]
    if tokenizer:
        # Distinguish vocabularies by a hash: their files are often all named tokenizer.json.
        flags.append(hashlib.sha256(tokenizer.read_bytes()).hexdigest()[:8])
    report = folder / "_".join(re.sub("[ /]", "-", flag) for flag in flags)
    for place in (folder, report):
        if os.path.lexists(place) and not place.is_dir():
            raise InputError(f"{place} must be a folder, got a file: move it, or name another folder with --out")
    if report.is_dir():
        for name in (RESULTS, README, PLOT):
            require_file(report / name)
    return report


def write_report(results: Results, folder: Path, tell: Callable[[str], None] | None = None) -> None:
    """Write ``results.json``, ``README.md`` and, with ``tell``, the plot; results that other runs have stored count.

    Without matplotlib (extra ``papers``) ``tell`` is called instead of a plot.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # No older report may overwrite a newer one.
    with locked(folder / LOCK):
        results.refresh()
        plotted = [outcome for outcome in results.outcomes if outcome.figures]
        if tell is not None and find_spec("matplotlib") is None:
            tell(f"no plot is drawn: {missing_extra('a plot', 'papers')}")
        elif tell is not None and plotted:
            _plot(results, plotted, folder / PLOT)
        plot = PLOT if (folder / PLOT).exists() else None
        content = json.dumps(as_json(results), indent=2, ensure_ascii=False) + "\n"
        for name, text in ((RESULTS, content), (README, as_markdown(results, plot))):
            with replaced_file(folder / name) as temporary:
                temporary.write_text(text, encoding="utf-8")


def _plot(results: Results, outcomes: list[Outcome], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure((9, 4.5))
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    results.experiment.draw(axes, outcomes)
    handles, labels = axes.get_legend_handles_labels()
    if once := dict(zip(labels, handles, strict=True)):
        axes.legend(once.values(), once.keys(), fontsize=8, loc="upper left", bbox_to_anchor=(1.01, 1))
    axes.set_title(results.experiment.title + (" (quick run)" if results.options.quick else ""), fontsize=10)
    figure.tight_layout()
    with replaced_file(path) as temporary:
        figure.savefig(temporary, format="png", dpi=120)
