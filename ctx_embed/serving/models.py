"""The models of a server: one that embeds, classifiers and rerankers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
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
from ctx_embed.serving.batching import Batcher
from ctx_embed.serving.observing import BATCHES, TEXTS, TOKENS

# Maximum number of requests in a batch, and of characters in a short request. Longer requests run one by one in another
# thread, so that short ones do not wait for them.
BATCH_TEXTS = 4096
SHORT_CHARACTERS = 65_536

Floats = NDArray[np.float32]


def names_of(model: str) -> tuple[str, ...]:
    """Return the names under which requests ask for a model: two for the shipped one, else the name of its folder."""
    return ("default", DEFAULT_NAME) if model == "default" else (Path(model).absolute().name,)


def is_classifier(model: str) -> bool:
    """Return whether a model has labels."""
    return (Path(model) / "classifier.json").is_file()


class EmbeddingModel:
    """A model that embeds the texts of all requests in batches.

    Args:
        name: a model folder, or ``default``.
        aliases: further names that requests may use.
    """

    def __init__(self, name: str, aliases: Sequence[str] = ()) -> None:
        self.model: Any = load_embedder(name)
        names = names_of(name) if name == "default" else (*names_of(name), "default")
        self.names = tuple(dict.fromkeys((*names, *aliases)))
        self._short: Batcher[None, Sequence[str], tuple[Floats, int]] = Batcher(self._embed, lambda _: BATCH_TEXTS)
        self._long: Batcher[None, Sequence[str], tuple[Floats, int]] = Batcher(self._embed, lambda _: 1)
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
        results, start = [], 0
        for request in requests:
            part = slice(start, start + len(request))
            results.append((vectors[part], int(tokens[part].sum())))
            start += len(request)
        return results

    async def __call__(self, texts: Sequence[str]) -> tuple[Floats, int]:
        """Return the vectors of texts, (texts, dimension), and how many tokens they have together."""
        short = sum(map(len, texts)) <= SHORT_CHARACTERS
        return await (self._short if short else self._long)(None, texts)

    def close(self) -> None:
        """End the threads."""
        self._short.close()
        self._long.close()


class ServedClassifier:
    """A classifier that predicts the texts of all requests in batches.

    Args:
        folder: a model that `ctx-embed train` or :meth:`TextClassifier.save` wrote.
    """

    def __init__(self, folder: str) -> None:
        self.names = names_of(folder)
        self.head = (predictor := Predictor.load(folder)).head
        self._predictor = predictor
        self._batches: Batcher[None, Sequence[str], Floats] = Batcher(self._probabilities, lambda _: BATCH_TEXTS)

    def _probabilities(self, _: None, requests: list[Sequence[str]]) -> list[Floats]:
        """Return the probabilities of the labels of each request's texts."""
        texts = [text for request in requests for text in request]
        BATCHES.labels("classify").observe(len(requests))
        TEXTS.inc(len(texts))
        probabilities = self.head.probabilities(self._predictor.logits(texts))
        ends = np.cumsum([len(request) for request in requests])[:-1]
        return np.split(probabilities, ends)

    async def __call__(self, texts: Sequence[str]) -> Floats:
        """Return the probability of each label, (texts, labels)."""
        return await self._batches(None, texts)

    def close(self) -> None:
        """End the thread."""
        self._batches.close()


class ServedReranker:
    """A model that scores passages for queries, for searches and for `/v1/rerank`. It runs one call at a time.

    Args:
        name: name or folder of a SentenceTransformer or a CrossEncoder.
    """

    def __init__(self, name: str) -> None:
        self.names = names_of(name)
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
