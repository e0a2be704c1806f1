"""K steps of second-order attention over packed token ids, without torch: in the kernel if it is compiled.

The kernel and :mod:`ctx_embed.second_order`, which does the work without it, compute the same numbers up to rounding.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctx_embed import second_order
from ctx_embed.kernel import kernel
from ctx_embed.kernel.library import Attention
from ctx_embed.numpy_model.saved import Floats, TokenTable
from ctx_embed.second_order import Steps

# Without the kernel: tokens that go through the steps together; longer texts are summed block by block.
BLOCK_TOKENS = 4096

Ids = NDArray[np.int32] | NDArray[np.int64]
Lengths = NDArray[np.int64]
Doubles = NDArray[np.float64]


def available_threads() -> int:
    """Return how many threads may work at once: ``OMP_NUM_THREADS``, or else the processors that we may use."""
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    if wanted.isdecimal() and int(wanted):
        return int(wanted)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class PackedContextualizer:
    """A Contextualizer that embeds packed token ids, from the options and parameters of the steps by name.

    Parameters must not change. ``s`` are the slopes (m,) of the position weights; None without position weights.
    """

    def __init__(self, config: Mapping[str, Any], table: TokenTable, parameters: Mapping[str, Floats]) -> None:
        self.dimension: int = config["dimension"]
        self.rank: int = config["rank"]
        self.positions: str = config["positions"]
        self.scale: str = config["scale"]
        self.initial_context: str = config["initial_context"]
        self.table = table
        self.steps = Steps(*(parameters[name] for name in Steps._fields))
        self.s = parameters["s"] if self.positions != "none" else None
        self.c0: Floats = parameters["c0"] if self.initial_context == "learned" else np.ones(self.dimension, np.float32)
        # Without position weights any slopes do.
        self._slopes = self.c0 if self.s is None else self.s
        compiled = kernel()
        self._attention = None
        if compiled is not None:
            self._attention = Attention(compiled, config, table.values, table.scales, parameters)

    def first_contexts(self, ids: Ids, lengths: Lengths) -> Floats:
        """Return c^0 of packed texts, (B, m)."""
        offsets = np.concatenate([[0], lengths.cumsum()])
        contexts: Floats = second_order.initial_context(self.initial_context, self.c0, ids, offsets)
        return contexts

    def embed(self, ids: Ids, lengths: Lengths) -> Floats:
        """Return c^K of packed texts, (B, m). Those of texts without tokens are c^0.

        Args:
            ids: (N,) the texts' token ids one after the other.
            lengths: (B,) tokens in each text (may be 0); they sum to N.
        """
        # The kernel checks ids of 32 bits itself.
        checked = self._attention is not None and ids.dtype == np.int32
        if not checked and len(ids) and not 0 <= ids.min() <= ids.max() < self.table.shape[0]:
            raise IndexError(f"ids must be rows of the table, got {ids.min()} to {ids.max()}")
        if self._attention is None:
            return self._by_equations(ids, lengths)
        contexts = np.empty((len(lengths), self.dimension), np.float32)
        contexts[:] = self.first_contexts(ids, lengths) if self.initial_context == "uniform" else self.c0
        self._attention.embed(np.ascontiguousarray(ids, np.int32), np.ascontiguousarray(lengths, np.int64), contexts)
        return contexts

    # Weights that have diverged give infinities and NaN, as with torch; callers report those.
    @np.errstate(over="ignore", invalid="ignore")
    def _by_equations(self, ids: Ids, lengths: Lengths) -> Floats:
        """Return what :meth:`embed` does, group by group of texts."""
        found = [np.empty((0, self.dimension), np.float32)]
        ends, start = lengths.cumsum(), 0
        while start < len(lengths):
            before = int(ends[start] - lengths[start])
            stop = max(start + 1, int(np.searchsorted(ends, before + BLOCK_TOKENS, side="right")))
            part, sizes = ids[before : int(ends[stop - 1])], lengths[start:stop]
            offsets, context = np.append(0, sizes.cumsum()), self.first_contexts(part, sizes)
            if len(part) > BLOCK_TOKENS:
                how, slopes = {"kind": self.positions, "scale": self.scale}, self._slopes.astype(np.float64)
                read = second_order.long_document(self.table.rows, part, context[0], self.steps, slopes, **how)
                found.append(read[None])
            else:
                x = self.weighted(part, offsets)
                found.append(second_order.direct(x, offsets, context, self.steps)[-1])
            start = stop
        return np.concatenate([part.astype(np.float32) for part in found])

    def weighted(self, ids: Ids, offsets: Lengths) -> Floats:
        """Return the weighted tokens x_i = e(w_i) * p(i) of packed texts, (N, m).

        Args:
            ids: (N,) the texts' token ids.
            offsets: (B + 1,) where each text begins.
        """
        weights = second_order.position_weights(offsets, self._slopes, kind=self.positions, scale=self.scale)
        x: Floats = self.table.rows(ids) * weights
        return x

    def counted(self, entries: Ids, counts: Any, context: Floats) -> Floats:
        """Return c^K (m,) of one text, a bag of entries, in memory that does not grow with the text.

        Args:
            entries: (E,) ids, each once.
            counts: (E,) how often each occurs.
            context: (m,) c^0.
        """
        if not len(entries):
            return context
        contexts: Floats = np.array(context[None], np.float32, order="C")
        if self._attention is not None:
            ids, once = np.require(entries, np.int32, "C"), np.array([len(entries)])
            self._attention.embed(ids, once, contexts, np.require(counts, np.float64, "C"))
            return np.asarray(contexts[0])
        weight = 1 if self.scale == "mean" else 1 / counts.sum()
        U = self.steps.U.reshape(-1, self.dimension)
        G, t = np.zeros((self.dimension, len(U))), np.zeros(self.dimension)
        for start in range(0, len(entries), BLOCK_TOKENS):
            block = slice(start, start + BLOCK_TOKENS)
            x, count = self.table.rows(entries[block]).astype(np.float64), counts[block][:, None]
            G += x.T @ ((x @ U.T) * count)
            t += (x * count).sum(0)
        return np.asarray(second_order.recurrence(G * weight**2, t * weight, context, self.steps), np.float32)

    def contributions(self, ids: Ids) -> tuple[Doubles, Doubles, Doubles]:
        """Return what each token of a text adds to each step's update z^k, its share of it, and the contexts.

        Returns:
            (K, n, m) and (K, n) from :func:`ctx_embed.second_order.contributions_of_steps` and ``shares_of_steps``, and
            c^0..c^K, (K + 1, m).
        """
        n, K = len(ids), len(self.steps.U)
        first = self.first_contexts(ids, np.array([n])).astype(np.float64)
        if not n:
            return np.zeros((K, 0, self.dimension)), np.zeros((K, 0)), np.repeat(first, K + 1, 0)
        offsets = np.array([0, n])
        x = self.weighted(ids, offsets).astype(np.float64)
        steps = Steps(*(parameter.astype(np.float64) for parameter in self.steps))
        contexts = second_order.direct(x, offsets, first, steps)
        vectors = np.stack(list(second_order.contributions_of_steps(x, offsets, contexts, steps)))
        return vectors, second_order.shares_of_steps(x, offsets, contexts, steps), contexts[:, 0]
