"""Probes: how well a classifier predicts the classes from the embeddings, and the protocols by name.

A probe sees only features, classes and a seed. The folds depend on classes and seed alone, so all encoders are scored
on the same folds.
"""

import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import StratifiedKFold
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from ctx_embed.classify.fitting import minimum, principal_directions, sigmoid_loss, softmax_loss
from ctx_embed.errors import InputError
from ctx_embed.eval.scoring.statistics import Interval, wilson
from ctx_embed.progress import Meter
from ctx_embed.reading.rows import header_hint

# With all-MiniLM-L6-v2 on the four default tasks, five inner folds give the accuracy of ten within 0.1 points, in half
# the time.
INNER_FOLDS = 5
Indices = NDArray[np.intp]
Array = NDArray[np.float64]
# (n, d), dense or a scipy.sparse CSR array.
Matrix = Any
# Takes the indices of training rows and of other rows; returns the features of both.
Features = Callable[[Indices, Indices], tuple[Matrix, Matrix]]
# (X, y, n_classes, penalties, X_test) -> the predicted classes of X_test, one array for each penalty.
Fit = Callable[[Matrix, Indices, int, Sequence[float], Matrix], list[Indices]]
# Characters for the number of seeds with which a row was classified correctly.
DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
# The rows of the parts `train`, `test` and, if there is one, `dev`.
Parts = Mapping[str, Indices]
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


def frozen(X: NDArray[Any]) -> Features:
    """Return the features of frozen embeddings (n, d), the same in every fold."""
    X = X.astype(np.float64)
    return lambda train, other: (X[train], X[other])


