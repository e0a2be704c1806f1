"""Probes: logistic regression on embeddings, under each protocol."""

import copy
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import get_args
from unittest.mock import Mock

import numpy as np
import pytest
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from ctx_embed.classify.labelled import Labelled
from ctx_embed.eval.encoders import EmbeddingCache, Encoder, as_encoder
from ctx_embed.eval.evaluation import EvaluationOptions, evaluate
from ctx_embed.eval.scoring import probes
from ctx_embed.eval.scoring.probes import PROTOCOLS, ProbeScore, frozen, logistic_path
from ctx_embed.eval.scoring.score import Examples, draws, end_to_end, score_probe, training_options
from ctx_embed.eval.tasks import TaskData
from ctx_embed.fingerprint import fingerprint
from ctx_embed.systems import untrained
from ctx_embed.training import supervised
from ctx_embed.training.options import FINE_TUNING, SupervisedOptions
from ctx_embed.training.supervised.train import train_classifier
from ctx_embed.vectors import unit_rows
from tests.conftest import make_model
from tests.eval.conftest import encoder_of
from tests.helpers.errors import error

GENERATOR = np.random.default_rng(7)
# Two pairs: the first texts, then the second ones.
PAIRS = np.array([[1.0, 2.0], [0.0, 1.0], [3.0, 2.0], [0.0, -1.0]])
BINARY = ["no", "yes"] * 150
POWERS = [2.0**power for power in range(-2, 6)]


def standard(X, y, seed, **options) -> ProbeScore:
    return PROTOCOLS["standard"].score(frozen(X), y, seed, **options)


def overlapping(y: list[str], dimension: int = 12) -> np.ndarray:
    means = {label: GENERATOR.normal(size=dimension) for label in sorted(set(y))}
    return np.stack([0.5 * means[label] for label in y]) + GENERATOR.normal(size=(len(y), dimension))


def test_separable_classes_are_learned_and_noise_is_not():
    X = np.zeros((300, 3))
    X[:, 1] = [1.0 if label == "yes" else -1.0 for label in BINARY]
    assert standard(X, BINARY, 0) == ProbeScore((100.0,) * 10, (probes.CS[0],) * 10, 50.0, "1" * 300)
    # Correct rows stand in the order of the data.
    X[[7, 120]] *= -1
    right = standard(X, BINARY, 0).right
    assert [place for place, digit in enumerate(right) if digit == "0"] == [7, 120]
    # 200 dimensions for 200 rows: the training folds can be fitted perfectly, so that any leak would show.
    score = standard(GENERATOR.normal(size=(200, 200)), BINARY[:200], 0)
    assert score.mean == pytest.approx(50.0, abs=10.0)


def fitted(C, X, y):
    return make_pipeline(StandardScaler(), LogisticRegression(C=C, tol=1e-8, max_iter=10_000)).fit(X, y)


def liblinear(C, X, y):
    return OneVsRestClassifier(LogisticRegression(C=C, solver="liblinear", tol=1e-8, max_iter=10_000)).fit(X, y)


def of_rows(right: list[np.ndarray]) -> float:
    return np.concatenate(right).sum()


def of_folds(right: list[np.ndarray]) -> float:
    """Return the mean accuracy over folds in two digits, by which SentEval chooses."""
    return round(100 * np.mean([fold.mean() for fold in right]), 2)


def best_C(fit, values, X, labels, folds, measure) -> float:
    """Return the value with the highest measure, the first of equal ones."""
    folds = list(folds)
    measures = [measure([fit(C, X[i], labels[i]).predict(X[o]) == labels[o] for i, o in folds]) for C in values]
    return values[int(np.argmax(measures))]


def nested(fit, values, X, labels, outer, inner, measure) -> tuple[list[float], tuple[float, ...]]:
    """Return accuracies and C of stratified nested cross-validation."""
    accuracies, chosen = [], []
    for train, test in outer.split(X, labels):
        folds = inner.split(X[train], labels[train])
        chosen.append(best_C(fit, values, X[train], labels[train], folds, measure))
        accuracies.append(100 * fit(chosen[-1], X[train], labels[train]).score(X[test], labels[test]))
    return accuracies, tuple(chosen)


def near(y: list[str]) -> np.ndarray:
    return unit_rows(overlapping(y, 10)) + 0.1


