"""What a difference is worth: intervals of scores."""

from __future__ import annotations

import math

from scipy.stats import norm

CONFIDENCE = 0.95
_Z = float(norm.ppf(0.5 + CONFIDENCE / 2))

Interval = tuple[float, float]


def wilson(right: int, n: int) -> Interval:
    """The 95 % interval in percent of a share of ``right`` out of ``n`` rows (Wilson 1927)."""
    share, z2 = right / n, _Z * _Z
    middle = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = _Z * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n)) / (1 + z2 / n)
    return 100 * (middle - half), 100 * (middle + half)
