"""Second-order attention: the Contextualizer's mathematics as pure functions of NumPy's arrays or torch's tensors.

Tokens of a batch are packed without padding: ``x`` of shape (N, m) holds the tokens of B documents one after the other,
and ``offsets`` of shape (B + 1,) says where each begins: document d has the tokens ``x[offsets[d] : offsets[d + 1]]``.

Dimensions: B documents, N tokens in all, n tokens of one document, m features, K steps, rank u.

Arguments of one name are the same everywhere: ``x`` (N, m) are the weighted tokens x_i = e(w_i) * p(i), ``context``
(B, m) the contexts c^{k-1}, at first c^0, ``contexts`` (K + 1, B, m) those of all steps, ``steps`` the parameters,
``documents`` (N,) the document of each token, and ``s`` (m,) the slopes of the position weights. ``kind`` and ``scale``
are explained at :func:`ctx_embed.second_order.position_weights`. Results are in float32 or better.

Called by the modules, the systems and the model without torch. A change of the equations goes into
:func:`ctx_embed.second_order.direct` first; tests compare all other forms and the kernel with it.

Source: Maupome & Meurs (2022), Contextualizer: Connecting the Dots of Context with Second-Order Attention,
Information 13(6):290.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

# NumPy's arrays or torch's tensors.
Array = Any
# Number of tokens that are in memory together.
BLOCK_TOKENS = 4096
LAYER_NORM_EPS = 1e-12
# Tokens per document above which torch's cascade sum is quicker and more exact than a running sum.
RUNNING_SUM_TOKENS = 256


# Operations on arrays. NumPy's never import torch. -------------------------------------------------------------


def library(values: Any) -> Any:
    """Return the module of an array, NumPy or torch."""
    return np if isinstance(values, np.ndarray) else sys.modules["torch"]


def records_gradients(values: Any) -> bool:
    """Return whether torch records operations on this array for a gradient."""
    return library(values) is not np and bool(library(values).is_grad_enabled())


def precise(values: Any) -> Any:
    """Return values in float32 or better."""
    if isinstance(values, np.ndarray):
        return values.astype(np.promote_types(values.dtype, np.float32), copy=False)
    torch = library(values)
    return values.to(torch.promote_types(values.dtype, torch.float32))


def cast(values: Any, like: Any) -> Any:
    """Return values in the dtype of another array."""
    return values.astype(like.dtype, copy=False) if isinstance(values, np.ndarray) else values.to(like.dtype)


def count(n: int, like: Any) -> Any:
    """Return 0..n-1 on the device of another array."""
    return np.arange(n) if isinstance(like, np.ndarray) else library(like).arange(n, device=like.device)


def take(values: Any, rows: Any) -> Any:
    """Return rows of a matrix; torch's gradient of it is faster than that of an index."""
    return values.take(rows, 0) if isinstance(values, np.ndarray) else values.index_select(0, rows)


def multiply_(fresh: Any, other: Any) -> Any:
    """Return fresh * other; without gradients this overwrites ``fresh``, which must not be used afterwards."""
    if records_gradients(fresh):
        return fresh * other
    fresh *= other
    return fresh


def affine(x: Any, W: Any, b: Any | None = None) -> Any:
    """Return x W^T + b, (N, m), of x (N, u), W (m, u) and b (m,); None stands for 0."""
    if not isinstance(x, np.ndarray):
        return library(x).nn.functional.linear(x, W, b)
    # Some BLAS signal what they read beside a small matrix, though it changes no result: NumPy would warn of it.
    with np.errstate(invalid="ignore"):
        return x @ W.T if b is None else x @ W.T + b


def layer_norm(total: Any, gain: Any, bias: Any) -> Any:
    """Return gain * (total - mean) / sqrt(variance + eps) + bias over the last axis, (B, m)."""
    if not isinstance(total, np.ndarray):
        functional = library(total).nn.functional
        return functional.layer_norm(total, total.shape[-1:], cast(gain, total), cast(bias, total), LAYER_NORM_EPS)
    centred = total - total.mean(-1, keepdims=True)
    centred -= centred.mean(-1, keepdims=True)  # what is left of the mean was rounding
    variance = np.square(centred).mean(-1, keepdims=True)
    return centred / np.sqrt(variance + total.dtype.type(LAYER_NORM_EPS)) * gain + bias


