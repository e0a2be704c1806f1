from __future__ import annotations

import numpy as np
from scipy import sparse

from ctx_embed.eval.scoring.cosines import between, paired, unit

A = np.array([[3.0, 4.0], [0.0, 0.0], [1.0, 0.0]])
B = np.array([[4.0, 3.0], [1.0, 1.0], [-2.0, 0.0]])


def test_cosines_by_hand_dense_and_sparse():
    for of in (np.asarray, sparse.csr_array):
        np.testing.assert_allclose(paired(of(A), of(B)), [24 / 25, 0.0, -1.0])
        np.testing.assert_allclose(between(unit(of(A)), unit(of(B)))[0], [24 / 25, 7 / 50**0.5, -3 / 5])


def test_the_length_of_a_row_does_not_matter():
    for length in (1e-40, 1e30):
        np.testing.assert_allclose(paired(length * A, B), [24 / 25, 0.0, -1.0])


def test_half_precision_is_widened_first():
    wide = np.array([[300.0, 300.0]], np.float16)
    np.testing.assert_allclose(paired(wide, wide), [1.0])
