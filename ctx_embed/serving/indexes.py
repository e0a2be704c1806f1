"""The search indexes of a server: shared by its requests, and reopened when another index replaces one."""

from __future__ import annotations

import asyncio
import os
import re
import threading
import time
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from ctx_embed.errors import OtherModelError
from ctx_embed.index import SearchIndex
from ctx_embed.index.following.location import named_location
from ctx_embed.index.searching.by_words import respelled
from ctx_embed.index.searching.hits import Hit, Hits, snippets
from ctx_embed.index.storage.database import within
from ctx_embed.index.storage.folder import read_settings
from ctx_embed.numpy_model import Embedder
from ctx_embed.serving.analysing import Analyses, topics
from ctx_embed.serving.batching import Batcher
from ctx_embed.serving.errors import ApiError
from ctx_embed.serving.json import json_list
from ctx_embed.serving.observing import BATCHES, LOG
from ctx_embed.serving.settings import Settings

Result = TypeVar("Result")

# Maximum number of queries in a batch, and maximum of their hits in all; a search for more hits runs alone.
BATCH_QUERIES, BATCH_HITS = 256, 1000
# Seconds until an index is closed after another one has replaced it in its folder.
CLOSED_AFTER = 60.0
# Check at most this many lines with # for a heading: source code may have very many.
MOST_HEADINGS = 20
HEADING = re.compile(r"\s*#{1,6}[ \t]+(\S[^\n]{0,200}?)[ \t#]*$", re.MULTILINE)

# The options of a search, as a hashable key: queries with equal options share a batch.
Options = tuple[tuple[str, Hashable], ...]
# The marks before and after each of the query's words in a snippet; None makes no snippets.
Marks = tuple[str, str] | None


class Found(NamedTuple):
    """The hits of a query as JSON, and whether the model knows a token of its text."""

    hits: bytes
    known: bool = True


class SharedModels:
    """Loaded models by fingerprint: indexes of the same model share it."""

    def __init__(self, *models: Any) -> None:
        self._by_fingerprint = {model.fingerprint: model for model in models if hasattr(model, "fingerprint")}

    def open(self, path: Path) -> SearchIndex:
        """Return an opened index whose model is loaded; without its model, an index answers by words alone.

        Raises:
            InputError: the folder is not an index, or it is damaged.
        """
        index = SearchIndex.open(path, self._by_fingerprint.get(read_settings(path).model_fingerprint))
        # Answers have warnings of their own.
        index.warns_of_fields = False
        try:
            embedder = index.embedder
        except OtherModelError as error:
            LOG.warning(str(error))
            return index
        except BaseException:
            index.close()
            raise
        self._by_fingerprint.setdefault(embedder.fingerprint, embedder.model)
        return index


class OpenIndex:
    """An index in a folder, reopened when another index has replaced it there, or when it has got another model.

    Args:
        path: the folder.
        models: loads the model of the index.
    """

    def __init__(self, path: Path, models: SharedModels) -> None:
        self._path = path
        self._models = models
        self._lock = threading.Lock()
        self._index = models.open(path)
        self.place = self._found()

    def _found(self) -> tuple[int, int]:
        """Return device and inode of the folder, which change when another folder gets its name."""
        try:
            found = os.stat(self._path)
        except OSError as error:
            raise ApiError(404, f"{self._path.name}: its folder is gone ({error.strerror})") from None
        return found.st_dev, found.st_ino

    def newest(self) -> SearchIndex:
        """Return the index that is in the folder now."""
        with self._lock:
            if (place := self._found()) != self.place or self._index.embedded_again:
                opened, replaced = self._models.open(self._path), self._index
                self._index, self.place = opened, place
                # Close the replaced index later: other threads may still use it.
                closing = threading.Timer(CLOSED_AFTER, replaced.close)
                closing.daemon = True
                closing.start()
            return self._index

    @property
    def has_model(self) -> bool:
        """Whether the index has its model; without it, it answers by words alone."""
        try:
            return self._index.embedder is not None
        except OtherModelError:
            return False

    def close(self) -> None:
        """Close the index."""
        self._index.close()


