"""A search index as the vector store of LangChain (extra integrations).

python langchain_search.py INDEX [MODEL]
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import VectorStore

from ctx_embed import SearchIndex


class SearchIndexStore(VectorStore):
    """LangChain's view of a :class:`ctx_embed.SearchIndex`; options of a search go through to it."""

    def __init__(self, index: SearchIndex) -> None:
        self.index = index

    @classmethod
    def from_texts(
        cls,
        texts: list[str],
        embedding: Embeddings | None = None,
        metadatas: list[dict] | None = None,
        *,
        ids: list[str] | None = None,
        path: str | Path = "langchain.index",
        model: str | None = None,
        **kwargs: Any,
    ) -> SearchIndexStore:
        """Make an index in the folder ``path``; its own model embeds, so that ``embedding`` is left aside."""
        store = cls(SearchIndex.create(path, model))
        store.add_texts(texts, metadatas, ids=ids)
        return store

    def add_texts(
        self,
        texts: Iterable[str],
        metadatas: list[dict] | None = None,
        *,
        ids: list[str] | None = None,
        **kwargs: Any,
    ) -> list[str]:
        """Add or replace documents."""
        return [str(identifier) for identifier in self.index.upsert(list(texts), ids, metadatas)]

    def delete(self, ids: list[str] | None = None, **kwargs: Any) -> bool:
        """Delete documents."""
        return self.index.delete(ids or []) > 0

    def get_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        """The documents of those ids that there are."""
        found = [self.index.get(identifier) for identifier in ids]
        return [Document(page_content=d.text, metadata=d.metadata, id=str(d.id)) for d in found if d is not None]

    def similarity_search_with_score(self, query: str, k: int = 4, **kwargs: Any) -> list[tuple[Document, float]]:
        """The nearest documents with their cosines; ``mode``, ``where`` and ``threshold`` as in the index."""
        hits = self.index.search(query, k, **kwargs)
        return [(Document(page_content=hit.text, metadata=hit.metadata, id=str(hit.id)), hit.score) for hit in hits]

    def similarity_search(self, query: str, k: int = 4, **kwargs: Any) -> list[Document]:
        """The nearest documents."""
        return [document for document, _ in self.similarity_search_with_score(query, k, **kwargs)]


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit("Usage: python langchain_search.py INDEX [MODEL]")
    store = SearchIndexStore.from_texts(
        ["the cat sat on the mat", "prices in the city rise", "a dog barked at the cat"],
        metadatas=[{"page": 1}, {"page": 2}, {"page": 3}],
        ids=["a", "b", "c"],
        path=sys.argv[1],
        model=sys.argv[2] if len(sys.argv) > 2 else None,
    )
    store.delete(["c"])
    retriever = store.as_retriever(search_kwargs={"k": 2, "mode": "hybrid", "where": "page <= 3"})
    for document in retriever.invoke("the cat sat on the mat"):
        print(document.id, document.metadata["page"], document.page_content)
