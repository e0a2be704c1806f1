from __future__ import annotations

import numpy as np
from scipy import sparse

from ctx_embed.eval.scoring.probes import frozen, of_pairs

# Two pairs: the first texts, then the second ones.
X = np.array([[1.0, 2.0], [0.0, 1.0], [3.0, 2.0], [0.0, -1.0]])


def test_rows_of_frozen_embeddings():
    train, other = frozen(X)(np.array([2, 0]), np.array([1]))
    np.testing.assert_array_equal(train, X[[2, 0]])
    np.testing.assert_array_equal(other, X[[1]])


def test_pairs_by_hand_dense_and_sparse():
    for matrix in (X, sparse.csr_array(X)):
        features = of_pairs(lambda train, other, of=matrix: (of[train], of[other]), 2)
        train, other = features(np.array([1]), np.array([0, 1]))
        if sparse.issparse(train):
            train, other = train.toarray(), other.toarray()
        np.testing.assert_array_equal(train, [[0.0, 2.0, 0.0, -1.0]])
        np.testing.assert_array_equal(other, [[2.0, 0.0, 3.0, 4.0], [0.0, 2.0, 0.0, -1.0]])
