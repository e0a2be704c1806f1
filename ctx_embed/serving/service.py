"""The models, indexes and keys that a worker process has loaded. Requests of several connections share a batch."""

import asyncio
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
from fastapi import Request
from numpy.typing import NDArray

from ctx_embed.classify.predictor import Predictor
from ctx_embed.deadlines import within
from ctx_embed.errors import InputError, quoted, unknown_name
from ctx_embed.index.search import Reranker
from ctx_embed.model import Model
from ctx_embed.numpy_model.saved import DEFAULT_NAME
from ctx_embed.serving.indexes import Batcher, ServedIndex
from ctx_embed.serving.observing import BATCHES, TEXTS, TOKENS
from ctx_embed.serving.settings import Settings, read_keys
from ctx_embed.serving.wire import ApiError

# Maximum number of requests in a batch, and of characters in a short request. Longer requests run one by one in another
# thread, so that short ones do not wait for them.
BATCH_TEXTS = 4096
SHORT_CHARACTERS = 16_384

Served = TypeVar("Served")


def names_of(model: str) -> tuple[str, ...]:
    """Return the names of a model in requests: two for the shipped one, else the name of its folder."""
    return ("default", DEFAULT_NAME) if model == "default" else (Path(model).absolute().name,)


class TextModel:
    """A model that reads the texts of all requests in batches, see :class:`Batcher`; long requests have a thread apart.

    ``read`` returns several arrays, each with a row for each text; so does a call, for the texts of a request.
    ``work`` names the batches in metrics, and ``seconds`` bounds the time of one.
    """

    def __init__(self, work: str, read: Callable[[list[str]], tuple[NDArray[Any], ...]], seconds: float) -> None:
        self._work, self._read, self._seconds = work, read, seconds
        self._short = Batcher(self._results, lambda _: BATCH_TEXTS)
        self._long = Batcher(self._results, lambda _: 1)

    def _results(self, _: None, requests: list[Sequence[str]]) -> list[tuple[NDArray[Any], ...]]:
        texts = [text for request in requests for text in request]
        with within(self._seconds):
            arrays = self._read(texts)
        BATCHES.labels(self._work).observe(len(requests))
        TEXTS.inc(len(texts))
        ends = np.cumsum([len(request) for request in requests])[:-1]
        return list(zip(*(np.split(array, ends) for array in arrays), strict=True))

    async def __call__(self, texts: Sequence[str]) -> tuple[NDArray[Any], ...]:
        """Return what the model reads in the texts of a request."""
        short = sum(map(len, texts)) <= SHORT_CHARACTERS
        arrays: tuple[NDArray[Any], ...] = await (self._short if short else self._long)(None, texts)
        return arrays

    def close(self) -> None:
        """End the threads."""
        self._short.close()
        self._long.close()


class EmbeddingModel(TextModel):
    """A model, from a folder or ``default``: a call returns vectors (texts, dimension), and tokens (texts,)."""

    def __init__(self, name: str, aliases: Sequence[str], seconds: float) -> None:
        self.model = Model.of(name)
        self.names = tuple(dict.fromkeys((*names_of(name), "default", *aliases)))
        self.dimension = self.model.dimension

        def read(texts: list[str]) -> tuple[NDArray[Any], ...]:
            vectors, tokens = self.model.encode_and_count(texts)
            TOKENS.inc(int(tokens.sum()))
            return vectors, tokens

        super().__init__("embed", read, seconds)

    async def probe(self) -> None:
        """Embed a new word, in the thread that serves other short requests."""
        await self([f"ready {time.monotonic_ns()}"])


class ServedClassifier(TextModel):
    """A classifier, from a folder: a call returns the probability of each label, (texts, labels)."""

    def __init__(self, folder: str, seconds: float) -> None:
        predictor = Predictor.load(folder)
        head = predictor.head
        super().__init__("classify", lambda texts: (head.probabilities(predictor.logits(texts)),), seconds)
        self.labels = head.labels


