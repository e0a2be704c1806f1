"""The retrieval tasks: collections in BEIR layout."""

from __future__ import annotations

from ctx_embed.eval.formats import beir_documents, beir_judgements
from ctx_embed.eval.tasks import File, Layout, RetrievalTask

BM25 = "BM25"


def beir_layout(folder: str) -> Layout:
    """The files of a collection: documents, queries, and the judgements of the test part."""
    return (
        File("corpus", f"{folder}/corpus.jsonl", beir_documents),
        File("queries", f"{folder}/queries.jsonl", beir_documents),
        File("qrels", f"{folder}/qrels/test.tsv", beir_judgements),
    )


def _collection(name: str, documents: int, queries: int, judgements: int, bm25: float) -> RetrievalTask:
    rows = documents + queries + judgements
    return RetrievalTask(name, (beir_layout(f"retrieval/{name}"),), rows, published={BM25: bm25})


RETRIEVAL_TASKS = (
    _collection("cranfield", 1400, 225, 1612, 34.7),
    _collection("cisi", 1460, 76, 3114, 31.2),
    _collection("cacm", 3204, 52, 796, 40.1),
    _collection("npl", 11426, 93, 2083, 40.2),
    _collection("adi", 82, 35, 170, 45.4),
)
