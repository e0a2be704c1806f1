"""Searches by words, by meaning, by both, and reranked: nDCG@10 on retrieval collections, with ours and a larger model.

    python benchmarks/reranking.py --data DIR [--model default] [--collections "cranfield cacm"] [--reranker minilm]

Prints a row for each kind of search: nDCG@10 of each collection with a 95 % interval, the mean over the collections
with p of a paired permutation test over all queries against ``hybrid`` without late interaction.
"""

import tempfile
from pathlib import Path
from typing import Any

import click
import numpy as np
from common import COLLECTIONS, collection, data_option, json_option, ndcg, report
from tqdm import tqdm

from ctx_embed import SearchIndex, load
from ctx_embed.eval.scoring.statistics import mean_interval, paired_means

COMPARED = "hybrid, late=False"


def scores(
    index: SearchIndex, queries: dict[str, str], judged: dict[str, dict[str, int]], **options: Any
) -> list[float]:
    """Return nDCG@10 times 100 of each query."""
    found = index.search(list(queries.values()), **options)
    return [100 * ndcg([str(hit.id) for hit in hits], judged[name]) for name, hits in zip(queries, found, strict=True)]


@click.command()
@data_option
@click.option("--collections", default=" ".join(COLLECTIONS), show_default=True)
@click.option("--model", default="default", show_default=True)
@click.option("--reranker", default="minilm", show_default=True)
@click.option("--candidates", default=50, show_default=True)
@json_option
def main(data: Path, collections: str, model: str, reranker: str, candidates: int, json_path: Path | None) -> None:
    """Print the quality of each kind of search."""
    larger: Any = load(reranker)
    embed = larger.encode_document
    found: dict[str, dict[str, list[float]]] = {}
    for name in tqdm(collections.split()):
        documents, queries, judged = collection(data, name)
        of_documents = embed(list(documents.values()), normalize_embeddings=True)
        known = dict(zip(documents.values(), of_documents, strict=True))
        # A reranker embeds the candidates of each query anew, which would take hours.
        larger.encode_document = lambda texts, known=known, **_: np.stack([known[text] for text in texts])
        with tempfile.TemporaryDirectory() as work:
            with SearchIndex.create(Path(work) / "ours", model) as index:
                index.add(list(documents.values()), list(documents))
                for mode in ("words", "dense", "hybrid"):
                    found.setdefault(mode, {})[name] = scores(index, queries, judged, mode=mode)
                found.setdefault(COMPARED, {})[name] = scores(index, queries, judged, mode="hybrid", late=False)
                for mode in ("dense", "hybrid"):
                    kind = f"{mode}, reranked by {reranker}"
                    options: dict[str, Any] = {"mode": mode, "rerank": larger, "candidates": candidates}
                    found.setdefault(kind, {})[name] = scores(index, queries, judged, **options)
            with SearchIndex.create(Path(work) / "theirs", larger) as index:
                index.add(list(documents.values()), list(documents), embeddings=of_documents)
                for kind, mode in ((f"{reranker} alone", "dense"), (f"{reranker} and words", "hybrid")):
                    found.setdefault(kind, {})[name] = scores(index, queries, judged, mode=mode)
    rows: list[dict[str, Any]] = []
    every = {kind: [score for of in each.values() for score in of] for kind, each in found.items()}
    for kind, each in found.items():
        row: dict[str, Any] = {"search": kind}
        for name, of in each.items():
            row[name] = f"{np.mean(of):.1f} ± {(mean_interval(of)[1] - mean_interval(of)[0]) / 2:.1f}"
        row["mean"] = round(float(np.mean([np.mean(of) for of in each.values()])), 1)
        row["p"] = None if kind == COMPARED else round(paired_means(every[kind], every[COMPARED]).p, 4)
        rows.append(row)
    report(rows, json_path)


if __name__ == "__main__":
    main()
