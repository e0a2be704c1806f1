"""The data of a task, from a folder in a published layout, a user's files, or the Hugging Face hub."""

import hashlib
import logging
import os
from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from ctx_embed.errors import InputError
from ctx_embed.eval.tasks.catalogue import TASKS, HubSource, Row, Task
from ctx_embed.training.labelled_texts import words_of

REMEDY = "name a folder that holds it with --data or CTX_EMBED_DATA"


@dataclass(frozen=True)
class TaskData:
    """The rows of a task by subset, their source, and the number of rows left out.

    ``is_altered`` is True if the files have the expected layout, but not the rows behind our published scores. ``own``
    holds the queries of a collection that are documents of it themselves, which no search for them returns. ``remarks``
    say what a reader of the scores must know of the data, a line each.
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
        ("unknown queries", unknown, judged, "judgements: these are left out"),
        ("unknown documents", absent, judged, "judgements: these count as not found, as in trec_eval"),
        ("contradicting judgements", [*dict.fromkeys(conflicts)], judged, "cases: the last counts"),
        ("queries that are documents too", own, queries, "cases: each is left out of its own results, as in BEIR"),
    )
    remarks = [
        f"{what} in {len(found):,} of {len(of):,} (such as {found[0]!r}) {follows}"
        for what, found, of, follows in kinds
        if found
    ]
    return replace(data, own=frozenset(own), remarks=tuple(remarks))
