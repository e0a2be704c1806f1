"""The protocols by name: how a probe is fitted, which penalties it chooses from, and how rows are split into folds."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.preprocessing import StandardScaler

from ctx_embed.classify.logistic import minimum, principal_directions, sigmoid_loss, softmax_loss
from ctx_embed.eval.scoring.probes import Indices, Matrix, Protocol

Array = NDArray[np.float64]
GRADIENT_TOLERANCE = 1e-6
MAX_ITERATIONS = 1000
CS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
QUICK_C = (1e-2,)
# SentEval's penalties. C is 2^-2..2^3 for data that are cross-validated or have a development part, and 2^-1..2^5 for
# data with only a training and a test part.
SENTEVAL_CS = tuple(2.0**t for t in range(-2, 4))
SENTEVAL_TEST_CS = tuple(2.0**t for t in range(-1, 6))
SENTEVAL_SEED = 1111
PAPER = "paper"
# Sparse rows are scaled to the length of a standardised embedding of 256 dimensions, so that one grid suits both.
SPARSE_LENGTH = 16.0


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

    They converge to a preconditioned gradient of 1e-6. A probe fits some three hundred of them on one table of
    embeddings, which is rotated into its principal directions once, see :mod:`ctx_embed.classify.logistic`. Minimises
    ``mean_i loss_i + ||W||^2 / (2 C n)`` with a free intercept, the objective of scikit-learn's
    ``LogisticRegression(C=C)``: one logit for two classes, else softmax over all classes.

    Args:
        X: (n, d) float64, preferably standardised; or a scipy.sparse CSR array.
        y: (n,) class indices below ``n_classes``.
        n_classes: number of classes.
        Cs: inverse strengths of the penalty, preferably in ascending order.
        penalise_intercept: penalise the intercept too, as liblinear does.
        max_iterations: warn and stop after this many iterations of L-BFGS.
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


def scaled_logistic(X: Matrix, y: Indices, n_classes: int, Cs: Sequence[float], X_test: Matrix) -> list[Indices]:
    """Fit logistic regressions on features standardised by the mean and deviation of the training rows.

    Sparse features, rows of unit length, are only scaled: centring would make them dense.
    """
    if sparse.issparse(X):
        X, X_test = SPARSE_LENGTH * X, SPARSE_LENGTH * X_test
    else:
        scaler = StandardScaler().fit(X)
        X, X_test = scaler.transform(X), scaler.transform(X_test)
    return [classifier.predict(X_test) for classifier in logistic_path(X, y, n_classes, Cs)]


def liblinear_logistic(X: Matrix, y: Indices, n_classes: int, Cs: Sequence[float], X_test: Matrix) -> list[Indices]:
    """Fit logistic regressions as SentEval did with liblinear: no scaling, a penalty on the intercept, and
    one-against-rest for more than two classes.
    """
    if n_classes == 2:
        path = logistic_path(X, y, 2, Cs, penalise_intercept=True)
        return [classifier.predict(X_test) for classifier in path]
    one_against_rest = [
        list(logistic_path(X, (y == label).astype(np.intp), 2, Cs, penalise_intercept=True))
        for label in range(n_classes)
    ]
    return [
        np.hstack([classifier.logits(X_test) for classifier in of_C]).argmax(axis=1)
        for of_C in zip(*one_against_rest, strict=True)
    ]


# Source of senteval: Conneau and Kiela 2018, arXiv:1803.05449, and validation.py and classifier.py of
# github.com/facebookresearch/SentEval.
PROTOCOLS: dict[str, Protocol] = {
    "standard": Protocol(
        "stratified 10-fold, standardised inside the fold, C of 10^-4..10^1 by 5 inner folds", scaled_logistic, CS, CS
    ),
    "quick": Protocol(
        f"stratified 5-fold, standardised inside the fold, C = {QUICK_C[0]}", scaled_logistic, QUICK_C, QUICK_C, folds=5
    ),
    "senteval": Protocol(
        "as SentEval published it: logistic regression, stratified nested 10-fold, no scaling",
        liblinear_logistic,
        SENTEVAL_CS,
        SENTEVAL_TEST_CS,
        inner_folds=10,
        fold_seed=SENTEVAL_SEED,
        by_length=True,
        by_mean=True,
    ),
}
PAPER_TITLE = (
    "encoder and linear head trained end to end in each of 10 folds, the best epoch on 10 % of its training part"
)
ProtocolName = Literal["standard", "quick", "senteval", "paper"]
PROTOCOL_NAMES = (*PROTOCOLS, PAPER)


def title_of(protocol: str) -> str:
    """Return a one-line description of a protocol."""
    return PAPER_TITLE if protocol == PAPER else PROTOCOLS[protocol].title
