from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from ctx_embed.eval.scoring import probes
from ctx_embed.eval.scoring.probes import (
    CS,
    PROTOCOL_NAMES,
    PROTOCOLS,
    ProbeScore,
    ProtocolName,
    frozen,
    logistic_path,
    mean_of_seeds,
    of_pairs,
    scaled_logistic,
)
from tests.helpers.errors import error

GENERATOR = np.random.default_rng(7)
# Two pairs: the first texts, then the second ones.
PAIRS = np.array([[1.0, 2.0], [0.0, 1.0], [3.0, 2.0], [0.0, -1.0]])
BINARY = ["no", "yes"] * 150


def standard(X, y, seed, **options) -> ProbeScore:
    return PROTOCOLS["standard"].score(frozen(X), y, seed, **options)


def overlapping(y: list[str], dimension: int = 12) -> np.ndarray:
    means = {label: GENERATOR.normal(size=dimension) for label in sorted(set(y))}
    return np.stack([0.5 * means[label] for label in y]) + GENERATOR.normal(size=(len(y), dimension))


def test_separable_classes_are_learned_and_noise_is_not():
    X = np.zeros((300, 3))
    X[:, 1] = [1.0 if label == "yes" else -1.0 for label in BINARY]
    assert standard(X, BINARY, 0) == ProbeScore((100.0,) * 10, (CS[0],) * 10, 50.0, "1" * 300)
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


@pytest.mark.parametrize("y", [BINARY[:150], ["0", "1", "2"] * 50], ids=["words", "three classes"])
def test_agrees_with_the_plain_protocol(y):
    X = overlapping(y)
    outer, inner = (StratifiedKFold(folds, shuffle=True, random_state=3) for folds in (10, 5))
    accuracies, chosen = nested(fitted, CS, X, np.array(y), outer, inner, of_rows)
    score = standard(X, y, 3)
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
    assert (score.mean, score.std) == (92.0, 2.0)
    assert ProbeScore((90.0,), (1.0,), 60.0).std == 0.0
    assert standard(np.zeros((40, 1)), ["a"] * 30 + ["b"] * 10, 0).floor == 75.0
    # The floor of a split is that of the training part's class.
    y = ["a"] * 30 + ["b"] * 10 + ["a"] * 2 + ["b"] * 8
    parts = {"train": np.arange(40), "test": np.arange(40, 50)}
    assert standard(np.zeros((50, 1)), y, 0, parts=parts).floor == 20.0


PARTS = {"train": np.arange(200), "test": np.arange(240, 300)}


def test_features_of_rows_and_pairs_by_hand():
    train, other = frozen(PAIRS)(np.array([2, 0]), np.array([1]))
    np.testing.assert_array_equal(train, PAIRS[[2, 0]])
    np.testing.assert_array_equal(other, PAIRS[[1]])
    for matrix in (PAIRS, sparse.csr_array(PAIRS)):
        features = of_pairs(lambda train, other, of=matrix: (of[train], of[other]), 2)
        train, other = features(np.array([1]), np.array([0, 1]))
        if sparse.issparse(train):
            train, other = train.toarray(), other.toarray()
        np.testing.assert_array_equal(train, [[0.0, 2.0, 0.0, -1.0]])
        np.testing.assert_array_equal(other, [[2.0, 0.0, 3.0, 4.0], [0.0, 2.0, 0.0, -1.0]])


def test_a_test_part_is_scored_once_by_a_probe_on_the_training_part():
    X, labels, dev = overlapping(BINARY), np.array(BINARY), np.arange(200, 240)
    folds = StratifiedKFold(5, shuffle=True, random_state=3).split(X[:200], labels[:200])
    best = best_C(fitted, CS, X, labels, folds, of_rows)
    predicted = fitted(best, X[:200], labels[:200]).predict(X[240:])
    score = standard(X, BINARY, 3, parts=PARTS)
    assert score.Cs == (best,)
    assert score.right == "".join("01"[int(hit)] for hit in predicted == labels[240:])
    assert score.folds == (pytest.approx(100 * np.mean(predicted == labels[240:])),)
    # A development part chooses in place of folds.
    best = best_C(fitted, CS, X, labels, [(np.arange(200), dev)], of_rows)
    assert standard(X, BINARY, 0, parts={**PARTS, "dev": dev}).Cs == (best,)


