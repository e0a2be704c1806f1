"""LangChain's ``Embeddings`` (the extra ``langchain``)."""

from __future__ import annotations

from langchain_core.embeddings import Embeddings
from pydantic import BaseModel, ConfigDict

from ctx_embed.integrations.shared import shared_model


class CtxEmbeddings(BaseModel, Embeddings):
    """Embeddings of a model of ctx_embed, for any vector store of LangChain.

    Args:
        model: a name or a folder, as :func:`ctx_embed.load` takes it.
        batch_size: texts embedded at a time.
    """

    model: str = "default"
    batch_size: int = 512

    model_config = ConfigDict(extra="forbid")

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Return an embedding for each text."""
        embeddings: list[list[float]] = (
            shared_model(self.model).encode_document(list(texts), batch_size=self.batch_size).tolist()
        )
        return embeddings

    def embed_query(self, text: str) -> list[float]:
        """Return the embedding of a query."""
        embedding: list[float] = shared_model(self.model).encode_query(text).tolist()
        return embedding
