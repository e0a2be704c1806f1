from __future__ import annotations

import re

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from ctx_embed.errors import InputError
from ctx_embed.eval import probes
from ctx_embed.eval.probes import CS, ProbeScore, standard

GENERATOR = np.random.default_rng(7)
BINARY = ["no", "yes"] * 150


def overlapping(y: list[str], dimension: int = 12) -> np.ndarray:
    means = {label: GENERATOR.normal(size=dimension) for label in sorted(set(y))}
    return np.stack([0.5 * means[label] for label in y]) + GENERATOR.normal(size=(len(y), dimension))


def test_separable_classes_are_read_off():
    X = np.zeros((300, 3))
    X[:, 1] = [1.0 if label == "yes" else -1.0 for label in BINARY]
    assert standard(X, BINARY, 0) == ProbeScore((100.0,) * 10, (CS[0],) * 10, 50.0)


def test_labels_without_relation_to_the_embeddings_give_chance():
    # 300 dimensions for 300 rows: the training folds can be fitted perfectly, so that any leak would show.
    score = standard(GENERATOR.normal(size=(300, 300)), BINARY, 0)
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


def test_scaled_rows_were_all_in_the_fit_or_none_of_them(monkeypatch):
    X = overlapping(BINARY)
    X[:, 0] = np.arange(len(X))  # so that a row tells which one it is
    sizes = set()

    class Watched(StandardScaler):
        def fit(self, X):
            self.rows = set(X[:, 0])
            return super().fit(X)

        def transform(self, X):
            rows = set(X[:, 0])
            assert rows == self.rows or not rows & self.rows
            sizes.add((len(self.rows), len(rows)))
            return super().transform(X)

    monkeypatch.setattr(probes, "StandardScaler", Watched)
    standard(X, BINARY, 0)
    assert sizes == {(270, 270), (270, 30), (216, 216), (216, 54)}


def test_scale_and_shift_of_a_feature_do_not_matter():
    X = overlapping(BINARY)
    assert standard(X, BINARY, 0) == standard(X * 10.0 ** np.arange(-6, 6) + 3.0, BINARY, 0)


def test_the_seed_decides_the_folds_and_one_processor_gives_the_same(monkeypatch):
    X = overlapping(BINARY).astype(np.float32)
    first = standard(X, BINARY, 0)
    monkeypatch.setattr(probes.os, "cpu_count", lambda: 1)
    assert standard(X, BINARY, 0) == first
    assert standard(X, BINARY, 1).folds != first.folds


def test_statistics_by_hand():
    score = ProbeScore((90.0, 92.0, 94.0), (1.0, 1.0, 1.0), 60.0)
    assert (score.mean, score.std) == (92.0, 2.0)
    assert standard(np.zeros((40, 1)), ["a"] * 30 + ["b"] * 10, 0).floor == 75.0


@pytest.mark.parametrize(
    ("y", "message"),
    [
        ([], "there are no rows, a probe needs two classes or more"),
        (["1"] * 30, "all 30 rows are of the class '1', a probe needs two classes or more"),
        (["a"] * 30 + ["b"], "the class 'b' has 1 row, 10-fold cross-validation needs 10 or more of each class"),
        (["a"] * 30 + ["b"] * 9, "the class 'b' has 9 rows, 10-fold cross-validation needs 10 or more of each class"),
    ],
)
def test_too_few_classes_or_rows(y, message):
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        standard(np.zeros((len(y), 2)), y, 0)