class ServedIndex:
    """An index under its name. Searches come in batches; changes and analyses never keep them waiting.

    All work, and the JSON of its result, is done in threads and processes: the event loop stays free.

    Args:
        path: the folder.
        models: loads the model of the index.
        settings: the largest answer, and the time limits of searches and other work.
    """

    def __init__(self, path: Path, models: SharedModels, settings: Settings) -> None:
        self.path = path
        self.name = path.name
        self._models = models
        self._most = settings.answer_bytes
        self._search_seconds, self._seconds = settings.search_timeout, settings.timeout
        # A SearchIndex does one thing at a time, so searches and changes use separate instances.
        self._readable = OpenIndex(path, models)
        self._writable: OpenIndex | None = None
        self._searches: Batcher[Options, str, Found] = Batcher(self._search, _batch_queries)
        # Slow searches, such as those with a reranker, have a thread of their own.
        self._long = ThreadPoolExecutor(1, "ctx-embed-search")
        self._reading = ThreadPoolExecutor(2, "ctx-embed-read")
        self._writing = ThreadPoolExecutor(1, "ctx-embed-write")
        self._analysing = ThreadPoolExecutor(1, "ctx-embed-analyse")
        self._analyses = Analyses()

    def _search(self, options: Options, queries: list[str]) -> list[Found]:
        BATCHES.labels("search").observe(len(queries))
        chosen: dict[str, Any] = dict(options)
        marks, document = chosen.pop("marks"), chosen.pop("document")
        index = self._readable.newest()
        with within(self._search_seconds):
            found: list[Hits] = index.search(queries, document=True, **chosen)
            known = knows(index, queries, chosen)
            return [
                Found(hits_json(hits, marks, document, self._most), is_known)
                for hits, is_known in zip(found, known, strict=True)
            ]

    async def searches(self, queries: list[str], marks: Marks, document: bool, options: dict[str, Any]) -> list[Found]:
        """Return the hits of each query.

        Args:
            queries: texts.
            marks, document: see :func:`hits_json`.
            options: keyword arguments of :meth:`SearchIndex.search`.
        """
        key = tuple(sorted({**options, "marks": marks, "document": document}.items()))
        return await asyncio.gather(*(self._searches(key, query) for query in queries))

    async def search(self, query: Any, marks: Marks, document: bool, options: dict[str, Any]) -> Found:
        """Return the hits of a search that shares no batch; for several queries, a list of hits for each."""

        def searched() -> Found:
            index = self._readable.newest()
            found = index.search(query, document=True, **options)
            texts = [text for text in (query if isinstance(query, list) else [query]) if isinstance(text, str)]
            known = all(knows(index, texts, options))
            if isinstance(found, Hits):
                return Found(hits_json(found, marks, document, self._most), known)
            lists = (hits_json(hits, marks, document, self._most) for hits in found)
            return Found(self.json_list(lists), known)

        return await self._in(self._long, searched, self._search_seconds)

    async def read(self, work: Callable[[SearchIndex], Result]) -> Result:
        """Return the result of short work on the index."""
        return await self._in(self._reading, lambda: work(self._readable.newest()), self._search_seconds)

    def probe(self) -> None:
        """Search for a new word, as requests do."""
        index = self._readable.newest()
        with within(self._search_seconds):
            index.search(f"ready {time.monotonic_ns()}", 1, mode=None if self._readable.has_model else "words")

    async def change(self, work: Callable[[SearchIndex], Result]) -> Result:
        """Return the result of a change, after those that came before it."""

        def changed() -> Result:
            if self._writable is None:
                self._writable = OpenIndex(self.path, self._models)
            return work(self._writable.newest())

        return await self._in(self._writing, changed)

    async def analyse(self, work: Callable[[SearchIndex], Result]) -> Result:
        """Return the result of work that reads all documents, after the analyses that came before it."""

        def analysed() -> Result:
            with self._models.open(self.path) as index:
                return work(index)

        return await self._in(self._analysing, analysed, self._seconds)

    def json_list(self, values: Iterable[Any], part: bool = False) -> bytes:
        """Return a JSON array that is no larger than an answer may be, see :func:`ctx_embed.serving.json.json_list`."""
        return json_list(values, self._most, part)

    async def fields(self, most: int) -> bytes:
        """Return the metadata fields as JSON. They are read once for each state of the index."""

        def listed(index: SearchIndex) -> bytes:
            fields = (
                {**vars(field), "values": [{"value": value, "documents": count} for value, count in field.values]}
                for field in index.fields(most)
            )
            return self.json_list(fields)

        return await self._analyses.shared((await self._state(), most), lambda: self.analyse(listed))

    async def topics(self, count: int | None, seed: int) -> bytes:
        """Return the topics as JSON. They are computed once for each state of the index."""

        async def computed() -> bytes:
            return await self._analyses.in_process(topics, self.path, self._most, count, seed)

        return await self._analyses.shared((await self._state(), count, seed), computed)

    async def _state(self) -> Hashable:
        return await self.read(lambda index: (self._readable.place, index.describe()["generation"]))

    async def _in(
        self, threads: ThreadPoolExecutor, work: Callable[[], Result], seconds: float | None = None
    ) -> Result:
        def timed() -> Result:
            with within(seconds):
                return work()

        return await asyncio.get_running_loop().run_in_executor(threads, timed)

    async def describe(self) -> dict[str, Any]:
        """Return the properties of the index."""
        return await self._in(self._reading, self.facts)

    def facts(self) -> dict[str, Any]:
        """Return the properties of the index, with its name instead of its path. This waits for no other work."""
        with SearchIndex.open(self.path) as index:
            facts = index.describe()
        del facts["path"]
        return {"name": self.name, **facts}

    def close(self) -> None:
        """Finish running changes and close the index."""
        self._searches.close()
        for threads in (self._long, self._reading, self._analysing):
            threads.shutdown(cancel_futures=True)
        self._writing.shutdown()
        self._readable.close()
        if self._writable is not None:
            self._writable.close()


