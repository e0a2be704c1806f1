"""Other forms of the steps: for long texts, for many short texts over one table, and each token's part of an update.

Dimensions as in :mod:`ctx_embed.second_order.paper`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ctx_embed.second_order.arrays import (
    LAYER_NORM_EPS,
    affine,
    cast,
    count,
    layer_norm,
    library,
    multiply_,
    precise,
    segment_sum,
    take,
)
from ctx_embed.second_order.paper import Array, Steps, attended, corrected, document_ids, lengths_of, position_logits

# Number of tokens that are in memory together.
BLOCK_TOKENS = 4096


def recurrence(G: Array, t: Array, context: Array, steps: Steps) -> Array:
    """Return c^K (m,) of a document from sums over its tokens, of which there is at least one.

    sum_i a_i * x_i = rowsum(G_k * W_k * (V_k c)^T) + b_k * t. A step costs m u multiplications, however long the
    document is.

    Args:
        G: (m, K u), the K sums G_k = sum_i x_i (U_k x_i)^T side by side, in float32 or better.
        t: (m,) the sum of the tokens.
        context: (m,) c^0.
        steps: the K steps' parameters.
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

    Args:
        rows: returns the token embeddings of some ids.
        ids: (n,) the document's tokens, n >= 1.
        context: (m,) c^0.
        steps: the K steps' parameters.
        s: (m,) the learned slopes; sums are computed in their dtype, float32 or better.
        kind, scale: as for :func:`ctx_embed.second_order.position_weights`.
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
    """Return the last contexts c^K of packed rows of a table, as :func:`ctx_embed.second_order.direct` computes them.

    Args:
        table: (E, m) token embeddings.
        ids: (N,) the rows that are the documents' tokens.
        offsets: (B + 1,).
        context: (B, m) the first contexts c^0, B >= 1.
        steps: the K steps' parameters.
        shared: whether all documents have one c^0, so that a^1 * e is computed once per entry, too.

    Returns:
        (B, m), in float32 or better.
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
    """Yield each token's part of z^k, one step at a time.

    Layer normalisation is linear in the tokens once its mean and deviation are known: z^k is its bias and the sum of
    v_i = gain * (y_i - mean(y_i)) / sigma over the tokens, y_i = a_i^k * x_i, sigma the deviation of sum_i y_i.

    Args:
        x: (N, m) weighted tokens x_i.
        offsets: (B + 1,).
        contexts: (K + 1, B, m) from :func:`ctx_embed.second_order.direct`.
        steps: the K steps' parameters.

    Yields:
        K times (N, m), in float32 or better; the rows of a document and the step's bias sum to its z^k.
    """
    documents = document_ids(offsets)
    for context, (U, V, W, b, gain, _) in zip(contexts, zip(*steps, strict=False), strict=False):
        y = cast(attended(affine(x, U), affine(cast(context, x), V), documents, W, b) * x, contexts)
        y = y - y.mean(1)[:, None]
        deviation = ((segment_sum(y, offsets) ** 2).mean(1) + LAYER_NORM_EPS) ** 0.5
        yield cast(gain, y) * y / deviation[documents][:, None]


def shares_of_steps(x: Array, offsets: Array, contexts: Array, steps: Steps) -> Array:
    """Return the share of each token in z^k.

    The share of token i is its part of the length of the tokens' total contribution,
    <v_i, sum v> / ||sum v||^2 with v_i from :func:`contributions_of_steps`. The shares of a document sum to 1; a token
    that works against the others has a negative share. If the sum is zero, all tokens have equal shares.

    Returns:
        (K, N), in float32 or better.
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
