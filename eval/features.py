"""The input of a probe: the embeddings of the rows, either frozen or fitted on each training fold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.intp]
# (n, d), dense or a scipy.sparse CSR array.
Matrix = Any
# Maps the training rows and other rows to the features of both.
Features = Callable[[Rows, Rows], tuple[Matrix, Matrix]]


def frozen(X: NDArray[Any]) -> Features:
    """Return the features of frozen embeddings (n, d), the same in every fold."""
    X = X.astype(np.float64)
    return lambda train, other: (X[train], X[other])


def of_pairs(features: Features, n: int) -> Features:
    """Return [abs(u - v), u * v] for each of ``n`` pairs, given features of the n first, then the n second texts.

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
