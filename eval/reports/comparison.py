"""Comparison of two evaluations, task by task."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ctx_embed.errors import InputError
from ctx_embed.eval.reports.files import damage_named, read_results
from ctx_embed.eval.scoring.score import Score, difference, from_json
from ctx_embed.eval.scoring.statistics import Difference

if TYPE_CHECKING:
    from ctx_embed.eval.results import Evaluation


def compare(
    first: Evaluation | dict[str, Any] | str | Path,
    second: Evaluation | dict[str, Any] | str | Path,
    encoders: tuple[str | None, str | None] = (None, None),
) -> dict[str, Difference]:
    """Return the differences of two evaluations, the second minus the first, by task.

    Args:
        first, second: evaluations, their reports, or files or folders that :func:`ctx_embed.eval.write_report` wrote.
        encoders: the encoder of each; None selects the first.

    Warns:
        UserWarning: probes were measured with different protocols, seeds or folds.

    Raises:
        InputError: a file holds no report, an encoder is unknown, or no task is in both on the same data.
    """
    names = dict.fromkeys(given for given in (first, second) if isinstance(given, str | Path))
    with damage_named(*(names or ["the results"])):
        reports = [read_results(Path(given)) if isinstance(given, str | Path) else given for given in (first, second)]
        return _differences([each if isinstance(each, dict) else each.report for each in reports], encoders)


def _differences(reports: list[dict[str, Any]], encoders: tuple[str | None, str | None]) -> dict[str, Difference]:
    scores = [_scores(report, encoder) for report, encoder in zip(reports, encoders, strict=True)]
    tasks = [{task["name"]: task for task in report["tasks"]} for report in reports]
    shared = [name for name in scores[0] if name in scores[1] and tasks[0][name]["sha256"] == tasks[1][name]["sha256"]]
    if not shared:
        raise InputError("the two reports must share a task on the same data, got none; there is nothing to compare")
    if any(tasks[0][name]["kind"] == "probe" and not tasks[0][name].get("per_label") for name in shared):
        said = [
            f"{what} {' and '.join('its own' if report[what] is None else str(report[what]) for report in reports)}"
            for what in ("protocol", "seeds", "folds")
            if reports[0][what] != reports[1][what]
        ]
        if said:
            warnings.warn(
                f"the two results were measured differently ({'; '.join(said)}), from which part of a difference in "
                "accuracy may come",
                stacklevel=3,
            )
    return {name: difference(scores[1][name], scores[0][name], tasks[0][name].get("gold", {})) for name in shared}


def _scores(report: dict[str, Any], encoder: str | None) -> dict[str, Score]:
    names = [entry["name"] for entry in report["encoders"]]
    name = names[0] if encoder is None else encoder
    if name not in names:
        raise InputError(f"the encoder must be one of the report's ({', '.join(names)}), got {name!r}")
    kinds = {task["name"]: task["kind"] for task in report["tasks"]}
    return {
        result["task"]: from_json(kinds[result["task"]], result["score"])
        for result in report["results"]
        if result["encoder"] == name
    }
