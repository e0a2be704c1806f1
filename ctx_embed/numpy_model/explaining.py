"""The contribution of each token of a text to the updates of its context and to a cosine, without torch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ctx_embed import second_order
from ctx_embed.numpy_model.contextualizer import Ids, PackedContextualizer
from ctx_embed.second_order import Steps

Doubles = NDArray[np.float64]


@dataclass(frozen=True)
class TokenWeight:
    """The weight that a token, characters ``start`` to ``stop`` of a text, adds to a cosine. It may be negative."""

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


def contributions(model: PackedContextualizer, ids: Ids) -> tuple[Doubles, Doubles, Doubles]:
    """Return what each token adds to each step's update z^k, its share of it, and the contexts.

    Args:
        model: K steps.
        ids: (n,) of one text.

    Returns:
        (K, n, m) and (K, n) from :func:`ctx_embed.second_order.contributions_of_steps` and ``shares_of_steps``, and
        c^0..c^K, (K + 1, m).
    """
    n, K = len(ids), len(model.steps.U)
    first = model.first_contexts(ids, np.array([n])).astype(np.float64)
    if not n:
        return np.zeros((K, 0, model.dimension)), np.zeros((K, 0)), np.repeat(first, K + 1, 0)
    offsets = np.array([0, n])
    x = model.weighted(ids, offsets).astype(np.float64)
    steps = Steps(*(parameter.astype(np.float64) for parameter in model.steps))
    contexts = second_order.direct(x, offsets, first, steps)
    vectors = np.stack(list(second_order.contributions_of_steps(x, offsets, contexts, steps)))
    return vectors, second_order.shares_of_steps(x, offsets, contexts, steps), contexts[:, 0]


def token_parts(model: PackedContextualizer, ids: Ids, direction: Doubles) -> tuple[Doubles, float, Doubles]:
    """Return what each token adds to the inner product of c^K and a vector.

    Args:
        model: K steps.
        ids: (n,) of one text.
        direction: (m,).

    Returns:
        parts (n,), the rest that no token adds, and c^K (m,): ``parts.sum() + rest`` is ``c^K @ direction``.
    """
    vectors, _, contexts = contributions(model, ids)
    parts = (vectors @ direction).sum(0)
    return parts, float(contexts[-1] @ direction - parts.sum()), contexts[-1]
