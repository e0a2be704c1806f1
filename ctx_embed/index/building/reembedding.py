"""Reembedding: embed the stored texts with another model in a new index, which replaces the old one at the end."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Lock, RLock

import numpy as np

from ctx_embed.errors import InputError
from ctx_embed.files import put_in_place, remove_folder, remove_leftovers, require_folder
from ctx_embed.index.ann import factories
from ctx_embed.index.ann.vector_index import VectorIndex
from ctx_embed.index.building.partial import holds_only_an_index
from ctx_embed.index.model import IndexModel
from ctx_embed.index.storage.database import State
from ctx_embed.index.storage.documents import DocumentStore, Stored, embedded_texts
from ctx_embed.index.storage.folder import IndexFolder
from ctx_embed.index.storage.manifest import (
    CACHE,
    DOCUMENTS,
    MANIFEST,
    VECTORS,
    Manifest,
    read_manifest,
    write_manifest,
)
from ctx_embed.index.storage.shards import Shard, ShardFolder, Vectors
from ctx_embed.index.writing.steps import STEPS, Steps
from ctx_embed.index.writing.writer import Writer
from ctx_embed.progress import Meter


@contextmanager
def reembedding(
    folder: IndexFolder, embedder: IndexModel, *, progress: bool = False, steps: Steps = STEPS
) -> Iterator[Callable[[], None] | None]:
    """Embed all passages of an index again, in a new index next to it; yield a function that exchanges the two.

    Yield None if the index already has the vectors of this model.

    The new index has the same documents, ids, passages and rows: its database is a copy, only the vectors differ.
    Until the exchange, readers search the old index, and other writers are refused. Finished steps are stored in
    INDEX.reembedded; after an interruption, another call for the same index and model resumes there.

    Args:
        folder: the index; a link to it stays.
        embedder: its new model.
        progress: whether to show progress on standard error.
        steps: how often to commit.

    Raises:
        InputError: another process is writing, the new model does not fit the kind of FAISS index or returns NaN, or
            the disk is full.
    """
    target = Path(os.path.realpath(folder.path))
    new = target.with_name(f"{target.name}.reembedded")
    factories.checked_factory(folder.manifest.factory, embedder.dimension)
    require_folder(new)
    with closing(DocumentStore(target / DOCUMENTS)) as source, source.writing():
        folder.require_in_place()
        if (embedder.fingerprint, embedder.dimension) == (folder.manifest.model_fingerprint, folder.manifest.dimension):
            # A process that was killed after the exchange leaves the old index there.
            if new.is_dir() and holds_only_an_index(new):
                remove_folder(new)
            yield None
            return
        manifest = _manifest(folder.manifest, source.state(), embedder)
        try:
            _prepare(folder, new, manifest)
            _embed(new, manifest, embedder, progress, steps)
        except (OSError, sqlite3.Error) as error:
            raise InputError(
                f"cannot write {new}: {error}; finished work is stored there; repeat the command to resume"
            ) from None
        yield lambda: put_in_place(new, target)


def _manifest(old: Manifest, state: State, embedder: IndexModel) -> Manifest:
    """Return the new manifest; its id depends on documents and model, so that a run resumes only its own work."""
    parts = [old.index_id, state.generation, embedder.fingerprint, embedder.dimension, old.dtype]
    return replace(
        old,
        index_id=hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32],
        model_fingerprint=embedder.fingerprint,
        model=embedder.reference,
        dimension=embedder.dimension,
        unrelated=embedder.unrelated,
        generation=state.generation,
    )


def _prepare(folder: IndexFolder, new: Path, manifest: Manifest) -> None:
    """Make the new index without vectors, unless an interrupted run has made it.

    Raises:
        InputError: something else is in its place.
    """
    remove_leftovers(new)
    if new.exists():
        if not new.is_dir() or not holds_only_an_index(new):
            raise InputError(f"{new}: exists but is not an index; rename or delete it")
        if (new / MANIFEST).is_file() and read_manifest(new).index_id == manifest.index_id:
            return
        remove_folder(new)
    for part in (new, new / VECTORS, new / CACHE):
        part.mkdir()
    with closing(sqlite3.connect(new / DOCUMENTS)) as copy:
        with folder.documents.reading():
            folder.documents.connection.backup(copy)
        copy.execute("PRAGMA journal_mode = WAL")
        copy.execute("DELETE FROM shards")
        copy.execute("UPDATE state SET index_id = ?, tuned = '{}'", (manifest.index_id,))
        copy.commit()
    # Written last: a folder with a manifest is complete.
    write_manifest(new, manifest)


def _embed(new: Path, manifest: Manifest, embedder: IndexModel, progress: bool, steps: Steps) -> None:
    """Embed the rows that have no vector yet, step by step, and build FAISS's file."""
    vectors = ShardFolder(new / VECTORS, manifest.dimension, manifest.dtype)
    with closing(DocumentStore(new / DOCUMENTS)) as store:
        with store.writing():
            store.store_checksums()
        shards = store.shards()
        vectors.remove_unlisted(shards)
        rows = store.state().rows
        row = sum(shard.rows for shard in shards)
        with Meter("embedding", rows, "passages", done=row, shown=progress) as meter:
            while row < rows:
                began, first = time.monotonic(), row
                blocks: list[Vectors] = []
                while not blocks or (row < rows and not steps.ends(row - first, began)):
                    documents = store.after(row - 1, steps.batch)
                    end = documents[-1].row + documents[-1].passages if documents else rows
                    blocks.append(_vectors(store, documents, row, end, embedder, manifest.titled))
                    meter.update(end - row)
                    row = end
                shards = _stored(store, vectors, shards, np.concatenate(blocks))
        index = IndexFolder(new)
        with closing(index.documents):
            Writer(index, VectorIndex.of(index), lambda: embedder, Lock(), RLock()).tidy(store)


def _vectors(
    store: DocumentStore, documents: Sequence[Stored], first: int, end: int, embedder: IndexModel, titled: bool
) -> Vectors:
    """Return the vectors (end - first, dimension) of rows; those of deleted documents are zero."""
    texts = {
        row: text
        for document in documents
        for row, text in enumerate(
            embedded_texts(document.text, document.metadata, store.spans(document), titled), document.row
        )
    }
    distinct = list(dict.fromkeys(texts.values()))
    place_of = {text: place for place, text in enumerate(distinct)}
    vectors = np.zeros((end - first, embedder.dimension), np.float32)
    if distinct:
        rows = np.fromiter(texts, np.int64) - first
        vectors[rows] = embedder.documents(distinct)[[place_of[text] for text in texts.values()]]
    return vectors


def _stored(store: DocumentStore, vectors: ShardFolder, shards: list[Shard], block: Vectors) -> list[Shard]:
    """Write the vectors of the next rows, list their shards in one commit, and return the new list."""
    shards = vectors.append(shards, block)
    with store.writing():
        store.finish(store.state(), shards)
    vectors.remove_unlisted(shards)
    return shards
