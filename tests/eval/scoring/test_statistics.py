import numpy as np
import pytest
from scipy.stats import spearmanr

from ctx_embed.eval.scoring.statistics import (
    correlation_interval,
    mcnemar,
    mean_interval,
    paired_correlations,
    paired_means,
    wilson,
)


def test_intervals_by_hand():
    # z = 1.96: middle (0.8 + 1.92 / 10) / (1 + 3.84 / 10), half 1.96 sqrt(0.16 / 10 + 3.84 / 400) / (1 + 3.84 / 10).
    assert wilson(8, 10) == pytest.approx((49.0, 94.3), abs=0.05)
    assert wilson(10, 10)[1] == pytest.approx(100.0)
    assert wilson(0, 10)[0] == pytest.approx(0.0)
    # Student's.
    assert mean_interval([1.0, 2.0, 3.0]) == pytest.approx((2 - 4.303 / 3**0.5, 2 + 4.303 / 3**0.5), abs=1e-3)
    assert mean_interval([5.0]) == (5.0, 5.0)


def test_the_interval_of_correlations():
    low, high = correlation_interval([80.0], [1003])
    error = (1 - 0.64) * ((1 + 0.32) / 1000) ** 0.5
    assert (low, high) == pytest.approx((80 - 196 * error, 80 + 196 * error), abs=0.01)
    # Of two subsets of the same kind the mean is known 1.41 times as well.
    narrow = correlation_interval([80.0, 80.0], [1003, 1003])
    assert (high - low) / (narrow[1] - narrow[0]) == pytest.approx(2**0.5)
    assert correlation_interval([100.0], [3]) == (-100.0, 100.0)
    # Of four pairs: 1.96 (1 - 0.99^2) sqrt(1 + 0.99^2 / 2), cut at 100 or -100.
    assert correlation_interval([99.0], [4]) == (pytest.approx(99 - 4.76, abs=0.01), 100.0)
    assert correlation_interval([-99.0], [4]) == (-100.0, pytest.approx(-99 + 4.76, abs=0.01))


def test_mcnemar_by_hand():
    right, other = np.array([1.0] * 9 + [0.0] + [1.0] * 10), np.array([0.0] * 9 + [1.0] + [1.0] * 10)
    found = mcnemar(right, other)
    assert found.value == pytest.approx(40.0)
    # 9 of 10 tosses, or more extreme, on either side: 2 (1 + 10) / 1024.
    assert found.p == pytest.approx(22 / 1024)
    # Half the width: 1.96 sqrt((10 / 20 - 0.4^2) / 20).
    assert found.interval == pytest.approx((40 - 25.5548, 40 + 25.5548), abs=1e-4)
    same = mcnemar(right, right)
    assert (same.value, same.p) == (0.0, 1.0)


def test_paired_means_by_all_signs():
    found = paired_means([3.0, 2.0, 4.0], [1.0, 1.0, 1.0])
    # All three are gains: of 8 ways to give signs, 2 are as extreme.
    assert (found.value, found.p) == (2.0, pytest.approx(2 / 8))
    assert paired_means([1.0, 2.0], [1.0, 2.0]).p == 1.0
    assert paired_means([1.0, 3.0], [1.0, 2.0]).p == 1.0
    # For encoders that do not differ, p < 0.1 occurs in one case of ten.
    generator = np.random.default_rng(0)
    ps = [paired_means(*generator.normal(size=(2, 10))).p for _ in range(200)]
    assert 0.04 < np.mean(np.array(ps) < 0.1) < 0.17


def test_a_real_difference_of_correlations_is_found_and_none_is_not():
    generator = np.random.default_rng(3)
    gold = generator.normal(size=200)
    near, far, alike = (gold + noise * generator.normal(size=200) for noise in (0.3, 1.0, 0.3))
    found = paired_correlations({"s": near}, {"s": far}, {"s": gold})
    assert found.value == pytest.approx(100 * (spearmanr(near, gold).statistic - spearmanr(far, gold).statistic))
    assert found.p < 0.01
    assert 0 < found.interval[0] < found.value < found.interval[1]
    none = paired_correlations({"s": near}, {"s": alike}, {"s": gold})
    assert none.p > 0.05
    assert none.interval[0] < 0 < none.interval[1]
    assert found == paired_correlations({"s": near}, {"s": far}, {"s": gold})
