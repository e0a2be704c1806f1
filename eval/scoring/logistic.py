"""Logistic regression along a path of penalties, to full convergence.

A probe fits some three hundred regressions on one table of embeddings. A general solver needs hundreds of passes over
the table for each, since the variances along the principal directions of embeddings differ by orders of magnitude. Here
the table is rotated into these directions once, and each is scaled by Böhning's bound on the curvature along it; L-BFGS
then needs about ten passes for two classes, and a few tens for many.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.optimize import minimize
from scipy.special import expit
from sklearn.exceptions import ConvergenceWarning

Array = NDArray[np.float64]

GRADIENT_TOLERANCE = 1e-6
MAX_ITERATIONS = 1000


@dataclass(frozen=True)
class LinearClassifier:
    """A linear classifier: the class of largest logit ``X weights + intercept``; of two, the second if positive.

    weights: (d, k), intercept: (k,); k = 1 for two classes, else the number of classes.
    """

    weights: Array
    intercept: Array

    def logits(self, X: Any) -> Array:
        """Return the logits (n, k) of the rows of ``X`` (n, d)."""
        logits: Array = X @ self.weights + self.intercept
        return logits

    def predict(self, X: Any) -> NDArray[np.intp]:
        """Return the class index of each row of ``X`` (n, d)."""
        logits = self.logits(X)
        return (logits[:, 0] > 0).astype(np.intp) if logits.shape[1] == 1 else logits.argmax(axis=1)


def _binary_loss(logits: Array, targets: Array) -> tuple[float, Array]:
    """Return mean log(1 + exp(-logit)) or log(1 + exp(logit)), and its gradient times n, expit(logit) - target."""
    loss = np.logaddexp(0.0, logits) - targets * logits
    return float(loss.mean()), expit(logits) - targets


def _softmax_loss(logits: Array, targets: Array) -> tuple[float, Array]:
    """Return mean -log softmax of the true class, and its gradient times n, softmax(logits) - target."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    exponentials = np.exp(shifted)
    sums = exponentials.sum(axis=1, keepdims=True)
    loss = np.log(sums[:, 0]) - np.einsum("ij,ij->i", targets, shifted)
    return float(loss.mean()), exponentials / sums - targets


def _minimum(
    loss_of: Callable[[Array, Array], tuple[float, Array]],
    Z: Any,
    targets: Array,
    scale: Array,
    penalty: Array,
    start: Array,
    max_iterations: int,
) -> Array:
    """Return the coefficients (r + 1, k), intercept last, that minimise the penalised loss.

    ``penalty`` (r + 1, 1) applies to each direction and the intercept; ``scale`` (r + 1, 1) is the preconditioner.
    """
    n, k = targets.shape

    def objective(scaled: Array) -> tuple[float, Array]:
        coefficients = scaled.reshape(-1, k) * scale
        W = coefficients[:-1]
        loss, residual = loss_of(Z @ W + coefficients[-1], targets)
        gradient = np.vstack([Z.T @ residual / n, residual.mean(axis=0)]) + penalty * coefficients
        return loss + float((penalty * coefficients**2).sum()) / 2, (gradient * scale).ravel()

    found: Any = minimize(
        objective,
        (start / scale).ravel(),
        jac=True,
        method="L-BFGS-B",
        options={"gtol": GRADIENT_TOLERANCE, "ftol": 0.0, "maxiter": max_iterations, "maxcor": 20},
    )
    if not found.success:
        warnings.warn(f"logistic regression did not converge: {found.message}", ConvergenceWarning, stacklevel=2)
    coefficients: Array = found.x.reshape(-1, k) * scale
    return coefficients


def _principal_directions(X: Array) -> Array:
    """Return an orthonormal basis (d, r) of the span of the rows, along the principal directions."""
    n, d = X.shape
    if d <= n:
        directions: Array = np.linalg.eigh(X.T @ X / n)[1]
        return directions
    # With fewer rows than features, work in the span of the rows, which contains the solution.
    basis = np.linalg.qr(X.T)[0]
    within: Array = basis @ _principal_directions(X @ basis)
    return within


def logistic_path(
    X: Any,
    y: NDArray[np.intp],
    n_classes: int,
    Cs: Sequence[float],
    *,
    penalise_intercept: bool = False,
    max_iterations: int = MAX_ITERATIONS,
) -> Iterator[LinearClassifier]:
    """Yield logistic regressions with L2 penalty, one for each C, each started from the previous one.

    Minimises ``mean_i loss_i + ||W||^2 / (2 C n)`` with a free intercept, the objective of scikit-learn's
    ``LogisticRegression(C=C)``: one logit for two classes, else softmax over all classes.

    Args:
        X: (n, d) float64, preferably standardised; or a scipy.sparse CSR array.
        y: (n,) class indices below ``n_classes``.
        n_classes: number of classes.
        Cs: inverse strengths of the penalty, preferably in ascending order.
        penalise_intercept: penalise the intercept too, as liblinear does.
        max_iterations: warn and stop after this many iterations of L-BFGS.

    Yields:
        The classifier of each C, converged to a preconditioned gradient of 1e-6.

    Source: Böhning 1992, Annals of the Institute of Statistical Mathematics 44(1), for the bound.
    """
    n = X.shape[0]
    if n_classes == 2:
        loss_of, bound, targets = _binary_loss, 0.25, y[:, None].astype(np.float64)
    else:
        loss_of, bound, targets = _softmax_loss, 0.5, np.eye(n_classes)[y]
    # Do not rotate a sparse table, which would make it dense: its columns hardly overlap, so scaling them is enough.
    rotation = None if sparse.issparse(X) else _principal_directions(X)
    Z = X if rotation is None else X @ rotation
    squares = np.asarray((Z * Z).mean(axis=0)) if rotation is not None else np.asarray(Z.power(2).mean(axis=0)).ravel()
    # (r + 1, 1): the mean square of each direction, 1 for the intercept.
    curvature = bound * np.append(squares, 1.0)[:, None]
    coefficients = np.zeros((Z.shape[1] + 1, targets.shape[1]))
    for C in Cs:
        penalty = np.full_like(curvature, 1.0 / (C * n))
        penalty[-1] *= penalise_intercept
        coefficients = _minimum(
            loss_of, Z, targets, 1.0 / np.sqrt(curvature + penalty), penalty, coefficients, max_iterations
        )
        weights = coefficients[:-1] if rotation is None else rotation @ coefficients[:-1]
        yield LinearClassifier(weights, coefficients[-1])
