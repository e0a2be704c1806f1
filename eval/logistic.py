"""Logistic regression along a path of penalties, to full convergence.

A probe fits some three hundred regressions on one table of embeddings. A general solver spends hundreds of passes over
the table on each, since the principal directions of embeddings differ in length by orders of magnitude. Here the table
is rotated into these directions once, and each is scaled by Böhning's bound on the curvature along it; L-BFGS then
needs about ten passes for two classes, and a few tens for many.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit
from sklearn.exceptions import ConvergenceWarning

Array = NDArray[np.float64]

GRADIENT_TOLERANCE = 1e-6
MAX_ITERATIONS = 1000


@dataclass(frozen=True)
class LinearClassifier:
    """The classes of largest logit ``X weights + intercept``; of two classes the second where one logit is positive.

    weights: (d, k), intercept: (k,); k = 1 for two classes, else the number of classes.
    """

    weights: Array
    intercept: Array

    def predict(self, X: Array) -> NDArray[np.intp]:
        """The class index of each row of ``X`` (n, d)."""
        logits = X @ self.weights + self.intercept
        return (logits[:, 0] > 0).astype(np.intp) if logits.shape[1] == 1 else logits.argmax(axis=1)


def _binary_loss(logits: Array, targets: Array) -> tuple[float, Array]:
    """Mean of log(1 + exp(-logit)) or log(1 + exp(logit)), and its gradient times n, expit(logit) - target."""
    loss = np.logaddexp(0.0, logits) - targets * logits
    return float(loss.mean()), expit(logits) - targets


def _softmax_loss(logits: Array, targets: Array) -> tuple[float, Array]:
    """Mean of -log softmax of the true class, and its gradient times n, softmax(logits) - target."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    exponentials = np.exp(shifted)
    sums = exponentials.sum(axis=1, keepdims=True)
    loss = np.log(sums[:, 0]) - np.einsum("ij,ij->i", targets, shifted)
    return float(loss.mean()), exponentials / sums - targets


def _minimum(
    loss_of: Callable[[Array, Array], tuple[float, Array]],
    Z: Array,
    targets: Array,
    scale: Array,
    penalty: float,
    start: Array,
) -> Array:
    """The coefficients (r + 1, k), the intercept last, of least penalised loss; ``scale`` (r + 1, 1) preconditions."""
    n, k = targets.shape

    def objective(scaled: Array) -> tuple[float, Array]:
        coefficients = scaled.reshape(-1, k) * scale
        W = coefficients[:-1]
        loss, residual = loss_of(Z @ W + coefficients[-1], targets)
        gradient = np.vstack([Z.T @ residual / n + penalty * W, residual.mean(axis=0)])
        return loss + penalty / 2 * float((W * W).sum()), (gradient * scale).ravel()

    found: Any = minimize(
        objective,
        (start / scale).ravel(),
        jac=True,
        method="L-BFGS-B",
        options={"gtol": GRADIENT_TOLERANCE, "ftol": 0.0, "maxiter": MAX_ITERATIONS, "maxcor": 20},
    )
    if not found.success:
        warnings.warn(f"logistic regression did not converge: {found.message}", ConvergenceWarning, stacklevel=2)
    coefficients: Array = found.x.reshape(-1, k) * scale
    return coefficients


def _second_moments(X: Array) -> Array:
    moments: Array = X.T @ X / len(X)
    return moments


def logistic_path(X: Array, y: NDArray[np.intp], n_classes: int, Cs: Sequence[float]) -> Iterator[LinearClassifier]:
    """Logistic regressions with L2 penalty, one for each C, each started from the one before.

    Minimises ``mean_i loss_i + ||W||^2 / (2 C n)`` with a free intercept, the objective of scikit-learn's
    ``LogisticRegression(C=C)``: one logit for two classes, softmax over all classes else.

    Args:
        X: (n, d) float64, standardised.
        y: (n,) class indices below ``n_classes``.
        n_classes: how many classes there are.
        Cs: inverse strengths of the penalty, best in ascending order.

    Yields:
        The classifier of each C, converged to a preconditioned gradient of 1e-6.

    Source: Böhning 1992, Annals of the Institute of Statistical Mathematics 44(1), for the bound.
    """
    n, d = X.shape
    if n_classes == 2:
        loss_of, bound, targets = _binary_loss, 0.25, y[:, None].astype(np.float64)
    else:
        loss_of, bound, targets = _softmax_loss, 0.5, np.eye(n_classes)[y]
    if d > n:
        # The solution lies in the span of the rows, so nothing else needs to be looked at.
        basis = np.linalg.qr(X.T)[0]
        rotation = basis @ np.linalg.eigh(_second_moments(X @ basis))[1]
    else:
        rotation = np.linalg.eigh(_second_moments(X))[1]
    Z = X @ rotation
    # (r + 1, 1): the mean square of each direction, 1 for the intercept.
    curvature = bound * np.append((Z * Z).mean(axis=0), 1.0)[:, None]
    coefficients = np.zeros((Z.shape[1] + 1, targets.shape[1]))
    for C in Cs:
        penalty = 1.0 / (C * n)
        coefficients = _minimum(loss_of, Z, targets, 1.0 / np.sqrt(curvature + penalty), penalty, coefficients)
        yield LinearClassifier(rotation @ coefficients[:-1], coefficients[-1])
