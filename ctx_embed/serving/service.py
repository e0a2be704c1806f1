"""What a worker process serves: its models, indexes, keys and limits."""

from __future__ import annotations

import time
from typing import Any, cast

from fastapi import Request

from ctx_embed.errors import unknown_name
from ctx_embed.serving.errors import ApiError
from ctx_embed.serving.indexes import ServedIndex, SharedModels
from ctx_embed.serving.models import EmbeddingModel, ServedClassifier, is_classifier, names_of
from ctx_embed.serving.settings import Keys, Settings


class Service:
    """The models and indexes of a server, loaded.

    Args:
        settings: what to serve.

    Raises:
        InputError: a model, an index or the file of keys cannot be used.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.keys = Keys.of_file(settings.api_key_file)
        self.started = int(time.time())
        folders = settings.names()
        self.model = EmbeddingModel(settings.models[0])
        heads = [name for name in settings.models if name in settings.models[1:] or is_classifier(name)]
        self.classifiers = {names_of(name)[0]: ServedClassifier(name) for name in heads}
        shared = SharedModels(self.model.model)
        self.indexes: dict[str, ServedIndex] = {}
        try:
            for name, path in folders.items():
                self.indexes[name] = ServedIndex(path, shared)
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

    def require_texts(self, texts: list[str], name: str) -> None:
        """Raise an error unless texts are within the limits.

        Raises:
            ApiError: too many texts (422), or one that is too long (400).
        """
        most, longest = self.settings.texts, self.settings.text_characters
        if len(texts) > most:
            raise ApiError(
                422,
                f"{name} must be at most {most:,} texts, got {len(texts):,}; send several requests",
                "too_many_texts",
            )
        for place, text in enumerate(texts):
            if len(text) > longest:
                raise ApiError(
                    400,
                    f"{name}[{place}] must be at most {longest:,} characters, got {len(text):,}; cut it",
                    "text_too_long",
                )

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
        if not self.classifiers:
            raise ApiError(404, "the server has no classifiers; start it with --model FOLDER", "model_not_found")
        if not isinstance(name, str):
            known = ", ".join(self.classifiers)
            raise ApiError(400, f"model must be the name of a classifier: {known}", "invalid_model")
        if name not in self.classifiers:
            raise ApiError(404, str(unknown_name("classifier", name, self.classifiers)), "model_not_found")
        return self.classifiers[name]

    def models(self) -> list[dict[str, Any]]:
        """Return what `GET /v1/models` says of each model."""
        facts = {"object": "model", "created": self.started, "owned_by": "ctx-embed"}
        embedding = [{"id": name, **facts, "dimensions": self.model.dimension} for name in self.model.names]
        classifying = [
            {"id": name, **facts, "labels": classifier.head.labels}
            for name, classifier in self.classifiers.items()
            if name not in self.model.names
        ]
        return embedding + classifying

    def close(self) -> None:
        """Finish what is at work and close everything."""
        self.model.close()
        for classifier in self.classifiers.values():
            classifier.close()
        for index in self.indexes.values():
            index.close()


def service_of(request: Request) -> Service:
    """Return the service of the app that got a request."""
    return cast(Service, request.app.state.service)