def segment_sum(values: Any, offsets: Any) -> Any:
    """Return the sum of the rows (N, d) of each document, (B, d): zeros for a document without tokens."""
    values, documents = precise(values), len(offsets) - 1
    if isinstance(values, np.ndarray):
        parts = [values[start:stop].sum(0) for start, stop in pairwise(offsets.tolist())]
        return np.stack(parts) if parts else values[:0]
    torch = library(values)
    if len(values) > RUNNING_SUM_TOKENS * documents:
        return torch.stack([part.sum(0) for part in values.split(offsets.diff().tolist())])
    if torch.is_grad_enabled() and values.requires_grad:
        return values.new_zeros(documents, values.shape[1]).index_add(0, document_ids(offsets), values)
    rows = torch.arange(len(values), device=values.device)
    return torch.nn.functional.embedding_bag(rows, values, offsets, mode="sum", include_last_offset=True)


# Packed documents and the parameters ---------------------------------------------------------------------------


class Steps(NamedTuple):
    """The parameters of K steps.

    Shapes: U, V (K, u, m); W (K, m, u); b, gain, bias (K, m); gain and bias belong to the layer normalisation.
    """

    U: Array
    V: Array
    W: Array
    b: Array
    gain: Array
    bias: Array


def lengths_of(offsets: Array) -> Array:
    """Return the number of tokens in each document, shape (B,)."""
    return offsets[1:] - offsets[:-1]


def document_ids(offsets: Array) -> Array:
    """Return the document 0..B-1 of each token, shape (N,)."""
    lengths = lengths_of(offsets)
    if isinstance(lengths, np.ndarray):
        return np.repeat(np.arange(len(lengths)), lengths)
    return library(lengths).repeat_interleave(lengths)


def token_positions(offsets: Array) -> Array:
    """Return the index 0..n-1 of each token in its document, shape (N,)."""
    documents = document_ids(offsets)
    return count(len(documents), offsets) - offsets[:-1][documents]


# Position weights ----------------------------------------------------------------------------------------------


POSITIONS = ("absolute", "none", "relative")
SCALES = ("mean", "sum")


def position_logits(position: Array, length: Array, s: Array, *, kind: str) -> Array:
    """Return the exponents of the position weights, shifted so that their maximum over a document is 0.

    They are (N, m), or (N, 1) for ``none``, for positions i = 1..n (N,) in documents of length n (N,), and slopes (m,).
    """
    s = precise(s)
    position, length = cast(position, s), cast(length, s)
    if kind == "none":
        return (position - position)[:, None]
    # The product i * s_j minus its maximum over i = 1..n, which is at i = n if s_j > 0, else at i = 1. Positions are
    # subtracted before they are multiplied, so there is neither overflow nor cancellation, however long the text is.
    logits = library(s).where(s > 0, (position - length)[:, None] * s, (position - 1)[:, None] * s)
    return logits / length[:, None] if kind == "relative" else logits


def position_weights(offsets: Array, s: Array, *, kind: str, scale: str) -> Array:
    """Return the position weights p(i)_j of all tokens.

    p(i)_j = exp(i s_j) / sum_i' exp(i' s_j), a softmax over each document's own tokens, (N, m). With the ``kind``
    ``relative``, i / n stands in place of i, and with ``none`` all weights are equal, (N, 1). The ``scale`` is ``sum``
    (a document's weights sum to 1, the paper's) or ``mean`` (they average 1).

    Source: the paper's positional encoding (section on the input representation).
    """
    documents = document_ids(offsets)
    length = lengths_of(offsets)[documents]
    position = token_positions(offsets) + 1
    logits = position_logits(position, length, s, kind=kind)
    weights = library(logits).exp(logits)
    weights = weights / take(segment_sum(weights, offsets), documents)
    return weights * cast(length, weights)[:, None] if scale == "mean" else weights


# The first context ---------------------------------------------------------------------------------------------


INITIAL_CONTEXTS = ("learned", "ones", "uniform")


