"""The K steps of second-order attention in NumPy: packed token ids in, c^K out.

Without position weights a text is a bag of vocabulary entries: an entry that occurs several times is computed once, and
products that depend on the entry alone are computed once for all texts. Short texts of similar size go through the
steps together; the entries of a long text are summed first. With position weights, texts of equal length are grouped.

The formulas, and the letters, are those of :mod:`ctx_embed.second_order`.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ctx_embed.numpy_model.saved import Floats

LAYER_NORM_EPS = np.float32(1e-12)
# Number of entries that go through the steps together; their intermediate values stay in cache.
GROUP_ENTRIES = 768
# Maximum padding in a group; with more, a second group would be faster.
GROUP_PADDING = 64
# Texts of more entries are summed first; a step then takes m u multiplications however many entries there are.
SHORT_ENTRIES = 128
# Longer texts are summed block by block, in float64.
BLOCK_TOKENS = 2048
# Threads share batches of at least this number of tokens, in this number of parts for each thread.
PARALLEL_TOKENS, PARTS = 16_384, 4
# Maximum bytes of cached products of entries; the default model needs 190 MB at most, 1.8 kB per entry.
HELD_BYTES = 1 << 28


class Table(Protocol):
    """Token embeddings by id: the row of an entry is its scale times its unscaled row.

    Attributes:
        shape: (entries, m).
    """

    shape: tuple[int, ...]

    @property
    def scales(self) -> Floats | None:
        """The scales, (entries,); None if all are 1."""

    def unscaled(self, ids: Any, out: Floats | None = None) -> Floats:
        """Return the unscaled rows of ``ids``, a copy in float32, in ``out`` if it is given."""

    def rows(self, ids: Any) -> Floats:
        """Return the rows of ``ids``, a copy in float32."""


Ids = NDArray[np.int32] | NDArray[np.int64]
Lengths = NDArray[np.int64]


class Blas:
    """The library behind NumPy's matrix products: the number of threads it may use, and a way to limit it to one."""

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
        """Limit matrix products to one thread while any caller is inside this context."""
        if self.num_threads == 1:
            yield
            return
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
    """Return the library, which is looked up at the first call."""
    return Blas()


@dataclass(frozen=True)
class Step:
    """The parameters of one step, (m,) unless noted; matrices are laid out as BLAS reads them fastest."""

    U: Floats  # (u, m)
    V_T: Floats  # (m, u)
    W_T: Floats  # (u, m)
    b: Floats
    gain: Floats
    bias: Floats

    def corrected(self, context: Floats, total: Floats) -> Floats:
        """Return c^{k-1} + LayerNorm(total), (B, m)."""
        # The same as total.mean, which takes twice as long for a few texts.
        centred: Floats = total - np.add.reduce(total, 1, keepdims=True) / np.float32(total.shape[1])
        variance = np.einsum("bm,bm->b", centred, centred)
        variance /= np.float32(total.shape[1])
        variance += LAYER_NORM_EPS
        centred /= np.sqrt(variance)[:, None]
        centred *= self.gain
        centred += self.bias
        centred += context
        return centred


def uniform_contexts(ids: Ids, lengths: Lengths, dimension: int) -> Floats:
    """Return the first context of each text, (B, m), random in (-1, 1) and seeded by its token ids, as in torch.

    torch's generator is a Mersenne Twister seeded with the lower 32 bits; a float32 takes 24 bits of its output.
    """
    rows = []
    for part in np.split(ids, lengths.cumsum()[:-1]):
        digest = hashlib.blake2b(part.astype(np.int64).tobytes(), digest_size=8).digest()
        seed = (int.from_bytes(digest, "little") >> 1) & 0xFFFFFFFF
        drawn = np.random.RandomState(seed).randint(0, 1 << 32, size=dimension, dtype=np.uint32)
        rows.append((drawn & 0xFFFFFF).astype(np.float32) * np.float32(2.0**-24) * 2 - 1)
    return np.stack(rows)


