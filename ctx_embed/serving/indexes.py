"""The search indexes of a server: shared by its requests, and reopened when another index replaces one."""

import asyncio
import contextvars
import os
import re
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import anyio
from anyio import to_process

from ctx_embed.deadlines import require_time, within
from ctx_embed.errors import OtherModelError, quoted
from ctx_embed.files import open_regular
from ctx_embed.index import SearchIndex
from ctx_embed.index.database import Database, patient
from ctx_embed.index.folder import read_settings
from ctx_embed.index.hits import Hits, counted, snippets
from ctx_embed.index.records import folders, named_location, recorded_file
from ctx_embed.index.words import respelled
from ctx_embed.model import Model
from ctx_embed.serving.observing import BATCHES, LOG
from ctx_embed.serving.settings import Settings
from ctx_embed.serving.wire import ApiError, json_list

Result = TypeVar("Result")

# Maximum number of queries in a batch, of all their hits together, and of characters of a filter; others run alone.
BATCH_QUERIES, BATCH_HITS, SHORT_FILTER = 256, 1000, 100
# Seconds until an index is closed after another one has replaced it in its folder.
CLOSED_AFTER = 60.0
# Seconds that a change waits for another process that writes; the client may then try again.
WRITING_SECONDS = 2.0
# Maximum number of analyses of an index at a time, in threads and in processes.
ANALYSES = 4
# Maximum number of stored results of analyses.
KEPT = 64
# Check at most this many lines with # for a heading: source code may have very many.
MOST_HEADINGS = 20
HEADING = re.compile(r"\s*#{1,6}[ \t]+(\S[^\n]{0,200}?)[ \t#]*$", re.MULTILINE)

# The options of a search, as a hashable key: queries with equal options share a batch.
Options = tuple[tuple[str, Hashable], ...]
Found = list[tuple[bytes, Hits]]


class Batcher:
    """Gathers items of an event loop and computes them in a worker thread, a batch at a time.

    While a batch is computed the next one gathers: batches grow with the load, and an idle server answers at once.
    ``work`` takes a key and the items submitted with it, and returns a result for each; ``most`` takes a key and
    returns the largest number of items in a batch.
    """

    def __init__(self, work: Callable[[Any, list[Any]], Sequence[Any]], most: Callable[[Any], int]) -> None:
        self._work, self._most = work, most
        self._waiting: dict[Hashable, list[tuple[Any, asyncio.Future[Any]]]] = {}
        self._busy = False
        self._thread = ThreadPoolExecutor(1, "ctx-embed-batch")

    async def __call__(self, key: Hashable, item: Any) -> Any:
        """Return the result for an item, or raise the error of its batch; items with the same key share batches."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self._waiting.setdefault(key, []).append((item, future))
        if not self._busy:
            self._busy = True
            # Start later, so that other items of this turn of the event loop join the batch.
            loop.call_soon(self._next, loop)
        return await future

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start a batch of the key that has waited longest."""
        while self._waiting:
            key = next(iter(self._waiting))
            waiting, most = self._waiting.pop(key), self._most(key)
            if waiting[most:]:
                self._waiting[key] = waiting[most:]
            # Leave out clients that gave up: their futures are cancelled.
            if batch := [(item, future) for item, future in waiting[:most] if not future.done()]:
                self._thread.submit(self._run, loop, key, batch)
                return
        self._busy = False

    def _run(
        self, loop: asyncio.AbstractEventLoop, key: Hashable, batch: list[tuple[Any, asyncio.Future[Any]]]
    ) -> None:
        results: Sequence[Any] = [None] * len(batch)
        error: Exception | None = None
        try:
            results = self._work(key, [item for item, _ in batch])
        except Exception as raised:
            error = raised

        def finish() -> None:
            # Start the next batch first, so that it is computed while the answers of this one are written.
            self._next(loop)
            for (_, future), result in zip(batch, results, strict=True):
                if not future.done():
                    if error is None:
                        future.set_result(result)
                    else:
                        future.set_exception(error)

        # Awaiting the thread in a task would take another turn of the loop, which may have to wait for the interpreter.
        loop.call_soon_threadsafe(finish)

    def close(self) -> None:
        """Wait for the current batch and end the thread."""
        self._thread.shutdown()


def opened(path: Path, models: dict[str, Model]) -> SearchIndex:
    """Return an index with its model, from ``models`` if loaded before; without a model it searches by words."""
    index = SearchIndex.open(path, models.get(read_settings(path).model_fingerprint))
    # No warnings in the log: answers have warnings of their own.
    index.warns_of_fields = False
    try:
        models.setdefault(index.embedder.fingerprint, index.embedder)
    except OtherModelError as error:
        LOG.warning(str(error))
    return index