def initial_context(kind: str, learned: Array, input_ids: Array, offsets: Array) -> Array:
    """Return the first context c^0 of each document, (B, m).

    It is ``ones``, the row ``learned`` (m,), whose dtype and device it always has, or ``uniform``: random in (-1, 1),
    seeded by the document's token ids (N,), so that a text always has the same c^0.

    Source: the paper's Table 3 compares the kinds.
    """
    if kind != "uniform":
        first = library(learned).ones_like(learned) if kind == "ones" else learned
        return library(learned).broadcast_to(first, (len(offsets) - 1, len(learned)))
    # torch's generator is a Mersenne Twister seeded with the lower 32 bits; a float32 takes 24 bits of its output.
    import hashlib  # OpenSSL takes long to load, and few models need it

    rows = [np.empty((0, len(learned)), np.float32)]
    numbers = input_ids if isinstance(learned, np.ndarray) else input_ids.cpu().numpy()
    for ids in np.split(numbers, offsets[1:-1].tolist()):
        digest = hashlib.blake2b(ids.astype(np.int64).tobytes(), digest_size=8).digest()
        seed = (int.from_bytes(digest, "little") >> 1) & 0xFFFFFFFF
        bits = np.random.RandomState(seed).randint(0, 1 << 32, size=(1, len(learned)), dtype=np.uint32) & 0xFFFFFF
        rows.append(bits.astype(np.float32) * np.float32(2.0**-24) * 2 - 1)
    contexts = np.concatenate(rows[: len(offsets)])
    return contexts if isinstance(learned, np.ndarray) else library(learned).from_numpy(contexts).to(learned)


# The steps -----------------------------------------------------------------------------------------------------


def corrected(context: Array, total: Array, gain: Array, bias: Array, offsets: Array) -> Array:
    """Return c^k = c^{k-1} + LayerNorm(sum_i a_i^k * x_i), (B, m), given the sum ``total`` (B, m) over tokens.

    A document without tokens keeps its context.
    """
    z = layer_norm(total, gain, bias)
    empty = offsets[1:] == offsets[:-1]
    return library(total).where(empty[:, None], context, context + z) if empty.any() else context + z


def attended(ux: Array, vc: Array, documents: Array, W: Array, b: Array) -> Array:
    """Return the attention a_i = W (U x_i * V c) + b of each token, (N, m), from the products U x_i and V c.

    Source: the paper's second-order attention.
    """
    return affine(multiply_(take(vc, documents), ux), W, b)


def first_step_is_linear(x: Array, context: Array, steps: Steps) -> bool:
    """Return whether all documents share c^0 (an expanded or single row) and the map W diag(V c^0) U is cheaper."""
    (n, m), u = x.shape, steps.U.shape[1]
    stride = context.strides[0] if isinstance(context, np.ndarray) else context.stride(0)
    shared = len(context) > 0 and (len(context) == 1 or stride == 0)
    return shared and n * m + m * u < 2 * n * u


def direct(x: Array, offsets: Array, context: Array, steps: Steps) -> Array:
    """Return K steps computed token by token, as in the paper: the reference for all forms, and best for short texts.

    z^k = LayerNorm(sum_i (W_k (U_k x_i * V_k c^{k-1}) + b_k) * x_i), c^k = c^{k-1} + z^k.

    Cost: 2 n u m multiplications per step. If all documents share c^0, the first step multiplies every token by one
    matrix, W diag(V c^0) U of (m, m), provided that this is cheaper. The result is (K + 1, B, m): c^0..c^K.

    Source: the paper's algorithm.
    """
    documents = document_ids(offsets)
    contexts = [cast(context, precise(x[:0]))]
    if first_step_is_linear(x, contexts[0], steps):
        U, V, W, b, gain, bias = (parameter[0] for parameter in steps)
        a = affine(x, (W * (V @ cast(contexts[0][0], x))) @ U, b)
        contexts.append(corrected(contexts[-1], segment_sum(multiply_(a, x), offsets), gain, bias, offsets))
        steps = Steps(*(parameter[1:] for parameter in steps))
    # Training stores the products of all steps anyway, and one large product has a faster gradient than K small ones.
    # Without gradients, the products of one step at a time stay in cache.
    products: Iterable[Array] = (affine(x, U) for U in steps.U)
    if records_gradients(x):
        products = affine(x, steps.U.flatten(0, 1)).unflatten(1, steps.U.shape[:2]).unbind(1)
    for ux, (_, V, W, b, gain, bias) in zip(products, zip(*steps, strict=True), strict=True):
        a = attended(ux, affine(cast(contexts[-1], x), V), documents, W, b)
        contexts.append(corrected(contexts[-1], segment_sum(multiply_(a, x), offsets), gain, bias, offsets))
    return library(x).stack(contexts)


# Other forms: long texts, many short texts over one table, and each token's part -------------------------------


def recurrence(G: Array, t: Array, context: Array, steps: Steps) -> Array:
    """Return c^K (m,) of a document from sums over its tokens, of which there is at least one.

    sum_i a_i * x_i = rowsum(G_k * W_k * (V_k c)^T) + b_k * t. A step costs m u multiplications, however long the
    document is. ``G`` (m, K u) are the sums G_k = sum_i x_i (U_k x_i)^T side by side, ``t`` (m,) that of the tokens.
    """
    context, u = cast(context, G), steps.U.shape[1]
    for k, (_, V, W, b, gain, bias) in enumerate(zip(*(cast(parameter, G) for parameter in steps), strict=True)):
        total = (G[:, k * u : (k + 1) * u] * W) @ (V @ context) + b * t
        context = context + layer_norm(total, gain, bias)
    return context


