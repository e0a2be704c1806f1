"""The classifiers of the probes: each is fitted for a grid of penalties and names the classes of unseen rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from scipy import sparse
from sklearn.preprocessing import StandardScaler

from ctx_embed.eval.features import Matrix, Rows
from ctx_embed.eval.logistic import logistic_path

# (X, y, n_classes, penalties, X_test, y_test, seed) -> the classes of X_test, one array for each penalty. y_test is
# given where it may be used to stop early, on the rows that choose the penalty.
Fit = Callable[[Matrix, Rows, int, Sequence[float], Matrix, Rows | None, int], list[Rows]]


def scaled_logistic(
    X: Matrix, y: Rows, n_classes: int, Cs: Sequence[float], X_test: Matrix, y_test: Rows | None, seed: int
) -> list[Rows]:
    """Logistic regression on features standardised by the mean and deviation of the training rows.

    Sparse features are taken as they are: they are of unit length, and centring would fill them.
    """
    if not sparse.issparse(X):
        scaler = StandardScaler().fit(X)
        X, X_test = scaler.transform(X), scaler.transform(X_test)
    return [classifier.predict(X_test) for classifier in logistic_path(X, y, n_classes, Cs)]
