"""LangChain's ``Embeddings`` and ``VectorStore`` (the extra ``langchain``)."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import VectorStore
from pydantic import BaseModel, ConfigDict

from ctx_embed.errors import InputError, described
from ctx_embed.index import SearchIndex
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


class CtxVectorStore(VectorStore):
    """A search index as a vector store; the index embeds with its own model.

    Searches take the options of :meth:`ctx_embed.SearchIndex.search`, such as ``mode`` and ``where``. A hit is a
    passage: its id is that of its document.

    Args:
        index: an open index.

    Example:
        >>> store = CtxVectorStore(SearchIndex.create("notes.index", exist_ok=True))
        >>> store.as_retriever(search_kwargs={"k": 5, "where": "year >= 2020"})
    """

    def __init__(self, index: SearchIndex) -> None:
        self.index = index

    @classmethod
    def from_texts(
        cls,
        texts: list[str],
        embedding: Embeddings | None = None,
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        path: str | Path = "langchain.index",
        **options: Any,
    ) -> CtxVectorStore:
        """Add texts to the index in a folder, which is created with ``options`` if there is none."""
        if not isinstance(embedding, CtxEmbeddings | None):
            raise InputError(f"embedding must be CtxEmbeddings or None, got {described(embedding)}")
        model = None if embedding is None else embedding.model
        store = cls(SearchIndex.create(path, model, exist_ok=True, **options))
        store.add_texts(texts, metadatas, ids=ids)
        return store

    def add_texts(
        self,
        texts: Iterable[str],
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        **kwargs: Any,
    ) -> list[str]:
        """Add documents, or replace those with the same ids; a missing id becomes a random one."""
        listed = list(texts)
        chosen = [identifier or uuid.uuid4().hex for identifier in ids or [""] * len(listed)]
        self.index.upsert(listed, chosen, metadatas or None)
        return chosen

    def delete(self, ids: list[str] | None = None, **kwargs: Any) -> bool:
        """Delete documents, or all if ``ids`` is None."""
        self.index.delete(self.index.ids() if ids is None else ids)
        return True

    def get_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        """Return the documents with the given ids; ids that no document has are skipped."""
        found = map(self.index.get, ids)
        return [Document(one.text, id=str(one.id), metadata=one.metadata) for one in found if one is not None]

    def similarity_search_with_score(
        self, query: str | list[float], k: int = 4, **options: Any
    ) -> list[tuple[Document, float]]:
        """Return the best passages for a text or a vector, with their cosines."""
        hits = self.index.search(query, k, **options)
        return [(Document(hit.text, id=str(hit.id), metadata=hit.metadata), hit.score) for hit in hits]

    def similarity_search(self, query: str | list[float], k: int = 4, **options: Any) -> list[Document]:
        """Return the best passages for a text or a vector."""
        return [document for document, _ in self.similarity_search_with_score(query, k, **options)]

    def similarity_search_by_vector(self, embedding: list[float], k: int = 4, **options: Any) -> list[Document]:
        """Return the passages nearest to a vector."""
        return self.similarity_search(embedding, k, **options)

    def max_marginal_relevance_search(
        self, query: str | list[float], k: int = 4, fetch_k: int = 20, lambda_mult: float = 0.5, **options: Any
    ) -> list[Document]:
        """Return passages that differ from each other, chosen among the best ``fetch_k``."""
        return self.similarity_search(query, k, mmr=lambda_mult, candidates=fetch_k, **options)

    def max_marginal_relevance_search_by_vector(
        self, embedding: list[float], k: int = 4, fetch_k: int = 20, lambda_mult: float = 0.5, **options: Any
    ) -> list[Document]:
        """Return :meth:`max_marginal_relevance_search` for a vector."""
        return self.max_marginal_relevance_search(embedding, k, fetch_k, lambda_mult, **options)

    def _select_relevance_score_fn(self) -> Callable[[float], float]:
        return lambda cosine: max(cosine, 0.0)
