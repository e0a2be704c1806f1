"""Our own search index as a store: the folder that ``ctx-embed index build`` makes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ctx_embed.errors import InputError
from ctx_embed.index.ann.factories import AUTO, EXACT_ROWS
from ctx_embed.index.search_index import SearchIndex
from ctx_embed.index.searching.hits import Hit
from ctx_embed.index.storage.filters import Filter
from ctx_embed.index.storage.manifest import MANIFEST, read_manifest
from ctx_embed.index.writing.transaction import Embedded
from ctx_embed.stores.store import Batch, Collection, Floats, Store

if TYPE_CHECKING:
    from ctx_embed.index.model import Model


class Index(Store):
    """A :class:`ctx_embed.SearchIndex` as a store. An index has only one writer, so encoding runs write Parquet first.

    Args:
        path: the folder of the index.
        model: see :class:`Store`.
    """

    parallel = False
    resumable = False

    def __init__(self, path: str | Path, model: str | Path | Model | None = None) -> None:
        super().__init__(str(path), model)
        self.path = Path(path)

    @cached_property
    def _index(self) -> SearchIndex:
        return SearchIndex.open(self.path, self.model)

    @property
    def collection(self) -> Collection | None:
        """The record of the vectors in the manifest of the index."""
        if not (self.path / MANIFEST).is_file():
            return None
        manifest = read_manifest(self.path)
        return Collection(manifest.model_fingerprint, manifest.dimension, manifest.model)

    def _create(self, collection: Collection) -> None:
        model = collection.model if self.model is None else self.model
        with SearchIndex.create(self.path, model) as index:
            made = Collection.of(index.embedder)
        made.require(self.name, collection)

    def ensure(self, collection: Collection) -> Collection:
        """Make the index, or check that an existing one has the same model."""
        there = self.collection
        if there is None:
            self._create(collection)
            return collection
        there.require(self.name, collection)
        return there

    def upsert(self, rows: Batch, part: str | None = None, note: Mapping[str, Any] | None = None) -> None:
        """Store the rows as one commit."""
        latest = rows.latest()
        columns = (latest.texts, latest.ids, latest.metadata, latest.vectors)
        documents = (
            Embedded(text, identifier, dict(metadata), vector)
            for text, identifier, metadata, vector in zip(*columns, strict=True)
        )
        self._index.add_documents(documents, replacing=True)

    def count(self) -> int:
        """Return the number of documents."""
        return self._index.count()

    def notes(self, prefix: str) -> dict[str, dict[str, Any]]:
        """Return nothing: an index keeps its own records."""
        return {}

    def write_note(self, name: str, note: Mapping[str, Any]) -> None:
        """Store nothing: an index keeps its own records."""

    def _search(self, texts: list[str], k: int, where: str | None, tree: Filter | None, exact: bool) -> list[list[Hit]]:
        described = self._index.describe()
        searches_exactly = described["factory"] == "Flat" or (
            described["factory"] == AUTO and described["vectors"] <= EXACT_ROWS
        )
        if exact and not searches_exactly:
            raise InputError(
                f"{self.name}: searches by {described['factory']}; build it with --factory Flat for exact search"
            )
        return [list(hits) for hits in self._index.search(texts, k, mode="dense", where=where)]

    def _nearest(self, queries: Floats, k: int, tree: Filter | None, exact: bool) -> list[list[Hit]]:
        raise NotImplementedError("an index embeds the queries itself")

    def close(self) -> None:
        """Close the index."""
        if "_index" in self.__dict__:
            self.__dict__.pop("_index").close()
