"""Probes: how well a linear classifier reads the classes off the embeddings.

A probe is a function of ``(X, y, seed)`` and sees nothing else.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import StratifiedKFold
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from ctx_embed.errors import InputError
from ctx_embed.eval.logistic import LinearClassifier, logistic_path

FOLDS = 10
# Five inner folds: on all-MiniLM-L6-v2 and the four tasks the accuracy is within 0.1 points of ten, at half the time.
INNER_FOLDS = 5
CS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)

Classes = NDArray[np.intp]


@dataclass(frozen=True)
class ProbeScore:
    """The outcome of a probe.

    Attributes:
        folds: the accuracy in percent on each test fold.
        Cs: the C chosen for each fold.
        floor: the accuracy in percent of naming the most frequent class always.
    """

    folds: tuple[float, ...]
    Cs: tuple[float, ...]
    floor: float

    @property
    def mean(self) -> float:
        """The mean accuracy over the folds in percent."""
        return float(np.mean(self.folds))

    @property
    def std(self) -> float:
        """The sample standard deviation of the accuracy over the folds, in percentage points."""
        return float(np.std(self.folds, ddof=1))


def standard(X: NDArray[Any], y: Sequence[str], seed: int) -> ProbeScore:
    """Stratified 10-fold accuracy of logistic regression, C chosen by stratified 5-fold inside each training fold.

    C is one of 10^-4 .. 10^1, the smallest of those that are right most often on the inner folds. Every fit, the inner
    ones too, standardises by the mean and deviation of its own training rows. The folds follow from ``y`` and ``seed``
    alone, so that all encoders are measured on the same ones.

    Args:
        X: (n, d) embeddings.
        y: n labels.
        seed: of both kinds of folds.

    Returns:
        The accuracies, the same whatever the number of processors.

    Raises:
        InputError: fewer than two classes, or a class with fewer rows than folds.
    """
    _check_classes(y)
    classes: Classes = np.unique(np.asarray(y), return_inverse=True)[1]
    n_classes = int(classes.max()) + 1
    X = X.astype(np.float64)
    splits = StratifiedKFold(FOLDS, shuffle=True, random_state=seed).split(X, classes)

    def score(split: tuple[Classes, Classes]) -> tuple[float, float]:
        train, test = split
        X_train, y_train = X[train], classes[train]
        C = _choose_C(X_train, y_train, n_classes, seed)
        (predicted,) = _fit_and_predict(X_train, y_train, n_classes, (C,), X[test])
        return 100.0 * float(np.mean(predicted == classes[test])), C

    # Folds in parallel, each with a single BLAS thread: many threads on matrices of this size spend their time waiting
    # for each other.
    with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(min(FOLDS, os.cpu_count() or 1)) as pool:
        accuracies, Cs = zip(*pool.map(score, splits), strict=True)
    return ProbeScore(accuracies, Cs, 100.0 * float(np.bincount(classes).max()) / len(classes))


# Protocols by name: each takes (X, y, seed).
PROTOCOLS: dict[str, Callable[[NDArray[Any], Sequence[str], int], ProbeScore]] = {"standard": standard}


def _check_classes(y: Sequence[str]) -> None:
    rows = Counter(y)
    if len(rows) < 2:
        found = f"all {len(y)} rows are of the class {y[0]!r}" if rows else "there are no rows"
        raise InputError(f"{found}, a probe needs two classes or more")
    label, fewest = min(rows.items(), key=lambda item: item[1])
    if fewest < FOLDS:
        raise InputError(
            f"the class {label!r} has {fewest} {'row' if fewest == 1 else 'rows'}, "
            f"{FOLDS}-fold cross-validation needs {FOLDS} or more of each class"
        )


def _choose_C(X: NDArray[np.float64], y: Classes, n_classes: int, seed: int) -> float:
    right = np.zeros(len(CS), dtype=np.intp)
    for train, test in StratifiedKFold(INNER_FOLDS, shuffle=True, random_state=seed).split(X, y):
        predictions = _fit_and_predict(X[train], y[train], n_classes, CS, X[test])
        right += [np.count_nonzero(predicted == y[test]) for predicted in predictions]
    return CS[int(right.argmax())]


def _fit_and_predict(
    X: NDArray[np.float64], y: Classes, n_classes: int, Cs: Sequence[float], X_test: NDArray[np.float64]
) -> list[Classes]:
    """The classes predicted for ``X_test`` by a new scaler and a new classifier for each C, fitted on ``X`` alone."""
    scaler = StandardScaler().fit(X)
    unseen = scaler.transform(X_test)
    fitted: list[LinearClassifier] = list(logistic_path(scaler.transform(X), y, n_classes, Cs))
    return [classifier.predict(unseen) for classifier in fitted]
