"""What a task is: its rows, the places they come from, how it is scored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

# A row is a label and one or two texts; a score and two texts; an id and a text; or two ids and a relevance.
Row = tuple[str, ...]
Reader = Callable[[Path], list[Row]]


@dataclass(frozen=True)
class File:
    """A file of a task: the subset to which its rows belong, its path below the data folder, and its format."""

    subset: str
    path: str
    read: Reader


PARQUET_COPY = "refs/convert/parquet"

# Files of one subset are joined in their order.
Layout = tuple[File, ...]


@dataclass(frozen=True)
class HubSource:
    """A dataset on the Hugging Face hub.

    Attributes:
        repository: its name.
        columns: in the order of a row.
        splits: to be joined, by subset.
        configuration: of a set that has several.
        revision: a branch of the repository, None takes the main one; that of a set which the hub keeps as a script,
            which ``datasets`` no longer runs, is the hub's own copy as Parquet.
        labels: by the value of the first column, where the hub's labels are not the task's.
        is_document: the columns behind the first are one text: title and body.
        others: where further subsets are.
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
    """What all tasks share.

    Attributes:
        name: what ``--task`` calls it.
        layouts: of a local copy, the first that is whole is read.
        rows: how many rows the published set has over all subsets; 0 where nothing is known.
        hub: where the hub has it; None where no copy there would give the same figure.
        published: figures in percent by a name of :data:`ctx_embed.eval.tasks.catalogue.PUBLISHED_SOURCES`.
        sha256: of the rows of the first layout, see :attr:`ctx_embed.eval.tasks.data.TaskData.sha256`; empty: unknown.
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
    """Rows of a label and a text, or a label and two texts.

    Its subsets are ``train``, perhaps ``dev``, and ``test``; or one of another name, which is cross-validated.
    ``labels`` gives the meaning of each label (empty: any label may occur). The floor is the most frequent class.
    """

    kind: ClassVar[str] = "probe"
    metric: ClassVar[str] = "accuracy in %"
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class SimilarityTask(Task):
    """Rows of score and two texts; pairs that also stand in the task ``without`` are left out. The floor is 0."""

    kind: ClassVar[str] = "similarity"
    metric: ClassVar[str] = "Spearman's rank correlation times 100"
    without: str | None = None


@dataclass(frozen=True)
class RetrievalTask(Task):
    """The subsets ``corpus`` and ``queries`` (id, text), and ``qrels`` (query's id, document's id, relevance)."""

    kind: ClassVar[str] = "retrieval"
    metric: ClassVar[str] = "nDCG@10 times 100"
