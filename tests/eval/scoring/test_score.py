import copy
import json
from collections import Counter
from dataclasses import asdict, replace

import numpy as np
import pytest

from ctx_embed.classify.labelled import Labelled
from ctx_embed.encoders import Encoder, as_encoder
from ctx_embed.eval.encoders import EmbeddingCache
from ctx_embed.eval.evaluation import EvaluationOptions, evaluate
from ctx_embed.eval.scoring import score as module
from ctx_embed.eval.scoring.probes import PROTOCOLS, ProbeScore, folds_of
from ctx_embed.eval.scoring.ranking import RetrievalScore, SimilarityScore
from ctx_embed.eval.scoring.score import Examples, draws, end_to_end, from_json, score_probe, training_options
from ctx_embed.eval.tasks.catalogue import find_tasks
from ctx_embed.eval.tasks.data import DataReader, TaskData
from ctx_embed.fingerprint import fingerprint
from ctx_embed.systems import untrained
from ctx_embed.training.options import FINE_TUNING, SupervisedOptions
from ctx_embed.training.supervised.train import train_classifier
from tests.conftest import make_model
from tests.helpers.errors import error


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


ONCE = [("the good cat", "1"), ("a dull film", "0"), ("a good book", "1"), ("rain fell all night", "0")]
TEXTS = [(f"{text} {number}", label) for number in range(10) for text, label in ONCE]
EXAMPLES = Examples([label for _, label in TEXTS], [(text,) for text, _ in TEXTS], None)


@pytest.fixture
def tiny(tokenizer) -> Encoder:
    return as_encoder(make_model(tokenizer), "tiny")


def test_each_fold_is_trained_anew_from_the_same_encoder(tiny):
    before = fingerprint(tiny.model)
    score = end_to_end(tiny, EXAMPLES, 3, 2)
    assert fingerprint(tiny.model) == before
    assert len(score.folds) == 2
    classes = np.array([int(label) for label in EXAMPLES.labels])
    for (train, test), accuracy in zip(folds_of(np.arange(40), classes, 2, 3), score.folds, strict=True):
        data = Labelled([EXAMPLES.labels[i] for i in train], [EXAMPLES.texts[i][0] for i in train])
        options = replace(FINE_TUNING, seed=3)
        classifier, _ = train_classifier(copy.deepcopy(tiny.model), data, None, options, progress=False)
        held_out = Labelled([EXAMPLES.labels[i] for i in test], [EXAMPLES.texts[i][0] for i in test])
        assert accuracy == pytest.approx(100 * classifier.accuracy(held_out))
        assert np.mean([int(score.right[i]) for i in test]) * 100 == pytest.approx(accuracy)
    assert score.mean > 80


def test_what_cannot_be_trained(tiny, drawn):
    few = replace(EXAMPLES, labels=["0"] + ["1"] * 39)
    message = "the class '0' has 1 row; 2-fold cross-validation needs at least 2 of each"
    assert error(end_to_end, tiny, few, 3, 2).startswith(message)
    pairs = replace(EXAMPLES, texts=[("a", "b")] * 40)
    message = "with the protocol paper a task must have one text a row, got pairs of texts"
    assert error(end_to_end, tiny, pairs, 3, 2).startswith(message)
    message = "with the protocol paper an encoder must be a SentenceTransformer, got 'drawn'"
    assert error(end_to_end, drawn, EXAMPLES, 3, 2) == message


@pytest.mark.parametrize(("name", "head"), [("contextualizer", "zeros"), ("mean", "random")])
def test_random_weights_are_trained_as_the_paper_does_and_trained_ones_tuned(tiny, tokenizer, name, head):
    assert training_options(tiny) is FINE_TUNING
    assert training_options(replace(tiny, name="contextualizer")) == SupervisedOptions(head="zeros")
    # The initial head is among the options that key a fold.
    assert training_options(as_encoder(untrained(name, tokenizer, 8), name)).head == head


def test_an_interrupted_run_resumes_after_its_last_fold(tiny, tmp_path, monkeypatch):
    mine = tmp_path / "mine.tsv"
    mine.write_text("".join(f"{label}\t{text}\n" for text, label in TEXTS))
    tasks, options, trained = find_tasks([str(mine)]), EvaluationOptions("paper", folds=3), []
    train = module.train_classifier

    def counted(*arguments, **named):
        if len(trained) == 2:
            raise KeyboardInterrupt
        trained.append(1)
        return train(*arguments, **named)

    monkeypatch.setattr(module, "train_classifier", counted)
    with pytest.raises(KeyboardInterrupt):
        evaluate([tiny], tasks, DataReader(None), options, cache=tmp_path / "cache")
    trained.clear()
    again = evaluate([tiny], tasks, DataReader(None), options, cache=tmp_path / "cache")
    assert len(trained) == 1
    monkeypatch.setattr(module, "train_classifier", train)
    assert again.scores == evaluate([tiny], tasks, DataReader(None), options).scores


def test_a_development_part_chooses_the_epoch(tiny, monkeypatch):
    rows = {"train": np.arange(20), "dev": np.arange(20, 30), "test": np.arange(30, 40)}
    seen = []

    def watched(model, train, valid, *rest, **named):
        seen.append((len(train.texts), len(valid.texts)))
        return train_classifier(model, train, valid, *rest, **named)

    monkeypatch.setattr(module, "train_classifier", watched)
    score = end_to_end(tiny, Examples(EXAMPLES.labels, EXAMPLES.texts, rows), 0)
    assert seen == [(20, 10)]
    assert (len(score.folds), len(score.right)) == (1, 10)


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
