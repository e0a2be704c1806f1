"""The tasks by name; users may also name their own files and folders."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from ctx_embed.errors import InputError, unknown_name
from ctx_embed.eval.tasks.checksums import SHA256
from ctx_embed.eval.tasks.formats import labelled
from ctx_embed.eval.tasks.probe import CONTEXTUALIZER, INFERSENT, MINILM, PROBE_TASKS, USE
from ctx_embed.eval.tasks.retrieval import BEIR_BM25, BM25, RETRIEVAL_TASKS, beir_layout
from ctx_embed.eval.tasks.similarity import SIMILARITY_TASKS
from ctx_embed.eval.tasks.task import File, ProbeTask, RetrievalTask, Task
from ctx_embed.texts import well_formed

# The sources of the published scores, in the order of the tables.
PUBLISHED_SOURCES = {
    CONTEXTUALIZER: "Maupome and Meurs 2022, Information 13(6):290, trained end to end on each task",
    USE: "Cer et al. 2018, Universal Sentence Encoder, arXiv:1803.11175, transfer without word embeddings",
    INFERSENT: "Conneau et al. 2017, arXiv:1705.02364, BiLSTM-Max trained on AllNLI, SentEval's protocol",
    MINILM: "frozen, measured by this project with the protocol standard, seed 0",
    BM25: "SQLite's full-text index, Porter stemming, any word of the query; measured by this project",
    BEIR_BM25: "Thakur et al. 2021, arXiv:2104.08663, multi-field Lucene",
}

TASKS: Mapping[str, Task] = {
    task.name: replace(task, sha256=SHA256.get(task.name, ""))
    for task in (*PROBE_TASKS, *SIMILARITY_TASKS, *RETRIEVAL_TASKS)
}
DEFAULT_TASKS = ("MR", "CR", "SUBJ", "MPQA")


def find_tasks(names: Sequence[str], text_field: str | None = None, label_field: str | None = None) -> list[Task]:
    """Return the tasks with these names or paths, each once, in order; without names the four default tasks.

    A path names a labelled file (lines of ``label<TAB>text``, or a table with the named fields, see
    :func:`ctx_embed.rows.read_labelled_rows`), or a folder in BEIR layout.

    Raises:
        InputError: a name is neither a task nor an existing path.
    """
    return [_find(name, text_field, label_field) for name in dict.fromkeys(names or DEFAULT_TASKS)]


def _find(name: str, text_field: str | None, label_field: str | None) -> Task:
    if name in TASKS:
        return TASKS[name]
    path, shown = Path(name), well_formed(name)
    # os.path returns False where pathlib would raise, for example for a name that is too long.
    if os.path.isfile(name):
        read = partial(labelled, text_field=text_field, label_field=label_field)
        return ProbeTask(shown, ((File(shown, os.path.abspath(name), read),),))
    if os.path.isfile(path / "corpus.jsonl"):
        return RetrievalTask(shown, (beir_layout(os.path.abspath(name)),))
    if os.path.isdir(name):
        raise InputError(
            f"{name}: the folder has no corpus.jsonl; a task must be a name, a labelled file or a folder in BEIR layout"
        )
    if path.name != name or path.suffix:
        raise InputError(f"{name}: no such file")
    raise InputError(f"{unknown_name('task', name, TASKS)}, or the path of a labelled file")
