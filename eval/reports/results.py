"""The results of an evaluation as JSON, from which every report is made."""

from __future__ import annotations

import json
import platform
from collections import Counter
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ctx_embed import __version__
from ctx_embed.errors import InputError
from ctx_embed.eval.evaluation import Evaluation
from ctx_embed.eval.reports.comparison import difference
from ctx_embed.eval.scoring.probes import ProbeScore
from ctx_embed.eval.scoring.protocols import title_of
from ctx_embed.eval.scoring.retrieval import RetrievalScore
from ctx_embed.eval.scoring.score import Examples, Score, to_json
from ctx_embed.eval.scoring.similarity import SimilarityScore
from ctx_embed.eval.scoring.statistics import Interval, correlation_interval, mean_interval
from ctx_embed.eval.tasks.catalogue import PUBLISHED_SOURCES
from ctx_embed.eval.tasks.task import ProbeTask, SimilarityTask, Task

FORMAT_VERSION = 2
# What the reports are made of.
KEYS = (
    "protocol",
    "protocol_title",
    "seeds",
    "folds",
    "versions",
    "encoders",
    "tasks",
    "published_sources",
    "results",
    "curves",
    "failures",
)
PACKAGES = ("torch", "sentence-transformers", "scikit-learn", "numpy", "scipy")


def as_json(evaluation: Evaluation) -> dict[str, Any]:
    """The whole evaluation, unrounded, as JSON values.

    Returns:
        ``format_version``, ``protocol``, ``protocol_title``, ``seeds``, ``folds`` (where they were set), ``units``,
        ``versions``, ``encoders`` (name, fingerprint, cost), ``tasks`` (kind, metric, source, rows, sha256, floor,
        published figures, judgements), ``published_sources``, ``results`` (one for each encoder and task: mean,
        interval, what the rows got, the difference from the first encoder, and how many of the texts the encoder
        learned from with labels), ``curves`` and ``failures``.
    """
    options = evaluation.options
    tasks = [task for task in evaluation.tasks if task.name in evaluation.data]
    described = {task.name: _task_json(task, evaluation) for task in tasks}
    cited = {name for task in tasks for name in task.published}
    return {
        "format_version": FORMAT_VERSION,
        "protocol": options.protocol,
        "protocol_title": title_of(options.protocol),
        "seeds": list(options.seeds),
        "folds": options.folds,
        "units": "accuracies in percent, correlations, nDCG, recall and MRR times 100",
        "versions": {
            "python": platform.python_version(),
            "ctx_embed": __version__,
            **{package: version(package) for package in PACKAGES},
        },
        "encoders": [
            {
                "name": encoder.name,
                "fingerprint": encoder.fingerprint,
                "cost": asdict(evaluation.costs[encoder.name]) if encoder.name in evaluation.costs else None,
            }
            for encoder in evaluation.encoders
        ],
        "tasks": list(described.values()),
        "published_sources": {name: source for name, source in PUBLISHED_SOURCES.items() if name in cited},
        "results": [
            {
                **_result(evaluation, encoder, task, score, described[task].get("gold", {})),
                "labelled": evaluation.labelled.get((encoder, task), 0),
            }
            for (encoder, task), score in evaluation.scores.items()
        ],
        "curves": [
            {"encoder": encoder, "task": task, "rows": size, "mean": score.mean, "std": score.std}
            for (encoder, task), curve in evaluation.curves.items()
            for size, score in curve.items()
        ],
        "failures": evaluation.failures,
    }


def _task_json(task: Task, evaluation: Evaluation) -> dict[str, Any]:
    data = evaluation.data[task.name]
    described: dict[str, Any] = {
        "name": task.name,
        "kind": task.kind,
        "metric": task.metric,
        "source": data.source,
        "rows": data.rows,
        "rows_by_subset": {name: len(rows) for name, rows in data.subsets.items()},
        "sha256": data.sha256,
        "published": dict(task.published),
    }
    if isinstance(task, ProbeTask):
        rows = Counter(row[0] for subset in data.subsets.values() for row in subset)
        floors = (score.floor for (_, name), score in evaluation.scores.items() if name == task.name)  # type: ignore[union-attr]
        described["rows_by_label"] = dict(sorted(rows.items()))
        described["floor"] = next(floors, None)
        described["repeated"] = Examples.of(data).repeated
    elif isinstance(task, SimilarityTask):
        described["gold"] = {name: [float(row[0]) for row in rows] for name, rows in data.subsets.items()}
        described["without"], described["left_out"] = task.without, data.left_out
    return described


def _result(evaluation: Evaluation, encoder: str, task: str, score: Score, gold: Any) -> dict[str, Any]:
    result: dict[str, Any] = {"encoder": encoder, "task": task, "mean": score.mean}
    if isinstance(score, ProbeScore):
        result["std"] = score.std
    if isinstance(score, RetrievalScore):
        result["measures"] = score.measures
    result["interval"] = interval_of(score)
    result["score"] = to_json(score)
    first = evaluation.encoders[0].name
    if encoder != first and (first, task) in evaluation.scores:
        result["versus"] = {"encoder": first, **asdict(difference(score, evaluation.scores[first, task], gold))}
    return result


def interval_of(score: Score) -> Interval:
    """The 95 % interval of a score over its rows: Wilson's, Fisher's or Student's."""
    if isinstance(score, ProbeScore):
        return score.interval
    if isinstance(score, SimilarityScore):
        return correlation_interval([*score.subsets.values()], [len(score.cosines[name]) for name in score.subsets])
    return mean_interval(score.ndcg)


def read_results(path: Path) -> dict[str, Any]:
    """What :func:`as_json` gave, from a file or from ``results.json`` in a folder.

    Raises:
        InputError: no such file, or one that holds something else.
    """
    file = path / "results.json" if path.is_dir() else path
    try:
        report: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{file}: cannot be read ({error.strerror}), eval run --out DIR writes it") from None
    except ValueError as error:
        raise InputError(f"{file}: not JSON ({error})") from None
    found = report.get("format_version") if isinstance(report, dict) else None
    if found != FORMAT_VERSION:
        raise InputError(f"{file}: results of format {found}, this version reads {FORMAT_VERSION}; run eval run anew")
    if absent := [key for key in KEYS if key not in report]:
        raise InputError(f"{file}: no {', '.join(absent)} in it, this is no result of eval run")
    return report
