"""K steps from a document's second moments: a step reads the tokens only through sums over them.

Dimensions and packing as in :mod:`ctx_embed.second_order.paper`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import NamedTuple

from ctx_embed.second_order.arrays import affine, cast, library, precise
from ctx_embed.second_order.paper import Array, Steps, corrected, direct


class Sums(NamedTuple):
    """A form of the sums over a document, and how a step reads them.

    Args:
        add: takes a block of tokens (n, m) and all steps' U, stacked (K u, m); returns the block's sum. The sum of a
            document is the sum over its blocks.
        read: takes the documents' sums, stacked (B, m, ...), a step's U (u, m) and its number k; returns
            G_k = sum_i x_i (U_k x_i)^T, (B, m, u).
    """

    add: Callable[[Array, Array], Array]
    read: Callable[[Array, Array, int], Array]


SUMS: dict[str, Sums] = {
    "projected": Sums(
        add=lambda x, U: x.T @ affine(x, U),
        read=lambda G, U, k: G[:, :, k * len(U) : (k + 1) * len(U)],
    ),
    "moments": Sums(add=lambda x, U: x.T @ x, read=lambda M, U, k: M @ U.T),
}


def accumulate(blocks: Iterable[Array], U: Array, form: str) -> tuple[Array, Array]:
    """Return the sums of one document, read block by block in memory that does not grow with its length.

    Args:
        blocks: tensors (n, m) of weighted tokens, in float32 or better; at least one.
        U: (K, u, m).
        form: a name in :data:`SUMS`.

    Returns:
        The form's sum, (m, K u) or (m, m), and t = sum_i x_i, (m,).
    """
    flat = U.reshape(-1, U.shape[2])
    partial: Array | None = None
    t: Array | None = None
    for x in blocks:
        part = SUMS[form].add(x, cast(flat, x))
        partial = part if partial is None else partial + part
        t = x.sum(0) if t is None else t + x.sum(0)
    if partial is None or t is None:
        raise ValueError("blocks must hold at least one tensor, got none")
    return partial, t


def recurrence(sums: Array, t: Array, offsets: Array, context: Array, steps: Steps, form: str) -> Array:
    """Return K steps computed from the documents' sums, without their tokens.

    A step needs the tokens only through these sums: sum_i a_i * x_i = rowsum(G_k * W_k * (V_k c)^T) + b_k * t with
    G_k = sum_i x_i (U_k x_i)^T. A step costs m u multiplications per document with ``projected`` and m^2 u with
    ``moments``, however long the documents are.

    Args:
        sums: (B, m, K u) or (B, m, m) from :func:`accumulate`, stacked.
        t: (B, m) the sums of the tokens.
        offsets: (B + 1,).
        context: (B, m).
        steps: the K steps' parameters.
        form: a name in :data:`SUMS`.

    Returns:
        (K + 1, B, m).
    """
    contexts = [cast(context, sums)]
    for k, (U, V, W, b, gain, bias) in enumerate(zip(*(cast(p, sums) for p in steps), strict=True)):
        G = SUMS[form].read(sums, U, k)
        total = ((G * W) @ (contexts[-1] @ V.T)[:, :, None])[:, :, 0] + b * t
        contexts.append(corrected(contexts[-1], total, gain, bias, offsets))
    return library(sums).stack(contexts)


def _through(form: str) -> Callable[[Array, Array, Array, Steps], Array]:
    def run(x: Array, offsets: Array, context: Array, steps: Steps) -> Array:
        x = precise(x)
        parts = [x[start:stop] for start, stop in pairwise(offsets.tolist())]
        read = zip(*(accumulate([part], steps.U, form) for part in parts), strict=True)
        sums, t = (library(x).stack(of_documents) for of_documents in read)
        return recurrence(sums, t, offsets, context, steps, form)

    run.__name__ = run.__qualname__ = form
    run.__doc__ = f"K steps through the {form} form; arguments and result as those of :func:`direct`."
    return run


projected_moments = _through("projected")
moments = _through("moments")

FORMS: dict[str, Callable[[Array, Array, Array, Steps], Array]] = {
    "direct": direct,
    "projected": projected_moments,
    "moments": moments,
}


# The choice of a form ------------------------------------------------------------------------------------------
#
# Multiplications for a document of n tokens in all K steps:
#     direct      2 n m K u
#     projected   2 n m K u + m K u        nearly the same, but two large products instead of 2 K sequential ones
#     moments     n m^2 + m^2 K u          independent of K and u in n
# Measured (float32, two cores, m 128, K 5, u 260 and 1041): the products are equally fast in all forms, so these counts
# decide. Only the direct form takes many short documents in one product, so it is used until ``moments`` is cheaper.


def cheapest_sums(n: int, m: int, u: int, K: int) -> str:
    """Return the name of the sums with the fewer multiplications for a document of n tokens."""
    return "moments" if n * m + m * K * u < 2 * n * K * u else "projected"


def sums_pay_from(m: int, u: int, K: int) -> float:
    """Return the number of tokens from which a document is cheaper by moments than token by token; infinity: never."""
    return m * K * u / (2 * K * u - m) if 2 * K * u > m else float("inf")
