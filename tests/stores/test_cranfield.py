"""Retrieval is as good in every store, under exact search."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest

from ctx_embed import stores
from ctx_embed.eval.scoring.ranking import ndcg


@pytest.fixture(scope="module")
def cranfield(data, embedder, rows):
    """Documents with their vectors, queries, judgements, and nDCG@10 of every document's cosine."""
    folder = data / "retrieval" / "cranfield"
    documents = [json.loads(line) for line in (folder / "corpus.jsonl").read_text(encoding="utf-8").splitlines()]
    documents = [each for each in documents if each["text"].strip()]
    queries = [json.loads(line) for line in (folder / "queries.jsonl").read_text(encoding="utf-8").splitlines()]
    judged: dict[str, dict[str, int]] = {}
    with (folder / "qrels" / "test.tsv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file, delimiter="\t"):
            judged.setdefault(row["query-id"], {})[row["corpus-id"]] = int(row["score"])
    queries = [each for each in queries if max(judged.get(each["_id"], {}).values(), default=0) > 0]
    found = rows([each["text"] for each in documents], [each["_id"] for each in documents])
    cosines = embedder.queries([each["text"] for each in queries]) @ found.vectors.T
    best = [[found.ids[place] for place in np.argsort(-of_query, kind="stable")[:10]] for of_query in cosines]
    return found, queries, judged, mean_ndcg(best, queries, judged)


def mean_ndcg(rankings, queries, judged) -> float:
    return float(
        np.mean(
            [
                ndcg([judged[query["_id"]].get(name, 0) for name in ranking], list(judged[query["_id"]].values()))
                for ranking, query in zip(rankings, queries, strict=True)
            ]
        )
    )


def test_ndcg_is_the_same_in_every_store(cranfield, searchable, embedder):
    found, queries, judged, expected = cranfield
    with stores.open(searchable()) as store:
        store.ensure(stores.Collection.of(embedder))
        store.upsert(found)
        store.finish()
        hits = store.search([query["text"] for query in queries], k=10, exact=True)
    measured = mean_ndcg([[hit.id for hit in one] for one in hits], queries, judged)
    # Rounding may swap documents of nearly one cosine.
    assert measured == pytest.approx(expected, abs=2e-4)
    assert expected > 0.2
