"""Evaluation of encoders on tasks: read the data once, embed each text once, score each encoder; and comparisons.

An :class:`Evaluation` has the options and results, and the JSON from which reports are made.
"""

import json
import os
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Any, cast

import numpy as np

from ctx_embed import __version__, progress
from ctx_embed.errors import DamagedError, InputError, unknown_name
from ctx_embed.eval.cost import Cost, cost_of, sample_of
from ctx_embed.eval.encoders import WORDS, EmbeddingCache, Encoder, as_encoder, load_encoder
from ctx_embed.eval.reports import FORMAT_VERSION, as_markdown, read_results
from ctx_embed.eval.scoring import score as scoring
from ctx_embed.eval.scoring.probes import (
    PAPER,
    PAPER_TITLE,
    PROTOCOL_NAMES,
    PROTOCOLS,
    ProbeScore,
    ProtocolName,
    mean_of_seeds,
)
from ctx_embed.eval.scoring.ranking import SimilarityScore
from ctx_embed.eval.scoring.score import Examples, Score, from_json
from ctx_embed.eval.scoring.statistics import Difference, Interval, correlation_interval, mean_interval
from ctx_embed.eval.tasks import DEFAULT_TASKS, METRICS, PUBLISHED_SOURCES, DataReader, Task, TaskData, find_tasks
from ctx_embed.files import replaced_file
from ctx_embed.fingerprint import identity
from ctx_embed.model_card import versions
from ctx_embed.training.labelled_texts import are_known, warning

# Increase this when a change of the code changes scores, so that stored ones are computed again.
FORMAT = 3
PACKAGES = ("torch", "sentence-transformers", "scikit-learn", "numpy", "scipy")


@dataclass(frozen=True)
class EvaluationOptions:
    """The options of an evaluation.

    Attributes:
        protocol: how probes are fitted, see :data:`ctx_embed.eval.scoring.probes.PROTOCOLS`; or ``paper``.
        seeds: seeds of folds and fits; the score is the mean over them. Nine at most.
        folds: number of outer folds; None uses the protocol's.
        cost: measure each encoder's speed and memory.
    """

    protocol: ProtocolName = "standard"
    seeds: tuple[int, ...] = (0,)
    folds: int | None = None
    cost: bool = False

    def __post_init__(self) -> None:
        if self.protocol not in PROTOCOL_NAMES:
            raise unknown_name("protocol", self.protocol, PROTOCOL_NAMES)
        if not 1 <= len(set(self.seeds)) == len(self.seeds) <= 9:
            raise InputError(f"seeds must be 1 to 9 different integers, got {list(self.seeds)}")
        if self.fold_seed is not None and len(self.seeds) > 1:
            raise InputError(f"{self.protocol} has one seed of its own, {self.fold_seed}, got {len(self.seeds)} seeds")

    @property
    def fold_seed(self) -> int | None:
        """The protocol's own seed of folds, in place of the given ones."""
        return None if self.protocol == PAPER else PROTOCOLS[self.protocol].fold_seed


