"""The tasks: what each is, where its data are, and what others have published on it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from ctx_embed.errors import InputError, unknown_name
from ctx_embed.texts import well_formed

PROJECT_MINILM = "all-MiniLM-L6-v2"

# Where the published figures come from, in the order in which a task gives them.
PUBLISHED_SOURCES = {
    "Contextualizer (paper)": "Maupome and Meurs 2022, Information 13(6):290, trained end to end on each task",
    "USE-T": "Cer et al. 2018, Universal Sentence Encoder, arXiv:1803.11175, transfer without word embeddings",
    PROJECT_MINILM: "frozen, measured by this project with this protocol",
}


@dataclass(frozen=True)
class HubSource:
    """A dataset on the Hugging Face hub: its name, the columns in the order of the local file, the splits to join."""

    repository: str
    columns: tuple[str, ...]
    splits: tuple[str, ...]


@dataclass(frozen=True)
class Task:
    """What probe and similarity tasks share.

    Attributes:
        name: what ``--task`` calls it.
        files: its files below the data folder, one a subset.
        rows: how many rows the published set has over all files.
        hub: where the hub has it; None where no copy there would give the same figure.
        published: figures in percent by a name of :data:`PUBLISHED_SOURCES`.
    """

    kind: ClassVar[str]
    name: str
    files: tuple[str, ...]
    rows: int
    hub: HubSource | None = None
    published: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class ProbeTask(Task):
    """Rows of label and text; ``labels`` gives the meaning of each label (empty: any label may occur)."""

    kind: ClassVar[str] = "probe"
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class FileTask(ProbeTask):
    """A user's own ``label<TAB>text`` file."""

    path: Path = Path()


@dataclass(frozen=True)
class SimilarityTask(Task):
    """Rows of score and two texts; pairs that also stand in the task ``without`` are left out."""

    kind: ClassVar[str] = "similarity"
    without: str | None = None


SENTIMENT = {"0": "negative", "1": "positive"}
STS_COLUMNS = ("score", "sentence1", "sentence2")


def _sts(year: int, rows: int, *subsets: str) -> SimilarityTask:
    # STS-B was drawn from these sets, and its development part chooses between models.
    files = tuple(f"senteval/STS{year}_{subset}.tsv" for subset in subsets)
    return SimilarityTask(f"STS{year}", files, rows, without="STSB-dev")


def _published(contextualizer: float, use: float, minilm: float) -> dict[str, float]:
    return dict(zip(PUBLISHED_SOURCES, (contextualizer, use, minilm), strict=True))


_ALL = (
    ProbeTask(
        "MR",
        ("senteval/MR.tsv",),
        10662,
        HubSource("cornell-movie-review-data/rotten_tomatoes", ("label", "text"), ("train", "validation", "test")),
        _published(76.6, 81.4, 76.7),
        SENTIMENT,
    ),
    ProbeTask(
        "CR",
        ("senteval/CR.tsv",),
        3775,
        HubSource("mattymchen/cr", ("label", "text"), ("test",)),
        _published(79.0, 87.4, 83.3),
        SENTIMENT,
    ),
    ProbeTask(
        "SUBJ",
        ("senteval/SUBJ.tsv",),
        10000,
        HubSource("SetFit/subj", ("label", "text"), ("train", "test")),
        _published(91.2, 93.9, 92.2),
        {"0": "subjective", "1": "objective"},
    ),
    ProbeTask(
        "MPQA",
        ("senteval/MPQA.tsv",),
        10606,
        HubSource("jxm/mpqa", ("label", "sentence"), ("train", "dev", "test")),
        _published(85.3, 87.0, 87.7),
        SENTIMENT,
    ),
    SimilarityTask(
        "STSB", ("senteval/STSB_test.tsv",), 1379, HubSource("mteb/stsbenchmark-sts", STS_COLUMNS, ("test",))
    ),
    SimilarityTask(
        "STSB-dev", ("senteval/STSB_dev.tsv",), 1500, HubSource("mteb/stsbenchmark-sts", STS_COLUMNS, ("validation",))
    ),
    _sts(12, 3108, "MSRpar", "MSRvid", "OnWN", "SMTeuroparl", "SMTnews"),
    _sts(13, 1500, "FNWN", "OnWN", "headlines"),
    _sts(14, 3750, "OnWN", "deft-forum", "deft-news", "headlines", "images", "tweet-news"),
    _sts(15, 3000, "answers-forums", "answers-students", "belief", "headlines", "images"),
)
TASKS: dict[str, Task] = {task.name: task for task in _ALL}
DEFAULT_TASKS = ("MR", "CR", "SUBJ", "MPQA")


def find_tasks(names: Sequence[str]) -> list[Task]:
    """The tasks of these names or paths, each once, in order; the four default tasks where there are none.

    Raises:
        InputError: a name that is no task, and no file either.
    """
    return [_find(name) for name in dict.fromkeys(names or DEFAULT_TASKS)]


def _find(name: str) -> Task:
    if name in TASKS:
        return TASKS[name]
    path = Path(name)
    # os.path answers False where pathlib would raise, as for a name that is too long.
    if os.path.isfile(name):
        return FileTask(well_formed(name), (), 0, path=path)
    if os.path.isdir(name):
        raise InputError(f"{name}: is a folder, a task is a name or a label<TAB>text file")
    if path.name != name or path.suffix:
        raise InputError(f"{name}: no such file")
    raise InputError(f"{unknown_name('task', name, TASKS)}, or the path of a label<TAB>text file")