def test_seeds_are_joined():
    first = ProbeScore((90.0, 80.0), (1.0, 1.0), 60.0, "1101")
    second = ProbeScore((70.0, 80.0), (0.1, 1.0), 60.0, "0101")
    assert mean_of_seeds([first, second]) == ProbeScore((90.0, 80.0, 70.0, 80.0), (1.0, 1.0, 0.1, 1.0), 60.0, "1202", 2)
    assert mean_of_seeds([first]) == first
    # 5 of 8.
    assert sum(mean_of_seeds([first, second]).interval) / 2 == pytest.approx(62.5, abs=10)


TEN = "10-fold cross-validation needs at least 10 of each class"


@pytest.mark.parametrize(
    ("y", "message"),
    [
        ([], "there are no rows; a probe needs at least two classes"),
        (["1"] * 30, "all 30 rows are of the class '1'; a probe needs at least two classes"),
        (
            ["label", *["a"] * 30],
            f"the class 'label' has 1 row; {TEN}; the label 'label' occurs once, on the first line",
        ),
        (["a"] * 30 + ["b"] * 9, f"the class 'b' has 9 rows; {TEN}"),
    ],
)
def test_too_few_classes_or_rows(y, message):
    assert error(standard, np.zeros((len(y), 2)), y, 0).startswith(message)


def test_too_few_rows_of_the_training_part():
    X, y = np.zeros((26, 1)), ["a"] * 20 + ["b"] * 4 + ["a", "b"]
    four = {"train": np.arange(24), "test": np.arange(24, 26)}
    assert error(standard, X, y, 0, parts=four).startswith("training part: the class 'b' has 4 rows; 5-fold cross-")
    none = {"train": np.arange(20), "test": np.arange(20, 26)}
    message = "training part: all 20 rows are of the class 'a'; a probe needs "
    assert error(PROTOCOLS["quick"].score, frozen(X), y, 0, none).startswith(message)


STRENGTHS = (1e-4, 1e-2, 1.0, 10.0)


