"""The progress of a build, committed with its documents in the same database."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace

from ctx_embed.index.storage.documents import DocumentStore, Id
from ctx_embed.texts import Document


@dataclass(frozen=True)
class Progress:
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

    def update(self, document: Document) -> None:
        """Add the next document."""
        fields = [document.text, document.id, document.metadata]
        self._hash.update(json.dumps(fields, sort_keys=True, default=str).encode())

    def hexdigest(self) -> str:
        """Return 64 hexadecimal digits."""
        return self._hash.copy().hexdigest()


def builds(store: DocumentStore) -> list[Progress]:
    """Return all builds recorded in an index."""
    with store.reporting_errors():
        rows = store.connection.execute("SELECT run, signature, documents, digest, finished FROM builds").fetchall()
    return [Progress(run, signature, count, digest, bool(finished)) for run, signature, count, digest, finished in rows]


def record(store: DocumentStore, progress: Progress) -> None:
    """Store ``progress``, replacing the record of the same run; call it inside :meth:`Database.writing`."""
    values = (progress.run, progress.signature, progress.documents, progress.digest, int(progress.finished))
    with store.reporting_errors():
        store.connection.execute("INSERT OR REPLACE INTO builds VALUES (?, ?, ?, ?, ?)", values)


def begin(store: DocumentStore, progress: Progress, next_id: int) -> None:
    """Record a new build in an empty index, whose first automatic id will be ``next_id``."""
    with store.writing():
        store.finish(replace(store.state(), next_id=next_id), store.shards())
        record(store, progress)


def mark_automatic(store: DocumentStore, ids: list[Id]) -> None:
    """Record ids that were numbered automatically, and so may change when the documents are merged."""
    with store.reporting_errors():
        store.connection.executemany("INSERT INTO automatic VALUES (?)", [(identifier,) for identifier in ids])


def mark_given(store: DocumentStore, ids: list[Id]) -> None:
    """Record ids that the sources gave and that must not change, even if they were automatic before."""
    with store.reporting_errors():
        store.connection.executemany("DELETE FROM automatic WHERE id = ?", [(identifier,) for identifier in ids])


def automatic(store: DocumentStore, identifier: Id) -> bool:
    """Return whether an id was numbered automatically."""
    with store.reporting_errors():
        return store.connection.execute("SELECT 1 FROM automatic WHERE id = ?", (identifier,)).fetchone() is not None
