"""A linear head over sentence embeddings: fitting, saving, probabilities and labels. Without torch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctx_embed.classify.labelled import Labelled
from ctx_embed.errors import InputError
from ctx_embed.vectors import unit_rows

Floats = NDArray[Any]
ClassWeight = Mapping[Any, float] | str | None

# Inverse strength of the l2 penalty for a head over standardised embeddings.
PROBE_C = 0.01
PROBE_ITERATIONS = 1000
# With fewer training texts only the head is trained: training the encoder too would take longer and gain nothing.
FEW_TEXTS = 500
# Texts and folds of the cross-validation that chooses how embeddings are scaled.
SCALING_TEXTS, SCALING_FOLDS = 2000, 5
# With several labels per text, labels with at least this probability are predicted.
THRESHOLD = 0.5
FLAGS = ("multi_label", "normalized", "indicators")


@dataclass(frozen=True, eq=False)
class Head:
    """One linear function of the embedding for each class.

    Args:
        weight: (classes, m).
        bias: (classes,).
        labels: the classes' names: strings or numbers.
        multi_label: whether a text may have any number of labels; each output is then a binary decision.
        normalized: whether it reads embeddings scaled to unit length; otherwise it reads them before normalisation.
        indicators: whether it was trained on an array (texts, classes) of 0 and 1; :meth:`chosen` then returns one.
    """

    weight: Floats
    bias: Floats
    labels: list[Any]
    multi_label: bool = False
    normalized: bool = False
    indicators: bool = False

    def logits(self, embeddings: Floats) -> Floats:
        """Return the outputs (texts, classes) over embeddings (texts, m) before any normalisation.

        Raises:
            InputError: they are not finite.
        """
        logits = (unit_rows(embeddings) if self.normalized else embeddings) @ self.weight.T + self.bias
        if not np.isfinite(logits).all():
            raise InputError("the classifier's outputs are not finite; train it with a lower learning rate")
        return np.asarray(logits)

    def probabilities(self, logits: Floats) -> Floats:
        """Return probabilities (texts, classes); each row sums to 1, unless a text may have several labels."""
        logits = logits.astype(np.float64)
        if self.multi_label:
            return np.asarray(1 / (1 + np.exp(-np.clip(logits, -500, 500))))
        odds = np.exp(logits - logits.max(1, keepdims=True))
        return np.asarray(odds / odds.sum(1, keepdims=True))

    def chosen(self, logits: Floats) -> Any:
        """Return the most likely label of each text, or with several labels a tuple of those of probability >= 0.5."""
        if self.multi_label:
            given = self.probabilities(logits) >= THRESHOLD
            if self.indicators:
                return given.astype(np.int64)
            return [tuple(self.labels[place] for place in np.flatnonzero(row)) for row in given]
        return [self.labels[place] for place in logits.argmax(1).tolist()]

    def for_indicators(self, columns: int, texts: int) -> Head:
        """Return the head that predicts arrays of ``columns`` columns; its labels are numbers of columns.

        A column that was 0 in all training ``texts`` is predicted to be 0.
        """
        weight = np.zeros((columns, self.weight.shape[1]), np.float32)
        bias = np.full(columns, np.log(0.5 / (texts + 0.5)), np.float32)
        weight[self.labels], bias[self.labels] = self.weight, self.bias
        return Head(weight, bias, list(range(columns)), self.multi_label, self.normalized, indicators=True)

    def save(self, folder: Path) -> None:
        """Write ``classifier.safetensors`` and ``classifier.json``."""
        from safetensors.numpy import save_file

        tensors = {"weight": self.weight.astype(np.float32), "bias": self.bias.astype(np.float32)}
        save_file({name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}, _tensors(folder))
        described: dict[str, Any] = {"labels": self.labels}
        described |= {name: True for name in FLAGS if getattr(self, name)}
        (folder / "classifier.json").write_text(json.dumps(described, indent=2), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> Head:
        """Read a head written by :meth:`save`.

        Raises:
            InputError: there is no head, or its files do not match.
        """
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        for name in ("classifier.safetensors", "classifier.json"):
            if not (folder / name).is_file():
                raise InputError(f"{folder}: not a classifier (no {name}); make one with ctx-embed train")
        try:
            tensors = load_file(_tensors(folder))
            described = json.loads((folder / "classifier.json").read_text(encoding="utf-8"))
            head = cls(tensors["weight"], tensors["bias"], **described)
            head._require_consistent()
        except (OSError, ValueError, LookupError, TypeError, SafetensorError, RecursionError) as error:
            reason, *_ = str(error).split("\n")
            raise InputError(f"{folder}: the head cannot be loaded ({type(error).__name__}: {reason})") from None
        return head

    def _require_consistent(self) -> None:
        """Raise a ValueError unless labels, weights and flags can be those of a head."""
        if not isinstance(self.labels, list) or not all(isinstance(label, str | int | float) for label in self.labels):
            raise ValueError("labels must be a list of strings or numbers")
        if len({(type(label), label) for label in self.labels}) < len(self.labels):
            raise ValueError("labels must differ")
        count = len(self.labels)
        if self.weight.ndim != 2 or len(self.weight) != count or self.bias.shape != (count,) or not count:
            raise ValueError(f"{count} labels for weights of shape {self.weight.shape}")
        if not (np.isfinite(self.weight).all() and np.isfinite(self.bias).all()):
            raise ValueError("weights must be finite")
        if not all(isinstance(getattr(self, flag), bool) for flag in FLAGS):
            raise ValueError(f"{', '.join(FLAGS)} must be true or false")


def _tensors(folder: Path) -> Path:
    return folder / "classifier.safetensors"


def class_weights(wanted: ClassWeight, data: Labelled, labels: Sequence[Any]) -> NDArray[np.float64] | None:
    """Return the weight of each class in the loss, (classes,); None: all are 1.

    Args:
        wanted: ``balanced``, or weights by label (other labels have weight 1). The balanced weight of a label is
            n / (classes * n_label); with several labels per text, the number of texts without the label divided by
            the number with it.
        data: the training texts.
        labels: the classes.

    Raises:
        InputError: another string, a label that does not occur, or a weight that is not a finite number above 0.
    """
    if wanted is None:
        return None
    if isinstance(wanted, str):
        if wanted != "balanced":
            raise InputError(f"class_weight must be 'balanced', a dict of label: weight or None, got {wanted!r}")
        targets = data.targets(labels)
        if data.multi_label:
            positive = targets.sum(0, dtype=np.float64)
            return np.asarray(np.maximum(len(targets) - positive, 1) / np.maximum(positive, 1))
        counts = np.bincount(targets, minlength=len(labels))
        return np.asarray(len(targets) / (len(labels) * np.maximum(counts, 1)))
    if not isinstance(wanted, Mapping):
        raise InputError(f"class_weight must be 'balanced', a dict of label: weight or None, got {wanted!r}")
    for label, weight in wanted.items():
        if label not in labels:
            raise InputError(f"class_weight names {label!r}, but no training text has that label")
        if isinstance(weight, str) or not 0 < weight < np.inf:
            raise InputError(f"the class weight of {label!r} must be a finite number above 0, got {weight!r}")
    return np.array([wanted.get(label, 1.0) for label in labels], np.float64)


def fitted_head(
    embeddings: Floats, data: Labelled, labels: Sequence[Any], weights: NDArray[np.float64] | None = None
) -> Head:
    """Return a logistic regression on embeddings at unit length, for a frozen encoder.

    Each feature is divided by its own standard deviation, or all by a common one, whichever predicts held-out texts
    better: the former makes more of features with a small variance, the latter is more reliable with few texts.

    Args:
        embeddings: (n, m) before any normalisation.
        data: the n texts' labels.
        labels: the classes.
        weights: from :func:`class_weights`.
    """
    X = unit_rows(embeddings.astype(np.float64))
    targets = data.targets(labels)
    deviations = X.std(0) + 1e-9
    together = np.full_like(deviations, np.sqrt((deviations**2).mean()))
    scale = max((together, deviations), key=lambda scale: _held_out_likelihood(X / scale, targets, weights))
    weight, bias = logistic(X, targets, scale, weights)
    return Head(weight.astype(np.float32), bias.astype(np.float32), list(labels), data.multi_label, normalized=True)


def logistic(
    X: Floats, targets: NDArray[Any], scale: Floats, weights: NDArray[np.float64] | None = None
) -> tuple[Floats, Floats]:
    """Return weight (classes, m) and bias (classes,) of a logistic regression on (X - mean) / scale.

    Args:
        X: (n, m).
        targets: (n,) classes, or (n, classes) of 0 and 1: then each class is a regression of its own.
        scale: (m,) divisors of the features; the penalty :data:`PROBE_C` applies to the scaled features.
        weights: (classes,) weight of each class in the loss; with several labels per text, the weight of the texts
            that have the label.
    """
    mean = X.mean(0)
    Z = (X - mean) / scale
    if targets.ndim == 1:
        probe = _regression(None if weights is None else dict(enumerate(weights))).fit(Z, targets)
        weight, bias = probe.coef_, probe.intercept_
        if len(weight) == 1:
            # For two classes scikit-learn returns one row: give each class half of it, with opposite signs.
            weight, bias = np.concatenate([-weight, weight]) / 2, np.concatenate([-bias, bias]) / 2
    else:
        ones = np.ones(targets.shape[1]) if weights is None else weights
        rows = [_of_label(Z, of_label, weight) for of_label, weight in zip(targets.T, ones, strict=True)]
        weight, bias = np.stack([row for row, _ in rows]), np.array([bias for _, bias in rows])
    weight = weight / scale
    return weight, bias - weight @ mean


def _of_label(Z: Floats, target: NDArray[Any], weight: float) -> tuple[Floats, float]:
    positive = float(target.sum())
    if positive in (0, len(target)):
        # Either all texts of the fold have the label or none has: predict its smoothed share.
        return np.zeros(Z.shape[1]), float(np.log((positive + 0.5) / (len(target) - positive + 0.5)))
    probe = _regression({0: 1.0, 1: weight}).fit(Z, target.astype(np.int64))
    return probe.coef_[0], float(probe.intercept_[0])


def _regression(weights: Mapping[int, float] | None) -> Any:
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(C=PROBE_C, max_iter=PROBE_ITERATIONS, class_weight=weights)


def _held_out_likelihood(Z: Floats, targets: NDArray[Any], weights: NDArray[np.float64] | None) -> float:
    """Return the log likelihood of held-out texts in a cross-validation, summed over all texts."""
    from sklearn.model_selection import KFold, StratifiedKFold

    order = np.random.default_rng(0).permutation(len(Z))[:SCALING_TEXTS]
    Z, targets = Z[order], targets[order]
    if targets.ndim == 1:
        # Leave out classes with one text, which cannot be both learned and held out.
        counts = np.bincount(targets)
        enough = counts[targets] >= 2
        Z, targets = Z[enough], targets[enough]
        present, targets = np.unique(targets, return_inverse=True)
        if len(present) < 2:
            return 0.0
        weights = None if weights is None else weights[present]
        folds: Any = StratifiedKFold(min(SCALING_FOLDS, int(np.bincount(targets).min())), shuffle=True, random_state=0)
    elif len(Z) < 2:
        return 0.0
    else:
        folds = KFold(min(SCALING_FOLDS, len(Z)), shuffle=True, random_state=0)
    total = 0.0
    for train, test in folds.split(Z, targets if targets.ndim == 1 else None):
        weight, bias = logistic(Z[train], targets[train], np.ones(Z.shape[1]), weights)
        logits = Z[test] @ weight.T + bias
        if targets.ndim == 1:
            logits = logits - logits.max(1, keepdims=True)
            total += float((logits[np.arange(len(test)), targets[test]] - np.log(np.exp(logits).sum(1))).sum())
        else:
            total -= float(np.logaddexp(0, np.where(targets[test] > 0, -logits, logits)).sum())
    return total
