"""Logistic regression by L-BFGS: dense and sparse features, one label or several, and a prior for each coefficient.

A general solver needs hundreds of passes over a table of embeddings, since the variances along their principal
directions differ by orders of magnitude. :func:`principal_directions` rotates the table into these directions once, and
:func:`minimum` scales each coefficient by a bound on the curvature along it; L-BFGS then needs about ten passes for two
classes, and a few tens for many.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit

Floats = NDArray[Any]
# Takes logits (n, k), targets (n, k) and weights (n, 1) or (n, k); returns the mean loss and its gradient times n.
Loss = Callable[[Floats, Floats, Any], tuple[float, Floats]]


def sigmoid_loss(logits: Floats, targets: Floats, weights: Any = 1.0) -> tuple[float, Floats]:
    """Return the mean over the rows of sum_k -log p(target_k), and the gradient times n, expit(logit) - target."""
    loss = weights * (np.logaddexp(0.0, logits) - targets * logits)
    return float(loss.sum(dtype=np.float64)) / len(logits), weights * (expit(logits) - targets)


def softmax_loss(logits: Floats, targets: Floats, weights: Any = 1.0) -> tuple[float, Floats]:
    """Return the mean of -log softmax of the true class, and the gradient times n, softmax(logits) - target."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    exponentials = np.exp(shifted)
    sums = exponentials.sum(axis=1, keepdims=True)
    loss = weights * (np.log(sums) - np.einsum("ij,ij->i", targets, shifted)[:, None])
    return float(loss.sum(dtype=np.float64)) / len(logits), weights * (exponentials / sums - targets)


# A bound on the second derivative of each loss. Source: Böhning 1992, Annals of the Institute of Statistical
# Mathematics 44(1).
CURVATURE: dict[Loss, float] = {sigmoid_loss: 0.25, softmax_loss: 0.5}


class SideBySide:
    """The product of a dense table (n, m) next to a scipy.sparse CSR array (n, d), as one of m + d columns."""

    def __init__(self, dense: Floats, sparse: Any) -> None:
        self.dense, self.sparse = dense, sparse
        self.dtype = dense.dtype

    def __matmul__(self, weights: Floats) -> Floats:
        columns = self.dense.shape[1]
        product: Floats = self.dense @ weights[:columns] + self.sparse @ weights[columns:]
        return product

    @property
    def T(self) -> _Stacked:
        """The transpose, for products only."""
        return _Stacked(self.dense.T, self.sparse.T)


class _Stacked:
    def __init__(self, dense: Floats, sparse: Any) -> None:
        self.dense, self.sparse = dense, sparse

    def __matmul__(self, residuals: Floats) -> Floats:
        return np.vstack([self.dense @ residuals, self.sparse @ residuals])


def minimum(
    loss_of: Loss,
    Z: Any,
    targets: Floats,
    squares: Floats,
    penalty: Floats,
    start: Floats,
    *,
    weights: Any = 1.0,
    gradient_tolerance: float,
    loss_tolerance: float = 0.0,
    max_iterations: int,
    memory: int = 20,
) -> tuple[Floats, str | None]:
    """Return the coefficients that minimise a penalised loss, and the solver's message if it did not converge.

    Args:
        loss_of: the loss.
        Z: (n, r), anything with ``@``, ``.T @`` and ``dtype``.
        targets: (n, k).
        squares: (r + 1, 1) mean square of each column of ``Z``, 1 for the intercept.
        penalty: (r + 1, 1) or (r + 1, k), half of which multiplies the square of each coefficient, intercept last;
            infinity fixes a coefficient at 0.
        start: (r + 1, k) initial coefficients.
        weights: of the rows in the loss, (n, 1), or of rows and columns, (n, k).
        gradient_tolerance, loss_tolerance, max_iterations, memory: of L-BFGS; the gradient is the preconditioned one.
    """
    n, k = targets.shape
    scale = 1.0 / np.sqrt(CURVATURE[loss_of] * squares + penalty)
    free = np.where(np.isfinite(penalty), penalty, 0.0)
    transposed = Z.T

    def objective(scaled: Floats) -> tuple[float, Floats]:
        coefficients = scaled.reshape(-1, k) * scale
        used = coefficients.astype(Z.dtype, copy=False)
        loss, residual = loss_of(Z @ used[:-1] + used[-1], targets, weights)
        gradient = np.vstack([transposed @ residual, residual.sum(axis=0, dtype=np.float64)]) / n + free * coefficients
        return loss + float((free * coefficients**2).sum()) / 2, (gradient * scale).ravel()

    found: Any = minimize(
        objective,
        np.divide(start, scale, out=np.zeros_like(start), where=scale > 0).ravel(),
        jac=True,
        method="L-BFGS-B",
        options={"gtol": gradient_tolerance, "ftol": loss_tolerance, "maxiter": max_iterations, "maxcor": memory},
    )
    return found.x.reshape(-1, k) * scale, None if found.success else str(found.message)


def principal_directions(X: Floats) -> Floats:
    """Return an orthonormal basis (d, r) of the span of the rows, along the principal directions."""
    n, d = X.shape
    if d <= n:
        directions: Floats = np.linalg.eigh(X.T @ X / n)[1]
        return directions
    # With fewer rows than features, work in the span of the rows, which contains the solution.
    basis = np.linalg.qr(X.T)[0]
    within: Floats = basis @ principal_directions(X @ basis)
    return within
