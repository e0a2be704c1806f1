"""Reembedding: fill a second table of vectors with another model, batch by batch, and switch to it at the end."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

from ctx_embed.index.model import IndexModel
from ctx_embed.index.storage import faiss_file
from ctx_embed.index.storage.database import NEXT, Settings
from ctx_embed.index.storage.documents import DocumentStore, embedded_texts
from ctx_embed.index.storage.folder import IndexFolder
from ctx_embed.index.storage.vectors import VectorTable, schema
from ctx_embed.index.writing import writer
from ctx_embed.progress import Meter

# Rows that are deleted in one commit when a table of vectors is removed.
ROWS_AT_ONCE = 16_384


def reembed(folder: IndexFolder, embedder: IndexModel, *, progress: bool = False) -> bool:
    """Embed all passages of an index again, see :meth:`SearchIndex.reembed`; return whether it needed that.

    Readers and writers go on with the old vectors until the last commit. Finished batches are stored in the index;
    after an interruption, another call with the same model resumes there.
    """
    faiss_file.checked_factory(folder.settings.factory, embedder.dimension)
    with closing(DocumentStore(folder.documents.path)) as store:
        _remove_old_tables(store)
        present = store.present()
        if (embedder.fingerprint, embedder.dimension) == (present.model_fingerprint, present.dimension):
            return False
        following = _begun(folder, store, embedder)
        vectors = VectorTable(store, following)
        (last,) = store.run_one(f"SELECT ifnull(max(row), -1) FROM {vectors.name}")
        with Meter("embedding", store.state().next_row, "passages", done=last + 1, shown=progress) as meter:
            switched = False
            while not switched:
                with store.reading():
                    documents = store.after(last, writer.BATCH_DOCUMENTS)
                passages = [
                    (document.row, row, text)
                    for document in documents
                    for row, text in enumerate(
                        embedded_texts(document.text, document.metadata, document.spans, present.titled), document.row
                    )
                ]
                # Equal texts are embedded once.
                place_of = {text: place for place, text in enumerate(dict.fromkeys(text for *_, text in passages))}
                distinct = embedder.documents(list(place_of))
                with store.writing():
                    folder.require_in_place()
                    if passages:
                        # Others may have deleted some of the documents meanwhile.
                        firsts = [document.row for document in documents]
                        there = set(store.run_among("SELECT row FROM documents WHERE row IN ({})", firsts))
                        kept = [(row, place_of[text]) for first, row, text in passages if (first,) in there]
                        vectors.put([row for row, _ in kept], distinct[[place for _, place in kept]])
                        meter.update(passages[-1][1] - last)
                        last = passages[-1][1]
                    elif not store.after(last, 1):
                        # The new vectors become the index's, with its present settings.
                        store.store_settings(replace(following, dtype=store.present().dtype))
                        store.store_settings(None, NEXT)
                        faiss_file.listed(store, None)
                        store.finish(store.state())
                        switched = True
        _remove_old_tables(store)
    return True


def _begun(folder: IndexFolder, store: DocumentStore, embedder: IndexModel) -> Settings:
    """Return the settings of the new vectors, and create their table; forget a run for another model."""
    with store.writing():
        folder.require_in_place()
        present, following = store.present(), store.settings(NEXT)
        wanted = embedder.fingerprint, embedder.dimension
        if following is not None and (following.model_fingerprint, following.dimension) == wanted:
            return following
        if following is not None:
            store.run(f"DROP TABLE vectors_{following.table}")
        table = max(present.table, following.table if following else 0) + 1
        for statement in schema(table):
            store.run(statement)
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


def _remove_old_tables(store: DocumentStore) -> None:
    """Remove tables of vectors that no settings name, in small commits."""
    with store.reading():
        used = {f"vectors_{settings.table}" for settings in (store.present(), store.settings(NEXT)) if settings}
        tables = store.run("SELECT name FROM sqlite_master WHERE type = 'table' AND name GLOB 'vectors_[0-9]*'")
    for name in {name for (name,) in tables} - used:
        left = True
        while left:
            with store.writing():
                store.run(f"DELETE FROM {name} WHERE row IN (SELECT row FROM {name} ORDER BY row LIMIT {ROWS_AT_ONCE})")
                left = bool(store.run(f"SELECT 1 FROM {name} LIMIT 1"))
                if not left:
                    store.run(f"DROP TABLE {name}")
