"""INDEX.partial, the folder in which a build works and records its progress, and INDEX, which it becomes at the end."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from ctx_embed.errors import InputError
from ctx_embed.files import keep_permissions, locked, put_in_place, remove_folder, remove_leftovers, require_folder
from ctx_embed.index.building.plan import Plan
from ctx_embed.index.storage.database import DATABASE
from ctx_embed.index.storage.documents import DocumentStore
from ctx_embed.index.storage.folder import IndexFolder, holds_only_an_index
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


LOCK = "lock"


@contextmanager
def only_build(partial: Path) -> Iterator[None]:
    """Hold the lock of INDEX.partial inside the block; the system releases it when the process ends.

    Raises:
        InputError: another process holds it.
    """
    with locked(partial / LOCK, wait=False) as free:
        if not free:
            raise InputError(f"{partial}: another build is running; try again when it has finished")
        yield


@contextmanager
def _without_writers(target: Path) -> Iterator[None]:
    """Hold the writer's lock of an index that is about to be replaced, so that no change to it gets lost."""
    try:
        store = DocumentStore(target / DATABASE)
    except InputError:
        # There is no index, or it is damaged and nobody can write to it.
        yield
        return
    with closing(store), store.writing():
        yield


def require_free(plan: Plan) -> None:
    """Check that INDEX can be written.

    Raises:
        InputError: there is something other than an index, or an index that this build does not replace.
    """
    target = plan.target
    require_folder(target)
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return
    if not target.is_dir():
        raise InputError(f"{target}: is a file; choose a new or empty folder for the index")
    if not holds_only_an_index(target, LOCK):
        raise InputError(f"{target}: has files that do not belong to an index; choose another folder")
    if plan.mode != "overwrite":
        raise InputError(
            f"{target}: already exists; add to it with --append or --upsert, or replace it with --overwrite"
        )
    with _without_writers(target):
        # If another process is writing, fail now rather than after the work.
        return


def remove_stale(plan: Plan, resume: bool) -> None:
    """Remove an INDEX.partial that is no longer needed.

    Raises:
        InputError: it is not an interrupted build, or it is one but neither ``resume`` nor the mode ``overwrite`` is
            given.
    """
    for folder in (plan.partial, plan.target):
        remove_leftovers(folder)
    if not plan.partial.exists():
        return
    if not plan.partial.is_dir() or not holds_only_an_index(plan.partial, LOCK):
        raise InputError(
            f"{plan.partial}: exists but is not an interrupted build; delete it or choose another index name"
        )
    # A folder without a lock file is a replaced index, or a build that never started.
    if (plan.partial / LOCK).is_file():
        if resume:
            return
        with only_build(plan.partial):
            if plan.mode != "overwrite":
                raise InputError(f"{plan.partial}: holds an interrupted build; continue it with --resume or delete it")
    remove_folder(plan.partial)


def finished_before(plan: Plan) -> Run | None:
    """Return the finished build in INDEX that this one repeats, or None."""
    if not (plan.target / DATABASE).is_file():
        return None
    with closing(IndexFolder(plan.target).documents) as store:
        same = [run for run in recorded(store) if run.signature == plan.signature]
    return same[-1] if same else None


def publish(plan: Plan) -> None:
    """Move the finished index to its place, or remove INDEX.partial if its documents were added to INDEX."""
    if plan.adds:
        remove_folder(plan.partial)
    else:
        with _without_writers(plan.target):
            if (plan.target / DATABASE).is_file():
                # A private index stays private.
                for path in plan.partial.iterdir():
                    keep_permissions(plan.target / DATABASE, path)
                keep_permissions(plan.target, plan.partial)
            put_in_place(plan.partial, plan.target)
        with suppress(OSError):
            (plan.target / LOCK).unlink()


def remove_if_empty(plan: Plan) -> int:
    """Remove INDEX.partial if no step of it was finished, and return the number of documents in it."""
    try:
        with closing(DocumentStore(plan.partial / DATABASE)) as store:
            stored = sum(run.documents for run in recorded(store))
        if not stored:
            remove_folder(plan.partial)
    except (InputError, OSError):
        return 0
    return stored
