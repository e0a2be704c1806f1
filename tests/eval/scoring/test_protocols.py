"""The senteval protocol against a plain implementation of what SentEval documents."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
from scipy import sparse
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold
from sklearn.multiclass import OneVsRestClassifier

from ctx_embed.eval.scoring.probes import PROTOCOL_NAMES, PROTOCOLS, ProtocolName, frozen, scaled_logistic

GENERATOR = np.random.default_rng(11)


def problem(y: list[str], dimension: int = 10) -> np.ndarray:
    means = {label: GENERATOR.normal(size=dimension) for label in sorted(set(y))}
    X = np.stack([0.25 * means[label] for label in y]) + 0.6 * GENERATOR.normal(size=(len(y), dimension))
    return X / np.linalg.norm(X, axis=1, keepdims=True) + 0.1


def liblinear(C: float, X, y):
    return OneVsRestClassifier(LogisticRegression(C=C, solver="liblinear", tol=1e-8, max_iter=10_000)).fit(X, y)


def nested(X, labels, folds: int) -> tuple[list[float], list[float]]:
    """Return accuracies and C of stratified nested cross-validation, C of 2^-2..2^3 by the rounded mean accuracy."""
    splits = StratifiedKFold(folds, shuffle=True, random_state=1111)
    accuracies, chosen = [], []
    for train, test in splits.split(X, labels):
        inner_X, inner_y = X[train], labels[train]
        chosen.append(best_C(range(-2, 4), inner_X, inner_y, splits.split(inner_X, inner_y)))
        accuracies.append(100 * liblinear(chosen[-1], inner_X, inner_y).score(X[test], labels[test]))
    return accuracies, chosen


def best_C(powers, X, labels, folds) -> float:
    """Return the power of two with the highest mean accuracy in two digits, the first of equal ones."""
    folds = list(folds)
    means = [
        round(100 * np.mean([liblinear(2.0**t, X[i], labels[i]).score(X[o], labels[o]) for i, o in folds]), 2)
        for t in powers
    ]
    return 2.0 ** powers[int(np.argmax(means))]


@pytest.mark.parametrize("y", [["0", "1"] * 70, ["a", "b", "c"] * 40], ids=["two", "three"])
def test_senteval_cross_validation(y):
    X = problem(y)
    protocol = PROTOCOLS["senteval"]
    assert protocol.folds == protocol.inner_folds == 10
    accuracies, chosen = nested(X, np.array(y), 4)
    score = replace(protocol, folds=4, inner_folds=4).score(frozen(X), y, 5)
    assert score.folds == pytest.approx(accuracies)
    assert score.Cs == tuple(chosen)
    assert len(set(chosen)) > 1


def test_senteval_with_a_test_part_chooses_from_another_grid():
    y = ["0", "1"] * 80
    X, labels = problem(y), np.array(y)
    folds = StratifiedKFold(10, shuffle=True, random_state=1111).split(X[:120], labels[:120])
    best = best_C(range(-1, 6), X[:120], labels[:120], folds)
    score = PROTOCOLS["senteval"].score(frozen(X), y, 0, {"train": np.arange(120), "test": np.arange(120, 160)})
    assert score.Cs == (best,)
    assert score.mean == pytest.approx(100 * liblinear(best, X[:120], labels[:120]).score(X[120:], labels[120:]))
    # A development part chooses in place of folds.
    parts = {"train": np.arange(100), "dev": np.arange(100, 130), "test": np.arange(130, 160)}
    best = best_C(range(-2, 4), X, labels, [(parts["train"], parts["dev"])])
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