def position_weights(kind: str, scale: str, n: int, s: Floats | None, first: int, last: int) -> Floats:
    """Return the unnormalised position weights of tokens first..last of n: exp of the logits minus their maximum.

    Args:
        kind: ``absolute``, ``relative`` or ``none``.
        scale: not read.
        n: the number of tokens in the text.
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
        config: the options by name.
        table: the token embeddings.
        parameters: the parameters of the steps by name: ``U``, ``V``, ``W``, ``b``, ``gain``, ``bias``, and ``s`` and
            ``c0`` if the options need them. They must not change.
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
        # An entry's part of the first update is the same in all texts if c^0 and the weights do not depend on the text.
        alone = self.initial_context != "uniform" and self.scale == "mean"
        self._products = EntryProducts(table, self.steps, self.c0 if alone else None)

    def first_contexts(self, ids: Ids, lengths: Lengths) -> Floats:
        """Return c^0 of packed texts, (B, m)."""
        if self.initial_context == "uniform" and len(lengths):
            return uniform_contexts(ids, lengths, self.dimension)
        return np.broadcast_to(self.c0, (len(lengths), self.dimension))

    # Weights that have diverged give infinities and NaN, as with torch; callers report those.
    @np.errstate(over="ignore", invalid="ignore")
    def embed(self, ids: Ids, lengths: Lengths, threads: int | None = None) -> Floats:
        """Return c^K of packed texts, (B, m); those of texts without tokens are c^0.

        Args:
            ids: (N,) the texts' token ids one after the other.
            lengths: (B,) tokens in each text (may be 0); they sum to N.
            threads: the number of threads that share the texts; None: one for a small batch, otherwise as many as
                matrix products may use.
        """
        contexts = np.array(self.first_contexts(ids, lengths), dtype=np.float32)
        run = self._bags if self.s is None else self._sequences
        if threads is None:
            threads = blas().num_threads if len(ids) >= PARALLEL_TOKENS else 1
        with blas().limited():
            if threads == 1:
                run(ids, lengths, contexts)
                return contexts
            # Groups in parallel keep all processors busy; within a group, only the matrix products run in parallel.
            ends, parts = lengths.cumsum(), PARTS * threads
            bounds = [0, *np.searchsorted(ends, np.arange(1, parts) * (len(ids) // parts)).tolist(), len(lengths)]
            tokens = np.append(0, ends)[bounds].tolist()
            with ThreadPoolExecutor(threads) as pool:
                list(
                    pool.map(
                        lambda text, token: run(ids[slice(*token)], lengths[slice(*text)], contexts[slice(*text)]),
                        pairwise(bounds),
                        pairwise(tokens),
                    )
                )
        return contexts

    # Texts as bags of entries --------------------------------------------------------------------------------------

    def _bags(self, ids: Ids, lengths: Lengths, contexts: Floats) -> None:
        """Replace the first contexts (B, m) of texts without position weights by the last."""
        if len(lengths) == 1 and 0 < len(ids) <= SHORT_ENTRIES:
            # Finding repeated entries would take longer than computing them twice.
            weights, memory = np.ones((1, len(ids)), np.float32), np.empty((2, len(ids), self.dimension), np.float32)
            factor = np.array([1 if self.scale == "mean" else 1 / len(ids)], np.float32)
            contexts[:] = self._group(self._products.of(ids), ids[None], weights, factor, contexts, memory)
            return
        entries, counts, sizes = bags(ids, lengths, self.table.shape[0])
        of_long = np.repeat(sizes > BLOCK_TOKENS, sizes)
        held = self._products.of(entries[~of_long] if of_long.any() else entries)
        order = np.argsort(sizes, kind="stable")
        begins, sizes = (sizes.cumsum() - sizes)[order], sizes[order]
        factors = np.ones(len(order), np.float32)
        if self.scale == "sum":
            factors /= lengths[order].clip(1)
        # To copy rows at many places, take needs a fraction of the time of indexing.
        ordered = contexts.take(order, 0)
        most = min(max(GROUP_ENTRIES, SHORT_ENTRIES), len(entries) + GROUP_PADDING)
        memory = np.empty((2, most, self.dimension), np.float32)
        for group in similar_sizes(sizes, GROUP_ENTRIES, GROUP_PADDING):
            n = int(sizes[group.stop - 1])
            if n > SHORT_ENTRIES:
                for text in range(group.start, group.stop):
                    of_text = slice(begins[text], begins[text] + sizes[text])
                    part = held if sizes[text] <= BLOCK_TOKENS else None
                    ordered[text] = self._summed(entries[of_text], counts[of_text], factors[text], ordered[text], part)
                continue
            column = np.arange(n)
            # Padding repeats a text's last entry with weight 0.
            places = begins[group, None] + np.minimum(column, sizes[group, None] - 1)
            weights = counts[places] * (column < sizes[group, None])
            ordered[group] = self._group(held, entries[places], weights, factors[group], ordered[group], memory)
        contexts[:] = ordered.take(np.argsort(order), 0)

    def _group(
        self, held: Held, entries: Ids, weights: Floats, factors: Floats, context: Floats, memory: Floats
    ) -> Floats:
        """Return c^K of B texts of up to n entries each.

        Args:
            held: cached products, which include these entries.
            entries: (B, n) ids.
            weights: (B, n) the number of times a text has an entry; 0 for padding.
            factors: (B,) the weight of each token of a text.
            context: (B, m) c^0.
            memory: (2, B * n or more, m) working memory, which is overwritten.
        """
        steps, (B, n) = self.steps, entries.shape
        places = held.place[entries.reshape(-1)]
        x, a = memory[:, : B * n]
        if held.first is not None:
            first, *steps = steps
            context = first.corrected(context, weighted_sums(weights, held.first.take(places, 0, out=a, mode="clip")))
        if not steps:
            return context
        self.table.unscaled(entries.reshape(-1), out=x)
        of_entries = weights if self.table.scales is None else weights * self.table.scales[entries]
        t = weighted_sums(of_entries, x)
        x = x.reshape(B, n, -1)
        ux = held.of_steps.take(places, 0, mode="clip").reshape(B, n, len(steps), -1)
        ux *= weights[:, :, None, None]
        if self.scale == "sum":
            t *= factors[:, None]
            ux *= np.square(factors)[:, None, None, None]
        for k, step in enumerate(steps):
            np.matmul((ux[:, :, k] * (context @ step.V_T)[:, None]).reshape(B * n, -1), step.W_T, out=a)
            total = np.einsum("bnm,bnm->bm", a.reshape(B, n, -1), x)
            total += step.b * t
            context = step.corrected(context, total)
        return context

    def counted(self, entries: Ids, counts: Any, context: Floats) -> Floats:
        """Return c^K (m,) of one text, a bag of entries, in memory that does not grow with the text.

        Args:
            entries: (E,) ids, each once.
            counts: (E,) how often each occurs.
            context: (m,) c^0.
        """
        if not len(entries):
            return context
        factor = 1 if self.scale == "mean" else 1 / counts.sum()
        return self._summed(entries, counts.astype(np.float32), factor, context, None)

    def _summed(self, entries: Ids, counts: Floats, factor: float, context: Floats, held: Held | None) -> Floats:
        """Return c^K (m,) of one text through G_k = sum_i x_i (U_k x_i)^T, of all its entries i.

        Args:
            entries: (E,) ids, each once.
            counts: (E,) how often each occurs.
            factor: the weight of each token.
            context: (m,) c^0.
            held: cached products, which include these entries; None computes the products again.
        """
        sums: list[Any] = []
        # Products that are not held need memory of their own.
        size = BLOCK_TOKENS if held is not None else BLOCK_TOKENS // 4
        for start in range(0, len(entries), size):
            block, count = entries[start : start + size], counts[start : start + size]
            first, ux = self._products.computed(block) if held is None else held.rows(block)
            x = self.table.unscaled(block)
            of_entries = count if self.table.scales is None else count * self.table.scales[block]
            ux *= count[:, None]
            parts = [ux.T @ x, of_entries @ x, *([] if first is None else [count @ first])]
            sums = [total.astype(np.float64) + part for total, part in zip(sums, parts, strict=True)] if sums else parts
        G, t, *of_first = sums
        steps, context = self.steps, context[None]
        if of_first:
            step, *steps = steps
            context = step.corrected(context, of_first[0].astype(np.float32)[None])
        return self._recurrence(steps, G * factor**2, t * factor, context)

    def _recurrence(self, steps: list[Step], G: Any, t: Any, contexts: Floats) -> Floats:
        """Return c^K (m,) of one text after further steps from its sums.

        sum_i a_i * x_i = rowsum(G_k * W * (V c)^T) + b * t

        Args:
            steps: the steps.
            G: (steps * u, m) G_k^T below each other.
            t: (m,) sum_i x_i.
            contexts: (1, m) the context before these steps.
        """
        for step, of_step in zip(steps, np.split(G, len(steps)) if steps else (), strict=True):
            total = (contexts @ step.V_T)[0] @ (of_step * step.W_T) + step.b * t
            contexts = step.corrected(contexts, total.astype(np.float32)[None])
        context: Floats = contexts[0]
        return context

    # Texts whose order counts --------------------------------------------------------------------------------------

    def _sequences(self, ids: Ids, lengths: Lengths, contexts: Floats) -> None:
        """Replace the first contexts (B, m) of texts with position weights by the last."""
        for n, texts, places in equal_lengths(lengths, GROUP_ENTRIES):
            if n > BLOCK_TOKENS:
                contexts[texts[0]] = self.folded(*self._moments(ids[places[0]]), contexts[texts[0]])
            else:
                contexts[texts] = self._direct(self.table.rows(ids[places]), contexts[texts])

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
        """Return c^K (m,) of one text from the second moments M (m, m) and the sum t (m,) of its tokens."""
        G = np.concatenate([step.U for step in self.steps]) @ M
        return self._recurrence(self.steps, G, t, context[None])


def weighted_sums(weights: Floats, rows: Floats) -> Floats:
    """Return the sums over n of rows (B * n, m) times weights (B, n), (B, m)."""
    sums: Floats = (weights[:, None] @ rows.reshape(*weights.shape, -1))[:, 0]
    return sums


class Held(NamedTuple):
    """Cached products of vocabulary entries that have occurred.

    Attributes:
        place: (entries,) the row of each entry in the arrays below; -1 if it has not occurred.
        first: (rows, m) the entry's part of the first update; None if this depends on the text.
        of_steps: (rows, ...) U_k x of the other steps, concatenated, times the table's scale of the entry.
    """

    place: NDArray[np.int32]
    first: Floats | None
    of_steps: Floats

    def rows(self, entries: Ids) -> tuple[Floats | None, Floats]:
        """Return copies of the rows of some entries."""
        places = self.place[entries]
        return None if self.first is None else self.first.take(places, 0), self.of_steps.take(places, 0)


def distinct(ids: Ids) -> Ids:
    """Return the ids in order, each once, without np.unique, which imports NumPy's masked arrays."""
    ordered = np.sort(ids)
    return np.asarray(ordered[np.diff(ordered, prepend=-1) > 0])


