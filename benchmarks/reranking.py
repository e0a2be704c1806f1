"""Reranking on retrieval collections: nDCG@10 of our model, of a larger one, and of ours reranked by it.

python benchmarks/reranking.py --data DIR [--collections "cranfield cacm"] [--queries N] [--no-whole] [--json FILE]
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
from common import report
from index import COLLECTIONS, collection, data_option, json_option, ndcg

from ctx_embed import SearchIndex


def timed(queries: dict[str, str], search: Callable[[str], Sequence[Any]]) -> tuple[dict[str, list[str]], float]:
    """Return the ids found for each query, and the median milliseconds of a search."""
    found, times = {}, []
    for name, text in queries.items():
        start = time.perf_counter()
        found[name] = [str(hit.id) for hit in search(text)]
        times.append((time.perf_counter() - start) * 1000)
    return found, float(np.median(times))


@click.command()
@data_option
@click.option("--collections", default=" ".join(COLLECTIONS), show_default=True)
@click.option("--queries", "most", type=click.IntRange(min=1), help="Number of queries to sample from each collection.")
@click.option("--reranker", default="minilm", show_default=True)
@click.option("--candidates", default=50, show_default=True)
@click.option("--whole/--no-whole", default=True, show_default=True, help="Also search with the reranker alone.")
@json_option
def main(
    data: Path,
    collections: str,
    most: int | None,
    reranker: str,
    candidates: int,
    whole: bool,
    json_path: Path | None,
) -> None:
    """Print the quality and milliseconds of reranking; --whole embeds the whole collection with the reranker too."""
    rows: list[dict[str, Any]] = []
    for name in collections.split():
        documents, queries, judged = collection(data, name)
        if most is not None and most < len(queries):
            queries = {query: queries[query] for query in sorted(random.Random(0).sample(sorted(queries), most))}
        row: dict[str, Any] = {"collection": name, "queries": len(queries)}

        def scored(of_query: dict[str, list[str]], judged: dict[str, dict[str, int]] = judged) -> float:
            return 100 * float(np.mean([ndcg(ids, judged[query]) for query, ids in of_query.items()]))

        with tempfile.TemporaryDirectory() as work, SearchIndex.create(Path(work) / "index") as index:
            index.add(list(documents.values()), list(documents))
            index.search("load the model", 1, rerank=reranker)
            found, row["ms, ours"] = timed(queries, lambda text, index=index: index.search(text, mode="dense"))
            row["ours"] = scored(found)
            options: dict[str, Any] = {"mode": "dense", "rerank": reranker, "candidates": candidates}
            found, row["ms, reranked"] = timed(
                queries, lambda text, index=index, options=options: index.search(text, **options)
            )
            row["reranked"] = scored(found)
            if whole:
                index.reembed(reranker)
                found, _ = timed(queries, lambda text, index=index: index.search(text, mode="dense"))
                row["reranker alone"] = scored(found)
        rows.append(row)
        print(row, flush=True)
    report(rows, json_path)


if __name__ == "__main__":
    main()
