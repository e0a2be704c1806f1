"""How far a build has come: committed with its documents, in the same database."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace

from ctx_embed.index.storage.documents import DocumentStore, Id
from ctx_embed.texts import Document


@dataclass(frozen=True)
class Progress:
    """A build.

    Args:
        run: drawn when it began.
        signature: of its sources and options.
        documents: taken from the sources so far.
        digest: of these documents, to notice when the sources have changed.
        finished: whether that is all of them.
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
        """Take the next document."""
        fields = [document.text, document.id, document.metadata]
        self._hash.update(json.dumps(fields, sort_keys=True, default=str).encode())

    def hexdigest(self) -> str:
        """64 hexadecimal digits."""
        return self._hash.copy().hexdigest()


def builds(store: DocumentStore) -> list[Progress]:
    """The builds that an index has seen."""
    with store.told():
        rows = store.connection.execute("SELECT run, signature, documents, digest, finished FROM builds").fetchall()
    return [Progress(run, signature, count, digest, bool(finished)) for run, signature, count, digest, finished in rows]


def record(store: DocumentStore, progress: Progress) -> None:
    """Put ``progress`` in the place of what was known of its run, inside :meth:`Database.writing`."""
    values = (progress.run, progress.signature, progress.documents, progress.digest, int(progress.finished))
    with store.told():
        store.connection.execute("INSERT OR REPLACE INTO builds VALUES (?, ?, ?, ?, ?)", values)


def begin(store: DocumentStore, progress: Progress, next_id: int) -> None:
    """Record a build that begins, in an empty index whose first id will be ``next_id``."""
    with store.writing():
        store.finish(replace(store.state(), next_id=next_id), store.shards())
        record(store, progress)


def mark_automatic(store: DocumentStore, ids: list[Id]) -> None:
    """Remember ids that were given by counting, so that they may change when the documents are merged."""
    with store.told():
        store.connection.executemany("INSERT INTO automatic VALUES (?)", [(identifier,) for identifier in ids])


def mark_given(store: DocumentStore, ids: list[Id]) -> None:
    """Remember ids that must not change, though one may have been given by counting before."""
    with store.told():
        store.connection.executemany("DELETE FROM automatic WHERE id = ?", [(identifier,) for identifier in ids])


def automatic(store: DocumentStore, identifier: Id) -> bool:
    """Whether an id was given by counting."""
    with store.told():
        return store.connection.execute("SELECT 1 FROM automatic WHERE id = ?", (identifier,)).fetchone() is not None