@dataclass(repr=False)
class Evaluation:
    """The results of an evaluation.

    Attributes:
        options: how it was measured.
        tasks, encoders: in the order requested, including those without a result.
        data: the data of each task that could be read, by name.
        scores: the scores by (encoder's name, task's name).
        costs: the costs by encoder's name.
        labelled: for each probe task, the number of rows whose text the encoder was trained on with a label, by
            (encoder's name, task's name).
        failures: one line for each failure.
    """

    options: EvaluationOptions
    tasks: list[Task]
    encoders: list[Encoder]
    data: dict[str, TaskData] = field(default_factory=dict)
    scores: dict[tuple[str, str], Score] = field(default_factory=dict)
    costs: dict[str, Cost] = field(default_factory=dict)
    labelled: dict[tuple[str, str], int] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    @property
    def report(self) -> dict[str, Any]:
        """All results, unrounded, as JSON values.

        They are ``format_version``, ``date``, ``protocol``, ``protocol_title``, ``seeds``, ``folds`` (null: the
        protocol's), ``units``, ``versions``, ``encoders`` (name, fingerprint, cost, remark), ``tasks`` (kind, metric,
        source, rows, sha256, floor, published scores, judgements, remarks), ``published_sources``, ``results`` (one for
        each encoder and task: mean, interval, the score of each row, the difference from the first encoder, and the
        number of texts that the encoder was trained on with labels) and ``failures``.
        """
        options = self.options
        tasks = [task for task in self.tasks if task.name in self.data]
        described: dict[str, dict[str, Any]] = {}
        for task in tasks:
            data = self.data[task.name]
            facts = described[task.name] = {
                "name": task.name,
                "kind": task.kind,
                "metric": METRICS[task.kind],
                "source": data.source,
                "rows": data.rows,
                "rows_by_subset": {name: len(rows) for name, rows in data.subsets.items()},
                "sha256": data.sha256,
                "published": dict(task.published),
                "remarks": list(data.remarks),
            }
            if task.kind == "probe":
                labels = Counter(row[0] for subset in data.subsets.values() for row in subset)
                floors = (score.floor for (_, name), score in self.scores.items() if name == task.name)  # type: ignore[union-attr]
                facts["rows_by_label"] = dict(sorted(labels.items()))
                facts["floor"] = next(floors, None)
                facts["per_label"] = task.per_label
                facts["repeated"] = Examples.from_data(data).repeated
            elif task.kind == "similarity":
                facts["gold"] = {name: [float(row[0]) for row in rows] for name, rows in data.subsets.items()}
                facts["without"], facts["left_out"] = task.without, data.left_out
        cited = {name for task in tasks for name in task.published}
        first = self.encoders[0].name
        results = []
        for (encoder, name), score in self.scores.items():
            result: dict[str, Any] = {"encoder": encoder, "task": name, "mean": score.mean}
            # The 95 % interval over the rows is Wilson's, Fisher's or Student's.
            interval: Interval
            if isinstance(score, ProbeScore):
                result["std"], interval = score.std, score.interval
            elif isinstance(score, SimilarityScore):
                sizes = [len(score.cosines[name]) for name in score.subsets]
                interval = correlation_interval([*score.subsets.values()], sizes)
            else:
                result["measures"], interval = score.measures, mean_interval(score.ndcg)
            result["interval"] = interval
            result["score"] = asdict(score)
            if encoder != first and (first, name) in self.scores:
                versus = scoring.difference(score, self.scores[first, name], described[name].get("gold", {}))
                result["versus"] = {"encoder": first, **asdict(versus)}
            results.append({**result, "labelled": self.labelled.get((encoder, name), 0)})
        return {
            "format_version": FORMAT_VERSION,
            "date": date.today().isoformat(),
            "protocol": options.protocol,
            "protocol_title": PAPER_TITLE if options.protocol == PAPER else PROTOCOLS[options.protocol].title,
            "seeds": list(options.seeds) if options.fold_seed is None else [options.fold_seed],
            "folds": options.folds,
            "units": "accuracies in percent, correlations, nDCG, recall and MRR times 100",
            "versions": {"ctx_embed": __version__, **versions(PACKAGES)},
            "encoders": [
                {
                    "name": encoder.name,
                    "fingerprint": encoder.fingerprint,
                    "cost": asdict(self.costs[encoder.name]) if encoder.name in self.costs else None,
                    "remark": encoder.model.remark,
                }
                for encoder in self.encoders
            ],
            "tasks": list(described.values()),
            "published_sources": {name: source for name, source in PUBLISHED_SOURCES.items() if name in cited},
            "results": results,
            "failures": self.failures,
        }

    def __repr__(self) -> str:
        names = ", ".join(encoder.name for encoder in self.encoders)
        scores = "1 score" if len(self.scores) == 1 else f"{len(self.scores)} scores"
        failed = f", {len(self.failures)} failed" if self.failures else ""
        return f"Evaluation({names} on {', '.join(task.name for task in self.tasks)}: {scores}{failed})"

    def __str__(self) -> str:
        return as_markdown(self.report)

    def _repr_markdown_(self) -> str:
        return str(self)

    @property
    def asked(self) -> int:
        """The number of scores requested: pairs of an encoder and a task that it suits."""
        return sum(suits(encoder, task) for encoder in self.encoders for task in self.tasks)


