"""The retrieval tasks: collections in BEIR layout."""

from __future__ import annotations

from ctx_embed.eval.tasks.formats import beir_documents, beir_judgements
from ctx_embed.eval.tasks.task import File, HubSource, Layout, RetrievalTask

BM25, BEIR_BM25 = "BM25", "BM25 (BEIR)"


def beir_layout(folder: str) -> Layout:
    """Return the files of a collection: documents, queries, and the judgements of the test part."""
    return (
        File("corpus", f"{folder}/corpus.jsonl", beir_documents),
        File("queries", f"{folder}/queries.jsonl", beir_documents),
        File("qrels", f"{folder}/qrels/test.tsv", beir_judgements),
    )


def _collection(name: str, documents: int, queries: int, judgements: int, bm25: float) -> RetrievalTask:
    rows = documents + queries + judgements
    return RetrievalTask(name, (beir_layout(f"retrieval/{name}"),), rows, published={BM25: bm25})


def _beir(name: str, bm25: float) -> RetrievalTask:
    """Return a dataset of BEIR, which the hub splits over two repositories."""
    repository = f"BeIR/{name}"
    judgements = HubSource(f"{repository}-qrels", ("query-id", "corpus-id", "score"), {"qrels": ("test",)})
    queries = HubSource(repository, ("_id", "text"), {"queries": ("queries",)}, "queries")
    hub = HubSource(
        repository,
        ("_id", "title", "text"),
        {"corpus": ("corpus",)},
        "corpus",
        is_document=True,
        others=(queries, judgements),
    )
    return RetrievalTask(name, (beir_layout(f"retrieval/{name}"),), hub=hub, published={BEIR_BM25: bm25})


RETRIEVAL_TASKS = (
    _collection("cranfield", 1400, 225, 1612, 35.4),
    _collection("cisi", 1460, 76, 3114, 31.8),
    _collection("cacm", 3204, 52, 796, 42.6),
    _collection("npl", 11426, 93, 2083, 43.2),
    _collection("adi", 82, 35, 170, 48.6),
    _beir("scifact", 66.5),
    _beir("nfcorpus", 32.5),
    _beir("fiqa", 23.6),
    _beir("scidocs", 15.8),
)
