"""Cosines of embeddings, dense or sparse; the cosine with a zero vector is 0."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.preprocessing import normalize

from ctx_embed.eval.features import Matrix


def unit(X: Matrix) -> Matrix:
    """The rows of ``X`` (n, d) at length 1 in float64, zero rows as they are."""
    if sparse.issparse(X):
        return normalize(X)
    # scikit-learn would leave very short rows as they are.
    dense = np.asarray(X, np.float64)
    lengths = np.linalg.norm(dense, axis=1, keepdims=True)
    return dense / np.where(lengths > 0, lengths, 1.0)


def paired(A: Matrix, B: Matrix) -> NDArray[np.float64]:
    """cos(A_i, B_i) of each row, (n,)."""
    A, B = unit(A), unit(B)
    product: Any = A.multiply(B) if sparse.issparse(A) else A * B
    return np.asarray(product.sum(axis=1), np.float64).ravel()


def between(A: Matrix, B: Matrix) -> NDArray[np.float64]:
    """The products of all rows of ``A`` (q, d) and ``B`` (n, d), as a dense (q, n)."""
    product: Any = A @ B.T
    dense: NDArray[np.float64] = product.toarray() if sparse.issparse(product) else product
    return dense