def problem(n: int, d: int, n_classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return correlated features whose variances differ by orders of magnitude, and overlapping classes."""
    generator = np.random.default_rng(n + d + n_classes)
    X = generator.normal(size=(n, d)) @ (generator.normal(size=(d, d)) * np.exp(-np.arange(d) / 10))
    X = StandardScaler().fit_transform(X)
    logits = 0.3 * X @ generator.normal(size=(d, n_classes)) + generator.gumbel(size=(n, n_classes))
    return X, logits.argmax(axis=1)


@pytest.mark.parametrize(("n", "d", "n_classes"), [(400, 40, 2), (400, 40, 3), (60, 90, 2), (60, 90, 4)])
def test_agrees_with_scikit_learn(n, d, n_classes):
    X, y = problem(n, d, n_classes)
    for C, found in zip(STRENGTHS, logistic_path(X, y, n_classes, STRENGTHS), strict=True):
        reference = LogisticRegression(C=C, tol=1e-10, max_iter=100_000).fit(X, y)
        np.testing.assert_allclose(found.weights, reference.coef_.T, atol=2e-3 * np.abs(reference.coef_).max())
        np.testing.assert_array_equal(found.predict(X), reference.predict(X))


@pytest.mark.parametrize(("n", "d"), [(400, 40), (60, 90)])
def test_a_penalised_intercept_agrees_with_liblinear(n, d):
    X, y = problem(n, d, 2)
    X = X + 0.5
    for C, found in zip(STRENGTHS, logistic_path(X, y, 2, STRENGTHS, penalise_intercept=True), strict=True):
        reference = LogisticRegression(C=C, solver="liblinear", tol=1e-10, max_iter=100_000).fit(X, y)
        np.testing.assert_allclose(found.weights, reference.coef_.T, atol=2e-3 * np.abs(reference.coef_).max())
        np.testing.assert_allclose(found.intercept, reference.intercept_, atol=2e-3)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_sparse_features_give_the_same(n_classes):
    X, y = problem(300, 30, n_classes)
    X[np.abs(X) < 1] = 0
    dense, thin = (list(logistic_path(of, y, n_classes, STRENGTHS)) for of in (X, sparse.csr_array(X)))
    for one, other in zip(dense, thin, strict=True):
        np.testing.assert_allclose(one.weights, other.weights, atol=1e-4)
        np.testing.assert_array_equal(one.predict(X), other.predict(sparse.csr_array(X)))


def test_start_intercept_and_convergence():
    X, y = problem(200, 20, 3)
    *_, after_others = logistic_path(X, y, 3, STRENGTHS)
    (alone,) = logistic_path(X, y, 3, STRENGTHS[-1:])
    np.testing.assert_allclose(after_others.weights, alone.weights, atol=1e-4)
    # The intercept alone gives the log odds.
    (found,) = logistic_path(np.zeros((4, 3)), np.array([0, 1, 1, 1]), 2, [1.0])
    np.testing.assert_allclose(found.intercept, np.log(3.0), atol=1e-5)
    np.testing.assert_array_equal(found.weights, 0.0)
    with pytest.warns(ConvergenceWarning, match="did not converge"):
        list(logistic_path(X, y, 3, [10.0], max_iterations=1))


# The senteval protocol against a plain implementation of what SentEval documents.


POWERS = [2.0**power for power in range(-2, 6)]


def near(y: list[str]) -> np.ndarray:
    X = 0.5 * overlapping(y, 10)
    return X / np.linalg.norm(X, axis=1, keepdims=True) + 0.1


@pytest.mark.parametrize("y", [["0", "1"] * 70, ["a", "b", "c"] * 40], ids=["two", "three"])
def test_senteval_cross_validation(y):
    X = near(y)
    protocol = PROTOCOLS["senteval"]
    assert protocol.folds == protocol.inner_folds == 10
    folds = StratifiedKFold(4, shuffle=True, random_state=1111)
    accuracies, chosen = nested(liblinear, POWERS[:6], X, np.array(y), folds, folds, of_folds)
    score = replace(protocol, folds=4, inner_folds=4).score(frozen(X), y, 5)
    assert score.folds == pytest.approx(accuracies)
    assert score.Cs == chosen
    assert len(set(chosen)) > 1


def test_senteval_with_a_test_part_chooses_from_another_grid():
    y = ["0", "1"] * 80
    X, labels = near(y), np.array(y)
    folds = StratifiedKFold(10, shuffle=True, random_state=1111).split(X[:120], labels[:120])
    best = best_C(liblinear, POWERS[1:], X, labels, folds, of_folds)
    score = PROTOCOLS["senteval"].score(frozen(X), y, 0, {"train": np.arange(120), "test": np.arange(120, 160)})
    assert score.Cs == (best,)
    assert score.mean == pytest.approx(100 * liblinear(best, X[:120], labels[:120]).score(X[120:], labels[120:]))
    # A development part chooses in place of folds.
    parts = {"train": np.arange(100), "dev": np.arange(100, 130), "test": np.arange(130, 160)}
    best = best_C(liblinear, POWERS[:6], X, labels, [(parts["train"], parts["dev"])], of_folds)
    assert PROTOCOLS["senteval"].score(frozen(X), y, 0, parts).Cs == (best,)


def test_the_mean_over_folds_of_other_sizes_is_not_that_over_rows():
    best = PROTOCOLS["senteval"].best
    assert best(np.array([[9.0, 10.0], [3.0, 2.0]]), np.array([10.0, 3.0])) == 0
    # Alike in two digits: the first.
    for row, place in (([0.999999, 1.0], 0), ([0.5, 0.50004999], 0), ([0.5, 0.5000501], 1)):
        assert best(np.array([row]), np.array([1.0])) == place
    assert get_args(ProtocolName) == PROTOCOL_NAMES


def test_sparse_rows_are_scaled_alike_in_training_and_test():
    """As scikit-learn fits them at 16 times their length; other test rows would meet another intercept."""
    generator = np.random.default_rng(0)
    X = sparse.random_array((120, 30), density=0.2, rng=generator, format="csr")
    y = (np.asarray(X.sum(axis=1)).ravel() > 3.4).astype(np.intp)
    assert 10 < y.sum() < 50
    (found,) = scaled_logistic(X[:80], y[:80], 2, (0.01,), X[80:])
    scaled = 16.0 * X.toarray()
    expected = LogisticRegression(C=0.01, tol=1e-8).fit(scaled[:80], y[:80])
    np.testing.assert_array_equal(found, expected.predict(scaled[80:]))
    for train, test in ((1.0, 1.0), (16.0, 1.0), (1.0, 16.0)):
        other = LogisticRegression(C=0.01, tol=1e-8).fit(train * X[:80].toarray(), y[:80])
        assert (other.predict(test * X[80:].toarray()) != found).any()
