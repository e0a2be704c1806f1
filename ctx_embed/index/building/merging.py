"""Merging: copy the documents of one index into another, with their vectors, as one commit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path

import numpy as np

from ctx_embed.index.building import progress
from ctx_embed.index.search_index import CHUNK_DOCUMENTS, SearchIndex
from ctx_embed.index.storage.documents import DocumentStore
from ctx_embed.index.storage.folder import IndexFolder
from ctx_embed.index.storage.manifest import DOCUMENTS
from ctx_embed.index.writing.transaction import Copied


def merge(source: SearchIndex, target: Path, build: progress.Progress, *, replacing: bool) -> None:
    """Add the documents of a finished build to an index with the same model and chunking; do it only once.

    Args:
        source: the index that the build made.
        target: the folder of the index to add to.
        build: the build; its run is recorded in the same commit, so a repetition does nothing.
        replacing: whether documents replace those that have their ids.

    Raises:
        InputError: an id is taken, or another process is writing.
    """
    with SearchIndex(IndexFolder(target), source.embedder) as index:
        with closing(DocumentStore(target / DOCUMENTS)) as store:
            if build.run in {known.run for known in progress.builds(store)}:
                return
        documents = _copied(source, IndexFolder(target).manifest.titled)
        with index.writer.editing() as edit:
            while chunk := list(islice(documents, CHUNK_DOCUMENTS)):
                edit.add(chunk, replacing=replacing)
            progress.record(edit.store, build)


def _copied(source: SearchIndex, titled: bool) -> Iterator[Copied]:
    """Yield the documents of an index that nobody writes to, with their vectors; automatic ids become None.

    The vectors are None if only one of the two indexes embeds passages with titles (``titled``: the target).
    """
    folder = IndexFolder(source.path)
    same = folder.manifest.titled == titled
    store = folder.documents
    try:
        shards = store.shards()
        for document in store.all():
            rows = np.arange(document.row, document.row + document.passages)
            yield Copied(
                document.text,
                None if progress.automatic(store, document.id) else document.id,
                document.metadata,
                spans=store.spans(document),
                vectors=folder.vectors.gather(shards, rows) if same else [None] * document.passages,
            )
    finally:
        store.close()
