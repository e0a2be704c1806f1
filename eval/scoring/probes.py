"""Probes: how well a classifier predicts the classes from the embeddings.

A probe sees only features, classes and a seed. The folds depend on classes and seed alone, so all encoders are scored
on the same folds.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import StratifiedKFold
from threadpoolctl import threadpool_limits

from ctx_embed.errors import InputError
from ctx_embed.eval.scoring.statistics import Interval, wilson
from ctx_embed.progress import Meter
from ctx_embed.rows.reading import header_hint

# With all-MiniLM-L6-v2 on the four default tasks, five inner folds give the accuracy of ten within 0.1 points, in half
# the time.
INNER_FOLDS = 5
Indices = NDArray[np.intp]
# (n, d), dense or a scipy.sparse CSR array.
Matrix = Any
# Takes the indices of training rows and of other rows; returns the features of both.
Features = Callable[[Indices, Indices], tuple[Matrix, Matrix]]
# (X, y, n_classes, penalties, X_test) -> the predicted classes of X_test, one array for each penalty.
Fit = Callable[[Matrix, Indices, int, Sequence[float], Matrix], list[Indices]]
# The number of seeds with which a row was classified correctly, in one character.
DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
# The rows of the parts `train`, `test` and, if there is one, `dev`.
Parts = Mapping[str, Indices]


def frozen(X: NDArray[Any]) -> Features:
    """Return the features of frozen embeddings (n, d), the same in every fold."""
    X = X.astype(np.float64)
    return lambda train, other: (X[train], X[other])


def of_pairs(features: Features, n: int) -> Features:
    """Return [abs(u - v), u * v] for each of ``n`` pairs, given features of the n first, then the n second texts.

    Source: Tai et al. 2015, as in SentEval's MRPC and SICK-E.
    """

    def pairs(train: Indices, other: Indices) -> tuple[Matrix, Matrix]:
        first, second = features(np.concatenate([train, train + n]), np.concatenate([other, other + n]))
        return _joined(first, len(train)), _joined(second, len(other))

    return pairs


def _joined(X: Matrix, n: int) -> Matrix:
    U, V = X[:n], X[n:]
    if not isinstance(X, np.ndarray):
        from scipy import sparse

        return sparse.hstack([abs(U - V), U.multiply(V)], format="csr")
    return np.hstack([np.abs(U - V), U * V])


@dataclass(frozen=True)
class ProbeScore:
    """The score of a probe.

    Attributes:
        folds: accuracy in % on each test fold; a single one if the task has a test part.
        Cs: the penalty C chosen for each fold.
        floor: accuracy in % of always predicting the most frequent class.
        right: a digit for each test row, in the order of the data: the number of seeds with which the row was
            classified correctly (10 is written ``a``).
        seeds: number of seeds; ``folds`` holds the folds of the first seed, then those of the next.
    """

    folds: tuple[float, ...]
    Cs: tuple[float, ...]
    floor: float
    right: str = ""
    seeds: int = 1

    @property
    def mean(self) -> float:
        """The mean accuracy over the folds in %."""
        return float(np.mean(self.folds))

    @property
    def std(self) -> float:
        """The sample standard deviation of the accuracy over the folds, in percentage points; 0 for one fold."""
        return float(np.std(self.folds, ddof=1)) if len(self.folds) > 1 else 0.0

    @property
    def hits(self) -> NDArray[np.float64]:
        """The share of seeds with which each test row was classified correctly."""
        return np.array([int(digit, len(DIGITS)) for digit in self.right], float) / self.seeds

    @property
    def interval(self) -> Interval:
        """The 95 % Wilson interval, in percent, of the seeds' mean accuracy on the test rows."""
        return wilson(float(self.hits.sum()), len(self.right))


def mean_of_seeds(scores: Sequence[ProbeScore]) -> ProbeScore:
    """Return the scores of one probe with several seeds as one score."""
    return ProbeScore(
        tuple(accuracy for score in scores for accuracy in score.folds),
        tuple(C for score in scores for C in score.Cs),
        scores[0].floor,
        "".join(str(sum(map(int, digits))) for digits in zip(*(score.right for score in scores), strict=True)),
        len(scores),
    )


