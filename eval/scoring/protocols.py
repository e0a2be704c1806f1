"""The protocols by name: how a probe is fitted, which penalties it chooses from, and how rows are split into folds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.preprocessing import StandardScaler

from ctx_embed.eval.scoring.logistic import logistic_path
from ctx_embed.eval.scoring.probes import Indices, Matrix, Protocol

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


def best_rounded_mean(right: NDArray[np.float64], sizes: NDArray[np.float64]) -> int:
    """Return the index of the first penalty with the best mean accuracy over the inner folds, in % to two decimals."""
    return int(np.round(100.0 * (right / sizes[:, None]).mean(axis=0), 2).argmax())


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
        pick=best_rounded_mean,
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
