"""What a worker process has loaded: models, indexes and keys."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar, cast

from fastapi import Request

from ctx_embed.errors import InputError, unknown_name
from ctx_embed.serving.indexes import ServedIndex
from ctx_embed.serving.models import EmbeddingModel, ServedClassifier, ServedReranker, names_of
from ctx_embed.serving.settings import Settings, read_keys
from ctx_embed.serving.wire import ApiError

Served = TypeVar("Served")


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
        self.model = EmbeddingModel(first, settings.alias)
        self.embedding = dict.fromkeys(self.model.names, self.model)
        if (Path(first) / "classifier.json").is_file():
            others = [first, *others]
        self.classifiers = _by_name(ServedClassifier, others)
        self.rerankers = _by_name(ServedReranker, settings.reranker)
        # The models of indexes, by fingerprint: indexes of the same model share it.
        model = self.model.model
        shared = {model.fingerprint: model} if hasattr(model, "fingerprint") else {}
        self.indexes = {name: ServedIndex(path, shared, settings) for name, path in folders.items()}

    async def facts(self) -> list[dict[str, Any]]:
        """Return the properties of each index."""
        loop = asyncio.get_running_loop()
        return [await loop.run_in_executor(self.probing, index.facts) for index in self.indexes.values()]

    def require_texts(self, texts: list[str], name: str) -> None:
        """Raise an ApiError for too many texts (422), or one that is too long (400)."""
        most, longest = self.settings.max_texts, self.settings.max_characters
        if len(texts) > most:
            said = f"{name} must be at most {most:,} texts, got {len(texts):,}; send several requests"
            raise ApiError(422, said, "too_many_texts")
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
    """Raise an ApiError (400) unless a text has at most this many characters."""
    if len(text) > most:
        said = f"{name} must be at most {most:,} characters, got {len(text):,}; cut it"
        raise ApiError(400, said, "text_too_long")


def _by_name(kind: Callable[[str], Served], models: Sequence[str]) -> dict[str, Served]:
    """Return loaded models by the names under which they are served; an InputError if two have the same name."""
    named: dict[str, Served] = {}
    for model in models:
        name, *_ = names_of(model)
        if name in named:
            raise InputError(f"two models have the name {name!r}; rename the folder of one of them")
        named[name] = kind(model)
    return named


def model_named(kind: str, name: str, known: Mapping[str, Served], option: str = "") -> Served:
    """Return the model that is served under a name; a 404 names the option that loads one if there is none."""
    if name in known:
        return known[name]
    said = f"the server has no {kind}s; start it with {option}"
    raise ApiError(404, str(unknown_name(kind, name, known)) if known else said, "model_not_found")


def service_of(request: Request) -> Service:
    """Return the service of the app that got a request."""
    return cast(Service, request.app.state.service)
