"""Cosines of embeddings, dense or sparse; the cosine with a zero vector is 0."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.preprocessing import normalize

from ctx_embed.eval.scoring.probes import Matrix
from ctx_embed.vectors import unit_rows


def unit(X: Matrix) -> Matrix:
    """Return the rows of ``X`` (n, d) scaled to length 1 in float64; zero rows stay zero."""
    if sparse.issparse(X):
        return normalize(X)
    # scikit-learn would not scale very short rows.
    return unit_rows(np.asarray(X, np.float64))


def paired(A: Matrix, B: Matrix) -> NDArray[np.float64]:
    """Return cos(A_i, B_i) for each row, (n,)."""
    A, B = unit(A), unit(B)
    product: Any = A.multiply(B) if sparse.issparse(A) else A * B
    return np.asarray(product.sum(axis=1), np.float64).ravel()


def between(A: Matrix, B: Matrix) -> NDArray[np.float64]:
    """Return the dot products of all rows of ``A`` (q, d) and ``B`` (n, d), dense (q, n)."""
    product: Any = A @ B.T
    dense: NDArray[np.float64] = product.toarray() if sparse.issparse(product) else product
    return dense