def of_pairs(features: Features, n: int) -> Features:
    """Return [abs(u - v), u * v] for each of ``n`` pairs, given features of the n first, then the n second texts.

    Source: Tai et al. 2015, as in SentEval's MRPC and SICK-E.
    """

    def joined(X: Matrix) -> Matrix:
        U, V = X[: X.shape[0] // 2], X[X.shape[0] // 2 :]
        if sparse.issparse(X):
            return sparse.hstack([abs(U - V), U.multiply(V)], format="csr")
        return np.hstack([np.abs(U - V), U * V])

    def pairs(train: Indices, other: Indices) -> tuple[Matrix, Matrix]:
        first, second = features(np.concatenate([train, train + n]), np.concatenate([other, other + n]))
        return joined(first), joined(second)

    return pairs


@dataclass(frozen=True)
class ProbeScore:
    """The score of a probe.

    ``folds`` holds the accuracy in % on each test fold (a single one if the task has a test part), for the first seed,
    then for the next ones; ``Cs`` the penalty chosen for each. ``floor`` is the accuracy in % of always predicting the
    most frequent class. ``right`` has a digit for each test row, in the order of the data: the number of seeds with
    which the row was classified correctly (10 is written ``a``).
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
    """Combine the scores of one probe with several seeds into one score."""
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

    The penalties are those of ``grid`` (one penalty needs no search); for data with a training and a test part,
    but no ``dev`` part, those of ``test_grid``. The ``dev`` part, or else ``inner_folds`` of the training part, decide:
    the penalty with the most correct rows is chosen or, if ``by_mean``, the one with the best mean accuracy over the
    inner folds, in % to two decimals; of equals, the first. If ``by_length``, rows are sorted by length in words, then
    by label, before they are split into folds. ``fold_seed`` is the seed of the folds; None: the run's.
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
        """Return the accuracy of the probe on the test part or, if there are no ``parts``, over folds of all rows."""
        fold_seed = seed if self.fold_seed is None else self.fold_seed
        names, classes, splits = splits_of(y, parts, self.folds, fold_seed)
        dev = None if parts is None else parts.get("dev")
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
        hits = [found == classes[test] for (_, test), found in zip(splits, predicted, strict=True)]
        return score_of(hits, classes, parts, splits, chosen)


def splits_of(
    y: Sequence[str], parts: Parts | None, folds: int, seed: int
) -> tuple[NDArray[Any], Indices, list[tuple[Indices, Indices]]]:
    """Return the classes, the class of each row, and the training and test rows: of the parts, or of each fold."""
    check_classes(y, folds if parts is None else 1)
    names, classes = np.unique(np.asarray(y), return_inverse=True)
    if parts is not None:
        return names, classes, [(parts["train"], parts["test"])]
    return names, classes, folds_of(np.arange(len(classes)), classes, folds, seed)


def score_of(
    hits: Sequence[Sequence[bool] | NDArray[Any]],
    classes: Indices,
    parts: Parts | None,
    splits: Sequence[tuple[Indices, Indices]],
    Cs: Sequence[float] = (),
) -> ProbeScore:
    """Return the score of a probe, given whether each test row of each split was classified correctly."""
    tested = np.argsort(np.concatenate([test for _, test in splits]))
    return ProbeScore(
        tuple(100.0 * float(np.mean(hit)) for hit in hits),
        tuple(Cs),
        majority_floor(classes, None if parts is None else splits[0]),
        "".join(np.concatenate(hits)[tested].astype(int).astype(str)),
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


def decided(X: Matrix, weights: Array, intercept: Array) -> Indices:
    """Return the class of each row (n, d): that of the largest logit; of two classes, the second if it is positive."""
    logits: Array = X @ weights + intercept
    return (logits[:, 0] > 0).astype(np.intp) if logits.shape[1] == 1 else logits.argmax(axis=1)


def logistic_path(
    X: Matrix,
    y: Indices,
    n_classes: int,
    Cs: Sequence[float],
    *,
    penalise_intercept: bool = False,
    max_iterations: int = MAX_ITERATIONS,
) -> Iterator[tuple[Array, Array]]:
    """Yield weights and intercept of logistic regressions with L2 penalty, for each C, started from the previous one.

    They converge to a preconditioned gradient of 1e-6. A probe fits some three hundred of them on one table of
    embeddings, which is rotated into its principal directions once, see :mod:`ctx_embed.classify.fitting`. Each
    minimises ``mean_i loss_i + ||W||^2 / (2 C n)`` with a free intercept, the objective of scikit-learn's
    ``LogisticRegression(C=C)``: one logit for two classes, else softmax over all classes. Ascending Cs are fastest.

    ``X`` (n, d) is float64, preferably standardised, or a scipy.sparse CSR array; ``y`` (n,) are class indices. The
    weights are (d, k), the intercept (k,), with k = 1 for two classes, else the number of classes.
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
            [Z],
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
        yield weights, coefficients[-1]


def scaled_logistic(X: Matrix, y: Indices, n_classes: int, Cs: Sequence[float], X_test: Matrix) -> list[Indices]:
    """Fit logistic regressions on features standardised by the mean and deviation of the training rows.

    Sparse features, rows of unit length, are only scaled: centring would make them dense.
    """
    if sparse.issparse(X):
        X, X_test = SPARSE_LENGTH * X, SPARSE_LENGTH * X_test
    else:
        scaler = StandardScaler().fit(X)
        X, X_test = scaler.transform(X), scaler.transform(X_test)
    return [decided(X_test, *found) for found in logistic_path(X, y, n_classes, Cs)]


def liblinear_logistic(X: Matrix, y: Indices, n_classes: int, Cs: Sequence[float], X_test: Matrix) -> list[Indices]:
    """Fit logistic regressions as SentEval did with liblinear: no scaling, a penalty on the intercept, and
    one-against-rest for more than two classes.
    """
    classes = range(1, 2) if n_classes == 2 else range(n_classes)
    paths = [logistic_path(X, (y == label).astype(np.intp), 2, Cs, penalise_intercept=True) for label in classes]
    return [decided(X_test, *map(np.hstack, zip(*of_C, strict=True))) for of_C in zip(*paths, strict=True)]


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
