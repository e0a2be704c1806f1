"""The tasks by name: where the data of each are, and what others have published on it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from ctx_embed.errors import InputError, unknown_name
from ctx_embed.eval.formats import beir_documents, beir_judgements, labelled, labelled_reviews, scored_pairs
from ctx_embed.eval.tasks import File, HubSource, Layout, ProbeTask, Reader, RetrievalTask, SimilarityTask, Task
from ctx_embed.texts import well_formed

PROJECT_MINILM = "all-MiniLM-L6-v2"
BM25 = "BM25"

# Where the published figures come from, in the order in which the tables give them.
PUBLISHED_SOURCES = {
    "Contextualizer (paper)": "Maupome and Meurs 2022, Information 13(6):290, trained end to end on each task",
    "USE-T": "Cer et al. 2018, Universal Sentence Encoder, arXiv:1803.11175, transfer without word embeddings",
    PROJECT_MINILM: "frozen, measured by this project with this protocol",
    BM25: "measured by this project on the same collections",
}

SENTIMENT = {"0": "negative", "1": "positive"}
STS_COLUMNS = ("score", "sentence1", "sentence2")


def _one(name: str, path: str, read: Reader = labelled) -> Layout:
    """The layout of a task that is one file."""
    return (File(name, path, read),)


def _split(folder: str, name: str, read: Reader = labelled) -> Layout:
    return tuple(File(part, f"{folder}/{name}_{part}.tsv.gz", read) for part in ("train", "test"))


def _hub(repository: str, columns: tuple[str, ...], name: str, *splits: str) -> HubSource:
    return HubSource(repository, columns, {name: splits})


def _published(contextualizer: float, use: float, minilm: float) -> dict[str, float]:
    return dict(zip(PUBLISHED_SOURCES, (contextualizer, use, minilm), strict=False))


def _sts(year: int, rows: int, *subsets: str) -> SimilarityTask:
    # STS-B was drawn from these sets, and its development part chooses between models.
    files = tuple(File(f"STS{year}_{name}", f"senteval/STS{year}_{name}.tsv", scored_pairs) for name in subsets)
    return SimilarityTask(f"STS{year}", (files,), rows, without="STSB-dev")


def beir_layout(folder: str) -> Layout:
    """The files of a collection in BEIR layout: documents, queries, and the judgements of the test part."""
    return (
        File("corpus", f"{folder}/corpus.jsonl", beir_documents),
        File("queries", f"{folder}/queries.jsonl", beir_documents),
        File("qrels", f"{folder}/qrels/test.tsv", beir_judgements),
    )


def _retrieval(name: str, rows: int, bm25: float) -> RetrievalTask:
    return RetrievalTask(name, (beir_layout(f"retrieval/{name}"),), rows, published={BM25: bm25})


_ALL = (
    ProbeTask(
        "MR",
        (_one("MR", "senteval/MR.tsv"),),
        10662,
        _hub("cornell-movie-review-data/rotten_tomatoes", ("label", "text"), "MR", "train", "validation", "test"),
        _published(76.6, 81.4, 76.7),
        labels=SENTIMENT,
    ),
    ProbeTask(
        "CR",
        (_one("CR", "senteval/CR.tsv"),),
        3775,
        _hub("mattymchen/cr", ("label", "text"), "CR", "test"),
        _published(79.0, 87.4, 83.3),
        labels=SENTIMENT,
    ),
    ProbeTask(
        "SUBJ",
        (_one("SUBJ", "senteval/SUBJ.tsv"),),
        10000,
        _hub("SetFit/subj", ("label", "text"), "SUBJ", "train", "test"),
        _published(91.2, 93.9, 92.2),
        labels={"0": "subjective", "1": "objective"},
    ),
    ProbeTask(
        "MPQA",
        (_one("MPQA", "senteval/MPQA.tsv"),),
        10606,
        _hub("jxm/mpqa", ("label", "sentence"), "MPQA", "train", "dev", "test"),
        _published(85.3, 87.0, 87.7),
        labels=SENTIMENT,
    ),
    ProbeTask(
        "AGNEWS",
        (
            (
                File("train", "longdocs/AGnews_train_part.tsv.gz", labelled),
                File("test", "longdocs/AGnews_test_desc.tsv.gz", labelled),
            ),
        ),
        17601,
        labels={"1": "world", "2": "sports", "3": "business", "4": "science and technology"},
    ),
    ProbeTask("R8", (_split("longdocs", "R8"),), 7674),
    ProbeTask(
        "IMDB",
        (_split("longdocs", "IMDB", labelled_reviews),),
        50000,
        HubSource("stanfordnlp/imdb", ("label", "text"), {"train": ("train",), "test": ("test",)}),
        labels=SENTIMENT,
    ),
    SimilarityTask(
        "STSB",
        (_one("STSB_test", "senteval/STSB_test.tsv", scored_pairs),),
        1379,
        _hub("mteb/stsbenchmark-sts", STS_COLUMNS, "STSB_test", "test"),
    ),
    SimilarityTask(
        "STSB-dev",
        (_one("STSB_dev", "senteval/STSB_dev.tsv", scored_pairs),),
        1500,
        _hub("mteb/stsbenchmark-sts", STS_COLUMNS, "STSB_dev", "validation"),
    ),
    _sts(12, 3108, "MSRpar", "MSRvid", "OnWN", "SMTeuroparl", "SMTnews"),
    _sts(13, 1500, "FNWN", "OnWN", "headlines"),
    _sts(14, 3750, "OnWN", "deft-forum", "deft-news", "headlines", "images", "tweet-news"),
    _sts(15, 3000, "answers-forums", "answers-students", "belief", "headlines", "images"),
    _retrieval("cranfield", 1400 + 225 + 1612, 34.7),
    _retrieval("cisi", 1460 + 76 + 3114, 31.2),
    _retrieval("cacm", 3204 + 52 + 796, 40.1),
    _retrieval("npl", 11426 + 93 + 2083, 40.2),
    _retrieval("adi", 82 + 35 + 170, 45.4),
)
TASKS: Mapping[str, Task] = {task.name: task for task in _ALL}
DEFAULT_TASKS = ("MR", "CR", "SUBJ", "MPQA")


def find_tasks(names: Sequence[str]) -> list[Task]:
    """The tasks of these names or paths, each once, in order; the four default tasks where there are none.

    A path is that of a ``label<TAB>text`` file, or of a folder in BEIR layout.

    Raises:
        InputError: a name that is no task, and no such path either.
    """
    return [_find(name) for name in dict.fromkeys(names or DEFAULT_TASKS)]


def _find(name: str) -> Task:
    if name in TASKS:
        return TASKS[name]
    path = Path(name)
    # os.path answers False where pathlib would raise, as for a name that is too long.
    if os.path.isfile(name):
        return ProbeTask(well_formed(name), (_one(well_formed(name), os.path.abspath(name)),))
    if os.path.isfile(path / "corpus.jsonl"):
        return RetrievalTask(well_formed(name), (beir_layout(os.path.abspath(name)),))
    if os.path.isdir(name):
        raise InputError(f"{name}: a folder without corpus.jsonl, a task is a name, a label<TAB>text file or BEIR data")
    if path.name != name or path.suffix:
        raise InputError(f"{name}: no such file")
    raise InputError(f"{unknown_name('task', name, TASKS)}, or the path of a label<TAB>text file")
