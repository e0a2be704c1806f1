"""Make a search index of directories of embeddings, without embedding again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from ctx_embed.errors import InputError
from ctx_embed.index.building.build import Built, build_index
from ctx_embed.index.model import IndexModel
from ctx_embed.index.storage.folder import read_settings
from ctx_embed.stores.parquet import Parquet
from ctx_embed.stores.store import RUN, Collection
from ctx_embed.texts import Embedded

if TYPE_CHECKING:
    from ctx_embed.index.model import Model


@dataclass(frozen=True)
class _Vectors:
    """The rows of several directories, one directory after the other."""

    stores: Sequence[Parquet]

    def __iter__(self) -> Iterator[Embedded]:
        return chain.from_iterable(store.documents() for store in self.stores)

    def __len__(self) -> int:
        return sum(store.count() for store in self.stores)


def index_parquet(
    directories: str | Path | Sequence[str | Path],
    path: str | Path,
    *,
    mode: str = "create",
    resume: bool = False,
    model: str | Path | Model | None = None,
    factory: str | None = None,
    dtype: str | None = None,
    progress: bool = False,
) -> Built:
    """Index the output of ``ctx-embed encode --to DIRECTORY`` with its vectors; ``path`` changes only at the end.

    Until then, finished work is stored in ``path`` + ``.partial``. If rows share an id, the last one is indexed.

    Args:
        directories: one or several folders, or URIs of an object store.
        path: the folder of the index.
        mode: as in :func:`ctx_embed.index.building.build.build_index`.
        resume: as in that function.
        model: embeds queries; None: the model that the directories name, or that of the index that is extended.
        factory: the kind of a new FAISS index, by default ``auto``.
        dtype: the data type of the vectors in a new index.
        progress: whether to show a bar on standard error, if that is a terminal.

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
            raise InputError(f"{store.name}: is not complete; wait for its run, or repeat that `ctx-embed encode`")
    if model is None:
        model = read_settings(Path(path)).model if mode in ("append", "upsert") else collections[0].model
    embedder = IndexModel.of(model)
    collections[0].require(stores[0].name, Collection.of(embedder))
    return build_index(
        [store.name for store in stores],
        path,
        mode=mode,
        resume=resume,
        model=embedder.reference if isinstance(model, str | Path | None) else model,
        factory=factory,
        dtype=dtype,
        embedded=_Vectors(stores),
        progress=progress,
    )