class EntryProducts:
    """Computes the products of vocabulary entries that the steps need, and caches them.

    Args:
        table: the token embeddings.
        steps: the K steps.
        first_context: (m,) the c^0 of all texts, if an entry's part of the first update is the same in all of them;
            otherwise None.
        held_bytes: the maximum size of the cache; when it is exceeded, the cache is emptied.
    """

    def __init__(
        self, table: Table, steps: list[Step], first_context: Floats | None, held_bytes: int = HELD_BYTES
    ) -> None:
        self._table = table
        self._first = None if first_context is None else (steps[0], first_context @ steps[0].V_T)
        others = steps if first_context is None else steps[1:]
        self._U_T = np.concatenate([np.empty((0, table.shape[1]), np.float32), *(step.U for step in others)]).T
        self._most = held_bytes // (4 * (self._U_T.shape[1] + (self._first is not None) * table.shape[1]) or 1)
        self._lock = threading.Lock()
        self._count = 0
        self._held = self._empty(0)

    def _empty(self, least: int) -> Held:
        """Return space, of which the system gives what is written to, for ``least`` entries or more."""
        size = min(max(self._most, least), self._table.shape[0])
        return Held(
            np.full(self._table.shape[0], -1, np.int32),
            None if self._first is None else np.empty((size, self._table.shape[1]), np.float32),
            np.empty((size, self._U_T.shape[1]), np.float32),
        )

    @np.errstate(over="ignore", invalid="ignore")
    def computed(self, entries: Ids) -> tuple[Floats | None, Floats]:
        """Return the rows of :attr:`Held.first` and :attr:`Held.of_steps` of some entries."""
        x = self._table.rows(entries)
        ux = x @ self._U_T
        if self._table.scales is not None:
            ux *= self._table.scales[entries, None]
        if self._first is None:
            return None, ux
        step, vc = self._first
        first = ((x @ step.U.T) * vc) @ step.W_T
        first += step.b
        first *= x
        return first, ux

    def of(self, ids: Ids) -> Held:
        """Return cached products that include all ``ids``; later additions do not change the result."""
        held = self._held
        if (held.place[ids] >= 0).all():
            return held
        with self._lock:
            missing: Any = distinct(ids[self._held.place[ids] < 0])
            if self._count + len(missing) > len(self._held.of_steps):
                missing, self._count = distinct(ids), 0
                self._held = self._empty(len(missing))
            held = self._held
            for start in range(0, len(missing), BLOCK_TOKENS):
                block = missing[start : start + BLOCK_TOKENS]
                rows = slice(self._count, self._count + len(block))
                first, held.of_steps[rows] = self.computed(block)
                if held.first is not None:
                    held.first[rows] = first
                # Set last, so that other threads find an entry only once its products are stored.
                held.place[block] = np.arange(rows.start, rows.stop, dtype=np.int32)
                self._count = rows.stop
            return held


