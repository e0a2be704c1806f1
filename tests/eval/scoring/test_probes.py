from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from ctx_embed.eval.scoring import probes
from ctx_embed.eval.scoring.probes import CS, PROTOCOLS, ProbeScore, frozen, mean_of_seeds, of_pairs
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


@pytest.mark.parametrize("y", [BINARY, ["0", "1", "2"] * 100], ids=["words", "three classes"])
def test_agrees_with_the_plain_protocol(y):
    X = overlapping(y)
    labels = np.array(y)
    accuracies, chosen = [], []
    for train, test in StratifiedKFold(10, shuffle=True, random_state=3).split(X, labels):
        right = dict.fromkeys(CS, 0)
        for C in CS:
            for inner, held_out in StratifiedKFold(5, shuffle=True, random_state=3).split(X[train], labels[train]):
                right[C] += np.sum(
                    fitted(C, X[train][inner], labels[train][inner]).predict(X[train][held_out])
                    == labels[train][held_out]
                )
        chosen.append(max(CS, key=lambda C: (right[C], -C)))
        accuracies.append(100 * fitted(chosen[-1], X[train], labels[train]).score(X[test], labels[test]))
    score = standard(X, y, 3)
    assert score.folds == pytest.approx(accuracies)
    assert score.Cs == tuple(chosen)
    assert len(set(chosen)) > 1
    assert 55 < score.mean < 100


def fitted(C, X, y):
    return make_pipeline(StandardScaler(), LogisticRegression(C=C, tol=1e-8, max_iter=10_000)).fit(X, y)


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
    right = dict.fromkeys(CS, 0)
    for inner, held_out in StratifiedKFold(5, shuffle=True, random_state=3).split(X[:200], labels[:200]):
        for C in CS:
            right[C] += np.sum(fitted(C, X[inner], labels[inner]).predict(X[held_out]) == labels[held_out])
    best = max(CS, key=lambda C: (right[C], -C))
    predicted = fitted(best, X[:200], labels[:200]).predict(X[240:])
    score = standard(X, BINARY, 3, parts=PARTS)
    assert score.Cs == (best,)
    assert score.right == "".join("01"[int(hit)] for hit in predicted == labels[240:])
    assert score.folds == (pytest.approx(100 * np.mean(predicted == labels[240:])),)
    # A development part chooses in place of folds.
    right = {C: np.mean(fitted(C, X[:200], labels[:200]).predict(X[dev]) == labels[dev]) for C in CS}
    score = standard(X, BINARY, 0, parts={**PARTS, "dev": dev})
    assert score.Cs == (max(CS, key=lambda C: (right[C], -C)),)


def test_seeds_are_joined():
    first = ProbeScore((90.0, 80.0), (1.0, 1.0), 60.0, "1101")
    second = ProbeScore((70.0, 80.0), (0.1, 1.0), 60.0, "0101")
    assert mean_of_seeds([first, second]) == ProbeScore((90.0, 80.0, 70.0, 80.0), (1.0, 1.0, 0.1, 1.0), 60.0, "1202", 2)
    assert mean_of_seeds([first]) == first
    # 5 of 8.
    assert sum(mean_of_seeds([first, second]).interval) / 2 == pytest.approx(62.5, abs=10)


ONCE = (
    "; the label 'label' occurs once, on the first line; if that is a header, name its columns with --field and "
    "--label-field"
)
TEN = "10-fold cross-validation needs at least 10 of each class"


@pytest.mark.parametrize(
    ("y", "message"),
    [
        ([], "there are no rows; a probe needs at least two classes"),
        (["1"] * 30, "all 30 rows are of the class '1'; a probe needs at least two classes"),
        (["a"] * 30 + ["b"], f"the class 'b' has 1 row; {TEN}"),
        (["label", *["a"] * 30], f"the class 'label' has 1 row; {TEN}{ONCE}"),
        (["a"] * 30 + ["b"] * 9, f"the class 'b' has 9 rows; {TEN}"),
    ],
)
def test_too_few_classes_or_rows(y, message):
    assert error(standard, np.zeros((len(y), 2)), y, 0) == message


def test_too_few_rows_of_the_training_part():
    X, y = np.zeros((26, 1)), ["a"] * 20 + ["b"] * 4 + ["a", "b"]
    four = {"train": np.arange(24), "test": np.arange(24, 26)}
    message = "training part: the class 'b' has 4 rows; 5-fold cross-validation needs at least 5 of each class"
    assert error(standard, X, y, 0, parts=four) == message
    none = {"train": np.arange(20), "test": np.arange(20, 26)}
    message = "training part: all 20 rows are of the class 'a'; a probe needs "
    assert error(PROTOCOLS["quick"].score, frozen(X), y, 0, none).startswith(message)
