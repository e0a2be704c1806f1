"""The Contextualizer's equations: position weights, the first context, and K steps token by token.

Tokens of a batch are packed without padding: ``x`` of shape (N, m) holds the tokens of B documents one after the other,
and ``offsets`` of shape (B + 1,) says where each begins: document d has the tokens ``x[offsets[d] : offsets[d + 1]]``.

Dimensions: B documents, N tokens in all, n tokens of one document, m features, K steps, rank u.

Source: Maupome & Meurs (2022), Contextualizer: Connecting the Dots of Context with Second-Order Attention,
Information 13(6):290.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from ctx_embed.second_order.matmul import affine

LAYER_NORM_EPS = 1e-12

# Tokens per document above which torch's cascade sum is quicker and more exact than a running sum.
RUNNING_SUM_TOKENS = 256


class Steps(NamedTuple):
    """The parameters of K steps.

    Shapes: U, V (K, u, m); W (K, m, u); b, gain, bias (K, m); gain and bias belong to the layer normalisation.
    """

    U: Tensor
    V: Tensor
    W: Tensor
    b: Tensor
    gain: Tensor
    bias: Tensor


def document_ids(offsets: Tensor) -> Tensor:
    """Return the document 0..B-1 of each token, shape (N,)."""
    documents = torch.arange(len(offsets) - 1, device=offsets.device)
    return torch.repeat_interleave(documents, offsets.diff())


def token_positions(offsets: Tensor) -> Tensor:
    """Return the index 0..n-1 of each token in its document, shape (N,)."""
    documents = document_ids(offsets)
    return torch.arange(len(documents), device=offsets.device) - offsets[:-1][documents]


def segment_sum(values: Tensor, offsets: Tensor) -> Tensor:
    """Sum the rows of each document in float32 or better.

    Args:
        values: (N, d).
        offsets: (B + 1,).

    Returns:
        (B, d), a row of zeros for a document without tokens.
    """
    values = values.to(torch.promote_types(values.dtype, torch.float32))
    count = len(offsets) - 1
    if len(values) > RUNNING_SUM_TOKENS * count:
        return torch.stack([part.sum(0) for part in values.split(offsets.diff().tolist())])
    if torch.is_grad_enabled() and values.requires_grad:
        return values.new_zeros(count, values.shape[1]).index_add(0, document_ids(offsets), values)
    rows = torch.arange(len(values), device=values.device)
    return F.embedding_bag(rows, values, offsets, mode="sum", include_last_offset=True)


# Position weights ----------------------------------------------------------------------------------------------


def _absolute(position: Tensor, length: Tensor, s: Tensor) -> Tensor:
    # The product i * s_j minus its maximum over i = 1..n, which is at i = n if s_j > 0, else at i = 1. Positions are
    # subtracted before they are multiplied, so there is neither overflow nor cancellation, however long the text is.
    return torch.where(s > 0, (position - length)[:, None] * s, (position - 1)[:, None] * s)


def _relative(position: Tensor, length: Tensor, s: Tensor) -> Tensor:
    return _absolute(position, length, s) / length[:, None]


def _none(position: Tensor, length: Tensor, s: Tensor) -> Tensor:
    return torch.zeros_like(position)[:, None]


POSITIONS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "absolute": _absolute,
    "none": _none,
    "relative": _relative,
}
SCALES = ("mean", "sum")


def position_logits(position: Tensor, length: Tensor, s: Tensor, *, kind: str) -> Tensor:
    """Return the exponents of the position weights, shifted so that their maximum over a document is 0.

    Args:
        position: (N,) the tokens' positions i = 1..n.
        length: (N,) the length n of each token's document.
        s: (m,) the learned slopes.
        kind: ``absolute`` (i s_j), ``relative`` (i s_j / n) or ``none`` (0).

    Returns:
        (N, m), or (N, 1) for ``none``; never above 0.
    """
    dtype = torch.promote_types(s.dtype, torch.float32)
    return POSITIONS[kind](position.to(dtype), length.to(dtype), s.to(dtype))


def position_weights(offsets: Tensor, s: Tensor, *, kind: str, scale: str) -> Tensor:
    """Return the position weights p(i)_j of all tokens.

    p(i)_j = exp(i s_j) / sum_i' exp(i' s_j), a softmax over each document's own tokens, times n under ``mean``.

    Args:
        offsets: (B + 1,).
        s: (m,) the learned slopes; not read under ``none``.
        kind: ``absolute``, ``relative`` (i / n in place of i) or ``none`` (1 / n).
        scale: ``sum`` (a document's weights sum to 1, the paper's) or ``mean`` (they average 1).

    Returns:
        (N, m), or (N, 1) for ``none``, in float32 or better.

    Source: the paper's positional encoding (section on the input representation).
    """
    documents = document_ids(offsets)
    length = offsets.diff()[documents]
    position = token_positions(offsets) + 1
    weights = position_logits(position, length, s, kind=kind).exp()
    weights = multiply_(weights, segment_sum(weights, offsets).reciprocal().index_select(0, documents))
    return weights * length[:, None] if scale == "mean" else weights


# The first context ---------------------------------------------------------------------------------------------


def _ones(learned: Tensor, input_ids: Tensor, offsets: Tensor) -> Tensor:
    return torch.ones_like(learned).expand(len(offsets) - 1, -1)


def _learned(learned: Tensor, input_ids: Tensor, offsets: Tensor) -> Tensor:
    return learned.expand(len(offsets) - 1, -1)


def _uniform(learned: Tensor, input_ids: Tensor, offsets: Tensor) -> Tensor:
    rows = []
    for ids in input_ids.cpu().split(offsets.diff().tolist()):
        digest = hashlib.blake2b(ids.to(torch.int64).numpy().tobytes(), digest_size=8).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)
        rows.append(torch.rand(len(learned), generator=generator) * 2 - 1)
    return torch.stack(rows).to(learned)


INITIAL_CONTEXTS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "learned": _learned,
    "ones": _ones,
    "uniform": _uniform,
}


def initial_context(kind: str, learned: Tensor, input_ids: Tensor, offsets: Tensor) -> Tensor:
    """Return the first context c^0 of each document.

    Args:
        kind: ``ones``, ``learned``, or ``uniform``: random in (-1, 1), seeded by the document's token ids, so a text
            always has the same c^0.
        learned: (m,), the row of ``learned``; its length, dtype and device are those of every kind.
        input_ids: (N,) integers; read only by ``uniform``.
        offsets: (B + 1,).

    Returns:
        (B, m).

    Source: the paper's Table 3 compares the kinds.
    """
    return INITIAL_CONTEXTS[kind](learned, input_ids, offsets)


# The steps -----------------------------------------------------------------------------------------------------


def corrected(context: Tensor, total: Tensor, gain: Tensor, bias: Tensor, offsets: Tensor) -> Tensor:
    """Return c^k = c^{k-1} + LayerNorm(sum_i a_i^k * x_i), computed in float32 or better.

    Args:
        context: (B, m) the context c^{k-1}.
        total: (B, m) the sum over tokens.
        gain, bias: (m,) of the layer normalisation.
        offsets: (B + 1,); a document without tokens keeps its context.

    Returns:
        (B, m).
    """
    z = F.layer_norm(total, total.shape[-1:], gain.to(total.dtype), bias.to(total.dtype), LAYER_NORM_EPS)
    empty = offsets[1:] == offsets[:-1]
    return torch.where(empty[:, None], context, context + z) if empty.any() else context + z


def multiply_(fresh: Tensor, other: Tensor) -> Tensor:
    """Return fresh * other; without gradients this overwrites ``fresh``, which must not be used afterwards."""
    return fresh * other if torch.is_grad_enabled() else fresh.mul_(other)


def attended(ux: Tensor, vc: Tensor, documents: Tensor, W: Tensor, b: Tensor) -> Tensor:
    """Return the attention a_i = W (U x_i * V c) + b of each token.

    Args:
        ux: (N, u) the products U x_i.
        vc: (B, u) the products V c.
        documents: (N,) from :func:`document_ids`.
        W: (m, u).
        b: (m,).

    Returns:
        (N, m).

    Source: the paper's second-order attention.
    """
    return affine(multiply_(vc.index_select(0, documents), ux), W, b)


def first_step_is_linear(x: Tensor, context: Tensor, steps: Steps) -> bool:
    """Return whether all documents share c^0 (an expanded or single row) and the map W diag(V c^0) U is cheaper."""
    (n, m), u = x.shape, steps.U.shape[1]
    shared = len(context) > 0 and (len(context) == 1 or context.stride(0) == 0)
    return shared and n * m + m * u < 2 * n * u


def direct(x: Tensor, offsets: Tensor, context: Tensor, steps: Steps) -> Tensor:
    """Return K steps computed token by token, as in the paper: the reference for all forms, and best for short texts.

    z^k = LayerNorm(sum_i (W_k (U_k x_i * V_k c^{k-1}) + b_k) * x_i), c^k = c^{k-1} + z^k.

    Cost: 2 n u m multiplications per step. If all documents share c^0, the first step multiplies every token by one
    matrix, W diag(V c^0) U of (m, m), provided that this is cheaper.

    Args:
        x: (N, m) weighted tokens x_i = e(w_i) * p(i).
        offsets: (B + 1,).
        context: (B, m) the first contexts c^0.
        steps: the K steps' parameters.

    Returns:
        (K + 1, B, m): the contexts c^0..c^K, in float32 or better.

    Source: the paper's algorithm.
    """
    documents = document_ids(offsets)
    contexts = [context.to(torch.promote_types(x.dtype, torch.float32))]
    if first_step_is_linear(x, contexts[0], steps):
        U, V, W, b, gain, bias = (parameter[0] for parameter in steps)
        a = affine(x, (W * (V @ contexts[0][0].to(x.dtype))) @ U, b)
        contexts.append(corrected(contexts[-1], segment_sum(multiply_(a, x), offsets), gain, bias, offsets))
        steps = Steps(*(parameter[1:] for parameter in steps))
    # Training stores the products of all steps anyway, and one large product has a faster gradient than K small ones.
    # Without gradients, the products of one step at a time stay in cache.
    products: Iterable[Tensor] = (affine(x, U) for U in steps.U)
    if torch.is_grad_enabled():
        products = affine(x, steps.U.flatten(0, 1)).unflatten(1, steps.U.shape[:2]).unbind(1)
    for ux, (_, V, W, b, gain, bias) in zip(products, zip(*steps, strict=True), strict=True):
        a = attended(ux, affine(contexts[-1].to(x.dtype), V), documents, W, b)
        contexts.append(corrected(contexts[-1], segment_sum(multiply_(a, x), offsets), gain, bias, offsets))
    return torch.stack(contexts)
