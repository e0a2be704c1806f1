"""On real data the fast solver is as accurate as a slow one that is fully converged."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from ctx_embed.encoders import embed
from ctx_embed.eval.encoders import load_encoder
from ctx_embed.eval.scoring.probes import CS, PROTOCOLS, frozen
from ctx_embed.eval.tasks.catalogue import TASKS
from ctx_embed.eval.tasks.data import DataReader


def converged(C: float, X, y):
    solver = LogisticRegression(C=C, solver="newton-cholesky", tol=1e-10, max_iter=1000)
    return make_pipeline(StandardScaler(), solver).fit(X, y)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["MR", "CR", "SUBJ", "MPQA"])
def test_within_a_tenth_of_a_point(name, data):
    rows = DataReader(data).read(TASKS[name]).subsets[name]
    labels = np.array([label for label, _ in rows])
    X = embed(load_encoder("default"), [text for _, text in rows]).astype(np.float64)
    accuracies = []
    with threadpool_limits(1, user_api="blas"):
        for train, test in StratifiedKFold(10, shuffle=True, random_state=0).split(X, labels):
            right = dict.fromkeys(CS, 0)
            for inner, held_out in StratifiedKFold(5, shuffle=True, random_state=0).split(train, labels[train]):
                for C in CS:
                    fitted = converged(C, X[train[inner]], labels[train[inner]])
                    right[C] += np.sum(fitted.predict(X[train[held_out]]) == labels[train[held_out]])
            best = max(CS, key=lambda C: (right[C], -C))
            accuracies.append(100 * converged(best, X[train], labels[train]).score(X[test], labels[test]))
    assert PROTOCOLS["standard"].score(frozen(X), labels, 0).mean == pytest.approx(np.mean(accuracies), abs=0.1)
