"""Chroma's embedding function (the extra ``chroma``)."""

from __future__ import annotations

from typing import Any

from chromadb.api.types import Documents, EmbeddingFunction, Embeddings, Space
from chromadb.utils.embedding_functions import register_embedding_function

from ctx_embed.integrations.shared import shared_model


@register_embedding_function
class CtxEmbeddingFunction(EmbeddingFunction[Documents]):
    """Embeddings of a model of ctx_embed, compared by their cosines.

    A collection stores the model's name. To open it in another process, import this module first, so that Chroma knows
    the function, or pass the function to ``get_collection``.
    """

    def __init__(self, model: str = "default", batch_size: int = 512) -> None:
        self.model = model
        self.batch_size = batch_size

    def __call__(self, input: Documents) -> Embeddings:
        """Return the embeddings of documents."""
        return list(shared_model(self.model).encode_document(list(input), batch_size=self.batch_size))

    def embed_query(self, input: Documents) -> Embeddings:
        """Return the embeddings of queries."""
        return list(shared_model(self.model).encode_query(list(input), batch_size=self.batch_size))

    @staticmethod
    def name() -> str:
        """Return the name that a collection stores."""
        return "ctx-embed"

    def default_space(self) -> Space:
        """Return the cosine."""
        return "cosine"

    def get_config(self) -> dict[str, Any]:
        """Return the options as they were given; a collection stores them."""
        return {"model": self.model, "batch_size": self.batch_size}

    @staticmethod
    def build_from_config(config: dict[str, Any]) -> CtxEmbeddingFunction:
        """Make the function from the options that a collection has stored."""
        return CtxEmbeddingFunction(**config)

    def validate_config_update(self, old_config: dict[str, Any], new_config: dict[str, Any]) -> None:
        """Refuse to change the model of stored vectors."""
        if old_config["model"] != new_config["model"]:
            raise ValueError(
                f"the collection's model is {old_config['model']!r}, got {new_config['model']!r}; make a new collection"
            )
