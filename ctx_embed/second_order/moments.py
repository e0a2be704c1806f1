"""K steps over one long document in bounded memory: a step reads the tokens only through sums over them.

Dimensions as in :mod:`ctx_embed.second_order.paper`.
"""

from __future__ import annotations

from collections.abc import Callable

from ctx_embed.second_order.arrays import affine, cast, count, layer_norm, library
from ctx_embed.second_order.paper import Array, Steps, position_logits

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
