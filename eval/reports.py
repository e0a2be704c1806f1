"""Reports of an evaluation: tables for the terminal, JSON for machines."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from rich.table import Table
from rich.text import Text

from ctx_embed import __version__
from ctx_embed.eval.catalogue import PUBLISHED_SOURCES
from ctx_embed.eval.evaluation import Evaluation, Score
from ctx_embed.eval.probes import ProbeScore
from ctx_embed.eval.retrieval import RetrievalScore
from ctx_embed.eval.task_data import TaskData
from ctx_embed.eval.tasks import ProbeTask, RetrievalTask, SimilarityTask, Task

FORMAT_VERSION = 1
PACKAGES = ("torch", "sentence-transformers", "scikit-learn", "numpy", "scipy")
FLOOR = "majority class"


def tables(evaluation: Evaluation) -> dict[str, Table]:
    """A table for the probe tasks and one for the similarity tasks by their titles, where there are results.

    The figures of the encoders come first, then the majority floor and the published figures.
    """
    shown = {}
    for kind, title in (
        (ProbeTask, "Accuracy in %, mean ± standard deviation over folds where there are several"),
        (SimilarityTask, "Spearman's rank correlation times 100"),
        (RetrievalTask, "nDCG@10 times 100 (recall@100, MRR@10)"),
    ):
        tasks = [task for task in evaluation.tasks if isinstance(task, kind)]
        if any((encoder.name, task.name) in evaluation.scores for encoder in evaluation.encoders for task in tasks):
            shown[title] = _table(evaluation, tasks)
    return shown


def _table(evaluation: Evaluation, tasks: Sequence[Task]) -> Table:
    # The cells are Text, since a name may hold what rich would take for markup.
    table = Table()
    table.add_column("")
    for task in tasks:
        table.add_column(Text(task.name), justify="right", overflow="fold")

    def add(name: str, cells: Sequence[str], end_section: bool = False) -> None:
        if any(cells):
            table.add_row(Text(name, overflow="fold"), *map(Text, cells), end_section=end_section)

    for encoder in evaluation.encoders:
        scores = [evaluation.scores.get((encoder.name, task.name)) for task in tasks]
        add(encoder.name, [_cell(score) for score in scores], end_section=encoder is evaluation.encoders[-1])
    add(FLOOR, [_floor(evaluation, task) for task in tasks])
    for name in PUBLISHED_SOURCES:
        add(name, [f"{task.published[name]:.1f}" if name in task.published else "" for task in tasks])
    return table


def _cell(score: Score | None) -> str:
    if score is None:
        return ""
    if isinstance(score, ProbeScore) and len(score.folds) > 1:
        return f"{score.mean:.1f} ± {score.std:.1f}"
    if isinstance(score, RetrievalScore):
        _, *others = score.measures.values()
        return f"{score.mean:.1f} ({', '.join(f'{value:.1f}' for value in others)})"
    return f"{score.mean:.1f}"


def _floor(evaluation: Evaluation, task: Task) -> str:
    """The floor is the same for all encoders: that of the first with a score."""
    for encoder in evaluation.encoders:
        score = evaluation.scores.get((encoder.name, task.name))
        if isinstance(score, ProbeScore):
            return f"{score.floor:.1f}"
    return ""


def notes(evaluation: Evaluation) -> list[str]:
    """The lines below the tables: the protocol, where the published figures come from, which pairs were left out."""
    probed = any(isinstance(score, ProbeScore) for score in evaluation.scores.values())
    lines = [f"protocol {evaluation.protocol}, seed {evaluation.seed}"] if probed else []
    cited = {name for task in evaluation.tasks if task.name in evaluation.data for name in task.published}
    lines += [f"{name}: {source}" for name, source in PUBLISHED_SOURCES.items() if name in cited]
    for task in evaluation.tasks:
        data = evaluation.data.get(task.name)
        if isinstance(task, SimilarityTask) and task.without and data:
            lines.append(
                f"{task.name}: mean over {len(data.subsets)} subsets ({', '.join(data.subsets)}), "
                f"without {data.left_out} pairs that stand in {task.without}"
            )
    return lines


def as_json(evaluation: Evaluation) -> dict[str, Any]:
    """The whole evaluation, unrounded, as JSON values.

    Returns:
        ``format_version``, ``protocol``, ``seed``, ``units``, ``versions``, ``encoders`` (name and fingerprint),
        ``tasks`` (source, rows, sha256, floor, published figures), ``results`` (one for each encoder and task) and
        ``failures``.
    """
    return {
        "format_version": FORMAT_VERSION,
        "protocol": evaluation.protocol,
        "seed": evaluation.seed,
        "units": "accuracies in percent, Spearman's rank correlations times 100",
        "versions": {
            "python": platform.python_version(),
            "ctx_embed": __version__,
            **{package: version(package) for package in PACKAGES},
        },
        "encoders": [{"name": encoder.name, "fingerprint": encoder.fingerprint} for encoder in evaluation.encoders],
        "tasks": [
            _task_json(task, evaluation.data[task.name]) for task in evaluation.tasks if task.name in evaluation.data
        ],
        "results": [
            {"encoder": encoder, "task": task, **_score_json(score)}
            for (encoder, task), score in evaluation.scores.items()
        ],
        "failures": evaluation.failures,
    }


def _task_json(task: Task, data: TaskData) -> dict[str, Any]:
    described = {
        "name": task.name,
        "kind": task.kind,
        "source": data.source,
        "rows": data.rows,
        "sha256": data.sha256,
        "published": dict(task.published),
    }
    if isinstance(task, ProbeTask):
        rows = Counter(row[0] for subset in data.subsets.values() for row in subset)
        return {**described, "rows_by_label": dict(sorted(rows.items()))}
    left_out = {"left_out": data.left_out} if data.left_out else {}
    return {**described, "rows_by_subset": {name: len(rows) for name, rows in data.subsets.items()}, **left_out}


def _score_json(score: Score) -> dict[str, Any]:
    if isinstance(score, ProbeScore):
        return {
            "mean": score.mean,
            "std": score.std,
            "majority_floor": score.floor,
            "folds": list(score.folds),
            "Cs": list(score.Cs),
        }
    if isinstance(score, RetrievalScore):
        return {"mean": score.mean, "measures": score.measures, "queries": len(score.ndcg)}
    return {"mean": score.mean, "subsets": dict(score.subsets)}
