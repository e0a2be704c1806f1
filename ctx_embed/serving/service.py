"""The models, indexes, keys and limits of a worker process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar, cast

from fastapi import Request

from ctx_embed.errors import InputError, unknown_name
from ctx_embed.serving.errors import ApiError
from ctx_embed.serving.indexes import ServedIndex, SharedModels
from ctx_embed.serving.models import EmbeddingModel, ServedClassifier, ServedReranker, is_classifier, names_of
from ctx_embed.serving.settings import Keys, Settings

Model = TypeVar("Model")


class Service:
    """The models and indexes of a server, loaded.

    Args:
        settings: name what to serve, and the limits.

    Raises:
        InputError: a model, an index or the file of keys cannot be used.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        # Probes and metrics have a thread of their own, so that they wait for no other work.
        self.probing = ThreadPoolExecutor(1, "ctx-embed-probe")
        self.keys = Keys.of_file(settings.api_key_file)
        self.started = int(time.time())
        folders = settings.names()
        self.model = EmbeddingModel(settings.model[0], settings.alias)
        heads = [name for name in settings.model if name in settings.model[1:] or is_classifier(name)]
        self.classifiers = _by_name(ServedClassifier, heads)
        self.rerankers = _by_name(ServedReranker, settings.reranker)
        shared = SharedModels(self.model.model)
        self.indexes: dict[str, ServedIndex] = {}
        try:
            for name, path in folders.items():
                self.indexes[name] = ServedIndex(path, shared, settings)
        except BaseException:
            self.close()
            raise

    def index(self, name: str) -> ServedIndex:
        """Return the index of that name.

        Raises:
            ApiError: there is none.
        """
        if name not in self.indexes:
            said = str(unknown_name("index", name, self.indexes)) if self.indexes else "the server has no indexes"
            raise ApiError(404, said, "index_not_found")
        return self.indexes[name]

    async def facts(self) -> list[dict[str, Any]]:
        """Return the properties of each index.

        Raises:
            InputError: an index cannot be read.
        """
        loop = asyncio.get_running_loop()
        return [await loop.run_in_executor(self.probing, index.facts) for index in self.indexes.values()]

    async def probe(self) -> None:
        """Search each index.

        Raises:
            InputError: a search fails.
        """
        for index in self.indexes.values():
            await asyncio.get_running_loop().run_in_executor(self.probing, index.probe)

    def require_texts(self, texts: list[str], name: str) -> None:
        """Raise an error unless texts are within the limits.

        Raises:
            ApiError: too many texts (422), or one that is too long (400).
        """
        most, longest = self.settings.max_texts, self.settings.max_characters
        if len(texts) > most:
            raise ApiError(
                422,
                f"{name} must be at most {most:,} texts, got {len(texts):,}; send several requests",
                "too_many_texts",
            )
        for place, text in enumerate(texts):
            require_length(f"{name}[{place}]", text, longest)

    def require_model(self, name: Any) -> str:
        """Return the name of a model that embeds.

        Raises:
            ApiError: there is none of that name, or no name.
        """
        known = self.model.names
        if not isinstance(name, str):
            raise ApiError(400, f"model must be the name of a model: {', '.join(known)}", "invalid_model")
        if name not in known:
            raise ApiError(404, str(unknown_name("model", name, known)), "model_not_found")
        return name

    def classifier(self, name: Any) -> ServedClassifier:
        """Return the classifier of that name.

        Raises:
            ApiError: there is none of that name, or no name.
        """
        return _named("classifier", name, self.classifiers, "--model FOLDER")

    def reranker(self, name: str) -> ServedReranker:
        """Return the reranker of that name.

        Raises:
            ApiError: there is none of that name.
        """
        return _named("reranker", name, self.rerankers, "--reranker MODEL")

    def models(self) -> list[dict[str, Any]]:
        """Return the entries of `GET /v1/models`."""
        facts = {"object": "model", "created": self.started, "owned_by": "ctx-embed"}
        embedding = [{"id": name, **facts, "dimensions": self.model.dimension} for name in self.model.names]
        classifying = [
            {"id": name, **facts, "labels": classifier.head.labels}
            for name, classifier in self.classifiers.items()
            if name not in self.model.names
        ]
        reranking = [{"id": name, **facts, "reranks": True} for name in self.rerankers if name not in self.model.names]
        return embedding + classifying + reranking

    def close(self) -> None:
        """Finish running work and close everything."""
        self.model.close()
        self.probing.shutdown(cancel_futures=True)
        for classifier in self.classifiers.values():
            classifier.close()
        for reranker in self.rerankers.values():
            reranker.close()
        for index in self.indexes.values():
            index.close()


def require_length(name: str, text: str, most: int) -> None:
    """Raise an error unless a text has at most this many characters.

    Raises:
        ApiError: it is longer (400).
    """
    if len(text) > most:
        said = f"{name} must be at most {most:,} characters, got {len(text):,}; cut it"
        raise ApiError(400, said, "text_too_long")


def _by_name(kind: Callable[[str], Model], models: Sequence[str]) -> dict[str, Model]:
    """Return loaded models by the names under which they are served.

    Raises:
        InputError: two have the same name.
    """
    named: dict[str, Model] = {}
    for model in models:
        name, *_ = names_of(model)
        if name in named:
            raise InputError(f"two models have the name {name!r}; rename the folder of one of them")
        named[name] = kind(model)
    return named


def _named(kind: str, name: str, known: dict[str, Model], option: str) -> Model:
    """Return the model of that name.

    Raises:
        ApiError: there is none.
    """
    if name in known:
        return known[name]
    said = str(unknown_name(kind, name, known)) if known else f"the server has no {kind}s; start it with {option}"
    raise ApiError(404, said, "model_not_found")


def service_of(request: Request) -> Service:
    """Return the service of the app that got a request."""
    return cast(Service, request.app.state.service)
