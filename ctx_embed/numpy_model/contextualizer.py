"""The K steps of second-order attention in NumPy: packed token ids in, c^K out.

Texts of similar length are taken together: ``x`` is (B, n, m). Where order does not count, shorter ones are padded with
an entry that is zero and adds nothing; elsewhere lengths are equal. What depends on a vocabulary entry alone is
computed once for each entry of a batch. The formulas, and the letters, are those of :mod:`ctx_embed.second_order`.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ctx_embed.numpy_model.saved import Floats

LAYER_NORM_EPS = np.float32(1e-12)
# Tokens that go through the steps together: their intermediate values stay in cache.
GROUP_TOKENS = 768
# Padding of a group, at most: more of it takes longer than another group.
GROUP_PADDING = 64
# Longer texts are summed block by block, in float64.
BLOCK_TOKENS = 2048
# Several threads share a batch of at least this number of tokens.
PARALLEL_TOKENS = 16_384
# Entries whose products are held between calls: 100 MB for m = 320, u = 64, K = 3.
HELD_ENTRIES = 32_768


class Table(Protocol):
    """Token embeddings by id."""

    shape: tuple[int, ...]

    def rows(self, ids: Any) -> Floats:
        """Return the rows of ``ids``, a copy in float32."""


Ids = NDArray[np.int32]
Lengths = NDArray[np.int64]


class Blas:
    """The library of NumPy's matrix products: how many threads it may use, and a limit to one."""

    def __init__(self) -> None:
        from threadpoolctl import ThreadpoolController

        self._controller = ThreadpoolController()
        self._lock, self._inside = threading.Lock(), 0
        self._limit: Any = None
        self.num_threads: int = max(
            (library["num_threads"] for library in self._controller.info() if library["user_api"] == "blas"), default=1
        )

    @contextmanager
    def limited(self) -> Iterator[None]:
        """Let matrix products use one thread, until the last of several threads leaves this context."""
        with self._lock:
            if not self._inside:
                self._limit = self._controller.limit(limits=1, user_api="blas")
            self._inside += 1
        try:
            yield
        finally:
            with self._lock:
                self._inside -= 1
                if not self._inside:
                    self._limit.restore_original_limits()


@cache
def blas() -> Blas:
    """Return the library as it is found at the first call."""
    return Blas()


@dataclass(frozen=True)
class Step:
    """The parameters of one step, (m,) or as their letters' shapes say; the matrices as BLAS reads them quickest."""

    U: Floats  # (u, m)
    V_T: Floats  # (m, u)
    W_T: Floats  # (u, m)
    b: Floats
    gain: Floats
    bias: Floats

    def corrected(self, context: Floats, total: Floats) -> Floats:
        """Return c^{k-1} + LayerNorm(total), (B, m)."""
        # As total.mean, which takes twice as long for a few texts.
        centred: Floats = total - np.add.reduce(total, 1, keepdims=True) / np.float32(total.shape[1])
        variance = np.einsum("bm,bm->b", centred, centred)[:, None] / np.float32(total.shape[1])
        centred /= np.sqrt(variance + LAYER_NORM_EPS)
        centred *= self.gain
        centred += self.bias
        centred += context
        return centred


def uniform_contexts(ids: Ids, lengths: Lengths, dimension: int) -> Floats:
    """Return the first context of each text, (B, m) in (-1, 1), drawn by its own token ids as torch draws it.

    torch's generator is a Mersenne Twister seeded with the lower 32 bits, and a float32 is 24 bits of its output.
    """
    rows = []
    for part in np.split(ids, lengths.cumsum()[:-1]):
        digest = hashlib.blake2b(part.astype(np.int64).tobytes(), digest_size=8).digest()
        seed = (int.from_bytes(digest, "little") >> 1) & 0xFFFFFFFF
        drawn = np.random.RandomState(seed).randint(0, 1 << 32, size=dimension, dtype=np.uint32)
        rows.append((drawn & 0xFFFFFF).astype(np.float32) * np.float32(2.0**-24) * 2 - 1)
    return np.stack(rows)


def position_weights(kind: str, scale: str, n: int, s: Floats | None, first: int, last: int) -> Floats:
    """Return exp of the position logits of tokens first..last of n, shifted by their maximum, not yet divided.

    Args:
        kind: ``absolute``, ``relative`` or ``none``.
        scale: not read here.
        n: tokens of the text.
        s: (m,) the learned slopes; None under ``none``.
        first, last: positions i counted from 1, both included.

    Returns:
        (last - first + 1, m), or (.., 1) under ``none``.
    """
    position = np.arange(first, last + 1, dtype=np.float32)[:, None]
    if s is None:
        return np.ones_like(position)
    logits = np.where(s > 0, (position - np.float32(n)) * s, (position - 1) * s)
    weights: Floats = np.exp(logits / np.float32(n) if kind == "relative" else logits)
    return weights


