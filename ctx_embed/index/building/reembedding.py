"""Reembedding: fill a second table of vectors with another model, step by step, and switch to it at the end."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace

import numpy as np

from ctx_embed.index.ann import factories, faiss_file
from ctx_embed.index.model import IndexModel
from ctx_embed.index.storage.database import NEXT, Settings
from ctx_embed.index.storage.documents import DocumentStore, Stored, embedded_texts
from ctx_embed.index.storage.folder import IndexFolder
from ctx_embed.index.storage.vectors import Vectors, VectorTable, create_table
from ctx_embed.index.writing.writer import STEPS, Steps
from ctx_embed.progress import Meter

# Rows that are deleted in one commit when a table of vectors is removed.
ROWS_AT_ONCE = 16_384


def reembed(folder: IndexFolder, embedder: IndexModel, *, progress: bool = False, steps: Steps = STEPS) -> bool:
    """Embed all passages of an index again, see :meth:`SearchIndex.reembed`; return whether it needed that.

    Readers and writers go on with the old vectors until the last commit. Finished steps are stored in the index; after
    an interruption, another call with the same model resumes there.
    """
    factories.checked_factory(folder.settings.factory, embedder.dimension)
    with closing(DocumentStore(folder.documents.path)) as store:
        _remove_old_tables(store)
        present = store.present()
        if (embedder.fingerprint, embedder.dimension) == (present.model_fingerprint, present.dimension):
            return False
        following = _begun(folder, store, embedder)
        vectors = VectorTable(store, following)
        with store.reading(), store.reporting_errors():
            (row,) = store.connection.execute(f"SELECT ifnull(max(row), -1) FROM {vectors.name}").fetchone()
        with Meter("embedding", store.state().next_row, "passages", done=row + 1, shown=progress) as meter:
            switched = False
            while not switched:
                began, first = time.monotonic(), row
                found: list[tuple[Sequence[Stored], Vectors]] = []
                while not found or not steps.ends(row - first, began):
                    with store.reading():
                        documents = store.after(row, steps.batch)
                    if not documents:
                        break
                    found.append((documents, _vectors(documents, embedder, present.titled)))
                    meter.update(documents[-1].row + documents[-1].passages - 1 - row)
                    row = documents[-1].row + documents[-1].passages - 1
                with store.writing():
                    folder.require_in_place()
                    for some, of_some in found:
                        _store(store, vectors, some, of_some)
                    if not found and not store.after(row, 1):
                        # The new vectors become those of the index, with the settings that it has by now.
                        store.store_settings(replace(following, dtype=store.present().dtype))
                        store.store_settings(None, NEXT)
                        faiss_file.listed(store, None)
                        store.finish(replace(store.state(), generation=store.state().generation + 1))
                        switched = True
        _remove_old_tables(store)
    return True


def _begun(folder: IndexFolder, store: DocumentStore, embedder: IndexModel) -> Settings:
    """Return the settings of the new vectors, whose table is there afterwards; a run for another model is forgotten."""
    with store.writing():
        folder.require_in_place()
        present, following = store.present(), store.settings(NEXT)
        wanted = embedder.fingerprint, embedder.dimension
        if following is not None and (following.model_fingerprint, following.dimension) == wanted:
            return following
        with store.reporting_errors():
            if following is not None:
                store.connection.execute(f"DROP TABLE vectors_{following.table}")
            table = max(present.table, following.table if following else 0) + 1
            create_table(store.connection, table)
        following = replace(
            present,
            model_fingerprint=embedder.fingerprint,
            model=embedder.reference,
            dimension=embedder.dimension,
            unrelated=embedder.unrelated,
            table=table,
        )
        store.store_settings(following, NEXT)
    return following


def _vectors(documents: Sequence[Stored], embedder: IndexModel, titled: bool) -> Vectors:
    """Return the vectors (n, dimension) of all passages of documents; equal texts are embedded once."""
    texts = [
        text
        for document in documents
        for text in embedded_texts(document.text, document.metadata, document.spans, titled)
    ]
    distinct = list(dict.fromkeys(texts))
    place_of = {text: place for place, text in enumerate(distinct)}
    return embedder.documents(distinct)[[place_of[text] for text in texts]]


def _store(store: DocumentStore, vectors: VectorTable, documents: Sequence[Stored], of_documents: Vectors) -> None:
    """Store the vectors of the documents that are still there."""
    rows = np.concatenate([np.arange(document.row, document.row + document.passages) for document in documents])
    there = store.rows_there([document.row for document in documents])
    kept = np.repeat([document.row in there for document in documents], [document.passages for document in documents])
    vectors.put(rows[kept].tolist(), of_documents[kept])


def _remove_old_tables(store: DocumentStore) -> None:
    """Remove tables of vectors that no settings name, in small commits."""
    with store.reading(), store.reporting_errors():
        following = store.settings(NEXT)
        used = {store.present().table, *([] if following is None else [following.table])}
        names = [
            name
            for (name,) in store.connection.execute(
                "SELECT name FROM sqlite_master WHERE type = 'table' AND name GLOB 'vectors_[0-9]*'"
            )
            if name not in {f"vectors_{number}" for number in used}
        ]
    for name in names:
        left = True
        while left:
            with store.writing(), store.reporting_errors():
                rows = f"SELECT row FROM {name} ORDER BY row LIMIT {ROWS_AT_ONCE}"
                left = store.connection.execute(f"DELETE FROM {name} WHERE row IN ({rows})").rowcount == ROWS_AT_ONCE
                if not left:
                    store.connection.execute(f"DROP TABLE {name}")
