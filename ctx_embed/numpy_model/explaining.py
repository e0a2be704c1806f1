"""What each token of a text adds to the cosine of its vector with another one, without torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctx_embed.numpy_model.contextualizer import (
    BLOCK_TOKENS,
    LAYER_NORM_EPS,
    Ids,
    NumpyContextualizer,
    position_weights,
)

Doubles = NDArray[np.float64]


@dataclass(frozen=True)
class TokenWeight:
    """What the characters ``start`` to ``stop`` of a text, one token, add to a cosine; negative if they lower it."""

    text: str
    start: int
    stop: int
    weight: float


@dataclass(frozen=True)
class CosineParts:
    """A cosine as the sum of what the tokens of a text add to it.

    Attributes:
        text: the text.
        tokens: its tokens in their order.
        rest: what the model adds to each text: c^0 and the biases of its layer normalisations; and a prompt.
    """

    text: str
    tokens: list[TokenWeight]
    rest: float

    @property
    def cosine(self) -> float:
        """The sum of all parts."""
        return self.rest + sum(token.weight for token in self.tokens)


def token_parts(model: NumpyContextualizer, ids: Ids, direction: Doubles) -> tuple[Doubles, float, Doubles]:
    """Return what each token adds to the inner product of c^K and a vector.

    Layer normalisation is linear in the tokens once its mean and deviation are known: z^k is its bias and the sum over
    the tokens of v_i = gain * (y_i - mean(y_i)) / sigma, y_i = a_i^k * x_i, sigma the deviation of sum_i y_i.

    Args:
        model: K steps.
        ids: (n,) of one text.
        direction: (m,).

    Returns:
        parts (n,), the rest that no token adds, and c^K (m,): ``parts.sum() + rest`` is ``c^K @ direction``.
    """
    n = len(ids)
    context = model.first_contexts(ids, np.array([n]))[0].astype(np.float64)
    rest = float(context @ direction)
    parts = np.zeros(n)
    if not n:
        return parts, rest, context
    blocks = [slice(start, start + BLOCK_TOKENS) for start in range(0, n, BLOCK_TOKENS)]

    def weights(block: slice) -> Any:
        return position_weights(model.positions, model.scale, n, model.s, block.start + 1, min(block.stop, n))

    total_weight = sum(weights(block).sum(0, dtype=np.float64) for block in blocks)
    if model.scale == "mean":
        total_weight = total_weight / n

    for step in model.steps:
        of_context = context @ step.V_T

        def products(of_context: Doubles = of_context, step: Any = step) -> Iterator[tuple[slice, Doubles]]:
            """Yield y_i of each block, (block, m)."""
            for block in blocks:
                x = model.table.rows(ids[block]) * (weights(block) / total_weight)
                yield block, (((x @ step.U.T) * of_context) @ step.W_T + step.b) * x

        total = np.sum([y.sum(0) for _, y in products()], axis=0)
        deviation = np.sqrt(total.var() + LAYER_NORM_EPS)
        scaled = direction * step.gain / deviation
        for block, y in products():
            parts[block] += y @ scaled - y.mean(1) * scaled.sum()
        rest += float(step.bias @ direction)
        context = context + step.bias + step.gain * (total - total.mean()) / deviation
    return parts, rest, context
