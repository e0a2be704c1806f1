"""Encoders on tasks: the data read once, each text embedded once, each encoder scored on each task."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from ctx_embed.errors import InputError
from ctx_embed.eval.encoders import Encoder
from ctx_embed.eval.encoding import EmbeddingCache
from ctx_embed.eval.features import Features, frozen, of_pairs
from ctx_embed.eval.probes import PROTOCOLS, Parts, ProbeScore
from ctx_embed.eval.retrieval import RetrievalScore, score_retrieval
from ctx_embed.eval.similarity import SimilarityScore, spearman
from ctx_embed.eval.task_data import DataReader, TaskData
from ctx_embed.eval.tasks import ProbeTask, RetrievalTask, Row, Task

Score = ProbeScore | SimilarityScore | RetrievalScore


@dataclass
class Evaluation:
    """What an evaluation measured.

    Attributes:
        protocol, seed: how it was measured.
        tasks, encoders: in the order in which they were asked for, those without a result too.
        data: of each task that could be read, by name.
        scores: by (encoder's name, task's name).
        failures: a line for each thing that could not be done.
    """

    protocol: str
    seed: int
    tasks: list[Task]
    encoders: list[Encoder]
    data: dict[str, TaskData] = field(default_factory=dict)
    scores: dict[tuple[str, str], Score] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)


def evaluate(
    encoders: Sequence[Encoder],
    tasks: Sequence[Task],
    reader: DataReader,
    *,
    protocol: str = "standard",
    seed: int = 0,
    tell: Callable[[str], None] = lambda line: None,
) -> Evaluation:
    """Score every encoder on every task; what fails is told and noted, and the rest goes on.

    Args:
        encoders: of different names.
        tasks: of different names.
        reader: where the data come from.
        protocol: the probe, a name of ``PROTOCOLS``.
        seed: of the folds.
        tell: called with a line for each failure and each oddity of the data.
    """
    result = Evaluation(protocol, seed, list(tasks), list(encoders))

    def fail(error: InputError, context: str) -> None:
        line = str(error) if str(error).startswith(context) else f"{context}: {error}"
        result.failures.append(line)
        tell(line)

    for task in tasks:
        try:
            data = reader.read(task)
        except InputError as error:
            fail(error, task.name)
            continue
        result.data[task.name] = data
        if task.rows and data.rows + data.left_out != task.rows:
            tell(f"{task.name}: {data.rows + data.left_out} rows, the published set has {task.rows}")
    for encoder in encoders:
        embed = EmbeddingCache(encoder)
        for task in tasks:
            if task.name in result.data:
                try:
                    result.scores[encoder.name, task.name] = score(task, result.data[task.name], embed, protocol, seed)
                except InputError as error:
                    fail(error, task.name)
    return result


def score(task: Task, data: TaskData, embed: EmbeddingCache, protocol: str, seed: int) -> Score:
    """The score of one encoder on one task.

    Raises:
        InputError: the data do not suit the task, or the encoder gives no usable embeddings.
    """
    if isinstance(task, ProbeTask):
        labels, texts, parts = examples(data)
        return PROTOCOLS[protocol].score(_features(texts, embed), labels, seed, parts)
    if isinstance(task, RetrievalTask):
        names = ("queries", "corpus")
        ids, texts = zip(*(row for name in names for row in data.subsets[name]), strict=True)
        embeddings, count = embed(texts), len(data.subsets["queries"])
        return score_retrieval(
            dict(zip(ids[:count], embeddings[:count], strict=True)),
            dict(zip(ids[count:], embeddings[count:], strict=True)),
            [(query, document, relevance) for query, document, relevance in data.subsets["qrels"]],
        )
    return SimilarityScore(dict(_correlations(data, embed)))


def examples(data: TaskData) -> tuple[list[str], list[Row], Parts | None]:
    """The labels of a probe's rows, their texts (one or two), and the rows of its parts, None if it has none."""
    rows = [row for subset in data.subsets.values() for row in subset]
    labels, texts = [row[0] for row in rows], [row[1:] for row in rows]
    if "train" not in data.subsets:
        return labels, texts, None
    ends = np.cumsum([len(subset) for subset in data.subsets.values()])
    parts = {
        name: np.arange(end - len(subset), end) for (name, subset), end in zip(data.subsets.items(), ends, strict=True)
    }
    return labels, texts, parts


def _features(texts: Sequence[Row], embed: EmbeddingCache) -> Features:
    columns = list(zip(*texts, strict=True))
    features = frozen(embed([text for column in columns for text in column]))
    return of_pairs(features, len(texts)) if len(columns) == 2 else features


def _correlations(data: TaskData, embed: EmbeddingCache) -> Iterator[tuple[str, float]]:
    for name, rows in data.subsets.items():
        scores, first, second = zip(*rows, strict=True)
        # In one call, so that the batches are drawn from both columns.
        both = embed(first + second)
        yield name, spearman(both[: len(rows)], both[len(rows) :], [float(score) for score in scores])
