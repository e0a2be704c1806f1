"""A search index as the vector store of LangChain (extra langchain).

python langchain_search.py INDEX
"""

from __future__ import annotations

import sys

from ctx_embed import SearchIndex
from ctx_embed.integrations.langchain import CtxVectorStore

if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("Usage: python langchain_search.py INDEX")
    with SearchIndex.create(sys.argv[1], exist_ok=True) as index:
        store = CtxVectorStore(index)
        store.add_texts(
            ["the cat sat on the mat", "prices in the city rise", "a dog barked at the cat"],
            metadatas=[{"page": 1}, {"page": 2}, {"page": 3}],
            ids=["a", "b", "c"],
        )
        store.delete(["c"])
        retriever = store.as_retriever(search_kwargs={"k": 2, "where": "page <= 3"})
        for document in retriever.invoke("the cat sat on the mat"):
            print(document.id, document.metadata["page"], document.page_content)
