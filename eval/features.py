"""What a probe reads: the embeddings of the rows, whether they are frozen or fitted on each training fold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.intp]
# (n, d), dense or a scipy.sparse CSR array.
Matrix = Any
# From the rows to train on and other rows to the features of both.
Features = Callable[[Rows, Rows], tuple[Matrix, Matrix]]


def frozen(X: NDArray[Any]) -> Features:
    """The features of embeddings (n, d) that no fold changes."""
    X = X.astype(np.float64)
    return lambda train, other: (X[train], X[other])


def of_pairs(features: Features, n: int) -> Features:
    """[abs(u - v), u * v] for each of ``n`` pairs, from the features of the n first and then the n second texts.

    Source: Tai et al. 2015, as in SentEval's MRPC and SICK-E.
    """

    def pairs(train: Rows, other: Rows) -> tuple[Matrix, Matrix]:
        first, second = features(np.concatenate([train, train + n]), np.concatenate([other, other + n]))
        return _joined(first, len(train)), _joined(second, len(other))

    return pairs


def _joined(X: Matrix, n: int) -> Matrix:
    U, V = X[:n], X[n:]
    if not isinstance(X, np.ndarray):
        from scipy import sparse

        return sparse.hstack([abs(U - V), U.multiply(V)], format="csr")
    return np.hstack([np.abs(U - V), U * V])
