"""The plan of a build and its two folders: INDEX.partial, where it works, and INDEX, the result."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ctx_embed.errors import InputError
from ctx_embed.files import locked, put_in_place, remove_folder, remove_leftovers, require_folder
from ctx_embed.index.building import progress
from ctx_embed.index.following.folders import Options
from ctx_embed.index.storage.documents import DocumentStore
from ctx_embed.index.storage.dtypes import DEFAULT
from ctx_embed.index.storage.folder import IndexFolder
from ctx_embed.index.storage.manifest import CACHE, DOCUMENTS, MANIFEST, RERANKING, VECTORS
from ctx_embed.index.writing.transaction import Embedded
from ctx_embed.reading import TEXT_FIELD

LOCK = "lock"
_OWN_FILES = {MANIFEST, DOCUMENTS, f"{DOCUMENTS}-wal", f"{DOCUMENTS}-shm", VECTORS, CACHE, RERANKING, LOCK}


@dataclass(frozen=True)
class Plan:
    """The arguments of a build."""

    sources: list[str]
    target: Path
    mode: str
    text_field: str | None
    embedding_field: str | None
    model: Any
    factory: str
    chunk: str
    backend: str | None
    dtype: str
    progress: bool
    options: Options
    encoding: str | None
    embedded: Iterable[Embedded] | None = None

    @property
    def files(self) -> list[str]:
        """The sources that are files, or standard input, or that only name documents which are given."""
        return [name for name in self.sources if self.embedded is not None or not is_folder(name)]

    @property
    def folders(self) -> list[str]:
        """The sources that are folders of files to read."""
        return [name for name in self.sources if self.embedded is None and is_folder(name)]

    @property
    def partial(self) -> Path:
        """The folder of the unfinished index."""
        return self.target.with_name(f"{self.target.name}.partial")

    @property
    def adds(self) -> bool:
        """Whether the build adds to an existing index."""
        return self.mode in ("append", "upsert")

    @property
    def replaces(self) -> bool:
        """Whether a document replaces an earlier one of the same build that has its id."""
        return self.mode == "upsert" or self.embedded is not None

    @property
    def signature(self) -> str:
        """A hash that is the same for two runs of the same build."""
        names = [name if name == "-" else str(Path(name).absolute()) for name in self.sources]
        fields: list[Any] = [
            names,
            self.mode,
            self.text_field or TEXT_FIELD,
            self.embedding_field,
            self.factory,
            self.chunk,
        ]
        # Builds of older versions, which had no other data type, have no such field.
        fields += [self.dtype] if self.dtype != DEFAULT else []
        more = (self.options.include, self.options.exclude, self.options.documents, self.encoding)
        if any(more):
            fields += more
        fields += ["embedded"] if self.embedded is not None else []
        return hashlib.sha256(json.dumps(fields).encode()).hexdigest()


def is_folder(source: str) -> bool:
    """Return whether a source of documents is a folder."""
    return source != "-" and os.path.isdir(source)


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


def place(plan: Plan) -> None:
    """Move the finished index to its place, or remove INDEX.partial if its documents were added to INDEX."""
    if plan.adds:
        remove_folder(plan.partial)
    else:
        with _kept_from_writers(plan.target):
            put_in_place(plan.partial, plan.target)
        with suppress(OSError):
            (plan.target / LOCK).unlink()


@contextmanager
def _kept_from_writers(target: Path) -> Iterator[None]:
    """Hold the writer's lock of an index that is about to be replaced, so that nobody changes it in vain."""
    try:
        store: DocumentStore | None = DocumentStore(target / DOCUMENTS)
    except InputError:
        # There is no index, or it is damaged and nobody can write to it.
        store = None
    if store is None:
        yield
    else:
        with closing(store), store.writing():
            yield


def holds_only_an_index(folder: Path) -> bool:
    """Return whether a folder holds nothing but the files of an index and those that a killed writer left there."""
    names = {entry.name for entry in folder.iterdir()}
    return all(name in _OWN_FILES or name.startswith(f".{MANIFEST}.") for name in names)


def drop_if_empty(plan: Plan) -> int:
    """Remove INDEX.partial if no step of it was finished, and return the number of documents in it."""
    try:
        with closing(DocumentStore(plan.partial / DOCUMENTS)) as store:
            kept = sum(state.documents for state in progress.builds(store))
        if not kept:
            remove_folder(plan.partial)
    except (InputError, OSError):
        return 0
    return kept


def make_way(plan: Plan, resume: bool) -> None:
    """Remove an INDEX.partial that is no longer needed.

    Raises:
        InputError: it is not an interrupted build, or it is one and neither ``resume`` nor the mode ``overwrite`` is
            given.
    """
    for folder in (plan.partial, plan.target):
        remove_leftovers(folder)
    if not plan.partial.exists():
        return
    if not plan.partial.is_dir() or not holds_only_an_index(plan.partial):
        raise InputError(
            f"{plan.partial}: exists but is not an interrupted build; delete it or choose another index name"
        )
    # Without a lock file it is an index that has been replaced, or a build that had not started.
    if (plan.partial / LOCK).is_file():
        if resume:
            return
        with only_build(plan.partial):
            if plan.mode != "overwrite":
                raise InputError(f"{plan.partial}: holds an interrupted build; continue it with --resume or delete it")
    remove_folder(plan.partial)


def finished_before(plan: Plan) -> progress.Progress | None:
    """Return the finished build in INDEX that this one repeats, or None."""
    if not (plan.target / MANIFEST).is_file():
        return None
    folder = IndexFolder(plan.target)
    try:
        same = [state for state in progress.builds(folder.documents) if state.signature == plan.signature]
    finally:
        folder.documents.close()
    return same[-1] if same else None


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
    if not holds_only_an_index(target):
        raise InputError(f"{target}: has files that do not belong to an index; choose another folder")
    if plan.mode != "overwrite":
        raise InputError(f"{target}: already exists; add to it with --append or replace it with --overwrite")
    with _kept_from_writers(target):
        # If another process is writing, fail now rather than after the work.
        return
