"""LlamaIndex's ``BaseEmbedding`` (the extra ``llama-index``)."""

from typing import Any

from llama_index.core.base.embeddings.base import BaseEmbedding

from ctx_embed.integrations.shared import shared_model


class CtxEmbedding(BaseEmbedding):
    """Embeddings of a model of ctx_embed, e.g. as ``Settings.embed_model``.

    Args:
        model_name: a name or a folder, as :func:`ctx_embed.load` takes it.
        embed_batch_size: texts embedded at a time.
    """

    def __init__(self, model_name: str = "default", embed_batch_size: int = 512, **options: Any) -> None:
        super().__init__(model_name=model_name, embed_batch_size=embed_batch_size, **options)

    @classmethod
    def class_name(cls) -> str:
        """Return the name that LlamaIndex stores."""
        return "CtxEmbedding"

    def _get_query_embedding(self, query: str) -> list[float]:
        embedding: list[float] = shared_model(self.model_name).encode_query(query).tolist()
        return embedding

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_query_embedding(query)

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._get_text_embeddings([text])[0]

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        embeddings: list[list[float]] = (
            shared_model(self.model_name).encode_document(texts, batch_size=self.embed_batch_size).tolist()
        )
        return embeddings
