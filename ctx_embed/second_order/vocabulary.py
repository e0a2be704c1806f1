"""K steps over a vocabulary: without position weights, each token's products are computed once per entry.

Dimensions as in :mod:`ctx_embed.second_order.paper`; a table has E entries.
"""

from __future__ import annotations

from typing import NamedTuple

from ctx_embed.second_order.arrays import affine, cast, multiply_, precise, segment_sum, take
from ctx_embed.second_order.paper import Array, Steps, attended, corrected, document_ids


class Products(NamedTuple):
    """The products of each vocabulary entry that the steps need, where x_i = e(w_i).

    Args:
        first: (E, m) a^1 * e in float32 or better; its sum over a text's tokens is the sum of the first step. None if
            c^0 differs between texts.
        of_steps: U_k e, (E, u), of each step that ``first`` does not include.
    """

    first: Array | None
    of_steps: list[Array]


def vocabulary_products(table: Array, shared: Array | None, steps: Steps) -> Products:
    """Return the products of each row of a token table.

    Args:
        table: (E, m) token embeddings.
        shared: (m,) the first context c^0 if all texts have the same one, otherwise None.
        steps: the K steps' parameters.
    """
    if shared is None:
        return Products(None, [affine(table, U) for U in steps.U])
    first = affine(affine(table, steps.U[0]) * (steps.V[0] @ shared), steps.W[0], steps.b[0]) * table
    return Products(precise(first), [affine(table, U) for U in steps.U[1:]])


def over_vocabulary(
    table: Array, products: Products, ids: Array, offsets: Array, context: Array, steps: Steps
) -> Array:
    """Return the last contexts c^K of packed rows of a table, as :func:`ctx_embed.second_order.direct` computes them.

    Args:
        table: (E, m) token embeddings.
        products: of the table, from :func:`vocabulary_products`.
        ids: (N,) the rows that are the documents' tokens.
        offsets: (B + 1,).
        context: (B, m) the first contexts c^0.
        steps: the K steps' parameters.

    Returns:
        (B, m), in float32 or better.
    """
    remaining = list(zip(*steps, strict=True))
    context = cast(context, precise(table[:0]))
    if products.first is not None:
        *_, gain, bias = remaining.pop(0)
        context = corrected(context, segment_sum(take(products.first, ids), offsets), gain, bias, offsets)
    if not remaining:
        return context
    documents = document_ids(offsets)
    x = take(table, ids)
    for ux, (_, V, W, b, gain, bias) in zip(products.of_steps, remaining, strict=True):
        a = attended(take(ux, ids), affine(cast(context, V), V), documents, W, b)
        context = corrected(context, segment_sum(multiply_(a, x), offsets), gain, bias, offsets)
    return context