def _batch_queries(options: Options) -> int:
    """Return the maximum number of queries in a batch."""
    chosen: dict[str, Any] = dict(options)
    hits: int = chosen.get("k", 10) + chosen.get("offset", 0)
    return max(1, min(BATCH_QUERIES, BATCH_HITS // max(hits, 1)))


def knows(index: SearchIndex, queries: list[str], options: dict[str, Any]) -> list[bool]:
    """Return for each query whether the model knows any of its tokens; True where the search does not use the model."""
    if options.get("mode") == "words":
        return [True] * len(queries)
    try:
        model = index.embedder.model
    except OtherModelError:
        # The search itself says so.
        return [True] * len(queries)
    if not isinstance(model, Embedder):
        return [True] * len(queries)
    return [bool(length) for length in model.tokens(queries)[1]]


def hits_json(hits: Hits, marks: Marks, document: bool, most: int) -> bytes:
    """Return the hits of a query as JSON.

    Args:
        hits: the hits.
        marks: go before and after each of the query's words in a snippet; None makes no snippets.
        document: whether each hit has the whole text of its document.
        most: maximum size of the answer in bytes.

    Raises:
        ApiError: it would be larger (413).
    """
    query = respelled(hits.query, hits[0].corrected) if hits else hits.query
    marked = [None] * len(hits) if marks is None else snippets(query, [hit.text for hit in hits], *marks)
    return json_list(map(hit_json, hits, marked, repeat(document)), most)


def hit_json(hit: Hit, snippet: str | None, document: bool) -> dict[str, Any]:
    """Return a hit as JSON values: the passage, where it stands and its metadata; the document on request."""
    fields = {**vars(hit), "stop": hit.stop}
    del fields["document"]
    fields["whole"] = hit.document == hit.text
    fields["location"] = _location(hit)
    if document:
        fields["document"] = hit.document
    if snippet is not None:
        fields["snippet"] = snippet
    return fields


def _location(hit: Hit) -> dict[str, Any] | None:
    """Return the file of a hit, with the line or page of the passage and, in Markdown, the heading above it."""
    found = named_location(hit.metadata, hit.line, hit.page)
    if found is None:
        return None
    markdown = found.name.lower().endswith((".md", ".markdown"))
    heading = _heading(hit.document, hit.start) if markdown and hit.document is not None else None
    return {"source": found.name, "line": found.line, "page": found.page, "heading": heading}


def _heading(document: str, start: int) -> str | None:
    """Return the heading that begins at a place in Markdown, or the last one before it that is not in code."""
    if found := HEADING.match(document, start):
        return found[1]
    place = start
    for _ in range(MOST_HEADINGS):
        if (place := document.rfind("\n#", 0, place)) < 0:
            break
        if (found := HEADING.match(document, place + 1)) and document.count("```", 0, place) % 2 == 0:
            return found[1]
    found = HEADING.match(document)
    return found[1] if found else None
