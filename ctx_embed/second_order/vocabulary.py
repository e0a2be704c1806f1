"""K steps over a vocabulary: without position weights, each token's products are computed once per entry."""

from __future__ import annotations

from ctx_embed.second_order.arrays import affine, cast, multiply_, precise, segment_sum, take
from ctx_embed.second_order.paper import Array, Steps, attended, corrected, document_ids


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
