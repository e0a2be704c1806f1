"""The task classes: rows, sources and metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

# A row is one of: a label and one or two texts; a score and two texts; an id and a text; two ids and a relevance.
Row = tuple[str, ...]
Reader = Callable[[Path], list[Row]]


@dataclass(frozen=True)
class File:
    """A file of a task: the subset its rows belong to, its path below the data folder, and its reader."""

    subset: str
    path: str
    read: Reader


PARQUET_COPY = "refs/convert/parquet"

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
        published: scores in % by a name of :data:`ctx_embed.eval.tasks.catalogue.PUBLISHED_SOURCES`.
        sha256: hash of the first layout's rows, see :attr:`ctx_embed.eval.tasks.data.TaskData.sha256`; empty if
            unknown.
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
