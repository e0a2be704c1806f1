"""Rows at unit length."""

from __future__ import annotations

import numpy as np
import pytest

from ctx_embed.vectors import unit_rows


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_have_length_1_and_zero_stays_zero(dtype):
    vectors = np.array([[3, 4], [0, 0], [1e-30, 0], [3e30, -4e30]], dtype)
    found = unit_rows(vectors)
    assert found.dtype == dtype
    np.testing.assert_allclose(found, [[0.6, 0.8], [0, 0], [1, 0], [0.6, -0.8]], rtol=1e-6)
    np.testing.assert_array_equal(unit_rows(vectors[0]), found[0])