def suits(encoder: Encoder, task: Task) -> bool:
    """Return whether the encoder can be scored on the task; an encoder without cosines suits probes only."""
    return task.kind == "probe" or not encoder.probes_only


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
        data: the folder of the tasks' data, or a reader of it; None: the folder in CTX_EMBED_DATA, or without it the
            Hugging Face hub.
        options: how to measure.
        cache: a folder for embeddings and scores, from which an interrupted run resumes; None stores nothing.
        tell: called with a line for each failure and each warning about the data.
        scored: called with a line for each score.

    Raises:
        InputError: two encoders have the same name, no encoder suits any of the tasks, or the cache folder cannot be
                created.
    """
    options = options or EvaluationOptions()
    folder = data or os.environ.get("CTX_EMBED_DATA")
    reader = folder if isinstance(folder, DataReader) else DataReader(Path(folder) if folder else None)
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
        # The task may be a file, whose path the error names already.
        line = str(error) if str(error).startswith((context, os.path.abspath(context))) else f"{context}: {error}"
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
    """Return how many rows of a probe task have a text that the encoder was trained on with a label."""
    hashes = encoder.model.labelled_texts
    if hashes is None or task.kind != "probe":
        return 0
    columns = zip(*(row[1:] for rows in data.subsets.values() for row in rows), strict=True)
    return int(np.any([are_known(texts, hashes) for texts in columns], axis=0).sum())


def _score(task: Task, data: TaskData, embed: EmbeddingCache, folder: Path | None, options: EvaluationOptions) -> Score:
    """Return the score of one encoder on one task, stored or computed now."""
    encoder = embed.encoder
    known = encoder.key or (encoder.name if encoder.by_name else None)
    what = (f"{known}{WORDS * encoder.words}", task.kind, data.sha256, sorted(data.subsets))

    def kept(make: Callable[[], dict[str, Any]], *how: Any) -> dict[str, Any]:
        """Return the stored result for these settings; if it is missing or damaged, make and store it."""
        if folder is None or not known:
            return make()
        path = folder / f"{identity(__version__, FORMAT, *what, *how)[:40]}.json"
        with suppress(OSError, ValueError):
            stored: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            return stored
        made = make()
        with replaced_file(path) as beside:
            beside.write_text(json.dumps(made), encoding="utf-8")
        return made

    if task.kind != "probe":
        compute = scoring.score_collection if task.kind == "retrieval" else scoring.score_similarity
        return from_json(task.kind, kept(lambda: asdict(compute(data, embed))))
    examples = Examples.from_data(data)
    per_label = task.per_label
    if per_label is not None:
        few = kept(lambda: asdict(scoring.score_few_shot(examples, embed, per_label)), "few-shot", per_label)
        return from_json("probe", few)

    def probe(seed: int) -> ProbeScore:
        if options.protocol == PAPER:
            folds = options.folds or scoring.FOLDS
            training = vars(scoring.training_options(encoder))
            return scoring.end_to_end(
                encoder, examples, seed, folds, lambda fold, make: kept(make, PAPER, seed, folds, training, fold)
            )
        protocol = PROTOCOLS[options.protocol]
        protocol = replace(protocol, folds=options.folds or protocol.folds)
        how = (options.protocol, seed, protocol.folds)
        stored = kept(lambda: asdict(scoring.score_probe(examples, embed, protocol, seed)), *how)
        return cast("ProbeScore", from_json("probe", stored))

    return mean_of_seeds([probe(seed) for seed in options.seeds])


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
    names = dict.fromkeys(str(given) for given in (first, second) if isinstance(given, str | Path))
    scores: list[dict[str, Score]] = []
    try:
        read = [read_results(Path(given)) if isinstance(given, str | Path) else given for given in (first, second)]
        reports = [each if isinstance(each, dict) else each.report for each in read]
        for report, encoder in zip(reports, encoders, strict=True):
            known = [entry["name"] for entry in report["encoders"]]
            name = known[0] if encoder is None else encoder
            if name not in known:
                raise InputError(f"the encoder must be one of the report's ({', '.join(known)}), got {name!r}")
            kinds = {task["name"]: task["kind"] for task in report["tasks"]}
            results = [result for result in report["results"] if result["encoder"] == name]
            scores.append({each["task"]: from_json(kinds[each["task"]], each["score"]) for each in results})
        tasks, others = ({task["name"]: task for task in report["tasks"]} for report in reports)
        shared = [task for task in scores[0] if task in scores[1] and tasks[task]["sha256"] == others[task]["sha256"]]
        if not shared:
            raise InputError(
                "the two reports must share a task on the same data, got none; there is nothing to compare"
            )
        if any(tasks[task]["kind"] == "probe" and not tasks[task].get("per_label") for task in shared):
            said = [
                f"{what} {' and '.join('its own' if report[what] is None else str(report[what]) for report in reports)}"
                for what in ("protocol", "seeds", "folds")
                if reports[0][what] != reports[1][what]
            ]
            if said:
                warnings.warn(
                    f"the two results were measured differently ({'; '.join(said)}), so part of a difference "
                    "in accuracy may come from this",
                    stacklevel=2,
                )
        return {
            task: scoring.difference(scores[1][task], scores[0][task], tasks[task].get("gold", {})) for task in shared
        }
    except InputError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        damage = " ".join(f"{type(error).__name__}: {error}".split())
        raise DamagedError(
            f"{' or '.join(names) or 'the results'}: must be an unchanged result of eval run ({damage:.100}); run it "
            "again"
        ) from error
