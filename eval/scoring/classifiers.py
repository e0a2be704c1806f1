"""The classifiers of the probes: each is fitted for a grid of penalties and predicts the classes of unseen rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from scipy import sparse
from sklearn.preprocessing import StandardScaler

from ctx_embed.eval.features import Matrix, Rows
from ctx_embed.eval.scoring.logistic import logistic_path

# (X, y, n_classes, penalties, X_test, y_test, seed) -> the predicted classes of X_test, one array for each penalty. If
# the first rows of X_test choose the penalty, y_test holds their classes, and they may also stop the training.
Fit = Callable[[Matrix, Rows, int, Sequence[float], Matrix, Rows | None, int], list[Rows]]

# Sparse rows are scaled to the length of a standardised embedding of 256 dimensions, so that one grid suits both.
SPARSE_LENGTH = 16.0


def scaled_logistic(
    X: Matrix, y: Rows, n_classes: int, Cs: Sequence[float], X_test: Matrix, y_test: Rows | None, seed: int
) -> list[Rows]:
    """Fit logistic regressions on features standardised by the mean and deviation of the training rows.

    Sparse features, rows of unit length, are only scaled: centring would make them dense.
    """
    if sparse.issparse(X):
        X, X_test = SPARSE_LENGTH * X, SPARSE_LENGTH * X_test
    else:
        scaler = StandardScaler().fit(X)
        X, X_test = scaler.transform(X), scaler.transform(X_test)
    return [classifier.predict(X_test) for classifier in logistic_path(X, y, n_classes, Cs)]


def liblinear_logistic(
    X: Matrix, y: Rows, n_classes: int, Cs: Sequence[float], X_test: Matrix, y_test: Rows | None, seed: int
) -> list[Rows]:
    """Fit logistic regressions as SentEval did with liblinear: no scaling, a penalty on the intercept, and
    one-against-rest for more than two classes.
    """
    if n_classes == 2:
        path = logistic_path(X, y, 2, Cs, penalise_intercept=True)
        return [classifier.predict(X_test) for classifier in path]
    one_against_rest = [
        list(logistic_path(X, (y == label).astype(np.intp), 2, Cs, penalise_intercept=True))
        for label in range(n_classes)
    ]
    return [
        np.hstack([classifier.logits(X_test) for classifier in of_C]).argmax(axis=1)
        for of_C in zip(*one_against_rest, strict=True)
    ]