class ServedReranker(Reranker):
    """A SentenceTransformer or a CrossEncoder that scores passages for searches and `/v1/rerank`, a call at a time."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        # Two threads must not use a padding tokenizer at the same time.
        self._lock = threading.Lock()
        self._calls = Batcher(lambda _, asked: [self.scores(*each) for each in asked], lambda _: 1)
        self.close = self._calls.close

    def scores(self, queries: Sequence[str], passages: Sequence[str]) -> NDArray[Any]:
        """Return the scores (queries, passages)."""
        with self._lock:
            return super().scores(queries, passages)

    async def __call__(self, query: str, texts: Sequence[str]) -> list[float]:
        """Return the score of each text for a query."""
        (scores,) = await self._calls(None, ([query], texts))
        TEXTS.inc(len(texts))
        return list(map(float, scores))


class Service:
    """The models, indexes and keys that settings name, loaded."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        # Probes and metrics have a thread of their own, so that they wait for no other work.
        self.probing = ThreadPoolExecutor(1, "ctx-embed-probe")
        self.keys = read_keys(settings.api_key_file)
        self.started = int(time.time())
        folders = settings.names()
        first, *others = settings.model
        self.model = EmbeddingModel(first, settings.alias, settings.timeout)
        self.embedding = dict.fromkeys(self.model.names, self.model)
        if (Path(first) / "classifier.json").is_file():
            others = [first, *others]
        self.classifiers = _by_name(partial(ServedClassifier, seconds=settings.timeout), others)
        self.rerankers = _by_name(ServedReranker, settings.reranker)
        # The models of indexes, by fingerprint: indexes of the same model share it.
        shared = {self.model.model.fingerprint: self.model.model}
        self.indexes = {name: ServedIndex(path, shared, settings) for name, path in folders.items()}

    async def facts(self) -> list[dict[str, Any]]:
        """Return the properties of each index."""
        loop = asyncio.get_running_loop()
        return [await loop.run_in_executor(self.probing, index.facts) for index in self.indexes.values()]

    def require_texts(self, texts: list[str], name: str) -> None:
        """Raise an ApiError for too many texts (422), or one that is too long (400)."""
        most, longest = self.settings.max_texts, self.settings.max_characters
        if len(texts) > most:
            message = f"{name} must be at most {most:,} texts, got {len(texts):,}; send several requests"
            raise ApiError(422, message, "too_many_texts")
        for place, text in enumerate(texts):
            require_length(f"{name}[{place}]", text, longest)

    def models(self) -> list[dict[str, Any]]:
        """Return the entries of `GET /v1/models`."""
        facts: dict[str, dict[str, Any]] = {name: {"dimensions": self.model.dimension} for name in self.embedding}
        for name, classifier in self.classifiers.items():
            facts.setdefault(name, {"labels": classifier.labels})
        for name in self.rerankers:
            facts.setdefault(name, {"reranks": True})
        shared = {"object": "model", "created": self.started, "owned_by": "ctx-embed"}
        return [{"id": name, **shared, **own} for name, own in facts.items()]

    def close(self) -> None:
        """Finish running work and close everything."""
        self.probing.shutdown(cancel_futures=True)
        loaded: list[Any] = [self.model, *self.classifiers.values(), *self.rerankers.values(), *self.indexes.values()]
        for each in loaded:
            each.close()


def require_length(name: str, text: str, most: int) -> None:
    """Raise an ApiError (400) unless a text has at most this many characters; two ligatures count as their letters."""
    if (size := len(text) + 17 * text.count("\ufdfa") + 7 * text.count("\ufdfb")) > most:
        message = f"{name} must be at most {most:,} characters, got {size:,}; cut it"
        raise ApiError(400, message, "text_too_long")


def _by_name(kind: Callable[[str], Served], models: Sequence[str]) -> dict[str, Served]:
    """Return loaded models by the names under which they are served; an InputError if two have the same name."""
    named: dict[str, Served] = {}
    for model in models:
        name, *_ = names_of(model)
        if name in named:
            raise InputError(f"two models have the name {quoted(name)}; rename the folder of one of them")
        named[name] = kind(model)
    return named


def model_named(kind: str, name: str, models: Mapping[str, Served], option: str = "") -> Served:
    """Return the model that is served under a name; a 404 names the option that loads one if there is none."""
    if name in models:
        return models[name]
    message = f"the server has no {kind}s; start it with {option}"
    raise ApiError(404, str(unknown_name(kind, name, models)) if models else message, "model_not_found")


def service_of(request: Request) -> Service:
    """Return the service of the app that got a request."""
    return cast(Service, request.app.state.service)
