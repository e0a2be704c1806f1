"""What the steps need of a text's tokens, in constant size, so that texts of any length grow and join."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctx_embed.numpy_model.contextualizer import BLOCK_TOKENS, Ids, NumpyContextualizer
from ctx_embed.numpy_model.saved import Floats


class Counts:
    """How often each entry of the vocabulary occurs: all that counts where positions play no part.

    It holds at most as many numbers as the vocabulary has entries.

    Args:
        contextualizer: that reads the tokens.
    """

    def __init__(self, contextualizer: NumpyContextualizer) -> None:
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
        context: Floats = self._contextualizer.counted(self.entries, self.counts, first[None])[0]
        return context

    def arrays(self) -> list[NDArray[Any]]:
        """Return what :meth:`restore` takes."""
        return [self.entries, self.counts]

    def restore(self, arrays: list[NDArray[Any]]) -> None:
        """Take the arrays that another one gave.

        Raises:
            ValueError: they are of another shape.
        """
        self.entries, self.counts = arrays
        if self.entries.shape != self.counts.shape or self.entries.dtype != np.int32 or self.counts.dtype != np.int64:
            raise ValueError("entries and counts do not fit")
        if (
            len(self.entries)
            and not 0 <= self.entries.min() <= self.entries.max() < self._contextualizer.table.shape[0]
        ):
            raise ValueError("an entry is not in the vocabulary")


class Moments:
    """M = sum_i y_i y_i^T, t = sum_i y_i and Z = sum_i exp(i s), y_i = e(w_i) exp(i s): absolute positions.

    Of neighbouring texts A and B, M = M_A + D M_B D, t = t_A + D t_B, Z = Z_A + D Z_B with D = diag(exp(n_A s)). All
    are stored divided by exp(L), L the largest exponent of each feature, so that nothing overflows.

    Args:
        contextualizer: that reads the tokens.
    """

    def __init__(self, contextualizer: NumpyContextualizer) -> None:
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
        return self._contextualizer.folded(weight[:, None] * self.M * weight, weight * self.t, first)

    def arrays(self) -> list[NDArray[Any]]:
        """Return what :meth:`restore` takes."""
        return [np.array([self.n]), self.L, self.Z, self.t, self.M]

    def restore(self, arrays: list[NDArray[Any]]) -> None:
        """Take the arrays that another one gave.

        Raises:
            ValueError: they are of another shape.
        """
        m = len(self._s)
        if [array.shape for array in arrays] != [(1,), (m,), (m,), (m,), (m, m)]:
            raise ValueError("the moments are of another dimension")
        n, self.L, self.Z, self.t, self.M = arrays
        self.n = int(n[0])
