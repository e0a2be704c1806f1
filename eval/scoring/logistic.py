"""Logistic regression along a path of penalties, to full convergence.

A probe fits some three hundred regressions on one table of embeddings, which is rotated into its principal directions
once; see :mod:`ctx_embed.classify.logistic`.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning

from ctx_embed.classify.logistic import minimum, principal_directions, sigmoid_loss, softmax_loss

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
    """
    n = X.shape[0]
    if n_classes == 2:
        loss_of, targets = sigmoid_loss, y[:, None].astype(np.float64)
    else:
        loss_of, targets = softmax_loss, np.eye(n_classes)[y]
    # Do not rotate a sparse table, which would make it dense: its columns hardly overlap, so scaling them is enough.
    rotation = None if sparse.issparse(X) else principal_directions(X)
    Z = X if rotation is None else X @ rotation
    squares = np.asarray((Z * Z).mean(axis=0)) if rotation is not None else np.asarray(Z.power(2).mean(axis=0)).ravel()
    coefficients = np.zeros((Z.shape[1] + 1, targets.shape[1]))
    for C in Cs:
        penalty = np.full((len(coefficients), 1), 1.0 / (C * n))
        penalty[-1] *= penalise_intercept
        coefficients, failure = minimum(
            loss_of,
            Z,
            targets,
            np.append(squares, 1.0)[:, None],
            penalty,
            coefficients,
            gradient_tolerance=GRADIENT_TOLERANCE,
            max_iterations=max_iterations,
        )
        if failure is not None:
            warnings.warn(f"logistic regression did not converge: {failure}", ConvergenceWarning, stacklevel=2)
        weights = coefficients[:-1] if rotation is None else rotation @ coefficients[:-1]
        yield LinearClassifier(weights, coefficients[-1])
