"""Sums over a text's tokens, which are all that the steps need; their size is constant, and they can be merged."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctx_embed.numpy_model.contextualizer import BLOCK_TOKENS, Ids, PackedContextualizer
from ctx_embed.numpy_model.saved import Floats
from ctx_embed.second_order import recurrence

# Maximum number of tokens in a text; doubles count exactly up to it.
MOST_TOKENS = 1 << 53


class Counts:
    """The count of each vocabulary entry in a text: all that the steps need if positions do not matter.

    There are at most as many counts as the vocabulary has entries.
    """

    def __init__(self, contextualizer: PackedContextualizer) -> None:
        self._contextualizer = contextualizer
        self.entries: NDArray[np.int32] = np.empty(0, np.int32)
        self.counts: NDArray[np.int64] = np.empty(0, np.int64)

    def add(self, ids: Ids) -> None:
        """Count further tokens."""
        self._join(*np.unique(ids, return_counts=True))

    def merge(self, other: Counts) -> None:
        """Count the tokens of another text too."""
        self._join(other.entries, other.counts)

    def _join(self, entries: Any, counts: Any) -> None:
        self.entries, place = np.unique(np.concatenate([self.entries, entries]), return_inverse=True)
        self.counts = np.bincount(place, np.concatenate([self.counts, counts]), minlength=len(self.entries)).astype(
            np.int64
        )

    def context(self, first: Floats) -> Floats:
        """Return c^K (m,) of the text, from its first context."""
        context: Floats = self._contextualizer.counted(self.entries, self.counts, first)
        return context

    @property
    def largest(self) -> int:
        """The most bytes of the arrays."""
        return 12 * self._contextualizer.table.shape[0]

    def arrays(self) -> list[NDArray[Any]]:
        """Return what :meth:`restore` takes."""
        return [self.entries, self.counts]

    def restore(self, arrays: list[NDArray[Any]]) -> None:
        """Take the arrays that another one gave."""
        entries, counts = arrays
        if entries.ndim != 1 or entries.shape != counts.shape or entries.dtype != np.int32 or counts.dtype != np.int64:
            raise ValueError("entries and counts do not fit")
        if len(entries) and not 0 <= entries.min() <= entries.max() < self._contextualizer.table.shape[0]:
            raise ValueError("an entry is not in the vocabulary")
        if not (np.diff(entries) > 0).all():
            raise ValueError("an entry occurs twice")
        if len(counts) and not 1 <= counts.min() <= counts.max() <= MOST_TOKENS:
            raise ValueError(f"counts must lie between 1 and {MOST_TOKENS:,}")
        self.entries, self.counts = entries, counts


class Moments:
    """For absolute positions: M = sum_i y_i y_i^T, t = sum_i y_i and Z = sum_i exp(i s), with y_i = e(w_i) exp(i s).

    If text B follows text A, M = M_A + D M_B D, t = t_A + D t_B and Z = Z_A + D Z_B with D = diag(exp(n_A s)). All sums
    are stored divided by exp(L), where L is the largest exponent of each feature, so that nothing overflows.
    """

    def __init__(self, contextualizer: PackedContextualizer) -> None:
        m = contextualizer.dimension
        self._contextualizer = contextualizer
        assert contextualizer.s is not None
        self._s = contextualizer.s.astype(np.float64)
        self.n = 0
        self.L = np.full(m, -np.inf)
        self.Z, self.t, self.M = np.zeros(m), np.zeros(m), np.zeros((m, m))

    def add(self, ids: Ids) -> None:
        """Append further tokens."""
        for start in range(0, len(ids), BLOCK_TOKENS):
            block = ids[start : start + BLOCK_TOKENS]
            logits = np.arange(1, len(block) + 1)[:, None] * self._s
            L = logits.max(0)
            weights = np.exp(logits - L)
            y = self._contextualizer.table.rows(block) * weights
            self._append(len(block), L, weights.sum(0), y.sum(0), y.T @ y)

    def merge(self, other: Moments) -> None:
        """Append the tokens of another text."""
        self._append(other.n, other.L, other.Z, other.t, other.M)

    def _append(self, n: int, L: Any, Z: Any, t: Any, M: Any) -> None:
        if n == 0:
            return
        shifted = L + self.n * self._s
        largest = np.maximum(self.L, shifted)
        old, new = np.exp(self.L - largest), np.exp(shifted - largest)
        self.n, self.L = self.n + n, largest
        self.Z = old * self.Z + new * Z
        self.t = old * self.t + new * t
        self.M = old[:, None] * self.M * old + new[:, None] * M * new

    def context(self, first: Floats) -> Floats:
        """Return c^K (m,) of the text, from its first context."""
        if self.n == 0:
            return first
        weight = (self.n if self._contextualizer.scale == "mean" else 1) / self.Z
        steps = self._contextualizer.steps
        # G_k = M U_k^T
        G = (weight[:, None] * self.M * weight) @ steps.U.reshape(-1, len(weight)).T
        return np.asarray(recurrence(G, weight * self.t, first, steps), np.float32)

    @property
    def largest(self) -> int:
        """The most bytes of the arrays."""
        return 8 * (1 + 3 * len(self._s) + len(self._s) ** 2)

    def arrays(self) -> list[NDArray[Any]]:
        """Return what :meth:`restore` takes."""
        return [np.array([self.n]), self.L, self.Z, self.t, self.M]

    def restore(self, arrays: list[NDArray[Any]]) -> None:
        """Take the arrays that another one gave."""
        m = len(self._s)
        if [array.shape for array in arrays] != [(1,), (m,), (m,), (m,), (m, m)]:
            raise ValueError("the moments are of another dimension")
        n, L, Z, t, M = arrays
        if n.dtype != np.int64 or any(array.dtype != np.float64 for array in (L, Z, t, M)):
            raise ValueError("the moments are of another type")
        if not 0 <= n[0] <= MOST_TOKENS:
            raise ValueError(f"the number of tokens must lie between 0 and {MOST_TOKENS:,}")
        if n[0] and not (all(np.isfinite(array).all() for array in (L, Z, t, M)) and (Z > 0).all()):
            raise ValueError("the moments are not finite")
        self.n, self.L, self.Z, self.t, self.M = int(n[0]), L, Z, t, M
