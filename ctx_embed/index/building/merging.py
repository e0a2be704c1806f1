"""Merging: copy documents from index to index with their vectors, without embedding them again."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace as replaced
from pathlib import Path

import numpy as np

from ctx_embed.errors import InputError
from ctx_embed.files import replaced_folder
from ctx_embed.index.building import partial
from ctx_embed.index.building.partial import Run
from ctx_embed.index.search_index import SearchIndex
from ctx_embed.index.storage.database import DATABASE, Settings
from ctx_embed.index.storage.documents import DocumentStore, Id
from ctx_embed.index.storage.folder import IndexFolder, read_settings
from ctx_embed.index.storage.vectors import VectorTable
from ctx_embed.index.writing.transaction import Copied, TakenIdError
from ctx_embed.progress import Meter


def merge_indexes(
    sources: Sequence[str | Path], path: str | Path, *, replace: bool = False, progress: bool = False
) -> int:
    """Merge several indexes with the same model into one; documents without ids of their own are numbered anew.

    Args:
        sources: two indexes or more. The new index gets the FAISS factory and the data type of the first one.
        path: the folder of the new index.
        replace: whether a document replaces the one that has its id in an earlier index.
        progress: whether to show progress on standard error.

    Returns:
        The number of documents.

    Raises:
        InputError: there are fewer than two indexes, their models or chunking differ, two indexes have the same id, or
            the folder is taken.
    """
    folders = [Path(source).absolute() for source in sources]
    if len(folders) < 2:
        raise InputError(f"merging needs two indexes or more, got {len(folders)}")
    first, *others = [read_settings(folder) for folder in folders]
    for folder, settings in zip(folders[1:], others, strict=True):
        for name, here, there in (
            ("the model", _model(first), _model(settings)),
            ("chunk", repr(first.chunk), repr(settings.chunk)),
        ):
            if here != there:
                raise InputError(f"{folder}: {name} must be that of {folders[0]}, {here}, got {there}")
    target = Path(path).absolute()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InputError(f"{target}: already exists; choose another name")
    try:
        with replaced_folder(target, new=True) as beside:
            DocumentStore.create(beside / DATABASE, replaced(first, index_id=uuid.uuid4().hex, table=1))
            with SearchIndex.open(beside) as index:
                with index.writer.editing() as edit, Meter("merging", unit="documents", shown=progress) as meter:
                    # No new number is an id that another document was given.
                    edit.state = replaced(edit.state, next_id=max(map(_largest_given_id, folders)) + 1)
                    for folder in folders:
                        edit.add_all(meter.each(_copies(IndexFolder(folder))), replacing=replace)
                    meter.now("finishing")
                return index.count()
    except TakenIdError as error:
        first_owner, second_owner, *_ = [folder for folder in folders if _has(folder, error.identifier)]
        raise InputError(
            f"{first_owner} and {second_owner} both have a document {error.identifier!r}; --replace keeps the later one"
        ) from None


def add_build(source: SearchIndex, target: Path, run: Run, *, replacing: bool) -> None:
    """Add the documents of a finished build to an index with the same model and chunking, only once.

    Args:
        source: the index that the build made; nobody else writes to it.
        target: the folder of the index to add to.
        run: the build, which is recorded in the same commit, so that a repeated call does nothing.
        replacing: whether documents replace stored ones with the same ids.

    Raises:
        InputError: an id is taken, or another process is writing.
    """
    with SearchIndex(IndexFolder(target), source.embedder) as index:
        with closing(DocumentStore(target / DATABASE)) as store:
            if run.run in {known.run for known in partial.recorded(store)}:
                return
        copies = _copies(IndexFolder(source.path))
        with index.writer.editing() as edit:
            edit.add_all(copies, replacing=replacing)
            partial.record(edit.store, run)


def _copies(folder: IndexFolder) -> Iterator[Copied]:
    """Yield the documents of one state of an index; ids that it has numbered itself become None."""
    with closing(folder.documents) as store, store.reading():
        vectors = VectorTable(store, store.present())
        for document in store.all():
            rows = np.arange(document.row, document.row + document.passages)
            yield Copied(
                document.text,
                None if store.automatic([document.id]) else document.id,
                document.metadata,
                spans=document.spans,
                vectors=vectors.get(rows),
            )


def _largest_given_id(folder: Path) -> int:
    with closing(IndexFolder(folder).documents) as store:
        return store.largest_given_id()


def _has(folder: Path, identifier: Id) -> bool:
    with closing(IndexFolder(folder).documents) as store:
        return bool(store.find([identifier]))


def _model(settings: Settings) -> str:
    return f"{settings.model!r} (fingerprint {settings.model_fingerprint[:12]}, dimension {settings.dimension})"
