"""The contribution of each token of a text to the updates of its context and to a cosine, without torch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ctx_embed.numpy_model.contextualizer import (
    LAYER_NORM_EPS,
    Ids,
    NumpyContextualizer,
    position_weights,
)

Doubles = NDArray[np.float64]


@dataclass(frozen=True)
class TokenWeight:
    """The weight that a token, characters ``start`` to ``stop`` of a text, adds to a cosine; it may be negative."""

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


def contributions(model: NumpyContextualizer, ids: Ids) -> tuple[Doubles, Doubles]:
    """Return what each token adds to each step's update z^k, and the contexts.

    Layer normalisation is linear in the tokens once its mean and deviation are known: z^k is its bias and the sum over
    the tokens of v_i = gain * (y_i - mean(y_i)) / sigma, y_i = a_i^k * x_i, sigma the deviation of sum_i y_i.

    Args:
        model: K steps.
        ids: (n,) of one text.

    Returns:
        (K, n, m), and c^0..c^K, (K + 1, m).
    """
    n = len(ids)
    contexts = [model.first_contexts(ids, np.array([n]))[0].astype(np.float64)]
    if not n:
        return np.zeros((len(model.steps), 0, model.dimension)), np.stack(contexts * (len(model.steps) + 1))
    weights = position_weights(model.positions, model.scale, n, model.s, 1, n).astype(np.float64)
    weights *= (n if model.scale == "mean" else 1) / weights.sum(0)
    x = model.table.rows(ids) * weights
    vectors = []
    for step in model.steps:
        y = (((x @ step.U.T) * (contexts[-1] @ step.V_T)) @ step.W_T + step.b) * x
        y -= y.mean(1, keepdims=True)
        total = y.sum(0)
        y *= step.gain / np.sqrt(np.square(total).mean() + LAYER_NORM_EPS)
        vectors.append(y)
        contexts.append(contexts[-1] + step.bias + y.sum(0))
    return np.stack(vectors), np.stack(contexts)


def shares(vectors: Doubles) -> Doubles:
    """Return each token's share of each update, (K, n); a row sums to 1.

    The share of token i is <v_i, sum v> / ||sum v||^2; if the sum is zero, all tokens have equal shares.

    Args:
        vectors: (K, n, m) from :func:`contributions`.
    """
    whole = vectors.sum(1)
    squares = np.einsum("km,km->k", whole, whole)[:, None]
    projected = np.einsum("knm,km->kn", vectors, whole)
    equal = np.full_like(projected, 1 / max(projected.shape[1], 1))
    found: Doubles = np.divide(projected, squares, out=equal, where=squares > 0)
    return found


def token_parts(model: NumpyContextualizer, ids: Ids, direction: Doubles) -> tuple[Doubles, float, Doubles]:
    """Return what each token adds to the inner product of c^K and a vector.

    Args:
        model: K steps.
        ids: (n,) of one text.
        direction: (m,).

    Returns:
        parts (n,), the rest that no token adds, and c^K (m,): ``parts.sum() + rest`` is ``c^K @ direction``.
    """
    vectors, contexts = contributions(model, ids)
    parts = (vectors @ direction).sum(0)
    return parts, float(contexts[-1] @ direction - parts.sum()), contexts[-1]
