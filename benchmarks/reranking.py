"""Searches by words, by meaning, by both, and reranked: nDCG@10 on retrieval collections, with ours and a larger model.

    python benchmarks/reranking.py --data DIR [--collections "cranfield cacm"] [--reranker minilm] [--json FILE]

Prints a row for each kind of search: nDCG@10 of each collection with a 95 % interval, the mean over the collections
with p of a paired permutation test against ``hybrid`` over all queries, and the median milliseconds of a search.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import click
import numpy as np
from common import report
from index import COLLECTIONS, collection, data_option, json_option, ndcg
from tqdm import tqdm

from ctx_embed import SearchIndex
from ctx_embed.eval.scoring.statistics import mean_interval, paired_means

COMPARED = "hybrid"


def scores(
    index: SearchIndex, queries: dict[str, str], judged: dict[str, dict[str, int]], **options: Any
) -> tuple[list[float], float]:
    """Return nDCG@10 times 100 of each query, and the median milliseconds of a search."""
    found, times = [], []
    for name, text in queries.items():
        start = time.perf_counter()
        hits = index.search(text, **options)
        times.append((time.perf_counter() - start) * 1000)
        found.append(100 * ndcg([str(hit.id) for hit in hits], judged[name]))
    return found, float(np.median(times))


def searches(reranker: str, candidates: int) -> dict[str, dict[str, Any]]:
    """Return the options of each kind of search with our model, by name."""
    again = {"rerank": reranker, "candidates": candidates}
    return {
        "words": {"mode": "words"},
        "dense": {"mode": "dense"},
        COMPARED: {"mode": "hybrid"},
        f"dense, reranked by {reranker}": {"mode": "dense", **again},
        f"hybrid, reranked by {reranker}": {"mode": "hybrid", **again},
    }


@click.command()
@data_option
@click.option("--collections", default=" ".join(COLLECTIONS), show_default=True)
@click.option("--reranker", default="minilm", show_default=True)
@click.option("--candidates", default=50, show_default=True)
@json_option
def main(data: Path, collections: str, reranker: str, candidates: int, json_path: Path | None) -> None:
    """Print the quality and milliseconds of each kind of search; the reranker also embeds the whole collections."""
    found: dict[str, dict[str, list[float]]] = {}
    times: dict[str, list[float]] = {}
    for name in tqdm(collections.split()):
        documents, queries, judged = collection(data, name)
        with tempfile.TemporaryDirectory() as work, SearchIndex.create(Path(work) / "index") as index:
            index.add(list(documents.values()), list(documents))
            index.search("load the models", 1, rerank=reranker)
            for kind, options in searches(reranker, candidates).items():
                found.setdefault(kind, {})[name], median = scores(index, queries, judged, **options)
                times.setdefault(kind, []).append(median)
            index.reembed(reranker)
            for kind, mode in ((f"{reranker} alone", "dense"), (f"{reranker} and words", "hybrid")):
                found.setdefault(kind, {})[name], median = scores(index, queries, judged, mode=mode)
                times.setdefault(kind, []).append(median)
    rows: list[dict[str, Any]] = []
    every = {kind: [score for of in each.values() for score in of] for kind, each in found.items()}
    for kind, each in found.items():
        row: dict[str, Any] = {"search": kind}
        for name, of in each.items():
            row[name] = f"{np.mean(of):.1f} ± {(mean_interval(of)[1] - mean_interval(of)[0]) / 2:.1f}"
        row["mean"] = round(float(np.mean([np.mean(of) for of in each.values()])), 1)
        row["p"] = None if kind == COMPARED else round(paired_means(every[kind], every[COMPARED]).p, 4)
        row["ms"] = round(float(np.mean(times[kind])), 1)
        rows.append(row)
    report(rows, json_path)


if __name__ == "__main__":
    main()
