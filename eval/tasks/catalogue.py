"""The tasks by name: their files, the meaning of their labels, published scores; users may name their own files too.

``tasks.json`` lists them. A task's ``layouts`` name for each format, see :data:`ctx_embed.eval.tasks.formats.READERS`,
the file or files of each subset; a ``note`` is for people.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from ctx_embed.errors import InputError, unknown_name
from ctx_embed.eval.tasks.formats import READERS, Reader, labelled
from ctx_embed.texts import well_formed


@dataclass(frozen=True)
class File:
    """A file of a task: the subset its rows belong to, its path below the data folder, and its reader."""

    subset: str
    path: str
    read: Reader


# Files of the same subset are concatenated in order.
Layout = tuple[File, ...]


@dataclass(frozen=True)
class HubSource:
    """A dataset on the Hugging Face hub.

    Attributes:
        repository: the name of the repository.
        columns: the columns in the order of a row.
        splits: the splits that make up each subset.
        configuration: the configuration, if the dataset has several.
        revision: a branch of the repository; None is the main one. Datasets that the hub stores as a script, which
            ``datasets`` no longer runs, are read from the hub's own Parquet copy.
        labels: the task's label for each value of the first column, if the hub's labels differ.
        is_document: join the columns after the first into one text: title and body.
        others: the sources of further subsets.
    """

    repository: str
    columns: tuple[str, ...]
    splits: Mapping[str, tuple[str, ...]]
    configuration: str | None = None
    revision: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    is_document: bool = False
    others: tuple[HubSource, ...] = ()


@dataclass(frozen=True)
class Task:
    """The base of all tasks.

    Attributes:
        name: the task's name in ``--task``.
        layouts: the possible layouts of a local copy; the first complete one is read.
        rows: number of rows of the published set over all subsets; 0 if unknown.
        hub: the dataset on the hub; None if no copy there would produce the same score.
        published: scores in % by a name of :data:`PUBLISHED_SOURCES`.
        sha256: hash of the rows behind our published scores, see :attr:`ctx_embed.eval.tasks.data.TaskData.sha256`;
            empty if unknown.
    """

    kind: ClassVar[str]
    metric: ClassVar[str]
    name: str
    layouts: tuple[Layout, ...]
    rows: int = 0
    hub: HubSource | None = None
    published: Mapping[str, float] = field(default_factory=dict)
    sha256: str = ""


@dataclass(frozen=True)
class ProbeTask(Task):
    """A classification task: rows of a label and one text, or a label and two texts.

    Its subsets are ``train``, perhaps ``dev``, and ``test``; or a single one of another name, which is cross-validated.
    ``labels`` holds the meaning of each label (empty: any label is allowed). The floor is the most frequent class.
    ``per_label`` is the number of training rows of each label in MTEB's protocol, see
    :mod:`ctx_embed.eval.scoring.few_shot`; None follows the protocol of the run.
    """

    kind: ClassVar[str] = "probe"
    metric: ClassVar[str] = "accuracy in %"
    labels: Mapping[str, str] = field(default_factory=dict)
    per_label: int | None = None


@dataclass(frozen=True)
class SimilarityTask(Task):
    """A task of scored pairs; pairs that also occur in the task ``without`` are left out. The floor is 0."""

    kind: ClassVar[str] = "similarity"
    metric: ClassVar[str] = "Spearman's rank correlation times 100"
    without: str | None = None


@dataclass(frozen=True)
class RetrievalTask(Task):
    """A task with the subsets ``corpus``, ``queries`` (id, text) and ``qrels`` (query id, document id, relevance)."""

    kind: ClassVar[str] = "retrieval"
    metric: ClassVar[str] = "nDCG@10 times 100"


def _stored(name: str) -> Any:
    return json.loads(Path(__file__).with_name(name).read_text(encoding="utf-8"))


_STORED = _stored("tasks.json")
# The published scores of models that a user might choose instead, with their source and date.
MTEB_PUBLISHED = _stored("mteb.json")
# The sources of the published scores, in the order of the tables.
PUBLISHED_SOURCES = {
    **_STORED["published_sources"],
    **{
        f"{model} (published)": f"{MTEB_PUBLISHED['source']}, {MTEB_PUBLISHED['date']}"
        for model in MTEB_PUBLISHED["scores"]
    },
}
CONTEXTUALIZER, USE = "Contextualizer (paper)", "USE-T"


def _hub(stored: dict[str, Any]) -> HubSource:
    splits = {subset: tuple(names) for subset, names in stored.pop("splits").items()}
    others = tuple(_hub(other) for other in stored.pop("others", ()))
    return HubSource(columns=tuple(stored.pop("columns")), splits=splits, others=others, **stored)


def _task(kind: str, name: str, layouts: Any, hub: Any = None, published: Any = (), **rest: Any) -> Task:
    rest.pop("note", None)
    files = tuple(
        tuple(
            File(subset, path, READERS[form])
            for form, subsets in layout.items()
            for subset, paths in subsets.items()
            for path in ([paths] if isinstance(paths, str) else paths)
        )
        for layout in layouts
    )
    models = MTEB_PUBLISHED["scores"].items()
    scores = dict(published) | {f"{model} (published)": by_task[name] for model, by_task in models if name in by_task}
    task_class = next(each for each in Task.__subclasses__() if each.kind == kind)
    return task_class(name, files, hub=hub and _hub(hub), published=scores, **rest)


TASKS: Mapping[str, Task] = {stored["name"]: _task(**stored) for stored in _STORED["tasks"]}
# Tasks that ``--suite`` runs together.
SUITES = {"mteb": tuple(name for name in TASKS if name.startswith("MTEB-"))}
DEFAULT_TASKS = ("MR", "CR", "SUBJ", "MPQA")


def find_tasks(names: Sequence[str], text_field: str | None = None, label_field: str | None = None) -> list[Task]:
    """Return the tasks with these names or paths, each once, in order; without names the four default tasks.

    A path names a labelled file (lines of ``label<TAB>text``, or a table with the named fields, see
    :func:`ctx_embed.rows.reading.read_labelled_rows`), or a folder in BEIR layout.

    Raises:
        InputError: a name is neither a task nor an existing path.
    """
    found: list[Task] = []
    for name in dict.fromkeys(names or DEFAULT_TASKS):
        path, shown = Path(name), well_formed(name)
        # os.path returns False where pathlib would raise, for example for a name that is too long.
        if name in TASKS:
            found.append(TASKS[name])
        elif os.path.isfile(name):
            read = partial(labelled, text_field=text_field, label_field=label_field)
            found.append(ProbeTask(shown, ((File(shown, os.path.abspath(name), read),),)))
        elif os.path.isfile(path / "corpus.jsonl"):
            folder = os.path.abspath(name)
            documents = {"corpus": f"{folder}/corpus.jsonl", "queries": f"{folder}/queries.jsonl"}
            layout = {"documents": documents, "judgements": {"qrels": f"{folder}/qrels/test.tsv"}}
            found.append(_task("retrieval", shown, [layout]))
        elif os.path.isdir(name):
            raise InputError(
                f"{name}: the folder has no corpus.jsonl; a task must be a name, a labelled file or a folder in BEIR "
                "layout"
            )
        elif path.name != name or path.suffix:
            raise InputError(f"{name}: no such file")
        else:
            raise InputError(f"{unknown_name('task', name, TASKS)}, or the path of a labelled file")
    return found
