from __future__ import annotations

import json
from dataclasses import asdict

import numpy as np

from ctx_embed.encoders import Encoder
from ctx_embed.eval.cache import EmbeddingCache
from ctx_embed.eval.scoring.probes import PROTOCOLS, ProbeScore
from ctx_embed.eval.scoring.ranking import RetrievalScore, SimilarityScore
from ctx_embed.eval.scoring.score import Examples, from_json, score_probe
from ctx_embed.eval.tasks.data import TaskData


def test_json_keeps_scores_whole():
    for kind, score in (
        ("probe", ProbeScore((1 / 3, 80.0), (1e-4, 1.0), 50.0, "0121", 2)),
        ("similarity", SimilarityScore({"a": 60.1}, {"a": (0.1, 0.25)})),
        ("retrieval", RetrievalScore((1.0,), (2.0,), (3.0,))),
    ):
        assert from_json(kind, json.loads(json.dumps(asdict(score)))) == score


def test_rows_by_length_then_label():
    data = TaskData("", {"MR": [("1", "a b"), ("0", "a"), ("0", "c d"), ("1", ""), ("0", "e f")]})
    examples, order = Examples.from_data(data).by_length()
    assert order.tolist() == [3, 1, 2, 4, 0]
    assert examples.texts[0] == ("",)
    pairs = TaskData("", {"train": [("1", "a b", "c"), ("0", "a", "b c")], "test": [("0", "a", "b"), ("1", "", "b")]})
    examples, order = Examples.from_data(pairs).by_length()
    assert order.tolist() == [1, 0, 3, 2]
    assert examples.labels == ["0", "1", "1", "0"]


def test_senteval_draws_its_folds_from_rows_by_length():
    """Correct rows are returned in the order of the data, whatever the order of the folds."""
    rows = [("01"[i % 2], ("good " if i % 2 else "bad ") * (1 + i % 7)) for i in range(40)]
    rows[5] = ("0", rows[5][1])
    encoder = Encoder("e", lambda texts: np.array([[float("good" in text)] for text in texts]))
    examples = Examples.from_data(TaskData("", {"MR": rows}))
    score = score_probe(examples, EmbeddingCache(encoder), PROTOCOLS["senteval"], 0)
    assert [place for place, digit in enumerate(score.right) if digit == "0"] == [5]
    split = Examples.from_data(TaskData("", {"train": rows[:30], "test": [*rows[30:], ("0", "good")]}))
    score = score_probe(split, EmbeddingCache(encoder), PROTOCOLS["senteval"], 0)
    assert score.right == "1" * 10 + "0"


def test_pairs_of_texts_are_told_apart_by_their_difference(drawn):
    rows = [("same", f"film {i}", f"film {i}") if i % 2 else ("other", f"film {i}", f"book {i}") for i in range(60)]
    examples = Examples.from_data(TaskData("", {"MRPC": rows}))
    assert score_probe(examples, EmbeddingCache(drawn), PROTOCOLS["quick"], 0).mean > 90


def test_repeated_texts_are_counted():
    whole = TaskData("", {"MR": [("1", "a"), ("0", "a"), ("1", "b"), ("1", "c")]})
    assert Examples.from_data(whole).repeated == 2
    split = TaskData("", {"train": [("1", "a"), ("1", "d"), ("1", "d")], "test": [("0", "a"), ("0", "b")]})
    assert Examples.from_data(split).repeated == 1
