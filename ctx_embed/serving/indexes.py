"""The search indexes of a server: shared by its requests, and opened anew when another index takes a folder."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from ctx_embed.index import SearchIndex
from ctx_embed.index.searching.hits import Hits
from ctx_embed.index.storage.manifest import read_manifest
from ctx_embed.serving.batching import Batcher
from ctx_embed.serving.errors import ApiError
from ctx_embed.serving.observing import BATCHES

Result = TypeVar("Result")

# Queries of one search, at most.
BATCH_QUERIES = 256
# Seconds after which an index that another one replaced is closed.
CLOSED_AFTER = 60.0

# The options of a search as a key, so that equal ones share a batch.
Options = tuple[tuple[str, Hashable], ...]


class SharedModels:
    """The models by fingerprint, so that indexes of the same model load it once."""

    def __init__(self, *models: Any) -> None:
        self._by_fingerprint = {model.fingerprint: model for model in models if hasattr(model, "fingerprint")}

    def open(self, path: Path) -> SearchIndex:
        """Return an opened index whose model is loaded.

        Raises:
            InputError: the folder is not an index, it is damaged, or its model cannot be loaded.
        """
        index = SearchIndex.open(path, self._by_fingerprint.get(read_manifest(path).model_fingerprint))
        try:
            embedder = index.embedder
        except BaseException:
            index.close()
            raise
        self._by_fingerprint.setdefault(embedder.fingerprint, embedder.model)
        return index


class OpenIndex:
    """An index in a folder, opened again when another index has taken the folder.

    Args:
        path: the folder.
        models: loads the model of the index.
    """

    def __init__(self, path: Path, models: SharedModels) -> None:
        self._path = path
        self._models = models
        self._lock = threading.Lock()
        self._index = models.open(path)
        self._place = self._found()

    def _found(self) -> tuple[int, int]:
        """Return what tells the folder from another one of the same name."""
        try:
            found = os.stat(self._path)
        except OSError as error:
            raise ApiError(404, f"{self._path.name}: its folder is gone ({error.strerror})") from None
        return found.st_dev, found.st_ino

    def newest(self) -> SearchIndex:
        """Return the index that is in the folder now."""
        with self._lock:
            if (place := self._found()) != self._place:
                opened, replaced = self._models.open(self._path), self._index
                self._index, self._place = opened, place
                # Other threads may have just got it.
                closing = threading.Timer(CLOSED_AFTER, replaced.close)
                closing.daemon = True
                closing.start()
            return self._index

    def close(self) -> None:
        """Close the index."""
        self._index.close()


class ServedIndex:
    """An index under its name. Searches come in batches; changes and analyses never keep them waiting.

    Args:
        path: the folder.
        models: loads the model of the index.
    """

    def __init__(self, path: Path, models: SharedModels) -> None:
        self.path = path
        self.name = path.name
        self._models = models
        # A SearchIndex does one thing at a time, so changes have an instance of their own.
        self._readable = OpenIndex(path, models)
        self._writable: OpenIndex | None = None
        self._searches: Batcher[Options, str, Hits] = Batcher(self._search, BATCH_QUERIES)
        # Reranking takes long: other searches do not wait for it.
        self._reranked: Batcher[Options, str, Hits] = Batcher(self._search, 1)
        self._writing = ThreadPoolExecutor(1, "ctx-embed-write")
        self._analysing = ThreadPoolExecutor(1, "ctx-embed-analyse")

    def _search(self, options: Options, queries: list[str]) -> list[Hits]:
        BATCHES.labels("search").observe(len(queries))
        chosen: dict[str, Any] = dict(options)
        found: list[Hits] = self._readable.newest().search(queries, **chosen)
        return found

    async def searches(self, queries: list[str], options: dict[str, Any]) -> list[Hits]:
        """Return the hits of each query; ``options`` are keyword arguments of :meth:`SearchIndex.search`."""
        key = tuple(sorted(options.items()))
        lane = self._reranked if options.get("rerank") is not None else self._searches
        return await asyncio.gather(*(lane(key, query) for query in queries))

    async def read(self, work: Callable[[SearchIndex], Result]) -> Result:
        """Return the result of short work on the index, in a thread."""
        return await asyncio.to_thread(lambda: work(self._readable.newest()))

    async def change(self, work: Callable[[SearchIndex], Result]) -> Result:
        """Return the result of a change, after those that came before it."""

        def changed() -> Result:
            if self._writable is None:
                self._writable = OpenIndex(self.path, self._models)
            return work(self._writable.newest())

        return await asyncio.get_running_loop().run_in_executor(self._writing, changed)

    async def analyse(self, work: Callable[[SearchIndex], Result]) -> Result:
        """Return the result of long work that reads all vectors, after the analyses that came before it."""

        def analysed() -> Result:
            with self._models.open(self.path) as index:
                return work(index)

        return await asyncio.get_running_loop().run_in_executor(self._analysing, analysed)

    def close(self) -> None:
        """Finish the changes at work and close the index."""
        self._searches.close()
        self._reranked.close()
        self._writing.shutdown()
        self._analysing.shutdown(cancel_futures=True)
        self._readable.close()
        if self._writable is not None:
            self._writable.close()
