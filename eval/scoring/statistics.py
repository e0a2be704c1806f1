"""The uncertainty of scores and of their differences: intervals, and tests over the rows that two encoders share."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest, norm, permutation_test, rankdata, t

CONFIDENCE = 0.95
RESAMPLES = 9999
BOOTSTRAP_RESAMPLES = 1000
# Number of resamples that are processed together, so that memory stays small.
BATCH = 500

Array = NDArray[np.float64]
Interval = tuple[float, float]
_Z = float(norm.ppf(0.5 + CONFIDENCE / 2))


@dataclass(frozen=True)
class Difference:
    """One score minus another over the same rows, in points, with its 95 % interval.

    ``p`` is the two-sided p-value of ``test`` under the hypothesis that the encoders do not differ.
    """

    value: float
    interval: Interval
    p: float
    test: str


def wilson(right: float, n: int) -> Interval:
    """Return the 95 % interval in % of a share of ``right`` out of ``n`` rows (Wilson 1927)."""
    share, z2 = right / n, _Z * _Z
    middle = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = _Z * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n)) / (1 + z2 / n)
    return 100 * (middle - half), 100 * (middle + half)


def mean_interval(values: Sequence[float]) -> Interval:
    """Return the 95 % interval of the mean of independent values (Student's t); for one value, that value twice."""
    mean, n = float(np.mean(values)), len(values)
    half = float(t.ppf(0.5 + CONFIDENCE / 2, n - 1) * np.std(values, ddof=1) / math.sqrt(n)) if n > 1 else 0.0
    return mean - half, mean + half


def correlation_interval(correlations: Sequence[float], sizes: Sequence[int]) -> Interval:
    """Return the 95 % interval of the mean of Spearman correlations times 100, each over ``sizes`` pairs.

    Fisher's z has the variance (1 + r^2 / 2) / (n - 3); with a subset of 3 pairs or fewer the interval is -100 to 100.

    Source: Bonett and Wright 2000, Psychometrika 65(1).
    """
    if min(sizes) <= 3:
        return -100.0, 100.0
    r, n = np.asarray(correlations) / 100, np.asarray(sizes)
    errors = (1 - r**2) * np.sqrt((1 + r**2 / 2) / (n - 3))
    half = 100 * _Z * float(np.sqrt((errors**2).sum())) / len(r)
    return max(-100.0, 100 * float(r.mean()) - half), min(100.0, 100 * float(r.mean()) + half)


def mcnemar(right: Array, other: Array) -> Difference:
    """Return the difference of two accuracies over the same n rows, each 0 or 1, with McNemar's exact test."""
    n = len(right)
    gained, lost = int(((right == 1) & (other == 0)).sum()), int(((right == 0) & (other == 1)).sum())
    value = (gained - lost) / n
    half = _Z * math.sqrt(max(0.0, (gained + lost) / n - value**2) / n)
    p = float(binomtest(gained, gained + lost).pvalue) if gained + lost else 1.0
    return Difference(100 * value, (100 * (value - half), 100 * (value + half)), p, "McNemar")


def paired_means(values: Sequence[float] | Array, others: Sequence[float] | Array) -> Difference:
    """Return the difference of two means over the same rows, with a test that exchanges the two values of a row."""
    differences = np.asarray(values, float) - np.asarray(others, float)
    value = float(differences.mean())
    return Difference(value, mean_interval(differences.tolist()), _sign_flips(differences), "permutation")


def paired_correlations(
    cosines: Mapping[str, Sequence[float]], others: Mapping[str, Sequence[float]], scores: Mapping[str, Sequence[float]]
) -> Difference:
    """Return the difference of two mean Spearman correlations times 100 over the same subsets of pairs.

    With z-scored ranks a, b of the cosines and g of the judgements, the difference in a subset of n pairs is
    ``sum_i g_i (a_i - b_i) / n``, so exchanging the two ranks of a pair changes one sign. The interval comes from
    a bootstrap over pairs.
    """
    terms, spreads = [], []
    generator = np.random.default_rng(0)
    for name, gold in scores.items():
        a, b, g = np.asarray(cosines[name], float), np.asarray(others[name], float), np.asarray(gold, float)
        terms.append(100 * _z_ranks(g) * (_z_ranks(a) - _z_ranks(b)) / (len(g) * len(scores)))
        resampled = generator.integers(0, len(g), (BOOTSTRAP_RESAMPLES, len(g)))
        ranks = _z_ranks(g[resampled])
        spreads.append(100 * (ranks * (_z_ranks(a[resampled]) - _z_ranks(b[resampled]))).mean(axis=1) / len(scores))
    all_terms = np.concatenate(terms)
    low, high = np.quantile(np.sum(spreads, axis=0), [0.5 - CONFIDENCE / 2, 0.5 + CONFIDENCE / 2])
    return Difference(float(all_terms.sum()), (float(low), float(high)), _sign_flips(all_terms), "permutation")


def _z_ranks(values: Array) -> Array:
    ranks = rankdata(values, axis=-1)
    deviation = ranks.std(axis=-1, keepdims=True)
    scaled: Array = (ranks - ranks.mean(axis=-1, keepdims=True)) / np.where(deviation > 0, deviation, 1.0)
    return scaled


def _sign_flips(differences: Array) -> float:
    moved = differences[differences != 0]
    if len(moved) < 2:
        return 1.0  # two-sided: both signs are equally extreme
    found = permutation_test(
        (moved,), np.sum, permutation_type="samples", n_resamples=RESAMPLES, batch=BATCH, rng=np.random.default_rng(0)
    )
    return float(found.pvalue)
