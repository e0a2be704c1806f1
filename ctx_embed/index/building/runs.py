"""The runs of builds that an index records; a run's progress is committed with its documents."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace

from ctx_embed.index.storage.documents import DocumentStore
from ctx_embed.texts import Document

_JSON = json.JSONEncoder(sort_keys=True, default=str)


@dataclass(frozen=True)
class Run:
    """The progress of a build.

    Args:
        run: the random id of the build.
        signature: a hash of its sources and options.
        documents: the number of documents read from the sources so far.
        digest: the sha256 of these documents, which shows whether the sources have changed.
        finished: whether all documents have been read.
    """

    run: str
    signature: str
    documents: int = 0
    digest: str = ""
    finished: bool = False


class Digest:
    """The sha256 of a growing list of documents."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def update(self, documents: Iterable[Document]) -> int:
        """Add the next documents, and return their number."""
        count = 0
        for document in documents:
            count += 1
            fields = [document.text, document.id, document.metadata]
            self._hash.update(_JSON.encode(fields).encode())
        return count

    def hexdigest(self) -> str:
        """Return 64 hexadecimal digits."""
        return self._hash.copy().hexdigest()


def recorded(store: DocumentStore) -> list[Run]:
    """Return all runs recorded in an index, the newest last."""
    with store.reporting_errors():
        rows = store.connection.execute("SELECT run, signature, documents, digest, finished FROM builds").fetchall()
    return [Run(run, signature, count, digest, bool(finished)) for run, signature, count, digest, finished in rows]


def record(store: DocumentStore, run: Run) -> None:
    """Store a run, replacing its earlier record; call it inside :meth:`Database.writing`."""
    values = (run.run, run.signature, run.documents, run.digest, int(run.finished))
    with store.reporting_errors():
        store.connection.execute("INSERT OR REPLACE INTO builds VALUES (?, ?, ?, ?, ?)", values)


def begin(store: DocumentStore, run: Run, next_id: int) -> None:
    """Record a new run in an empty index; automatic ids start at ``next_id``."""
    with store.writing():
        store.finish(replace(store.state(), next_id=next_id))
        record(store, run)