# The senteval protocol against a plain implementation of what SentEval documents.
@pytest.mark.parametrize("y", [BINARY[:150], ["a", "b", "c"] * 50], ids=["two", "three"])
@pytest.mark.parametrize("name", ["standard", "senteval"])
def test_agrees_with_the_plain_protocol(name, y):
    X, folds, seed, plain, protocol = overlapping(y), (10, 5), 3, (fitted, probes.CS, of_rows), PROTOCOLS[name]
    if name == "senteval":
        assert protocol.folds == protocol.inner_folds == 10
        protocol = replace(protocol, folds=4, inner_folds=4)
        X, folds, seed, plain = near(y), (4, 4), 1111, (liblinear, POWERS[:6], of_folds)
    outer, inner = (StratifiedKFold(count, shuffle=True, random_state=seed) for count in folds)
    fit, values, measure = plain
    accuracies, chosen = nested(fit, values, X, np.array(y), outer, inner, measure)
    score = protocol.score(frozen(X), y, 3)
    assert score.folds == pytest.approx(accuracies)
    assert score.Cs == chosen
    assert len(set(chosen)) > 1
    assert 55 < score.mean < 100


def test_scale_shift_and_processors_do_not_matter_but_the_seed_does(monkeypatch):
    X = overlapping(BINARY)
    first = standard(X, BINARY, 0)
    assert standard(X * 10.0 ** np.arange(-6, 6) + 3.0, BINARY, 0) == first
    assert standard(X, BINARY, 1).folds != first.folds
    monkeypatch.setattr(probes.os, "cpu_count", lambda: 1)
    assert standard(X, BINARY, 0) == first


def test_statistics_by_hand():
    score = ProbeScore((90.0, 92.0, 94.0), (1.0, 1.0, 1.0), 60.0)
    assert ((score.mean, score.std), ProbeScore((90.0,), (1.0,), 60.0).std) == ((92.0, 2.0), 0.0)
    assert standard(np.zeros((40, 1)), ["a"] * 30 + ["b"] * 10, 0).floor == 75.0
    # The floor of a split is that of the training part's class.
    y = ["a"] * 30 + ["b"] * 10 + ["a"] * 2 + ["b"] * 8
    parts = {"train": np.arange(40), "test": np.arange(40, 50)}
    assert standard(np.zeros((50, 1)), y, 0, parts=parts).floor == 20.0
    # Seeds are joined.
    first = ProbeScore((90.0, 80.0), (1.0, 1.0), 60.0, "1101")
    second = ProbeScore((70.0, 80.0), (0.1, 1.0), 60.0, "0101")
    joined = probes.mean_of_seeds([first, second])
    assert joined == ProbeScore((90.0, 80.0, 70.0, 80.0), (1.0, 1.0, 0.1, 1.0), 60.0, "1202", 2)
    assert probes.mean_of_seeds([first]) == first
    # 5 of 8.
    assert sum(joined.interval) / 2 == pytest.approx(62.5, abs=10)


def test_features_of_rows_and_pairs_by_hand(drawn):
    # Pairs of texts are told apart by their difference.
    rows = [("same", f"film {i}", f"film {i}") if i % 2 else ("other", f"film {i}", f"book {i}") for i in range(60)]
    examples = Examples.from_data(TaskData("", {"MRPC": rows}))
    assert score_probe(examples, EmbeddingCache(drawn), PROTOCOLS["quick"], 0).mean > 90
    train, other = frozen(PAIRS)(np.array([2, 0]), np.array([1]))
    np.testing.assert_array_equal(train, PAIRS[[2, 0]])
    np.testing.assert_array_equal(other, PAIRS[[1]])
    for matrix in (PAIRS, sparse.csr_array(PAIRS)):
        features = probes.of_pairs(lambda train, other, of=matrix: (of[train], of[other]), 2)
        train, other = features(np.array([1]), np.array([0, 1]))
        expected = [[0.0, 2.0, 0.0, -1.0], [2.0, 0.0, 3.0, 4.0], [0.0, 2.0, 0.0, -1.0]]
        np.testing.assert_array_equal(sparse.vstack([train, other]).toarray(), expected)