def bags(ids: Ids, lengths: Lengths, entries: int) -> tuple[NDArray[np.int64], Floats, Lengths]:
    """Return packed texts as bags of token ids.

    Args:
        ids: (N,) the texts' token ids one after the other.
        lengths: (B,) tokens in each text.
        entries: the size of the vocabulary, or any other number above all ids.

    Returns:
        The distinct ids of each text in ascending order; the count of each id; and the number of distinct ids in each
        text, (B,).
    """
    keys = np.repeat(np.arange(len(lengths)) * entries, lengths)
    keys += ids
    keys.sort()
    at = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]])) if len(keys) else np.empty(0, np.int64)
    counts = np.diff(at, append=len(keys)).astype(np.float32)
    texts, found = np.divmod(keys[at], entries)
    return found, counts, np.bincount(texts, minlength=len(lengths))


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


def similar_sizes(sizes: Lengths, most: int, padding: int) -> Iterator[slice]:
    """Yield groups of neighbouring texts; texts of size 0 are left out.

    Args:
        sizes: (B,) the sizes of the texts, ascending.
        most: the maximum size of a group with padding, unless a single text is larger.
        padding: the maximum padding in a group.
    """
    listed = sizes.tolist()
    start, padded = int(np.count_nonzero(sizes == 0)), 0
    for stop in range(start + 1, len(listed) + 1):
        if stop < len(listed):
            n, texts = listed[stop], stop - start
            padded += texts * (n - listed[stop - 1])
            if padded <= padding and n * (texts + 1) <= most:
                continue
        yield slice(start, stop)
        start, padded = stop, 0
