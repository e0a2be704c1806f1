"""The tasks by name: their files and formats, the meaning of their labels, published scores, and their rows.

Called by ``eval/evaluation.py``.
A task is added to ``tasks.json``, a file format to :data:`READERS`.

In a task, each of the ``layouts`` names the files of each subset by their format; a ``note`` is for people. The formats
of SentEval (Conneau and Kiela 2018, arXiv:1803.05449) are those of the original releases, as its loaders read them.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from ctx_embed.errors import InputError, unknown_name
from ctx_embed.reading.rows import Fields, Named, is_number, read_documents, read_fields, read_labelled, read_lines
from ctx_embed.texts import well_formed

# A row holds a label and one or two texts, a score and two texts, an id and a text, or two ids and a relevance.
Row = tuple[str, ...]
Reader = Callable[[Path], list[Row]]
WHOLE_NUMBER = re.compile(r"\s*-?\d+\s*")


def labelled(path: Path, text_field: Named = None, label_field: str | None = None) -> list[Row]:
    """Return the rows of a user's labelled file, see :func:`ctx_embed.reading.rows.read_labelled`."""
    return list(zip(*read_labelled(path, text_field, label_field), strict=True))


def lines_of(label: str) -> Reader:
    """Return a reader of one class's texts, one a line, as SentEval's ``rt-polarity.pos``."""
    return lambda path: _some([(label, line) for _, line in _lines(path)], path, "lines of text")


def words_after(shape: str) -> Reader:
    """Return a reader of lines with a label, a space and a text; of TREC's ``COARSE:fine``, COARSE is the label."""

    def read(path: Path) -> list[Row]:
        rows: list[Row] = []
        for number, line in _lines(path):
            label, space, text = line.strip().partition(" ")
            if not space or (":" in shape and ":" not in label):
                raise InputError(f"{path}, line {number}: must be {shape}, got {line[:40]!r}")
            rows.append((label.partition(":")[0] if ":" in shape else label, text))
        return _some(rows, path, f"lines of {shape}")

    return read


def sts_input(path: Path) -> list[Row]:
    """Return scores and texts: ``text<TAB>text`` in ``STS.input.NAME.txt``, scores in ``STS.gs.NAME.txt`` next to it.

    A pair with an empty score was not judged and is left out.
    """
    judged = path.with_name(path.name.replace("STS.input.", "STS.gs.", 1))
    if not os.path.isfile(judged):
        raise InputError(f"{judged} is missing; it must hold the scores of {path}")
    scores = [line.strip() for _, line in read_lines(judged)]
    pairs = [line.split("\t") for _, line in read_lines(path)]
    if len(scores) != len(pairs):
        raise InputError(f"{judged} must hold a score for each of {len(pairs)} pairs in {path}, got {len(scores)}")
    rows: list[Row] = []
    for number, (score, pair) in enumerate(zip(scores, pairs, strict=True), 1):
        if len(pair) < 2:
            raise InputError(f"{path}, line {number}: must be text<TAB>text, got {pair[0][:40]!r}")
        if score and not is_number(score):
            raise InputError(f"{judged}, line {number}: the score must be a number, got {score[:40]!r}")
        if score:
            rows.append((score, pair[0], pair[1]))
    return _some(rows, judged, "scores")


def beir_documents(path: Path) -> list[Row]:
    """Return id and text (after the title, if any) from JSON lines with ``_id``, ``text`` and perhaps ``title``."""
    rows: list[Row] = []
    for document in read_documents(path, Fields(id="_id", fixed=True)):
        title = document.metadata.get("title")
        text = f"{title} {document.text}".strip() if isinstance(title, str) else document.text
        rows.append((str(document.id), text))
    return _some(rows, path, "lines of a JSON object with _id and text")