class NumpyContextualizer:
    """A Contextualizer that embeds packed token ids.

    Args:
        config: the options under their names.
        table: the token embeddings.
        parameters: of the steps, by name: ``U``, ``V``, ``W``, ``b``, ``gain``, ``bias``, and ``s`` and ``c0`` where
            the options ask for them. They must not change.
    """

    def __init__(self, config: Mapping[str, Any], table: Table, parameters: Mapping[str, Floats]) -> None:
        self.dimension: int = config["dimension"]
        self.rank: int = config["rank"]
        self.positions: str = config["positions"]
        self.scale: str = config["scale"]
        self.initial_context: str = config["initial_context"]
        self.table = table
        U, V, W, b, gain, bias = (parameters[name] for name in ("U", "V", "W", "b", "gain", "bias"))
        self.steps = [
            Step(U[k], np.ascontiguousarray(V[k].T), np.ascontiguousarray(W[k].T), b[k], gain[k], bias[k])
            for k in range(config["steps"])
        ]
        self.s = parameters["s"] if self.positions != "none" else None
        self.c0: Floats = parameters["c0"] if self.initial_context == "learned" else np.ones(self.dimension, np.float32)

        shared = self.initial_context != "uniform"
        self._held = HeldProducts(self.table, self.steps, self.c0 if shared else None)

    @property
    def position_free(self) -> bool:
        """Whether x_i is e(w_i), so that a text counts as a bag of entries."""
        return self.positions == "none" and self.scale == "mean"

    def first_contexts(self, ids: Ids, lengths: Lengths) -> Floats:
        """Return c^0 of packed texts, (B, m)."""
        if self.initial_context == "uniform" and len(lengths):
            return uniform_contexts(ids, lengths, self.dimension)
        return np.broadcast_to(self.c0, (len(lengths), self.dimension))

    # Weights that have diverged give infinities and NaN, as with torch; callers report those.
    @np.errstate(over="ignore", invalid="ignore")
    def embed(self, ids: Ids, lengths: Lengths) -> Floats:
        """Return c^K of packed texts, (B, m).

        Args:
            ids: (N,) the texts' token ids one after the other.
            lengths: (B,) numbers of tokens, 0 included, whose sum is N.
        """
        # Texts without tokens keep c^0.
        contexts = np.array(self.first_contexts(ids, lengths), dtype=np.float32)
        short = np.repeat(lengths <= BLOCK_TOKENS, lengths)
        products = self._held.of(ids[short]) if self.position_free else None
        groups = list(
            equal_lengths(lengths, GROUP_TOKENS)
            if products is None
            else similar_lengths(lengths, GROUP_TOKENS, GROUP_PADDING)
        )
        # Of each id, and of the padding.
        entries = None if products is None else np.append(products.place[ids], NOTHING)
        longest = min(int(lengths.max(initial=0)), BLOCK_TOKENS)

        def run(some: list[tuple[int, Any, Any]]) -> None:
            memory = np.empty((2, max(GROUP_TOKENS, longest), self.dimension), np.float32)
            for n, texts, places in some:
                first = contexts[texts]
                if n > BLOCK_TOKENS and self.positions == "none":
                    contexts[texts] = self.counted(*np.unique(ids[places], return_counts=True), first)
                elif n > BLOCK_TOKENS:
                    contexts[texts] = self.folded(*self._moments(ids[places[0]]), first[0])
                elif products is not None and entries is not None:
                    contexts[texts] = self._group(products, entries[places], first, memory)
                else:
                    contexts[texts] = self._direct(self.table.rows(ids[places]), first)

        workers = blas().num_threads if len(ids) >= PARALLEL_TOKENS else 1
        if workers == 1:
            run(groups)
        else:
            # Groups side by side keep all processors busy; within a group, only the matrix products would.
            with blas().limited(), ThreadPoolExecutor(workers) as pool:
                list(pool.map(run, [groups[start::workers] for start in range(workers)]))
        return contexts

    # Texts as bags of entries --------------------------------------------------------------------------------------

    def _group(self, products: Products, places: NDArray[np.int32], context: Floats, memory: Floats) -> Floats:
        """Return c^K of B texts of up to n entries each.

        Args:
            products: of the entries.
            places: (B, n) of the entries among them; :data:`NOTHING` after the last one of a text.
            context: (B, m) c^0.
            memory: (2, B n or more, m), written over.
        """
        steps = self.steps
        B, n = places.shape
        flat = places.reshape(-1)
        x, a = memory[:, : B * n]
        if products.first is not None:
            products.first.take(flat, 0, out=a, mode="clip")
            context = steps[0].corrected(context, a.reshape(B, n, -1).sum(1))
            steps = steps[1:]
        if not steps:
            return context
        products.rows.take(flat, 0, out=x, mode="clip")
        t = x.reshape(B, n, -1).sum(1)
        for step, of_step in zip(steps, products.of_steps, strict=True):
            u = of_step.take(places, 0)
            u *= (context @ step.V_T)[:, None]
            np.matmul(u.reshape(B * n, -1), step.W_T, out=a)
            total = np.einsum("bnm,bnm->bm", a.reshape(B, n, -1), x.reshape(B, n, -1))
            total += step.b * t
            context = step.corrected(context, total)
        return context

    def counted(self, entries: Any, counts: Any, context: Floats) -> Floats:
        """Return c^K (1, m) of one text as a bag of entries, in memory that does not grow with it.

        Args:
            entries: (E,) ids, each once.
            counts: (E,) how often each occurs.
            context: (1, m) c^0.
        """
        if not len(entries):
            return context
        factor = np.float32(1 if self.scale == "mean" else 1 / counts.sum())
        for step in self.steps:
            total = np.zeros(self.dimension)
            vc = context @ step.V_T
            for start in range(0, len(entries), BLOCK_TOKENS):
                block = slice(start, start + BLOCK_TOKENS)
                x = self.table.rows(entries[block]) * factor
                a = ((x @ step.U.T) * vc) @ step.W_T
                a += step.b
                a *= x
                total += counts[block].astype(np.float64) @ a
            context = step.corrected(context, total.astype(np.float32)[None])
        return context

    # Texts whose order counts --------------------------------------------------------------------------------------

    def _direct(self, x: Floats, context: Floats) -> Floats:
        """Return c^K of B texts from their token embeddings (B, n, m)."""
        B, n, m = x.shape
        weights = position_weights(self.positions, self.scale, n, self.s, 1, n)
        weights /= weights.sum(0)
        x *= weights * np.float32(n) if self.scale == "mean" else weights
        t = x.sum(1)
        for step in self.steps:
            a = (x.reshape(B * n, m) @ step.U.T).reshape(B, n, -1)
            a *= (context @ step.V_T)[:, None]
            a = (a.reshape(B * n, -1) @ step.W_T).reshape(B, n, m)
            context = step.corrected(context, np.einsum("bnm,bnm->bm", a, x) + step.b * t)
        return context

    def _moments(self, ids: Ids) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return M = sum_i x_i x_i^T (m, m) and t = sum_i x_i (m,) of one text, block by block."""
        n = len(ids)
        blocks = [(start, min(start + BLOCK_TOKENS, n)) for start in range(0, n, BLOCK_TOKENS)]

        def weights(begin: int, end: int) -> Floats:
            return position_weights(self.positions, self.scale, n, self.s, begin + 1, end)

        Z = sum(weights(*block).sum(0, dtype=np.float64) for block in blocks)
        if self.scale == "mean":
            Z = Z / n
        M, t = np.zeros((self.dimension, self.dimension)), np.zeros(self.dimension)
        for begin, end in blocks:
            x = self.table.rows(ids[begin:end]) * (weights(begin, end) / Z).astype(np.float32)
            M += x.T @ x
            t += x.sum(0, dtype=np.float64)
        return M, t

    def folded(self, M: NDArray[np.float64], t: NDArray[np.float64], context: Floats) -> Floats:
        """Return c^K (m,) of one text from the second and first moments of its tokens.

        sum_i a_i * x_i = rowsum((M U^T) * W * (V c)^T) + b * t
        """
        contexts: Floats = context[None]
        for step in self.steps:
            total = ((M @ step.U.T) * step.W_T.T) @ (contexts @ step.V_T)[0] + step.b * t
            contexts = step.corrected(contexts, total.astype(np.float32)[None])
        of_text: Floats = contexts[0]
        return of_text


# The place of the entry that is zero.
NOTHING = np.int32(0)


class Products(NamedTuple):
    """What the steps need of vocabulary entries, and at :data:`NOTHING` of one that is zero.

    Attributes:
        place: (vocabulary,) where an entry is among the rows, -1 if it is not.
        rows: (E, m) token embeddings.
        first: (E, m) the whole first step's a^1 * e; None where c^0 differs between texts.
        of_steps: U_k e, (E, u), of each step that ``first`` does not hold.
    """

    place: NDArray[np.int32]
    rows: Floats
    first: Floats | None
    of_steps: list[Floats]


class HeldProducts:
    """The products of the entries met so far, begun anew when they become too many.

    Args:
        table: the token embeddings.
        steps: the K steps.
        first_context: (m,) the c^0 of all texts; None where it differs between them.
    """

    def __init__(self, table: Table, steps: list[Step], first_context: Floats | None) -> None:
        self._table = table
        self._steps = steps
        self._first_context = first_context
        self._lock = threading.Lock()
        self._clear()

    def _clear(self) -> None:
        self._count = 1
        self._place = np.full(self._table.shape[0], -1, np.int32)
        self._arrays = [np.zeros((1, part.shape[1]), np.float32) for part in self._computed(np.empty(0, np.int64))]

    @np.errstate(over="ignore", invalid="ignore")
    def _computed(self, entries: NDArray[np.int64]) -> list[Floats]:
        """Return the rows, what the first step adds (if c^0 is shared), and U_k e of the other steps."""
        rows = self._table.rows(entries)
        if self._first_context is None:
            return [rows, *(rows @ step.U.T for step in self._steps)]
        step, *others = self._steps
        first = ((rows @ step.U.T) * (self._first_context @ step.V_T)) @ step.W_T
        first += step.b
        first *= rows
        return [rows, first, *(rows @ other.U.T for other in others)]

    def of(self, ids: Ids) -> Products:
        """Return products among which are those of all ``ids``; they stay as they are when others are added."""
        with self._lock:
            missing = np.unique(ids[self._place[ids] < 0]).astype(np.int64)
            if self._count > 1 and self._count + len(missing) > HELD_ENTRIES:
                self._clear()
                missing = np.unique(ids).astype(np.int64)
            if len(missing):
                count = self._count + len(missing)
                for number, (held, computed) in enumerate(zip(self._arrays, self._computed(missing), strict=True)):
                    if len(held) < count:
                        grown = np.empty((max(count, 2 * len(held)), held.shape[1]), np.float32)
                        grown[: self._count] = held[: self._count]
                        self._arrays[number] = grown
                    self._arrays[number][self._count : count] = computed
                self._place[missing] = np.arange(self._count, count, dtype=np.int32)
                self._count = count
            rows, *others = self._arrays
            first = None if self._first_context is None else others.pop(0)
            return Products(self._place, rows, first, others)


def equal_lengths(lengths: Lengths, most: int) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.int64]]]:
    """Yield groups of texts of equal length; texts without tokens are left out.

    Args:
        lengths: (B,) tokens of packed texts.
        most: tokens of a group, unless a single text has more.

    Yields:
        The length n, the texts' numbers (G,), and where their tokens are, (G, n).
    """
    begins = lengths.cumsum() - lengths
    order = np.argsort(lengths, kind="stable")
    ordered = lengths[order]
    bounds = np.flatnonzero(np.diff(ordered, prepend=-1, append=-1))
    for start, stop in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        n = int(ordered[start])
        if n == 0:
            continue
        size = max(most // n, 1)
        for begin in range(start, stop, size):
            texts = order[begin : min(begin + size, stop)]
            yield n, texts, begins[texts][:, None] + np.arange(n)


def similar_lengths(
    lengths: Lengths, most: int, padding: int
) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.int64]]]:
    """Yield groups of texts of similar length; texts without tokens are left out.

    Args:
        lengths: (B,) tokens of packed texts.
        most: tokens of a group with its padding, unless a single text has more.
        padding: the most places of a group without a token.

    Yields:
        The largest length n, the texts' numbers (G,), and where their tokens are, (G, n), N where there is none.
    """
    begins, N = lengths.cumsum() - lengths, int(lengths.sum())
    order = np.argsort(lengths, kind="stable")
    ordered = lengths[order].tolist()
    start, padded = int(np.count_nonzero(lengths == 0)), 0
    for stop in range(start, len(ordered) + 1):
        if stop < len(ordered):
            n, texts = ordered[stop], stop - start
            padded += texts * (n - ordered[stop - 1]) if texts else 0
            if not texts or (padded <= padding and n * (texts + 1) <= most):
                continue
        elif start == stop:
            return
        n, group = ordered[stop - 1], order[start:stop]
        column = np.arange(n)
        places = begins[group][:, None] + column
        places[column >= lengths[group][:, None]] = N
        yield n, group, places
        start, padded = stop, 0
