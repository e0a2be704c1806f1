"""A search index as the retriever of LlamaIndex (extra integrations).

python llama_index_search.py INDEX [MODEL]
"""

from __future__ import annotations

import sys

from llama_index.core.retrievers import BaseRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode

from ctx_embed import SearchIndex


class SearchIndexRetriever(BaseRetriever):
    """LlamaIndex's view of a :class:`ctx_embed.SearchIndex`: passages as nodes, cosines as scores.

    Args:
        index: searched.
        k: nodes for a query.
        options: ``mode``, ``where`` and ``threshold`` of :meth:`SearchIndex.search`.
    """

    def __init__(self, index: SearchIndex, k: int = 5, **options: str | float) -> None:
        self.index = index
        self.k = k
        self.options = options
        super().__init__()

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        hits = self.index.search(query_bundle.query_str, self.k, **self.options)
        return [
            NodeWithScore(
                node=TextNode(
                    text=hit.text, id_=f"{hit.id}:{hit.start}", metadata={**hit.metadata, "document": hit.id}
                ),
                score=hit.score,
            )
            for hit in hits
        ]


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit("Usage: python llama_index_search.py INDEX [MODEL]")
    with SearchIndex.create(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None, chunk="sentences") as index:
        index.add(["The cat sat on the mat. A dog barked.", "Prices in the city rise."], ["pets", "money"])
        for node in SearchIndexRetriever(index, k=2, mode="hybrid").retrieve("The cat sat on the mat."):
            print(node.node.metadata["document"], f"{node.score:.3f}", node.node.get_content())