def beir_judgements(path: Path) -> list[Row]:
    """Return the rows of ``query-id<TAB>corpus-id<TAB>score``, with or without a header. The score is an integer."""
    shape = "query-id<TAB>corpus-id<TAB>score"
    first, *others = read_fields(path, shape)
    rows = _some([first, *others] if WHOLE_NUMBER.fullmatch(first[2]) else others, path, f"lines of {shape}")
    for query, document, relevance in rows:
        if not WHOLE_NUMBER.fullmatch(relevance):
            raise InputError(f"{path}: the score of {query!r} and {document!r} must be an integer, got {relevance!r}")
    return rows


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Return the numbered lines that are not blank. A file that is not UTF-8 is read as Latin-1, as old sets need."""
    return ((number, line) for number, line in read_lines(path, fallback="latin-1") if line.strip())


def _some(rows: list[Row], path: Path, needed: str) -> list[Row]:
    if not rows:
        raise InputError(f"{path}: must have {needed}, got none")
    return rows


_SICK = "pair_ID<TAB>sentence_A<TAB>sentence_B<TAB>relatedness_score<TAB>entailment_judgment"
_MRPC = "Quality<TAB>#1 ID<TAB>#2 ID<TAB>#1 String<TAB>#2 String"
_STS_BENCHMARK = "genre<TAB>file<TAB>year<TAB>id<TAB>score<TAB>text<TAB>text"
# The formats as the catalogue names them. Those with capitals are SentEval's.
READERS: dict[str, Reader] = {
    "label, text": labelled,
    "label, stars, text": partial(read_fields, shape="label<TAB>stars<TAB>text", columns=(0, 2)),
    "label, text, text": partial(read_fields, shape="label<TAB>text<TAB>text"),
    "score, text, text": partial(read_fields, shape="score<TAB>text<TAB>text", scored=0),
    "documents": beir_documents,
    "judgements": beir_judgements,
    "positive": lines_of("1"),
    "negative": lines_of("0"),
    "SST fine": words_after("label text"),
    "SST binary": partial(read_fields, shape="text<TAB>label", columns=(1, 0)),
    "TREC": words_after("COARSE:fine question"),
    "MRPC": partial(read_fields, shape=_MRPC, columns=(0, 3, 4), head=True),
    "SICK entailment": partial(read_fields, shape=_SICK, columns=(4, 1, 2), scored=3, head=True, more=True),
    "SICK relatedness": partial(read_fields, shape=_SICK, columns=(3, 1, 2), scored=3, head=True, more=True),
    "STS benchmark": partial(read_fields, shape=_STS_BENCHMARK, columns=(4, 5, 6), scored=4, more=True),
    "STS input": sts_input,
}


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
    """A dataset on the Hugging Face hub: the columns of a row in order, and the splits that make up each subset.

    A dataset that the hub stores as a script, which ``datasets`` no longer runs, is read from a ``revision``: the hub's
    own Parquet copy. ``labels`` has the task's label for each value of the first column, if the hub's differ. With
    ``is_document`` the columns after the first are one text: title and body. ``others`` have further subsets.
    """

    repository: str
    columns: tuple[str, ...]
    splits: Mapping[str, tuple[str, ...]]
    configuration: str | None = None
    revision: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    is_document: bool = False
    others: tuple[HubSource, ...] = ()


METRICS = {
    "probe": "accuracy in %",
    "similarity": "Spearman's rank correlation times 100",
    "retrieval": "nDCG@10 times 100",
}


@dataclass(frozen=True)
class Task:
    """A task of a ``kind``. The first complete layout of a local copy is read.

    A ``probe`` has rows of a label and one text, or two; its subsets are ``train``, perhaps ``dev``, and ``test``, or a
    single one of another name, which is cross-validated. ``labels`` holds the meaning of each label (empty: any label
    is allowed), ``per_label`` the number of training rows of each label in MTEB's protocol, see
    :mod:`ctx_embed.eval.scoring.score`; None follows the protocol of the run. ``similarity`` has scored pairs, of which
    those that also occur in the task ``without`` are left out. ``retrieval`` has the subsets ``corpus``, ``queries``
    (id, text) and ``qrels`` (query id, document id, relevance).

    ``rows`` counts the published set over all subsets (0 if unknown), and ``sha256`` is the hash of the rows behind our
    published scores. ``hub`` is None if no copy there would produce the same score. ``published`` has scores in % by a
    name of :data:`PUBLISHED_SOURCES`.
    """

    kind: str
    name: str
    layouts: tuple[Layout, ...]
    rows: int = 0
    hub: HubSource | None = None
    published: Mapping[str, float] = field(default_factory=dict)
    sha256: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    per_label: int | None = None
    without: str | None = None


# The tasks, and the published scores of models that a user might choose instead, with their source and date.
_STORED, MTEB_PUBLISHED = (
    json.loads(Path(__file__).with_name(name).read_text(encoding="utf-8")) for name in ("tasks.json", "mteb.json")
)
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
    return Task(kind, name, files, hub=hub and _hub(hub), published=scores, **rest)


TASKS: Mapping[str, Task] = {stored["name"]: _task(**stored) for stored in _STORED["tasks"]}
# Tasks that ``--suite`` runs together.
SUITES = {"mteb": tuple(name for name in TASKS if name.startswith("MTEB-"))}
DEFAULT_TASKS = ("MR", "CR", "SUBJ", "MPQA")


def find_tasks(names: Sequence[str], text_field: Named = None, label_field: str | None = None) -> list[Task]:
    """Return the tasks with these names or paths, each once, in order; without names the four default tasks.

    A path names a labelled file (lines of ``label<TAB>text``, or a table with the named fields), or a folder in BEIR
    layout.
    """
    found: list[Task] = []
    for name in dict.fromkeys(names or DEFAULT_TASKS):
        path, shown = Path(name), well_formed(name)
        # os.path returns False where pathlib would raise, for example for a name that is too long.
        if name in TASKS:
            found.append(TASKS[name])
        elif os.path.isfile(name):
            read = partial(labelled, text_field=text_field, label_field=label_field)
            found.append(Task("probe", shown, ((File(shown, os.path.abspath(name), read),),)))
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


REMEDY = "name a folder that holds it with --data or CTX_EMBED_DATA"


@dataclass(frozen=True)
class TaskData:
    """The rows of a task by subset, their source, and the number of rows left out.

    ``is_altered`` is True if the files have the expected layout, but not the rows behind our published scores. ``own``
    holds the queries of a collection that are also documents of it; each is left out of its own results. ``remarks``
    are lines about the data that readers of the scores must know.
    """

    source: str
    subsets: dict[str, list[Row]]
    left_out: int = 0
    is_altered: bool = False
    own: frozenset[str] = frozenset()
    remarks: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        """The number of rows over all subsets."""
        return sum(map(len, self.subsets.values()))

    @cached_property
    def sha256(self) -> str:
        """The hash of the rows as tab-separated lines; for a task of one plain file, the hash of that file."""
        digest = hashlib.sha256()
        for rows in self.subsets.values():
            lines = "".join("\t".join(row) + "\n" for row in rows)
            digest.update(lines.encode("utf-8", "surrogatepass"))
        return digest.hexdigest()


class DataReader:
    """A reader of the tasks' data from a folder (``senteval/MR.tsv`` and so on), or without a folder from the hub."""

    def __init__(self, folder: Path | None) -> None:
        if folder is not None and not os.path.isdir(folder):
            raise InputError(f"{folder}: no such data folder; name one that exists with --data or CTX_EMBED_DATA")
        self.folder = folder
        self._hub_is_away = False

    def read(self, task: Task) -> TaskData:
        """Return the rows of ``task``, without pairs that also occur in the task named by its ``without``."""
        data = self._read(task)
        if task.without is None:
            return data
        excluded = {frozenset(row[1:]) for rows in self._read(TASKS[task.without]).subsets.values() for row in rows}
        kept = {
            name: [row for row in rows if frozenset(row[1:]) not in excluded] for name, rows in data.subsets.items()
        }
        # Drop subsets without a pair left: they have no correlation.
        kept = {name: rows for name, rows in kept.items() if rows}
        if not kept:
            raise InputError(f"{task.name}: every pair also occurs in {task.without}, so none is left")
        # With left_out, callers can compare the number of rows in the files with the published number.
        return replace(data, subsets=kept, left_out=data.rows - sum(map(len, kept.values())))

    def _read(self, task: Task) -> TaskData:
        is_users_own = any(os.path.isabs(file.path) for layout in task.layouts for file in layout)
        if self.folder is not None or is_users_own:
            folder = Path() if is_users_own else self.folder or Path()
            # The first missing file of each layout.
            missing = [
                next((path for file in layout if not os.path.isfile(path := folder / file.path)), None)
                for layout in task.layouts
            ]
            if None not in missing:
                raise InputError(f"{task.name}: {missing[0]} is missing; {REMEDY}")
            layout = task.layouts[missing.index(None)]
            subsets: dict[str, list[Row]] = {}
            for file in layout:
                subsets.setdefault(file.subset, []).extend(file.read(folder / file.path))
            data = TaskData(task.name if is_users_own else str(folder), subsets)
            known = task.sha256 if layout is task.layouts[0] else ""
            data = replace(data, is_altered=bool(known) and data.sha256 != known)
        elif task.hub is None:
            raise InputError(f"{task.name}: the hub has no suitable copy; {REMEDY}")
        else:
            data = TaskData(f"hub: {task.hub.repository}", self._from_hub(task.name, task.hub))
        if task.kind == "probe":
            labels = {row[0] for rows in data.subsets.values() for row in rows}
            if task.labels and (strange := sorted(labels - set(task.labels))):
                known = ", ".join(f"{label} ({meaning})" for label, meaning in task.labels.items())
                raise InputError(f"{task.name}: labels must be {known}; got {strange[0]!r} in {data.source}")
        elif task.kind == "retrieval":
            data = _checked_judgements(task, data)
        return data

    def _from_hub(self, task: str, source: HubSource) -> dict[str, list[Row]]:
        failure = f"{task}: {source.repository} could not be loaded from the hub"
        if self._hub_is_away:
            raise InputError(f"{failure}; {REMEDY}")
        from datasets import load_dataset

        # Silence the client, which logs every retry: the error below reports the outcome.
        log = logging.getLogger("huggingface_hub")
        level = log.level
        log.setLevel(logging.ERROR)
        subsets: dict[str, list[Row]] = {}
        try:
            for part in (source, *source.others):
                splits = load_dataset(part.repository, part.configuration, revision=part.revision)
                for subset, name in ((subset, name) for subset, names in part.splits.items() for name in names):
                    if name not in splits or not set(part.columns) <= set(splits[name].column_names):
                        raise LookupError(f"it has no split {name!r} with the columns {', '.join(part.columns)}")
                    columns = ([str(value) for value in splits[name][column]] for column in part.columns)
                    rows = [(part.labels.get(first, first), *rest) for first, *rest in zip(*columns, strict=True)]
                    if part.is_document:
                        rows = [(row[0], " ".join(row[1:]).strip()) for row in rows]
                    subsets.setdefault(subset, []).extend(rows)
        # The client may raise any error of its transport and file formats.
        except Exception as error:
            self._hub_is_away = isinstance(error, ConnectionError)
            first = next(iter(str(error).splitlines()), "") or type(error).__name__
            raise InputError(f"{failure} ({first}); {REMEDY}") from None
        finally:
            log.setLevel(level)
        return subsets