def test_a_test_part_is_scored_once_by_a_probe_on_the_training_part():
    labels, parts, dev = np.array(BINARY), {"train": np.arange(200), "test": np.arange(240, 300)}, np.arange(200, 240)
    # SentEval chooses from another grid if there is a development part.
    for name, X, inner, seed, fit, grids, measure in (
        ("standard", overlapping(BINARY), 5, 3, fitted, (probes.CS, probes.CS), of_rows),
        ("senteval", near(BINARY), 10, 1111, liblinear, (POWERS[1:], POWERS[:6]), of_folds),
    ):
        folds = StratifiedKFold(inner, shuffle=True, random_state=seed).split(X[:200], labels[:200])
        best = best_C(fit, grids[0], X, labels, folds, measure)
        hits = fit(best, X[:200], labels[:200]).predict(X[240:]) == labels[240:]
        score = PROTOCOLS[name].score(frozen(X), BINARY, 3, parts)
        assert score.Cs == (best,)
        assert score.right == "".join("01"[int(hit)] for hit in hits)
        assert score.folds == (pytest.approx(100 * np.mean(hits)),)
        # A development part chooses in place of folds.
        best = best_C(fit, grids[1], X, labels, [(np.arange(200), dev)], measure)
        assert PROTOCOLS[name].score(frozen(X), BINARY, 0, {**parts, "dev": dev}).Cs == (best,)


def test_too_few_classes_or_rows():
    ten = "10-fold cross-validation needs at least 10 of each class"
    once, few = ["x", *["a"] * 30], ["a"] * 20 + ["b"] * 4 + ["a", "b"]
    for protocol, y, train, message in (
        ("standard", [], None, "there are no rows; a probe needs at least two classes"),
        ("standard", once, None, f"the class 'x' has 1 row; {ten}; the label 'x' occurs once, on the fir"),
        ("standard", ["a"] * 30 + ["b"] * 9, None, f"the class 'b' has 9 rows; {ten}"),
        ("standard", few, 24, "training part: the class 'b' has 4 rows; 5-fold cross-"),
        ("quick", few, 20, "training part: all 20 rows are of the class 'a'; a probe needs "),
    ):
        parts = train and {"train": np.arange(train), "test": np.arange(train, len(y))}
        assert error(PROTOCOLS[protocol].score, frozen(np.zeros((len(y), 2))), y, 0, parts).startswith(message)


STRENGTHS = (1e-4, 1e-2, 1.0, 10.0)


