"""Comparison of two scores on one task over the same rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ctx_embed.errors import InputError
from ctx_embed.eval.scoring.probes import ProbeScore
from ctx_embed.eval.scoring.retrieval import RetrievalScore
from ctx_embed.eval.scoring.score import Score, from_json
from ctx_embed.eval.scoring.similarity import SimilarityScore
from ctx_embed.eval.scoring.statistics import Difference, mcnemar, paired_correlations, paired_means

if TYPE_CHECKING:
    from ctx_embed.eval.evaluation import Evaluation


def difference(score: Score, other: Score, gold: Mapping[str, Sequence[float]]) -> Difference:
    """Return ``score`` minus ``other`` on the same rows.

    Args:
        score, other: scores of the same kind; accuracies with one seed each are compared by McNemar's test, all others
            by permutation.
        gold: the judgements of a similarity task by subset.

    Raises:
        InputError: the scores do not cover the same rows.
    """
    if isinstance(score, ProbeScore) and isinstance(other, ProbeScore) and len(score.right) == len(other.right) > 0:
        right, wrong = (np.array([*map(int, s.right)], float) / s.seeds for s in (score, other))
        if score.seeds == other.seeds == 1:
            return mcnemar(right, wrong)
        return paired_means(100 * right, 100 * wrong)
    if isinstance(score, SimilarityScore) and isinstance(other, SimilarityScore) and _sizes(score) == _sizes(other):
        return paired_correlations(score.cosines, other.cosines, gold)
    if (
        isinstance(score, RetrievalScore)
        and isinstance(other, RetrievalScore)
        and len(score.ndcg) == len(other.ndcg) > 0
    ):
        return paired_means(score.ndcg, other.ndcg)
    raise InputError("the two scores must cover the same rows, got different ones")


def _sizes(score: SimilarityScore) -> dict[str, int]:
    return {name: len(values) for name, values in score.cosines.items()}


def compare(
    first: Evaluation | dict[str, Any] | str | Path,
    second: Evaluation | dict[str, Any] | str | Path,
    encoders: tuple[str | None, str | None] = (None, None),
) -> dict[str, Difference]:
    """Return the differences of two evaluations, the second minus the first, by task.

    Args:
        first, second: evaluations, their reports, or files or folders that :func:`ctx_embed.eval.write_report` wrote.
        encoders: the encoder of each; None selects the first.

    Raises:
        InputError: a file holds no report, an encoder is unknown, or no task is in both on the same data.
    """
    reports = [_report(given) for given in (first, second)]
    scores = [_scores(report, encoder) for report, encoder in zip(reports, encoders, strict=True)]
    tasks = [{task["name"]: task for task in report["tasks"]} for report in reports]
    shared = [name for name in scores[0] if name in scores[1] and tasks[0][name]["sha256"] == tasks[1][name]["sha256"]]
    if not shared:
        raise InputError("the two reports must share a task on the same data, got none; there is nothing to compare")
    return {name: difference(scores[1][name], scores[0][name], tasks[0][name].get("gold", {})) for name in shared}


def _report(given: Evaluation | dict[str, Any] | str | Path) -> dict[str, Any]:
    from ctx_embed.eval.reports.saved import read_results

    if isinstance(given, str | Path):
        return read_results(Path(given))
    return given if isinstance(given, dict) else given.report


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