def _checked_judgements(task: Task, data: TaskData) -> TaskData:
    """Return the data of a collection, with remarks; raise an error if ids repeat or nothing is judged."""
    # Import it here: it imports NumPy, which the help of ``eval`` does not need.
    from ctx_embed.training.labelled_texts import words_of

    for what, name in (("document", "corpus"), ("query", "queries")):
        twice = [id for id, count in Counter(row[0] for row in data.subsets[name]).items() if count > 1]
        if twice:
            raise InputError(f"{task.name}: {what} ids must differ, got {twice[0]!r} twice")
    documents, queries = ({row[0]: row[1] for row in data.subsets[name]} for name in ("corpus", "queries"))
    judged: dict[tuple[str, str], str] = {}
    conflicts: list[tuple[str, str]] = []
    for query, document, relevance in data.subsets["qrels"]:
        if int(judged.get((query, document), relevance)) != int(relevance):
            conflicts.append((query, document))
        judged[query, document] = relevance
    if not any(query in queries and document in documents for query, document in judged):
        raise InputError(f"{task.name}: no judgement names a query and a document of the collection")
    unknown = [query for query, _ in judged if query not in queries]
    absent = [document for query, document in judged if query in queries and document not in documents]
    # Collections such as cranfield give queries and documents the same numbers, so texts are compared, too. A document
    # that is judged relevant for itself stays.
    own = [
        query
        for query, text in queries.items()
        if query in documents
        and int(judged.get((query, query), 0)) <= 0
        and f" {words_of(text)} " in f" {words_of(documents[query])} "
    ]
    kinds = (
        ("judgements of unknown queries", unknown, judged, "these are left out"),
        ("judgements of unknown documents", absent, judged, "these count as not found, as in trec_eval"),
        ("judgements that contradict others", [*dict.fromkeys(conflicts)], judged, "the last counts"),
        ("queries that are documents too", own, queries, "each is left out of its own results, as in BEIR"),
    )
    remarks = [
        f"{len(found):,} of {len(among):,} {what}, such as {found[0]!r}: {follows}"
        for what, found, among, follows in kinds
        if found
    ]
    return replace(data, own=frozenset(own), remarks=tuple(remarks))