def problem(n: int, d: int, n_classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return correlated features whose variances differ by orders of magnitude, and overlapping classes."""
    generator = np.random.default_rng(n + d + n_classes)
    X = generator.normal(size=(n, d)) @ (generator.normal(size=(d, d)) * np.exp(-np.arange(d) / 10))
    X = StandardScaler().fit_transform(X)
    logits = 0.3 * X @ generator.normal(size=(d, n_classes)) + generator.gumbel(size=(n, n_classes))
    return X, logits.argmax(axis=1)


# Liblinear penalises the intercept.
SOLVERS = {"lbfgs": [(400, 40, 2), (400, 40, 3), (60, 90, 2), (60, 90, 4)], "liblinear": [(400, 40, 2), (60, 90, 2)]}


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize(("solver", "size"), [(solver, size) for solver in SOLVERS for size in SOLVERS[solver]])
def test_agrees_with_scikit_learn(solver, size, form):
    X, y = problem(*size)
    penalised = solver == "liblinear"
    X = form(X + 0.5 * penalised)
    path = logistic_path(X, y, size[2], STRENGTHS, penalise_intercept=penalised)
    for C, (weights, intercept) in zip(STRENGTHS, path, strict=True):
        reference = LogisticRegression(C=C, solver=solver, tol=1e-10, max_iter=100_000).fit(X, y)
        np.testing.assert_allclose(weights, reference.coef_.T, atol=2e-3 * np.abs(reference.coef_).max())
        np.testing.assert_array_equal(probes.decided(X, weights, intercept), reference.predict(X))
        np.testing.assert_allclose(intercept, reference.intercept_, atol=2e-3)
    with pytest.warns(ConvergenceWarning, match="did not converge"):
        list(logistic_path(X, y, size[2], [10.0], max_iterations=1))


def test_the_mean_over_folds_of_other_sizes_is_not_that_over_rows():
    best = PROTOCOLS["senteval"].best
    assert best(np.array([[9.0, 10.0], [3.0, 2.0]]), np.array([10.0, 3.0])) == 0
    # Alike in two digits: the first.
    for row, place in (([0.999999, 1.0], 0), ([0.5, 0.50004999], 0), ([0.5, 0.5000501], 1)):
        assert best(np.array([row]), np.array([1.0])) == place
    assert get_args(probes.ProtocolName) == probes.PROTOCOL_NAMES


def test_sparse_rows_are_scaled_alike_in_training_and_test():
    """As scikit-learn fits them at 16 times their length; other test rows would meet another intercept."""
    generator = np.random.default_rng(0)
    X = sparse.random_array((120, 30), density=0.2, rng=generator, format="csr")
    y = (np.asarray(X.sum(axis=1)).ravel() > 3.4).astype(np.intp)
    (found,) = probes.scaled_logistic(X[:80], y[:80], 2, (0.01,), X[80:])
    scaled = 16.0 * X.toarray()
    expected = LogisticRegression(C=0.01, tol=1e-8).fit(scaled[:80], y[:80])
    np.testing.assert_array_equal(found, expected.predict(scaled[80:]))
    for train, test in ((1.0, 1.0), (16.0, 1.0), (1.0, 16.0)):
        other = LogisticRegression(C=0.01, tol=1e-8).fit(train * X[:80].toarray(), y[:80])
        assert (other.predict(test * X[80:].toarray()) != found).any()


# Scores of tasks by probes and by training
def test_rows_by_length_then_label_and_repeated_texts():
    data = TaskData("", {"MR": [("1", "a b"), ("0", "a"), ("0", "c d"), ("1", ""), ("0", "e f")]})
    examples, order = Examples.from_data(data).by_length()
    assert (order.tolist(), examples.texts[0]) == ([3, 1, 2, 4, 0], ("",))
    pairs = TaskData("", {"train": [("1", "a b", "c"), ("0", "a", "b c")], "test": [("0", "a", "b"), ("1", "", "b")]})
    examples, order = Examples.from_data(pairs).by_length()
    assert (order.tolist(), examples.labels) == ([1, 0, 3, 2], ["0", "1", "1", "0"])
    whole = TaskData("", {"MR": [("1", "a"), ("0", "a"), ("1", "b"), ("1", "c")]})
    assert Examples.from_data(whole).repeated == 2
    split = TaskData("", {"train": [("1", "a"), ("1", "d"), ("1", "d")], "test": [("0", "a"), ("0", "b")]})
    assert Examples.from_data(split).repeated == 1


def test_senteval_draws_its_folds_from_rows_by_length():
    """Correct rows are returned in the order of the data, whatever the order of the folds."""
    rows = [("01"[i % 2], ("good " if i % 2 else "bad ") * (1 + i % 7)) for i in range(40)]
    rows[5] = ("0", rows[5][1])
    encoder = encoder_of("e", lambda texts: np.array([[float("good" in text)] for text in texts]))
    split = {"train": rows[:30], "test": [*rows[30:], ("0", "good")]}
    for subsets, right in (({"MR": rows}, "1" * 5 + "0" + "1" * 34), (split, "1" * 10 + "0")):
        examples = Examples.from_data(TaskData("", subsets))
        assert score_probe(examples, EmbeddingCache(encoder), PROTOCOLS["senteval"], 0).right == right


ONCE = [("the good cat", "1"), ("a dull film", "0"), ("a good book", "1"), ("rain fell all night", "0")]
TEXTS = [(f"{text} {number}", label) for number in range(10) for text, label in ONCE]
EXAMPLES = Examples([label for _, label in TEXTS], [(text,) for text, _ in TEXTS], None)


@pytest.fixture
def tiny(tokenizer) -> Encoder:
    return as_encoder(make_model(tokenizer), "tiny")


def test_each_fold_is_trained_anew_from_the_same_encoder(tiny):
    before = fingerprint(tiny.model.backend)
    score = end_to_end(tiny, EXAMPLES, 3, 2)
    assert fingerprint(tiny.model.backend) == before
    assert len(score.folds) == 2
    rows, options = Labelled(EXAMPLES.labels, [text for text, _ in TEXTS]), replace(FINE_TUNING, seed=3)
    folds = probes.folds_of(np.arange(40), np.array(rows.labels, int), 2, 3)
    for (train, test), accuracy in zip(folds, score.folds, strict=True):
        model = copy.deepcopy(tiny.model.backend)
        classifier, _ = train_classifier(model, rows.rows(train), None, options, progress=False)
        assert accuracy == pytest.approx(100 * classifier.accuracy(rows.rows(test)))
        assert np.mean([int(score.right[i]) for i in test]) * 100 == pytest.approx(accuracy)
    assert score.mean > 80


def test_what_can_be_trained_and_with_which_options(tiny, drawn, tokenizer):
    for encoder, changes, message in (
        (tiny, {"labels": ["0"] + ["1"] * 39}, "the class '0' has 1 row; 2-fold cross-validation needs at least 2 of"),
        (tiny, {"texts": [("a", "b")] * 40}, "with the protocol paper a task must have one text a row, got pairs of"),
        (drawn, {}, "with the protocol paper an encoder must be a SentenceTransformer, got 'drawn'"),
    ):
        assert error(end_to_end, encoder, replace(EXAMPLES, **changes), 3, 2).startswith(message)
    # Random weights are trained as the paper does, and trained ones tuned.
    assert training_options(tiny) is FINE_TUNING
    assert training_options(replace(tiny, name="contextualizer")) == SupervisedOptions(head="zeros")
    # The initial head is among the options that key a fold.
    for name, head in (("contextualizer", "zeros"), ("mean", "random")):
        assert training_options(as_encoder(untrained(name, tokenizer, 8), name)).head == head


def test_an_interrupted_run_resumes_after_its_last_fold(tiny, tmp_path, monkeypatch):
    mine = tmp_path / "mine.tsv"
    mine.write_text("".join(f"{label}\t{text}\n" for text, label in TEXTS))
    run, trained = partial(evaluate, [tiny], str(mine), options=EvaluationOptions("paper", folds=3)), []
    whole, train = run().scores, supervised.train.train_classifier

    def counted(*arguments, **named):
        if len(trained) == 2:
            raise KeyboardInterrupt
        trained.append(1)
        return train(*arguments, **named)

    monkeypatch.setattr(supervised.train, "train_classifier", counted)
    with pytest.raises(KeyboardInterrupt):
        run(cache=tmp_path / "cache")
    trained.clear()
    assert run(cache=tmp_path / "cache").scores == whole
    assert len(trained) == 1


def test_a_development_part_chooses_the_epoch(tiny, monkeypatch):
    rows = {"train": np.arange(20), "dev": np.arange(20, 30), "test": np.arange(30, 40)}
    monkeypatch.setattr(supervised.train, "train_classifier", train := Mock(wraps=train_classifier))
    score = end_to_end(replace(tiny, words=True), replace(EXAMPLES, parts=rows), 7)
    _, of_train, valid, options = train.call_args.args
    assert (train.call_count, train.call_args.kwargs["words"]) == (1, True)
    assert (len(of_train.texts), len(valid.texts), options.seed) == (20, 10, 7)
    assert (len(score.folds), len(score.right)) == (1, 10)


def test_the_score_of_ten_draws(drawn, tmp_path):
    labels = ["a"] * 30 + ["b"] * 20 + ["c"] * 3
    found = draws(labels, 4)
    assert len({tuple(sorted(rows)) for rows in found}) == len(found) == 10
    assert all(Counter(labels[row] for row in rows) == {"a": 4, "b": 4, "c": 3} for rows in found)
    (tmp_path / "mteb").mkdir()
    for part, count in (("train", 100), ("test", 30)):
        rows = "".join(f"{i % 2}\t{('bad', 'good')[i % 2]} {part} {i}\n" for i in range(count))
        (tmp_path / "mteb" / f"amazon_counterfactual_en_{part}.tsv").write_text(rows)
    calls = []
    counted = encoder_of(
        "drawn", lambda texts: calls.extend(texts) or drawn.encode(texts), drawn.fingerprint, drawn.key
    )
    run = partial(evaluate, [counted, "tfidf"], "MTEB-AmazonCounterfactual", tmp_path, cache=tmp_path / "cache")
    first, again = run(), run()
    score = first.scores["drawn", "MTEB-AmazonCounterfactual"]
    assert score.mean > 90
    assert (len(score.folds), score.seeds, len(score.right), set(score.Cs)) == (10, 10, 30, {1.0})
    # Each row counts its correct draws, so both sums are the same.
    assert score.mean == pytest.approx(100 * np.mean(score.hits))
    assert again.scores == first.scores
    assert len(calls) == len(set(calls)) <= 130
    assert first.report["results"][1]["versus"]["test"] == "permutation"
    assert "ten draws of 32 training rows of each label" in str(first)
    assert "protocol standard" not in str(first)
