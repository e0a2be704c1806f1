"""Make a search index from directories of embeddings, without embedding again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ctx_embed.errors import InputError
from ctx_embed.index.build import Built, build_index
from ctx_embed.index.folder import read_settings
from ctx_embed.model import Model
from ctx_embed.stores.parquet import Parquet
from ctx_embed.stores.store import RUN, Collection

if TYPE_CHECKING:
    from ctx_embed.model import Given


def index_parquet(
    directories: str | Path | Sequence[str | Path], path: str | Path, *, model: Given = None, **options: Any
) -> Built:
    """Index the output of ``ctx-embed encode --to DIRECTORY`` with its vectors; of rows with the same id, use the last.

    ``directories`` are folders, or URIs of an object store. ``model`` embeds queries; None: the model that the
    directories name, or that of an index that is extended. Other options (mode, resume, factory, dtype, progress) are
    those of :func:`ctx_embed.index.build.build_index`.

    Raises:
        InputError: there is no directory of embeddings, one is incomplete, several models made them, or the index
            cannot be written.
    """
    listed = [directories] if isinstance(directories, str | Path) else list(directories)
    stores = [Parquet(directory) for directory in listed]
    collections = [store.require_collection() for store in stores]
    for store, collection in zip(stores, collections, strict=True):
        collection.require(store.name, collections[0])
        runs = list(store.notes(RUN).values())
        if runs and not runs[-1]["finished"]:
            raise InputError(f"{store.name}: must be complete; wait for its `ctx-embed encode`, or repeat that command")
    if model is None:
        adds = options.get("mode") in ("append", "upsert")
        model = read_settings(Path(path)).model if adds else collections[0].model
    embedder = Model.of(model)
    collections[0].require(stores[0].name, Collection.of(embedder))
    given = embedder.reference if isinstance(model, str | Path | None) else model
    return build_index([store.name for store in stores], path, model=given, stores=stores, **options)
