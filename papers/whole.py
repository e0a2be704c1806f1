"""All tables and figures of the papers in one run, with an estimate of its hours, and one page of all reports."""

import base64
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from html import escape
from pathlib import Path
from statistics import fmean

from ctx_embed.files import replaced_file
from ctx_embed.progress import Meter, duration
from papers.catalogue import EXPERIMENTS
from papers.classifier_cells import training_seconds
from papers.experiment import Experiment
from papers.inputs import Workplace
from papers.report import PLOT, command_of, report_folder, table_of, write_report, write_tables
from papers.runner import CellFile, Results, RunOptions, prepared, reproduce

PAGE = "report.html"
# Estimated seconds of a part that trains nothing: counting parameters takes less, timing layers more.
OTHER_SECONDS = 30.0
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; margin: 0.5rem 0 1.5rem; font-variant-numeric: tabular-nums; }
th, td { padding: 0.25rem 0.8rem; text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
thead, tbody + tbody { border-top: 1px solid #bbb; }
thead th { border-bottom: 1px solid #bbb; }
tbody + tbody { color: #666; }
div { overflow-x: auto; }
@media (prefers-color-scheme: dark) {
  body { background: #181818; color: #ddd; }
}
img { max-width: 56rem; width: 100%; background: #fff; }
.claim { max-width: 56rem; }
"""


def missing_parts(
    folder: Path, workplace: Workplace, options: RunOptions, experiments: Sequence[Experiment]
) -> Iterator[tuple[Experiment, CellFile, str]]:
    """Yield each part that ``folder`` does not hold, once, with the first of the experiments that needs it."""
    seen = set()
    for experiment in experiments:
        results, todo = prepared(experiment, folder, workplace, _options_for(experiment, options), lambda line: None)
        for place, part in todo:
            file = results.files[place]
            if (file.run, part) not in seen:
                seen.add((file.run, part))
                yield experiment, file, part


def estimated_seconds(
    folder: Path, workplace: Workplace, options: RunOptions, experiments: Sequence[Experiment]
) -> dict[str, float]:
    """Return by experiment how long its missing parts will take on this machine.

    A part is assumed to take as long as the cell's stored parts on average; without any, one training step is timed.
    """
    seconds = {experiment.name: 0.0 for experiment in experiments}
    of_cell: dict[str, float] = {}
    missing = list(missing_parts(folder, workplace, options, experiments))
    for experiment, file, part in Meter("estimating", len(missing), "parts", leave=False).each(missing):
        if file.run not in of_cell:
            of_cell[file.run] = OTHER_SECONDS
            if known := [figures["seconds"] for figures in file.parts.values() if "accuracy" in figures]:
                of_cell[file.run] = fmean(known)
            elif "training" in file.cell.settings:
                of_cell[file.run] = training_seconds(file.cell.settings, part, workplace)
        seconds[experiment.name] += of_cell[file.run]
    return seconds


def reproduce_all(
    out: Path,
    workplace: Workplace,
    options: RunOptions | None = None,
    tell: Callable[[str], None] = print,
    experiments: Sequence[Experiment] = tuple(EXPERIMENTS.values()),
) -> Path:
    """Compute the missing parts of every table and figure, and write the reports and one page with all: its path.

    ``OUT/cells`` stores the parts, ``OUT/NAME`` is the report of an experiment; ``OUT/report.html`` is rewritten after
    each. ``quick``, ``folds`` and ``paper`` apply to the experiments that have them.
    """
    options = options or RunOptions()
    seconds = estimated_seconds(out / "cells", workplace, options, experiments)
    each = ", ".join(f"{name} {duration(value)}" for name, value in seconds.items() if value)
    hours = f"about {duration(sum(seconds.values()))} of computing: {each}; interrupt at any time, and repeat to resume"
    tell(hours if each else "nothing is missing: the page is written from what is stored")
    done: list[tuple[Results, Path]] = []
    for experiment in experiments:
        own = _options_for(experiment, options)
        folder = report_folder(out / experiment.name, own, workplace.seed, workplace.tokenizer)
        results = reproduce(experiment, out / "cells", workplace, own, tell, partial(write_tables, folder=folder))
        write_report(results, folder, tell)
        done.append((results, folder))
        with replaced_file(out / PAGE) as temporary:
            temporary.write_text(_page(done), encoding="utf-8")
    return out / PAGE


def _options_for(experiment: Experiment, options: RunOptions) -> RunOptions:
    """Return the options that apply to an experiment."""
    has_folds = any(len(experiment.parts(cell.settings, 2)) > 1 for cell in experiment.cells)
    return RunOptions(
        options.quick, options.folds if has_folds else None, paper=options.paper and experiment.paper is not None
    )


def _page(done: Sequence[tuple[Results, Path]]) -> str:
    """Return all reports as one HTML page with their plots inside."""
    title = "The papers' tables and figures, reproduced"
    entries = "".join(
        f'<li><a href="#{results.experiment.name}">{escape(results.experiment.title)}</a></li>' for results, _ in done
    )
    sections = "".join(_section(results, folder) for results, folder in done)
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{STYLE}</style>'
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head><body>\n<h1>{escape(title)}</h1>\n'
        f"<ul>{entries}</ul>\n{sections}</body></html>\n"
    )


def _section(results: Results, folder: Path) -> str:
    experiment, table = results.experiment, table_of(results)
    head = "".join(f"<th>{escape(column)}</th>" for column in table.columns)
    bodies = ""
    for rows in table.sections:
        lines = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows)
        bodies += f"<tbody>{''.join(f'<tr>{line}</tr>' for line in lines)}</tbody>"
    plot = folder / PLOT
    image = ""
    if plot.exists():
        data = base64.b64encode(plot.read_bytes()).decode()
        image = f'<p><img alt="{escape(experiment.title)}" src="data:image/png;base64,{data}"></p>'
    notes = "".join(f"<li>{escape(note)}</li>" for note in (f"{experiment.source}.", *experiment.notes))
    claim = escape(results.claim).replace("**", "")
    return (
        f'<section id="{experiment.name}"><h2>{escape(table.title)}</h2><p class=claim>{claim}</p>'
        f"<div><table><thead><tr>{head}</tr></thead>{bodies}</table></div>{image}"
        f"<p><code>{escape(command_of(results))}</code></p><ul>{notes}</ul></section>\n"
    )
