"""The models of a server. Requests of several connections are computed in one call."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctx_embed.classify.predictor import Predictor
from ctx_embed.index.searching.reranking import reranker_of
from ctx_embed.loading import load_embedder
from ctx_embed.numpy_model import Embedder
from ctx_embed.numpy_model.saved import DEFAULT_NAME
from ctx_embed.serving.observing import BATCHES, TEXTS, TOKENS

# Maximum number of requests in a batch, and of characters in a short request. Longer requests run one by one in another
# thread, so that short ones do not wait for them.
BATCH_TEXTS = 4096
SHORT_CHARACTERS = 65_536

Floats = NDArray[np.float32]


class Batcher:
    """Gathers items of an event loop and computes them in a worker thread, a batch at a time.

    While a batch is computed the next one gathers: batches grow with the load, and an idle server answers at once.
    ``work`` takes a key and the items submitted with it, and returns a result for each; ``most`` takes a key and
    returns the largest number of items in a batch.
    """

    def __init__(self, work: Callable[[Any, list[Any]], Sequence[Any]], most: Callable[[Any], int]) -> None:
        self._work = work
        self._most = most
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
            batch = [(item, future) for item, future in waiting[:most] if not future.done()]
            if batch:
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

        # A task that awaits the thread would need one more turn of the loop, for which it may wait for the interpreter.
        loop.call_soon_threadsafe(finish)

    def close(self) -> None:
        """Wait for the current batch and end the thread."""
        self._thread.shutdown()


def names_of(model: str) -> tuple[str, ...]:
    """Return the names under which requests ask for a model: two for the shipped one, else the name of its folder."""
    return ("default", DEFAULT_NAME) if model == "default" else (Path(model).absolute().name,)


class EmbeddingModel:
    """A model, from a folder or ``default``, that embeds the texts of all requests in batches."""

    def __init__(self, name: str, aliases: Sequence[str] = ()) -> None:
        self.model: Any = load_embedder(name)
        self.names = tuple(dict.fromkeys((*names_of(name), "default", *aliases)))
        self._short = Batcher(self._embed, lambda _: BATCH_TEXTS)
        self._long = Batcher(self._embed, lambda _: 1)
        self.dimension: int = self._encoded(["a"])[0].shape[1]

    def _encoded(self, texts: list[str]) -> tuple[Floats, NDArray[np.int64]]:
        """Return the vector of each text, and its number of tokens."""
        if isinstance(self.model, Embedder):
            ids, lengths = self.model.tokens(texts)
            vectors = self.model.finished(self.model.contextualizer.embed(ids, lengths), lengths)
            # orjson requires rows that are contiguous in memory.
            return np.ascontiguousarray(vectors, np.float32), lengths
        encodings = self.model.tokenizer(texts, add_special_tokens=False)["input_ids"]
        return self.model.encode(texts, show_progress_bar=False), np.array([len(ids) for ids in encodings], np.int64)

    def _embed(self, _: None, requests: list[Sequence[str]]) -> list[tuple[Floats, int]]:
        """Return the vectors and the number of tokens of each request's texts."""
        texts = [text for request in requests for text in request]
        vectors, tokens = self._encoded(texts)
        BATCHES.labels("embed").observe(len(requests))
        TEXTS.inc(len(texts))
        TOKENS.inc(int(tokens.sum()))
        ends = np.cumsum([len(request) for request in requests])[:-1]
        counts = [int(part.sum()) for part in np.split(tokens, ends)]
        return list(zip(np.split(vectors, ends), counts, strict=True))

    async def __call__(self, texts: Sequence[str]) -> tuple[Floats, int]:
        """Return the vectors of texts, (texts, dimension), and how many tokens they have together."""
        short = sum(map(len, texts)) <= SHORT_CHARACTERS
        found: tuple[Floats, int] = await (self._short if short else self._long)(None, texts)
        return found

    def close(self) -> None:
        """End the threads."""
        self._short.close()
        self._long.close()


class ServedClassifier:
    """A classifier, from a folder. Called with texts, it returns the probability of each label, (texts, labels)."""

    def __init__(self, folder: str) -> None:
        predictor = Predictor.load(folder)
        self.labels = predictor.head.labels

        def probabilities(_: None, requests: list[Sequence[str]]) -> list[Floats]:
            texts = [text for request in requests for text in request]
            BATCHES.labels("classify").observe(len(requests))
            TEXTS.inc(len(texts))
            found = predictor.head.probabilities(predictor.logits(texts))
            return np.split(found, np.cumsum([len(request) for request in requests])[:-1])

        self._batches = Batcher(probabilities, lambda _: BATCH_TEXTS)
        self.close = self._batches.close

    async def __call__(self, texts: Sequence[str]) -> Floats:
        """Return the probability of each label, (texts, labels)."""
        found: Floats = await self._batches(None, texts)
        return found


class ServedReranker:
    """A SentenceTransformer or a CrossEncoder that scores passages for searches and `/v1/rerank`, a call at a time."""

    def __init__(self, name: str) -> None:
        self._reranker = reranker_of(name)
        self.cosines = self._reranker.cosines
        # Two threads must not use a padding tokenizer at the same time.
        self._lock = threading.Lock()
        self._thread = ThreadPoolExecutor(1, "ctx-embed-rerank")

    def scores(self, queries: Sequence[Sequence[str]], passages: Sequence[Sequence[str]]) -> list[NDArray[Any]]:
        """Return the scores of passages, see :class:`ctx_embed.index.searching.reranking.Reranker`."""
        with self._lock:
            return self._reranker.scores(queries, passages)

    async def __call__(self, query: str, texts: Sequence[str]) -> list[float]:
        """Return the score of each text for a query."""
        loop = asyncio.get_running_loop()
        ((scores,),) = await loop.run_in_executor(self._thread, self.scores, [[query]], [texts])
        TEXTS.inc(len(texts))
        return list(map(float, scores))

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(cancel_futures=True)
