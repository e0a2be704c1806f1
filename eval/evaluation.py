"""Encoders on tasks: the data read once, each text embedded once, each encoder scored on each task."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ctx_embed.errors import InputError, unknown_name
from ctx_embed.eval.bars import named
from ctx_embed.eval.cost import Cost, cost_of, sample_of
from ctx_embed.eval.encoders.embedding import EmbeddingCache
from ctx_embed.eval.encoders.registry import Encoder, as_encoder, load_encoder
from ctx_embed.eval.scoring.end_to_end import FOLDS, end_to_end, training_options
from ctx_embed.eval.scoring.probes import ProbeScore, mean_of_seeds
from ctx_embed.eval.scoring.protocols import PAPER, PROTOCOL_NAMES, PROTOCOLS
from ctx_embed.eval.scoring.score import (
    Examples,
    Score,
    from_json,
    score_collection,
    score_probe,
    score_similarity,
    to_json,
)
from ctx_embed.eval.store import Store
from ctx_embed.eval.tasks.catalogue import DEFAULT_TASKS, find_tasks
from ctx_embed.eval.tasks.data import DataReader, TaskData
from ctx_embed.eval.tasks.task import ProbeTask, RetrievalTask, SimilarityTask, Task
from ctx_embed.training.labelled_texts import are_known, warning

CURVE_SIZES = (100, 300, 1000, 3000, 10_000, 30_000)


@dataclass(frozen=True)
class Options:
    """How an evaluation measures.

    Attributes:
        protocol: of the probes, one of ``PROTOCOL_NAMES``.
        seeds: of folds and fits; the score is the mean over them. Nine at most.
        folds: outer folds; None takes the protocol's.
        curves: also score each probe on smaller training parts.
        cost: measure each encoder's speed and memory.
    """

    protocol: str = "standard"
    seeds: tuple[int, ...] = (0,)
    folds: int | None = None
    curves: bool = False
    cost: bool = False

    def __post_init__(self) -> None:
        if self.protocol not in PROTOCOL_NAMES:
            raise unknown_name("protocol", self.protocol, PROTOCOL_NAMES)
        if self.curves and self.protocol == PAPER:
            raise InputError("learning curves are those of frozen embeddings, the protocol paper has none")
        if not 1 <= len(set(self.seeds)) == len(self.seeds) <= 9:
            raise InputError(
                f"{len(self.seeds)} seeds ({', '.join(map(str, self.seeds))}), 1 to 9 different are needed"
            )


@dataclass(repr=False)
class Evaluation:
    """What an evaluation measured.

    Attributes:
        options: how it was measured.
        tasks, encoders: in the order in which they were asked for, those without a result too.
        data: of each task that could be read, by name.
        scores: by (encoder's name, task's name).
        curves: the scores on smaller training parts, by (encoder's name, task's name) and size.
        costs: by encoder's name.
        labelled: how many texts of a probe task an encoder learned from with labels, by (encoder's name, task's name).
        failures: a line for each thing that could not be done.
    """

    options: Options
    tasks: list[Task]
    encoders: list[Encoder]
    data: dict[str, TaskData] = field(default_factory=dict)
    scores: dict[tuple[str, str], Score] = field(default_factory=dict)
    curves: dict[tuple[str, str], dict[int, ProbeScore]] = field(default_factory=dict)
    costs: dict[str, Cost] = field(default_factory=dict)
    labelled: dict[tuple[str, str], int] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    @property
    def report(self) -> dict[str, Any]:
        """All that was measured as JSON values, unrounded, see :func:`ctx_embed.eval.reports.results.as_json`."""
        from ctx_embed.eval.reports.results import as_json

        return as_json(self)

    def __repr__(self) -> str:
        names = ", ".join(encoder.name for encoder in self.encoders)
        return f"Evaluation({names} on {', '.join(task.name for task in self.tasks)}: {len(self.scores)} scores)"

    def __str__(self) -> str:
        from ctx_embed.eval.reports.markdown import as_markdown

        return as_markdown(self.report, [])

    def _repr_html_(self) -> str:
        from ctx_embed.eval.reports.html import tables_as_html

        return tables_as_html(self.report)

    @property
    def asked(self) -> int:
        """How many scores were asked for: an encoder without cosines is scored by probes alone."""
        return sum(_suits(encoder, task) for encoder in self.encoders for task in self.tasks)


def _several(given: Any) -> list[Any]:
    """Return a list of what may be one or several."""
    return list(given) if isinstance(given, list | tuple) else [given]


def _found(tasks: str | Task | Sequence[str | Task]) -> list[Task]:
    named = _several(tasks) or list(DEFAULT_TASKS)
    return [task for given in named for task in (find_tasks([given]) if isinstance(given, str) else [given])]


def _encoder(given: Any) -> Encoder:
    return load_encoder(str(given)) if isinstance(given, str | Path) else as_encoder(given)


def evaluate(
    encoders: Any = ("default",),
    tasks: str | Task | Sequence[str | Task] = (),
    data: str | Path | DataReader | None = None,
    options: Options | None = None,
    *,
    cache: Path | None = None,
    tell: Callable[[str], None] = lambda line: None,
    scored: Callable[[str], None] = lambda line: None,
) -> Evaluation:
    """Score every encoder on every task; what fails is told and noted, and the rest goes on.

    Args:
        encoders: one or several of different names: names or folders as ``ctx-embed eval run --encoder`` takes them, or
            anything with ``encode(list[str]) -> array``. The others are compared with the first.
        tasks: one or several: names, labelled files, folders in BEIR layout, or tasks; none means MR, CR, SUBJ and
            MPQA.
        data: the folder of the tasks' data, or a reader of it; None reads from the hub.
        options: how to measure.
        cache: a folder for embeddings and scores, from which an interrupted run goes on; None keeps nothing.
        tell: called with a line for each failure and each oddity of the data.
        scored: called with a line for each score.

    Raises:
        InputError: two encoders of one name, none that suits any of the tasks, or a cache folder that cannot be made.
    """
    options = options or Options()
    reader = data if isinstance(data, DataReader) else DataReader(None if data is None else Path(data))
    found = [_as_published(task, options) for task in _found(tasks)]
    result = Evaluation(options, found, [_encoder(encoder) for encoder in _several(encoders)])
    names = [encoder.name for encoder in result.encoders]
    if len(set(names)) < len(names):
        raise InputError(f"encoders of the same name ({', '.join(names)}), as_encoder(encoder, name) gives them others")
    if not result.asked:
        raise InputError(f"{', '.join(names)} is scored by probes alone, none of the tasks is a probe")

    def fail(error: InputError, context: str) -> None:
        line = str(error) if str(error).startswith(context) else f"{context}: {error}"
        # What is wrong with the data is wrong for every encoder.
        if line not in result.failures:
            result.failures.append(line)
            tell(line)

    for task in found:
        try:
            read = reader.read(task)
        except InputError as error:
            fail(error, task.name)
            continue
        result.data[task.name] = read
        if task.rows and read.rows + read.left_out != task.rows:
            tell(f"{task.name}: {read.rows + read.left_out} rows, the published set has {task.rows}")
        elif read.is_altered:
            tell(f"{task.name}: as many rows as the published set has, but not the same")
    # A run without data leaves no folder behind.
    store = Store(cache if result.data else None)
    sample = sample_of(result.data)
    for encoder in result.encoders:
        embed = EmbeddingCache(encoder, cache)
        for task in found:
            if task.name in result.data and _suits(encoder, task):
                if count := _labelled(encoder, task, result.data[task.name]):
                    result.labelled[encoder.name, task.name] = count
                    tell(warning(encoder.name, task.name, count, result.data[task.name].rows))
                cell = _Cell(task, result.data[task.name], embed, store, options)
                try:
                    with named(f"{task.name}, {encoder.name}"):
                        score = result.scores[encoder.name, task.name] = cell.score()
                    scored(f"{task.name}, {encoder.name}: {score.mean:.1f}")
                    if options.curves and isinstance(score, ProbeScore):
                        result.curves[encoder.name, task.name] = {**cell.curve(), cell.training_rows: score}
                except InputError as error:
                    fail(error, task.name)
        if options.cost and sample:
            try:
                result.costs[encoder.name] = cost_of(encoder, sample)
            except InputError as error:
                fail(error, encoder.name)
    return result


def _as_published(task: Task, options: Options) -> Task:
    """The task with all its pairs, where it is to be measured as SentEval did."""
    is_whole = options.protocol.startswith("senteval") and isinstance(task, SimilarityTask)
    return replace(task, without=None) if is_whole else task  # type: ignore[call-arg]


def _labelled(encoder: Encoder, task: Task, data: TaskData) -> int:
    """Return how many rows of a probe hold a text that the encoder learned from with labels."""
    hashes = getattr(encoder.model[0], "labelled_texts", None) if encoder.model is not None else None
    if hashes is None or not isinstance(task, ProbeTask):
        return 0
    columns = zip(*(row[1:] for rows in data.subsets.values() for row in rows), strict=True)
    return int(np.any([are_known(texts, hashes) for texts in columns], axis=0).sum())


def _suits(encoder: Encoder, task: Task) -> bool:
    return isinstance(task, ProbeTask) or not encoder.probes_only


@dataclass(frozen=True)
class _Cell:
    """One encoder on one task."""

    task: Task
    data: TaskData
    embed: EmbeddingCache
    store: Store
    options: Options

    def score(self) -> Score:
        """The score as it was kept, or worked out."""
        if isinstance(self.task, ProbeTask):
            return mean_of_seeds([self._probe(seed) for seed in self.options.seeds])
        work_out = score_collection if isinstance(self.task, RetrievalTask) else score_similarity
        kept = self.store.get(self._key(), lambda: to_json(work_out(self.data, self.embed)))
        return from_json(self.task.kind, kept)

    @property
    def folds(self) -> int:
        """The outer folds, where the data are cross-validated."""
        return self.options.folds or (
            FOLDS if self.options.protocol == PAPER else PROTOCOLS[self.options.protocol].folds
        )

    @property
    def training_rows(self) -> int:
        """How many rows a probe is fitted on."""
        if "train" in self.data.subsets:
            return len(self.data.subsets["train"])
        return self.data.rows - -(-self.data.rows // self.folds)

    def curve(self) -> dict[int, ProbeScore]:
        """The scores on smaller training parts, of growing size."""
        sizes = [size for size in CURVE_SIZES if size < self.training_rows]
        return {size: mean_of_seeds([self._probe(seed, size) for seed in self.options.seeds]) for size in sizes}

    def _probe(self, seed: int, size: int | None = None) -> ProbeScore:
        examples = Examples.of(self.data)
        encoder, folds = self.embed.encoder, self.folds
        if self.options.protocol == PAPER:

            def keep(fold: int, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
                return self.store.get(self._key(PAPER, seed, folds, asdict(training_options(encoder)), fold), make)

            return end_to_end(encoder, examples, seed, folds, keep)
        protocol = replace(PROTOCOLS[self.options.protocol], folds=folds)

        def work_out() -> dict[str, Any]:
            return to_json(score_probe(examples, self.embed, protocol, seed, size))

        score = from_json("probe", self.store.get(self._key(self.options.protocol, seed, folds, size), work_out))
        assert isinstance(score, ProbeScore)
        return score

    def _key(self, *how: Any) -> tuple[Any, ...] | None:
        """What decides a score; None where the encoder is not known for certain."""
        encoder = self.embed.encoder
        known = encoder.key or (encoder.name if encoder.by_name and encoder.model is None else None)
        return (known, self.task.kind, self.data.sha256, sorted(self.data.subsets), *how) if known else None