class OpenIndex:
    """An index in a folder, opened at first use, and again once the folder holds another index or its model changed."""

    def __init__(self, path: Path, models: dict[str, Model]) -> None:
        self._path, self._models = path, models
        self._lock = threading.Lock()
        self._index: SearchIndex | None = None
        # Device and inode of the folder, which differ once another folder has its name.
        self.place: tuple[int, int] | None = None

    def newest(self) -> SearchIndex:
        """Return the index that is in the folder now."""
        with self._lock:
            index = opened(self._path, self._models) if self._index is None else self._index
            try:
                status = os.stat(self._path)
            except OSError as error:
                raise ApiError(404, f"{self._path.name}: its folder is gone ({error.strerror})") from None
            place = status.st_dev, status.st_ino
            if self.place not in (None, place) or index.embedded_again:
                # Close the replaced index later: other threads may still use it.
                closing = threading.Timer(CLOSED_AFTER, index.close)
                index = opened(self._path, self._models)
                closing.daemon = True
                closing.start()
            self._index, self.place = index, place
            return index

    def close(self) -> None:
        """Close the index."""
        if self._index is not None:
            self._index.close()


class ServedIndex:
    """An index under its name. Threads and processes do all of its work, including the JSON of the results."""

    def __init__(self, path: Path, models: dict[str, Model], settings: Settings) -> None:
        self.path, self.name, self._models = path, path.name, models
        self._most, self._is_local = settings.answer_bytes, settings.is_local
        self._search_seconds, self._seconds = settings.search_timeout, settings.timeout
        # A SearchIndex does one thing at a time: searches, slow ones (with a reranker) and changes have one each.
        self._readable, self._slow, self._writable = (OpenIndex(path, models) for _ in range(3))
        self._readable.newest()
        self._searches = Batcher(self._batch, self._batch_queries)
        self._long = ThreadPoolExecutor(1, "ctx-embed-search")
        self._reading = ThreadPoolExecutor(2, "ctx-embed-read")
        self._writing = ThreadPoolExecutor(1, "ctx-embed-write")
        self._analysing = ThreadPoolExecutor(ANALYSES, "ctx-embed-analyse")
        self._processes = anyio.CapacityLimiter(ANALYSES)
        self._results: dict[Hashable, bytes] = {}
        self._computing = WeakValueDictionary[Hashable, asyncio.Lock]()

    async def search(self, query: Any, alone: bool, **options: Any) -> Found:
        """Return the hits of each query, as JSON too, or one list for a fused query; ``alone`` in its batch."""
        if alone:
            return await self._in(self._long, partial(self._found, self._slow, query, **options), self._search_seconds)
        texts, key = [query] if isinstance(query, str) else query, tuple(options.items())
        return list(await asyncio.gather(*(self._searches(key, text) for text in texts)))

    def _batch_queries(self, options: Options) -> int:
        chosen: dict[str, Any] = dict(options)
        hits: int = chosen.get("k", 10) + chosen.get("offset", 0)
        return max(1, min(BATCH_QUERIES, BATCH_HITS // max(hits, 1)))

    def _batch(self, options: Options, queries: list[str]) -> Found:
        BATCHES.labels("search").observe(len(queries))
        return self._found(self._readable, queries, **dict(options))

    def _found(self, given: OpenIndex, query: Any, marks: Any, document: Any, **options: Any) -> Found:
        with within(self._search_seconds):
            results = given.newest().search(query, document=True, **options)
            lists = [results] if isinstance(results, Hits) else results
            return [(self.json_list(hit_values(hits, marks, document)), hits) for hits in lists]

    def json_list(self, values: Iterable[Any], part: bool = False) -> bytes:
        """Return a JSON array that is no larger than an answer may be, see :func:`ctx_embed.serving.wire.json_list`."""
        return json_list(values, self._most, part)

    async def read(self, work: Callable[[SearchIndex], Result]) -> Result:
        """Return the result of short work on the index."""
        return await self._in(self._reading, lambda: work(self._readable.newest()), self._search_seconds)

    async def change(self, work: Callable[[SearchIndex], Result]) -> Result:
        """Return the result of a change; earlier changes finish first."""

        def changed() -> Result:
            with patient(WRITING_SECONDS):
                return work(self._writable.newest())

        return await self._in(self._writing, changed)

    async def analyse(self, work: Callable[[SearchIndex], Result]) -> Result:
        """Return the result of work that SQLite does on all documents, beside up to three others."""

        def analysed() -> Result:
            with opened(self.path, self._models) as index:
                return work(index)

        return await self._in(self._analysing, analysed, self._seconds)

    async def _in(
        self, threads: ThreadPoolExecutor, work: Callable[[], Result], seconds: float | None = None
    ) -> Result:
        # The time runs while the work waits for its thread, too.
        with within(seconds):
            run = contextvars.copy_context().run
        return await asyncio.get_running_loop().run_in_executor(threads, run, work)

    async def explored(self, work: Callable[..., bytes], *options: Any) -> bytes:
        """Return the JSON of :func:`fields_json` or :func:`topics_json`, computed once for each state of the index.

        Another process does it, and ends when the request does.
        """
        key = work, options, await self.read(lambda index: (self._readable.place, index.describe()["generation"]))
        lock = self._computing.setdefault(key, asyncio.Lock())  # Held by those who wait alone.
        async with lock:
            if key not in self._results:
                # Start the process in a task of its own: cancelling a task during the start would leave the process.
                await asyncio.shield(asyncio.ensure_future(to_process.run_sync(int, limiter=self._processes)))
                arguments = self.path, self._most, *options
                self._results[key] = await to_process.run_sync(
                    work, *arguments, cancellable=True, limiter=self._processes
                )
                if len(self._results) > KEPT:
                    del self._results[next(iter(self._results))]
            return self._results[key]

    def facts(self) -> dict[str, Any]:
        """Return the properties of the index, with its name instead of its path, without waiting for other work."""
        with SearchIndex.open(self.path) as index:
            facts = index.describe()
        del facts["path"]
        with closing(Database(self.path)) as store:
            return {"name": self.name, **facts, "files": self._is_local and bool(folders(store))}

    async def file(self, source: str) -> tuple[str, BufferedReader]:
        """Return the path of a file that the index has read from a folder, open; an ApiError says why there is none."""

        def opened(_: SearchIndex) -> tuple[str, BufferedReader]:
            with closing(Database(self.path)) as store:
                path = recorded_file(store, source)
            try:
                if path is None:
                    raise FileNotFoundError(0, "the index has read no such file from a folder")
                return path, open_regular(path)
            except OSError as error:
                raise ApiError(404, f"{quoted(source)}: {error.strerror}", "file_not_found") from None

        return await self.read(opened)

    async def probe(self) -> None:
        """Search for a new word, in the thread that serves other searches."""
        await self.search(f"ready {time.monotonic_ns()}", False, marks=None, document=False, k=1)

    def close(self) -> None:
        """Finish running changes and close the index."""
        self._searches.close()
        for threads in (self._long, self._reading, self._analysing):
            threads.shutdown(cancel_futures=True)
        self._writing.shutdown()
        for index in (self._readable, self._slow, self._writable):
            index.close()


def fields_json(path: Path, most_bytes: int, most: int) -> bytes:
    """Return the metadata fields of an index as JSON."""
    with SearchIndex.open(path) as index:
        fields = index.fields(most)
    return json_list(
        (
            {**vars(field), "values": [{"value": value, "documents": count} for value, count in field.values]}
            for field in fields
        ),
        most_bytes,
    )


def topics_json(path: Path, most_bytes: int, count: int | None, seed: int) -> bytes:
    """Return the topics of an index as JSON, without the ids of their documents: those may be millions."""
    with SearchIndex.open(path) as index:
        topics = index.topics(count, seed)
    names = ("size", "words", "examples", "label")
    return json_list(({name: getattr(topic, name) for name in names} for topic in topics), most_bytes)


def hit_values(hits: Hits, marks: tuple[str, str] | None, document: bool) -> Iterator[dict[str, Any]]:
    """Yield each hit of a query as JSON values; ``marks`` go around query words in a snippet (None: no snippet)."""
    query = respelled(hits.query, hits[0].corrected) if hits else hits.query
    marked = [None] * len(hits) if marks is None else snippets(query, [hit.text for hit in hits], *marks)
    fences = defaultdict[Any, list[tuple[int, int]]](list)
    for hit, snippet in zip(hits, marked, strict=True):
        require_time()
        is_whole = (hit.document or "").strip() == hit.text.strip()
        fields = {**vars(hit), "stop": hit.stop, "whole": is_whole, "location": None}
        if not document:
            del fields["document"]
        place = named_location(hit.metadata, hit.line, hit.page)
        if place is not None:
            markdown = place.name.lower().endswith((".md", ".markdown"))
            heading = hit.document and _heading(hit.document, hit.start, fences[hit.id]) if markdown else None
            fields["location"] = {"source": place.name, "line": place.line, "page": place.page, "heading": heading}
        if snippet is not None:
            fields["snippet"] = snippet
        yield fields


def _heading(document: str, start: int, known: list[tuple[int, int]]) -> str | None:
    """Return the heading at a place in Markdown or before, unless in code; ``known``: fences, see :func:`counted`."""
    if match := HEADING.match(document, start):
        return match[1]
    place, fences = start, counted(0, document, "```", start, known) or 0
    for _ in range(MOST_HEADINGS):
        after, place = place, document.rfind("\n#", 0, place)
        if place < 0:
            break
        fences -= document.count("```", place, after)
        if (match := HEADING.match(document, place + 1)) and fences % 2 == 0:
            return match[1]
    return match[1] if (match := HEADING.match(document)) else None
