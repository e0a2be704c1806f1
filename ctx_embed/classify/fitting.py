"""Fitting of a linear head over embeddings and words; held-out texts decide how much each of the two may weigh.

Both parts are one logistic regression whose coefficients have normal priors around 0. The prior of the embedding's
weights has the same deviation in every direction. For a word or pair, the deviation is proportional to the log ratio of
its frequencies in the class and in the other classes: rare words, and words as frequent in all classes, weigh little.

Source: the ratio is from Wang and Manning 2012, Baselines and Bigrams, who multiply the features by it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize, minimize_scalar
from scipy.special import expit
from threadpoolctl import threadpool_limits

from ctx_embed.classify.head import LEAST_TEXTS, Floats, Head, Vocabulary, Words, neutral_logits
from ctx_embed.classify.labelled import Labelled
from ctx_embed.vectors import unit_rows

# Prior deviations to choose from: for weights of the embedding, whose features are scaled to deviation 1; and for
# words, as a multiple of the log ratio. They were chosen on topics and genres that are in no evaluation set.
MEANING = (0.03, 0.06, 0.1, 0.17, 0.3, 0.5, 0.8, 1.3, 2.0)
WORDS = (0.5, 1.0, 2.0, 4.0, 8.0)
# A value of WORDS needs this many texts for each unit: with few texts, words that occur by chance would weigh too much.
TEXTS_OF_WORDS = 64
# With about this many texts or fewer, a large deviation of the meaning is preferred: it is the best on average.
FEW_TEXTS = 20
# The deviation of the meaning if each class has only one text, so that nothing can be held out.
MEANING_OF_ONE = 0.3
INTERCEPT = 5.0
# Maximum texts and folds of the cross-validation. It is repeated if there are few texts; many classes get two folds.
MOST_TEXTS, FOLDS, MOST_REPEATS, MANY_CLASSES = 2000, 5, 5, 10
# Words gain more from further texts, so up to this many choose the deviation of words, a fifth of them held out. With
# fewer texts than MOST_TEXTS, some folds are skipped, since words take longer to fit: ENOUGH_FOR_WORDS texts suffice.
MOST_FOR_WORDS, ENOUGH_FOR_WORDS = 10_000, 800
# Maximum number of words and pairs in a vocabulary, and of their weights for all classes together.
MOST_FEATURES, MOST_WEIGHTS = 50_000, 1_000_000
# Words whose weight is smaller than this share of the largest are dropped.
LEAST_WEIGHT = 0.01
# Relative change of the loss that ends a fit, and maximum number of iterations: of a final fit, and of one that only
# compares deviations.
PRECISE, ROUGH = (2e-6, 100), (1e-5, 25)
# Takes logits (n, k), targets (n, k) and weights (n, 1) or (n, k); returns the mean loss and its gradient times n.
Loss = Callable[[Floats, Floats, Any], tuple[float, Floats]]


def fitted_head(
    embeddings: Floats,
    data: Labelled,
    labels: Sequence[Any],
    weights: NDArray[np.float64] | None = None,
    words: bool = True,
) -> Head:
    """Return a logistic regression on embeddings, scaled to unit length, and on words unless ``words`` is False.

    It has the prior deviations that predict held-out texts best; for words this may be 0. The logits are scaled by the
    factor that makes held-out labels most likely, so that probabilities are calibrated. ``embeddings`` (n, m) are those
    before any normalisation; ``weights`` are the weights of the classes in the loss.
    """
    X = unit_rows(embeddings.astype(np.float32))
    targets = data.targets(labels)
    vocabulary = Vocabulary.learn(data.texts, min(MOST_FEATURES, MOST_WEIGHTS // len(labels))) if words else None
    counts = vocabulary.matrix(data.texts) if vocabulary else None
    # The products are too small for several threads, which would only wait for each other.
    with threadpool_limits(1):
        separately, meaning, strength, factor = _chosen(data.texts, X, counts, targets, len(labels), weights)
        fit = Regression(X, counts, targets, len(labels), weights, separately)
        every = np.arange(len(X))
        coefficients = fit.coefficients(every, meaning, strength)
        if len(X) <= FEW_TEXTS or factor == np.inf:
            # Too little was held out to tell how sure to be: be no surer than of the texts that it learned from.
            factor = min(factor, fit.likelihood(fit.logits(every, coefficients), every)[0])
    coefficients *= factor
    weight, of_words, bias = fit.weights(coefficients)
    neutral = neutral_logits(data, labels, weights)
    head = Head(weight, bias, list(labels), data.multi_label, normalized=True, neutral=neutral)
    if vocabulary is None or not strength:
        return head
    # A weight that all classes share changes no decision between them.
    size = np.abs(of_words if data.multi_label else of_words - of_words.mean(1, keepdims=True)).max(1)
    vocabulary, features = vocabulary.part(np.flatnonzero(size > LEAST_WEIGHT * size.max()))
    return replace(head, words=Words(vocabulary, of_words[features]))


class Regression:
    """Logistic regressions on subsets of n texts, with embeddings ``X`` (n, m) and CSR ``counts`` (n, d) of words.

    If ``targets`` are 0 and 1 (n, classes), not classes (n,), each class is a regression of its own. ``separately``
    divides each feature of the embedding by its own deviation, not all by a common one: that makes more of features
    with a small variance, but is less reliable with few texts.
    """

    def __init__(
        self,
        X: Floats,
        counts: Any,
        targets: NDArray[Any],
        classes: int,
        weights: NDArray[np.float64] | None = None,
        separately: bool = True,
    ) -> None:
        self.loss: Loss = softmax_loss if targets.ndim == 1 and classes > 2 else sigmoid_loss
        self.row_weights: Any = np.ones((len(X), 1), np.float32)
        if targets.ndim == 1:
            self.targets = (targets[:, None] == ([1] if classes == 2 else np.arange(classes))).astype(np.float32)
            if weights is not None:
                self.row_weights = weights[targets][:, None].astype(np.float32)
        else:
            self.targets = targets.astype(np.float32)
            if weights is not None:
                self.row_weights = np.where(targets > 0, weights, 1).astype(np.float32)
        self.counts = counts
        self.is_pair = targets.ndim == 1 and classes == 2
        self.mean, self.scale = X.mean(0, dtype=np.float64), X.std(0, dtype=np.float64) + 1e-9
        if not separately:
            self.scale = np.full_like(self.scale, np.sqrt((self.scale**2).mean()))
        Z = ((X - self.mean) / self.scale).astype(X.dtype)
        self.rotation = principal_directions(Z)
        self.Z = Z @ self.rotation

    def coefficients(
        self,
        rows: NDArray[np.intp],
        meaning: float,
        words: float,
        start: Floats | None = None,
        effort: tuple[float, int] = PRECISE,
    ) -> Floats:
        """Return the coefficients (directions + features + 1, k), intercept last, fitted on the texts ``rows``.

        ``meaning`` and ``words`` are prior deviations (0: without words); ``start`` are coefficients to begin from.
        """
        Z, targets = self.Z[rows], self.targets[rows]
        k = targets.shape[1]
        penalty, squares, blocks = np.full((Z.shape[1], k), meaning**-2.0), np.square(Z).mean(0), [Z]
        if words:
            counts = self.counts[rows]
            # The smoothed log ratio (features, k) of a feature's frequency in a class and elsewhere; 0 if rare.
            present = counts.copy()
            present.data = np.ones_like(present.data)
            texts_with = np.asarray(present.sum(0))[:, None]
            inside = 1.0 + present.T @ targets
            outside = 2.0 + texts_with - inside
            ratio = np.log((inside / inside.sum(0)) / (outside / outside.sum(0)))
            ratio = np.asarray(np.where(texts_with < LEAST_TEXTS, 0.0, ratio))
            with np.errstate(divide="ignore"):
                penalty = np.vstack([penalty, (words * ratio) ** -2.0])
            squares = np.concatenate([squares, counts.power(2).mean(0)])
            blocks.append(counts)
        first = np.zeros((len(squares) + 1, k))
        if start is not None:
            first[: Z.shape[1]], first[-1] = start[: Z.shape[1]], start[-1]
            if len(start) == len(first):
                first = start
        found, _ = minimum(
            self.loss,
            blocks,
            targets,
            np.append(squares, 1.0)[:, None],
            np.vstack([penalty, np.full((1, k), INTERCEPT**-2.0)]) / len(rows),
            first,
            weights=self.row_weights[rows],
            gradient_tolerance=0.0,
            loss_tolerance=effort[0],
            max_iterations=effort[1],
            memory=5,
        )
        return found

    def logits(self, rows: NDArray[np.intp], coefficients: Floats) -> Floats:
        """Return the logits (rows, k) of some of the texts."""
        used = coefficients.astype(self.Z.dtype)
        m = self.Z.shape[1]
        logits = self.Z[rows] @ used[:m] + used[-1]
        return np.asarray(logits if len(used) == m + 1 else logits + self.counts[rows] @ used[m:-1])

    def likelihood(self, logits: Floats, rows: NDArray[np.intp]) -> tuple[float, float]:
        """Return the factor of the texts' logits that makes their labels most likely, and the mean loss with it.

        So that few texts do not make it too sure, a label of a class with n texts counts as true with probability
        (n + 1) / (n + 2), and the log of the factor has a standard normal prior.

        Source: Platt 1999, Probabilistic Outputs for Support Vector Machines, for the targets.
        """
        doubt = 1 / (self.targets.sum(0) + 2)
        if self.loss is sigmoid_loss:
            other = 1 / (len(self.targets) - self.targets.sum(0) + 2)
        else:
            # The rest of the probability is divided equally among the other classes.
            other = (self.targets[rows] @ doubt)[:, None] / (len(doubt) - 1)
        targets = np.where(self.targets[rows] > 0, 1 - doubt, other).astype(np.float32)

        def loss(log_factor: float) -> float:
            scaled = np.float32(np.exp(log_factor)) * logits
            return self.loss(scaled, targets, self.row_weights[rows])[0]

        texts = len(np.unique(rows))
        found = minimize_scalar(
            lambda log_factor: loss(log_factor) + log_factor**2 / (2 * texts),
            bounds=(-3.0, 3.0),
            method="bounded",
            options={"xatol": 0.02},
        )
        return float(np.exp(found.x)), loss(found.x)

    def weights(self, coefficients: Floats) -> tuple[Floats, Floats, Floats]:
        """Return the weights of the embedding (classes, m), of the words (features, classes) and the biases as float32.

        The weights of words are rounded to float16, the type in which they are saved.
        """
        m = self.Z.shape[1]
        weight = (self.rotation @ coefficients[:m]).T / self.scale
        of_words, bias = coefficients[m:-1], coefficients[-1] - weight @ self.mean
        if self.is_pair:
            # Give each of the two classes half of the logit, with opposite signs.
            weight, bias = np.concatenate([-weight, weight]) / 2, np.concatenate([-bias, bias]) / 2
            of_words = np.hstack([-of_words, of_words]) / 2
        return weight.astype(np.float32), of_words.astype(np.float16).astype(np.float32), bias.astype(np.float32)


def _chosen(
    texts: Sequence[str],
    X: Floats,
    counts: Any,
    targets: NDArray[Any],
    classes: int,
    weights: NDArray[np.float64] | None,
) -> tuple[bool, float, float, float]:
    """Return the scaling and prior deviations best for held-out texts, and the logits' factor (infinite: none)."""
    random = np.random.default_rng(0)
    # Equal texts never lie on both sides of a split.
    distinct = random.permutation(np.sort(np.unique(np.asarray(texts, object), return_index=True)[1]))
    rows = distinct[:MOST_TEXTS]
    if targets.ndim == 1:
        # Leave out classes with one text, which cannot be both learned and held out.
        rows = rows[np.bincount(targets[rows], minlength=classes)[targets[rows]] >= 2]
        present, of_rows = np.unique(targets[rows], return_inverse=True)
    else:
        present = np.arange(classes)
        of_rows = targets[rows]
    if len(rows) < 2 or len(present) < 2:
        return False, MEANING_OF_ONE, 0.0, np.inf
    folds = list(_folds(of_rows, random))
    few = None if counts is None else _known(counts[rows])
    of_present = None if weights is None else weights[present]
    fits = {
        separately: Regression(X[rows], few, of_rows, len(present), of_present, separately)
        for separately in (False, True)
    }

    def tried(separately: bool, meaning: float, words: float, starts: list[Any]) -> tuple[Any, ...]:
        fit, logits = fits[separately], []
        for number, (train, test) in enumerate(folds):
            starts[number] = fit.coefficients(train, meaning, words, starts[number], ROUGH)
            logits.append(fit.logits(test, starts[number]))
        factor, loss = fit.likelihood(np.concatenate(logits), np.concatenate([test for _, test in folds]))
        loss += (FEW_TEXTS / len(rows)) ** 4 * np.log(meaning / MEANING[-1]) ** 2
        return loss, separately, meaning, words, factor

    best: tuple[Any, ...] = (np.inf,)
    for separately in fits:
        starts: list[Any] = [None] * len(folds)
        losses: list[float] = []
        for meaning in MEANING:
            found = tried(separately, meaning, 0.0, starts)
            best, losses = min(best, found), [*losses, found[0]]
            if len(losses) > 2 and losses[-1] > losses[-2] > losses[-3]:
                break
    if counts is None:
        return best[1:]
    _, separately, meaning, _, _ = best
    if len(distinct) > MOST_TEXTS:
        rows = distinct[:MOST_FOR_WORDS]
        fits[separately] = Regression(X[rows], _known(counts[rows]), targets[rows], classes, weights, separately)
        test, train = np.split(np.arange(len(rows)), [len(rows) // 5])
        folds = [(train, test)]
    else:
        folds = folds[: 1 + ENOUGH_FOR_WORDS // len(folds[0][1])]
    starts = [None] * len(folds)
    best = tried(separately, meaning, 0.0, starts)
    for words in [words for words in WORDS if words * TEXTS_OF_WORDS < len(rows)]:
        found = tried(separately, meaning, words, starts)
        if found > best:
            break
        best = found
    if best[3] and meaning > MEANING[0]:
        # With words, a smaller deviation of the meaning may be better.
        best = min(best, tried(separately, MEANING[MEANING.index(meaning) - 1], best[3], starts))
    return best[1:]


def _known(counts: Any) -> Any:
    """Return the features that occur in enough of the given texts."""
    return counts[:, np.bincount(counts.indices, minlength=counts.shape[1]) >= LEAST_TEXTS]


def _folds(targets: NDArray[Any], random: np.random.Generator) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp]]]:
    """Yield the rows to fit on and those to predict, with classes in similar proportions."""
    n = len(targets)
    counts = np.bincount(targets) if targets.ndim == 1 else np.array([n])
    folds = max(2, min(FOLDS if len(counts) <= MANY_CLASSES else 2, counts.min()))
    for _ in range(max(1, min(MOST_REPEATS, 500 // n))):
        order = random.permutation(n)
        if targets.ndim == 1:
            order = order[np.argsort(targets[order], kind="stable")]
        fold = np.empty(n, np.intp)
        fold[order] = np.arange(n) % folds
        for number in range(folds):
            yield np.flatnonzero(fold != number), np.flatnonzero(fold == number)


# Logistic regression by L-BFGS. A general solver needs hundreds of passes over a table of embeddings, since the
# variances along their principal directions differ by orders of magnitude. ``principal_directions`` rotates the table
# into these once, and ``minimum`` scales each coefficient by a bound on the curvature along it: then about ten passes
# are enough for two classes, and a few tens for many.


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


def minimum(
    loss_of: Loss,
    blocks: Sequence[Any],
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

    The penalty is sum(``penalty`` * coefficients^2) / 2; an infinite ``penalty`` fixes a coefficient at 0.

    Shapes: ``blocks`` (n, ..), dense or CSR, with r columns in all; ``squares`` (r + 1, 1), the mean squares of these
    columns and a 1 for the intercept, which is last; ``penalty`` (r + 1, 1) or (r + 1, k); coefficients and ``start``
    (r + 1, k); ``targets`` (n, k); ``weights`` (n, 1) of rows, or (n, k). The gradient is preconditioned.
    """
    n, k = targets.shape
    scale = 1.0 / np.sqrt(CURVATURE[loss_of] * squares + penalty)
    free = np.where(np.isfinite(penalty), penalty, 0.0)
    edges = np.cumsum([0, *(block.shape[1] for block in blocks)])
    placed = [(block, block.T, slice(*place)) for block, place in zip(blocks, pairwise(edges), strict=True)]

    def objective(scaled: Floats) -> tuple[float, Floats]:
        coefficients = scaled.reshape(-1, k) * scale
        used = coefficients.astype(blocks[0].dtype, copy=False)
        logits = sum(block @ used[place] for block, _, place in placed) + used[-1]
        loss, residual = loss_of(logits, targets, weights)
        parts = [transposed @ residual for _, transposed, _ in placed]
        gradient = np.vstack([*parts, residual.sum(axis=0, dtype=np.float64)]) / n + free * coefficients
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
