"""Encoders on tasks: the data read once, each text embedded once, each encoder scored on each task."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain

from ctx_embed.errors import InputError
from ctx_embed.eval.encoders import Encoder
from ctx_embed.eval.encoding import EmbeddingCache
from ctx_embed.eval.probes import PROTOCOLS, ProbeScore
from ctx_embed.eval.similarity import SimilarityScore, spearman
from ctx_embed.eval.task_data import DataReader, TaskData
from ctx_embed.eval.tasks import FileTask, ProbeTask, Task

Score = ProbeScore | SimilarityScore


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
        if not isinstance(task, FileTask) and data.rows + data.left_out != task.rows:
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
        labels, texts = zip(*chain.from_iterable(data.subsets.values()), strict=True)
        return PROTOCOLS[protocol](embed(texts), labels, seed)
    return SimilarityScore(dict(_correlations(data, embed)))


def _correlations(data: TaskData, embed: EmbeddingCache) -> Iterator[tuple[str, float]]:
    for name, rows in data.subsets.items():
        scores, first, second = zip(*rows, strict=True)
        # In one call, so that the batches are drawn from both columns.
        both = embed(first + second)
        yield name, spearman(both[: len(rows)], both[len(rows) :], [float(score) for score in scores])
