"""Evaluation of encoders on tasks: read the data once, embed each text once, score each encoder on each task."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from ctx_embed import progress
from ctx_embed.encoders import Encoder, as_encoder
from ctx_embed.errors import InputError
from ctx_embed.eval.cache import EmbeddingCache, stored_score
from ctx_embed.eval.cost import cost_of, sample_of
from ctx_embed.eval.encoders import WORDS, load_encoder
from ctx_embed.eval.results import Evaluation, EvaluationOptions, suits
from ctx_embed.eval.scoring.probes import PAPER, PROTOCOLS, ProbeScore, mean_of_seeds
from ctx_embed.eval.scoring.score import (
    FOLDS,
    Examples,
    Score,
    end_to_end,
    from_json,
    score_collection,
    score_few_shot,
    score_probe,
    score_similarity,
    training_options,
)
from ctx_embed.eval.tasks.catalogue import DEFAULT_TASKS, Task, find_tasks
from ctx_embed.eval.tasks.data import DataReader, TaskData
from ctx_embed.training.labelled_texts import are_known, warning


def evaluate(
    encoders: Any = ("default",),
    tasks: str | Task | Sequence[str | Task] = (),
    data: str | Path | DataReader | None = None,
    options: EvaluationOptions | None = None,
    *,
    cache: Path | None = None,
    tell: Callable[[str], None] = lambda line: None,
    scored: Callable[[str], None] = lambda line: None,
) -> Evaluation:
    """Score every encoder on every task; failures are reported and recorded, and the rest continues.

    Args:
        encoders: one or several with different names: names or folders as for ``ctx-embed eval run --encoder``, or
            anything with ``encode(list[str]) -> array``. The others are compared with the first.
        tasks: one or several names, labelled files, folders in BEIR layout, or tasks; by default MR, CR, SUBJ and
            MPQA.
        data: the folder of the tasks' data, or a reader of it; None reads from the Hugging Face hub.
        options: how to measure.
        cache: a folder for embeddings and scores, from which an interrupted run resumes; None stores nothing.
        tell: called with a line for each failure and each warning about the data.
        scored: called with a line for each score.

    Raises:
        InputError: two encoders have the same name, no encoder suits any of the tasks, or the cache folder cannot be
                created.
    """
    options = options or EvaluationOptions()
    reader = data if isinstance(data, DataReader) else DataReader(None if data is None else Path(data))
    named: list[Any] = list(tasks) if isinstance(tasks, list | tuple) else [tasks]
    found: list[Task] = [each if isinstance(each, Task) else find_tasks([each])[0] for each in named or DEFAULT_TASKS]
    if options.protocol == "senteval":
        # Check the data as published, with all pairs.
        found = [replace(task, without=None) for task in found]
    given = list(encoders) if isinstance(encoders, list | tuple) else [encoders]
    loaded = [load_encoder(str(each)) if isinstance(each, str | Path) else as_encoder(each) for each in given]
    result = Evaluation(options, found, loaded)
    names = [encoder.name for encoder in result.encoders]
    if len(set(names)) < len(names):
        raise InputError(f"encoder names must differ, got {', '.join(names)}; rename with as_encoder(encoder, name)")
    if not result.asked:
        raise InputError(f"{', '.join(names)} can only be scored on probe tasks, got none; add one, such as MR")

    def fail(error: InputError, context: str) -> None:
        line = str(error) if str(error).startswith(context) else f"{context}: {error}"
        # An error in the data occurs for every encoder: report it once.
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
            tell(f"{task.name}: {read.rows + read.left_out} rows, but the published set has {task.rows}")
        elif read.is_altered:
            tell(f"{task.name}: the rows differ from the published set, though their number is the same")
        for remark in read.remarks:
            tell(f"{task.name}: {remark}")
    scores = None
    if cache is not None and result.data:
        scores = cache / "scores"
        try:
            scores.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot create the folder {cache}: {error.strerror}") from None
    sample = sample_of(result.data)
    for encoder in result.encoders:
        embed = EmbeddingCache(encoder, cache)
        if encoder.remark:
            tell(encoder.remark)
        for task in found:
            if task.name in result.data and suits(encoder, task):
                if count := _labelled(encoder, task, result.data[task.name]):
                    result.labelled[encoder.name, task.name] = count
                    tell(warning(encoder.name, task.name, count, result.data[task.name].rows))
                try:
                    with progress.about(f"{task.name}, {encoder.name}"):
                        score = result.scores[encoder.name, task.name] = _score(
                            task, result.data[task.name], embed, scores, options
                        )
                    scored(f"{task.name}, {encoder.name}: {score.mean:.1f}")
                except InputError as error:
                    fail(error, task.name)
        if options.cost and sample:
            try:
                result.costs[encoder.name] = cost_of(encoder, sample)
            except InputError as error:
                fail(error, encoder.name)
    return result


def _labelled(encoder: Encoder, task: Task, data: TaskData) -> int:
    """Return how many rows of a probe task have a text that the encoder saw with a label in its training."""
    hashes = getattr(encoder.model[0], "labelled_texts", None) if encoder.model is not None else None
    if hashes is None or task.kind != "probe":
        return 0
    columns = zip(*(row[1:] for rows in data.subsets.values() for row in rows), strict=True)
    return int(np.any([are_known(texts, hashes) for texts in columns], axis=0).sum())


def _score(task: Task, data: TaskData, embed: EmbeddingCache, folder: Path | None, options: EvaluationOptions) -> Score:
    """Return the score of one encoder on one task, stored or computed now."""
    encoder = embed.encoder
    known = encoder.key or (encoder.name if encoder.by_name and encoder.model is None else None)
    identity = (f"{known}{WORDS * encoder.words}", task.kind, data.sha256, sorted(data.subsets)) if known else None

    def kept(make: Callable[[], Any], *how: Any) -> dict[str, Any]:
        """Return a result, stored under everything that determines it unless the encoder has no identity."""
        return stored_score(folder, None if identity is None else (*identity, *how), make)

    if task.kind != "probe":
        compute = score_collection if task.kind == "retrieval" else score_similarity
        return from_json(task.kind, kept(lambda: asdict(compute(data, embed))))
    examples = Examples.from_data(data)
    per_label = task.per_label
    if per_label is not None:
        few = kept(lambda: asdict(score_few_shot(examples, embed, per_label)), "few-shot", per_label)
        return from_json("probe", few)

    def probe(seed: int) -> ProbeScore:
        if options.protocol == PAPER:
            folds = options.folds or FOLDS
            training = vars(training_options(encoder))
            return end_to_end(
                encoder, examples, seed, folds, lambda fold, make: kept(make, PAPER, seed, folds, training, fold)
            )
        protocol = PROTOCOLS[options.protocol]
        protocol = replace(protocol, folds=options.folds or protocol.folds)
        how = (options.protocol, seed, protocol.folds)
        stored = kept(lambda: asdict(score_probe(examples, embed, protocol, seed)), *how)
        return cast("ProbeScore", from_json("probe", stored))

    return mean_of_seeds([probe(seed) for seed in options.seeds])
