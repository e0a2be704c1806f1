"""How much of each step's correction each token brings about, exactly."""

from __future__ import annotations

import torch
from torch import Tensor

from ctx_embed.second_order import Steps, attended, document_ids, segment_sum


def shares_of_steps(x: Tensor, offsets: Tensor, contexts: Tensor, steps: Steps) -> Tensor:
    """The share of each token in z^k.

    Layer normalisation is linear in the tokens once its mean and deviation are known: z^k is its bias and the sum of
    v_i = gain * (y_i - mean(y_i)) / sigma over the tokens, y_i = a_i^k * x_i. The share of token i is its part of that
    sum's length, <v_i, sum v> / ||sum v||^2, where sigma cancels. The shares of a document sum to 1; a token that works
    against the others has a negative one. Where the sum is zero all tokens have the same.

    Args:
        x: (N, m) weighted tokens x_i.
        offsets: (B + 1,).
        contexts: (K + 1, B, m) from :func:`ctx_embed.second_order.direct`.
        steps: the K steps' parameters.

    Returns:
        (K, N), in float32 or better.
    """
    documents = document_ids(offsets)
    length = offsets.diff()[documents]
    shares = []
    for context, (U, V, W, b, gain, _) in zip(contexts, zip(*steps, strict=False), strict=False):
        y = (attended(x @ U.T, context.to(x.dtype) @ V.T, documents, W, b) * x).to(contexts.dtype)
        v = gain.to(y.dtype) * (y - y.mean(1, keepdim=True))
        whole = segment_sum(v, offsets)[documents]
        square = whole.square().sum(1)
        shares.append(torch.where(square > 0, (v * whole).sum(1) / square, length.to(square.dtype).reciprocal()))
    return torch.stack(shares)
