"""From directories of embeddings back into a search index, without embedding again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from ctx_embed.errors import InputError
from ctx_embed.index.ann.factories import AUTO
from ctx_embed.index.building.combining import write_index
from ctx_embed.index.embedder import Embedder
from ctx_embed.index.search_index import SearchIndex
from ctx_embed.index.storage.dtypes import DEFAULT
from ctx_embed.index.writing.transaction import Embedded
from ctx_embed.stores.parquet import Parquet
from ctx_embed.stores.store import Collection

if TYPE_CHECKING:
    from ctx_embed.index.embedder import Model


def index_parquet(
    directories: str | Path | Sequence[str | Path],
    path: str | Path,
    *,
    mode: str = "create",
    model: str | Path | Model | None = None,
    factory: str | None = None,
    dtype: str | None = None,
) -> int:
    """Index what ``ctx-embed encode --to DIRECTORY`` wrote, with its vectors, as one commit.

    Args:
        directories: one or several, or URIs of an object store.
        path: the folder of the index.
        mode: as in :func:`ctx_embed.index.building.build.build_index`.
        model: what embeds queries; None: the model that the directories name.
        factory: the kind of FAISS index of a new one, by default ``auto``.
        dtype: the data type of the vectors of a new one.

    Returns:
        The number of documents read.

    Raises:
        InputError: no directory of embeddings, several models, or the index cannot be written.
    """
    listed = [directories] if isinstance(directories, str | Path) else list(directories)
    stores = [Parquet(directory) for directory in listed]
    collections = [store.require_collection() for store in stores]
    for store, collection in zip(stores, collections, strict=True):
        collection.require(store.name, collections[0])
    embedder = Embedder.of(collections[0].model if model is None else model)
    collections[0].require(stores[0].name, Collection.of(embedder))
    count = 0

    def documents() -> Iterator[Embedded]:
        nonlocal count
        for store in stores:
            for document in store.documents():
                count += 1
                yield document

    given = model if model is not None and not isinstance(model, str | Path) else embedder.reference
    if mode in ("append", "upsert"):
        if factory is not None or dtype is not None:
            raise InputError(f"{path}: keeps its kind and data type; leave --factory and --dtype out")
        with closing(SearchIndex.open(path, model)) as index:
            collections[0].require(stores[0].name, Collection.of(index.embedder))
            index.add_documents(documents(), replacing=mode == "upsert")
        return count
    write_index(
        path,
        documents(),
        model=given,
        factory=factory or AUTO,
        chunk="none",
        dtype=dtype or DEFAULT,
        overwrite=mode == "overwrite",
        replacing=True,
    )
    return count
