from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from ctx_embed.eval.evaluation import evaluate
from ctx_embed.eval.scoring.score import draws
from ctx_embed.eval.tasks.catalogue import find_tasks
from ctx_embed.eval.tasks.data import DataReader


def test_each_draw_has_so_many_rows_of_each_label():
    labels = ["a"] * 30 + ["b"] * 20 + ["c"] * 3
    found = draws(labels, 4)
    assert len(found) == 10
    assert len({tuple(sorted(rows)) for rows in found}) == 10
    for rows in found:
        assert Counter(labels[row] for row in rows) == {"a": 4, "b": 4, "c": 3}


@pytest.fixture
def amazon(tmp_path):
    folder = tmp_path / "mteb"
    folder.mkdir()
    for part, count in (("train", 100), ("test", 30)):
        rows = "".join(f"{i % 2}\t{('bad', 'good')[i % 2]} {part} {i}\n" for i in range(count))
        (folder / f"amazon_counterfactual_en_{part}.tsv").write_text(rows)
    return tmp_path


def test_the_score_of_a_task(amazon, drawn, tmp_path):
    calls = []

    def encode(texts):
        calls.extend(texts)
        return drawn.encode(texts)

    encoder = drawn.__class__("drawn", encode, "f" * 64, "key of drawn")
    tasks = find_tasks(["MTEB-AmazonCounterfactual"])
    first, again = (evaluate([encoder, "tfidf"], tasks, DataReader(amazon), cache=tmp_path / "cache") for _ in range(2))
    score = first.scores["drawn", "MTEB-AmazonCounterfactual"]
    assert score.mean > 90
    assert (len(score.folds), score.seeds, len(score.right), set(score.Cs)) == (10, 10, 30, {1.0})
    # Each row counts its correct draws, so both sums are the same.
    assert score.mean == pytest.approx(100 * np.mean(score.hits))
    low, high = score.interval
    assert low < score.mean <= high + 1e-9
    assert again.scores == first.scores
    assert len(calls) == len(set(calls)) <= 130
    assert first.report["results"][1]["versus"]["test"] == "permutation"
    assert "ten draws of 32 training rows of each label" in str(first)
    assert "protocol standard" not in str(first)