@dataclass(frozen=True)
class Protocol:
    """How a probe is fitted and its penalty chosen.

    Attributes:
        title: one line for reports.
        fit: the classifier.
        grid: the penalties to choose from; with a single one there is no search.
        test_grid: the penalties for data with a training and a test part, but no ``dev`` part.
        folds: number of outer folds.
        inner_folds: number of folds of a training part that choose the penalty; a ``dev`` part replaces them.
        fold_seed: seed of the folds; None uses the run's.
        by_length: sort the rows by their length in words, then by label, before splitting them into folds, which
            depend on the order.
        by_mean: choose the penalty with the best mean accuracy over the inner folds, in % to two decimals, instead of
            the one with the most correct rows; of equal ones the first.
    """

    title: str
    fit: Fit
    grid: tuple[float, ...]
    test_grid: tuple[float, ...]
    folds: int = 10
    inner_folds: int = INNER_FOLDS
    fold_seed: int | None = None
    by_length: bool = False
    by_mean: bool = False

    def best(self, right: NDArray[np.float64], sizes: NDArray[np.float64]) -> int:
        """Return the place of the best penalty, given counts of correct rows (inner folds, penalties) and all rows."""
        means = np.round(100.0 * (right / sizes[:, None]).mean(axis=0), 2)
        return int((means if self.by_mean else right.sum(axis=0)).argmax())

    def score(self, features: Features, y: Sequence[str], seed: int, parts: Parts | None = None) -> ProbeScore:
        """Return the accuracy of the probe, whatever the number of processors.

        Args:
            features: the features of n rows.
            y: n labels.
            seed: seed of the folds.
            parts: the rows to train on and to test on; None cross-validates.
        """
        check_classes(y, self.folds if parts is None else 1)
        names, classes = np.unique(np.asarray(y), return_inverse=True)
        fold_seed = seed if self.fold_seed is None else self.fold_seed
        dev = None if parts is None else parts.get("dev")
        if parts is None:
            splits = folds_of(np.arange(len(classes)), classes, self.folds, fold_seed)
        else:
            splits = [(parts["train"], parts["test"])]
        grid = self.grid if parts is None or dev is not None else self.test_grid
        folds_inside = 1 if len(grid) == 1 or dev is not None else self.inner_folds
        for train, _ in splits:
            check_classes(names[classes[train]].tolist(), folds_inside, "training part: ")

        def predict(split: tuple[Indices, Indices], penalties: Sequence[float]) -> list[Indices]:
            X, X_test = features(*split)
            return self.fit(X, classes[split[0]], len(names), penalties, X_test)

        # Folds run in parallel, each with one BLAS thread: for matrices of this size, several threads would mostly wait
        # for each other.
        with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            chosen = [grid[0]] * len(splits)
            if len(grid) > 1:
                inner = [
                    [(train, dev)] if dev is not None else folds_of(train, classes, self.inner_folds, fold_seed)
                    for train, _ in splits
                ]
                flat = [split for folds in inner for split in folds]
                meter = Meter("penalties", len(flat), "fits", leave=False)
                guesses = meter.each(pool.map(lambda split: predict(split, grid), flat))
                for place, folds in enumerate(inner):
                    right = [[np.count_nonzero(found == classes[test]) for found in next(guesses)] for _, test in folds]
                    sizes = np.array([len(test) for _, test in folds], float)
                    chosen[place] = grid[self.best(np.array(right, float), sizes)]
            meter = Meter("folds", len(splits), "fits", leave=False)
            predicted = list(meter.each(pool.map(lambda split, C: predict(split, (C,))[0], splits, chosen)))
        hits = np.zeros(len(classes), bool)
        for (_, test), found in zip(splits, predicted, strict=True):
            hits[test] = found == classes[test]
        tested = np.sort(np.concatenate([test for _, test in splits]))
        return ProbeScore(
            tuple(100.0 * float(hits[test].mean()) for _, test in splits),
            tuple(chosen),
            majority_floor(classes, None if parts is None else splits[0]),
            "".join("01"[int(hit)] for hit in hits[tested]),
        )


def folds_of(rows: Indices, classes: Indices, folds: int, seed: int) -> list[tuple[Indices, Indices]]:
    """Return the training and test rows of each stratified fold of ``rows``."""
    found = StratifiedKFold(folds, shuffle=True, random_state=seed).split(rows, classes[rows])
    return [(rows[train], rows[test]) for train, test in found]


def majority_floor(classes: Indices, split: tuple[Indices, Indices] | None) -> float:
    """Return the accuracy in % of always predicting the most frequent class (of the training rows, given a split)."""
    train, test = (classes, classes) if split is None else (classes[split[0]], classes[split[1]])
    return 100.0 * float(np.mean(test == np.bincount(train).argmax()))


def check_classes(y: Sequence[str], folds: int, where: str = "") -> None:
    """Refuse fewer than two classes, or a class with fewer rows than folds; the message starts with ``where``."""
    rows = Counter(y)
    if len(rows) < 2:
        found = f"all {len(y)} rows are of the class {y[0]!r}" if rows else "there are no rows"
        raise InputError(f"{where}{found}; a probe needs at least two classes")
    label, fewest = min(rows.items(), key=lambda item: item[1])
    if fewest < folds:
        hint = header_hint(y)
        raise InputError(
            f"{where}the class {label!r} has {fewest} {'row' if fewest == 1 else 'rows'}; "
            f"{folds}-fold cross-validation needs at least {folds} of each class" + (f"; {hint}" if hint else "")
        )
