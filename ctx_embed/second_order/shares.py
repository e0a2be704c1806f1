"""The exact contribution of each token to each step's update."""

from __future__ import annotations

from collections.abc import Iterator

from ctx_embed.second_order.arrays import LAYER_NORM_EPS, affine, cast, library, segment_sum
from ctx_embed.second_order.paper import Array, Steps, attended, document_ids, lengths_of


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