def long_document(
    rows: Callable[[Array], Array], ids: Array, context: Array, steps: Steps, s: Array, *, kind: str, scale: str
) -> Array:
    """Return c^K (m,) of one document, block by block, in memory that does not grow with its length but for the ids.

    ``rows`` returns the token embeddings of some of its ``ids`` (n,), n >= 1. Sums are computed in the dtype of ``s``.
    """
    n, U = len(ids), steps.U.reshape(-1, steps.U.shape[2])
    position = count(n, ids) + 1

    def weights(block: slice) -> Array:
        at = position[block]
        logits = position_logits(at, at * 0 + n, s, kind=kind)
        return library(logits).exp(logits)

    blocks = [slice(start, start + BLOCK_TOKENS) for start in range(0, n, BLOCK_TOKENS)]
    total = sum(weights(block).sum(0) for block in blocks) / (n if scale == "mean" else 1)
    G = t = 0
    for block in blocks:
        weight = weights(block) / total
        x = cast(rows(ids[block]), weight) * weight
        G, t = G + x.T @ affine(x, cast(U, x)), t + x.sum(0)
    return recurrence(G, t, context, steps)


def over_vocabulary(table: Array, ids: Array, offsets: Array, context: Array, steps: Steps, *, shared: bool) -> Array:
    """Return c^K (B, m), B >= 1, of packed rows of a table, as :func:`ctx_embed.second_order.direct` computes them.

    The tokens are the rows ``ids`` (N,) of ``table`` (E, m). If all documents have one c^0 (``shared``), a^1 * e is
    computed once per entry, too.
    """
    remaining = list(zip(*steps, strict=True))
    documents, x = document_ids(offsets), take(table, ids)
    if shared:
        U, V, W, b, gain, bias = remaining.pop(0)
        first = affine(affine(table, U) * (V @ context[0]), W, b) * table
        total = segment_sum(take(precise(first), ids), offsets)
        context = corrected(cast(context, total), total, gain, bias, offsets)
    context = cast(context, precise(table[:0]))
    for U, V, W, b, gain, bias in remaining:
        a = attended(take(affine(table, U), ids), affine(cast(context, V), V), documents, W, b)
        context = corrected(context, segment_sum(multiply_(a, x), offsets), gain, bias, offsets)
    return context


def contributions_of_steps(x: Array, offsets: Array, contexts: Array, steps: Steps) -> Iterator[Array]:
    """Yield each token's part of z^k, (N, m), one step at a time. The parts and the step's bias sum to z^k.

    Layer normalisation is linear in the tokens once its mean and deviation are known: z^k is its bias and the sum of
    v_i = gain * (y_i - mean(y_i)) / sigma over the tokens, y_i = a_i^k * x_i, sigma the deviation of sum_i y_i.
    """
    documents = document_ids(offsets)
    for context, (U, V, W, b, gain, _) in zip(contexts, zip(*steps, strict=False), strict=False):
        y = cast(attended(affine(x, U), affine(cast(context, x), V), documents, W, b) * x, contexts)
        y = y - y.mean(1)[:, None]
        deviation = ((segment_sum(y, offsets) ** 2).mean(1) + LAYER_NORM_EPS) ** 0.5
        yield cast(gain, y) * y / deviation[documents][:, None]


def shares_of_steps(x: Array, offsets: Array, contexts: Array, steps: Steps) -> Array:
    """Return the share of each token in z^k, (K, N).

    The share of token i is its part of the length of the tokens' total contribution,
    <v_i, sum v> / ||sum v||^2 with v_i from :func:`contributions_of_steps`. The shares of a document sum to 1; a token
    that works against the others has a negative share. If the sum is zero, all tokens have equal shares.
    """
    documents = document_ids(offsets)
    shares = []
    for v in contributions_of_steps(x, offsets, contexts, steps):
        whole = segment_sum(v, offsets)[documents]
        square, equal = (whole**2).sum(1), 1 / cast(lengths_of(offsets), v)[documents]
        found = square > 0
        where = library(v).where
        shares.append(where(found, (v * whole).sum(1) / where(found, square, 1), equal))
    return library(contexts).stack(shares)
