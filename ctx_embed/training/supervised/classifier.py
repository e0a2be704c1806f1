"""A text classifier with scikit-learn's interface: fit on labelled texts, predict labels and probabilities."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted
from typing_extensions import Self

from ctx_embed.classify.head import THRESHOLD, ClassWeight
from ctx_embed.classify.labelled import SEVERAL, Label, Labelled, as_array
from ctx_embed.classify.predictor import Explanation, Predictor, fitted_predictor, open_encoder
from ctx_embed.errors import InputError, described
from ctx_embed.files import replaced_folder, require_replaceable
from ctx_embed.model import Model
from ctx_embed.texts import as_texts
from ctx_embed.training.options import FINE_TUNING, OF_TRAINING

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

# One label for each text, or several: as a list, a generator, or a series or array of any library.
Labels = Iterable[Label] | Iterable[Iterable[Label]]


class TextClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A linear classifier that reads the meaning of a text and its words, with scikit-learn's interface.

    Fit learns a linear head over the embeddings of an encoder and over words and pairs of words, in seconds and without
    torch; on request it trains the encoder too. It works in pipelines, ``cross_val_score`` and ``GridSearchCV``, and
    can be pickled.

    Args:
        model: ``default``, a model folder, a name on the hub, or a SentenceTransformer, which fit copies and never
            changes.
        words: also read words and pairs of words; how much they weigh is chosen on held-out training
            texts.
        frozen: True fits only the head; False trains the encoder too; None trains it if one of the next five options is
            given.
        epochs, batch_size, learning_rate, token_dropout, runs: options of training the encoder; None as in ``ctx-embed
            train --no-frozen``: 4 epochs of batches of 64 at 1e-3, no dropout, and the mean of the weights of 5 runs.
        class_weight: ``balanced``, or weights by label; None weighs all texts equally.
        valid_share: fraction of the texts held out to choose the epoch if fit gets no validation texts.
        random_state: seed of a training of the encoder.
        device: as in sentence-transformers; None chooses.
        verbose: show progress on stderr.

    Attributes:
        classes_: (classes,) the labels, sorted: the columns of :meth:`predict_proba`.
        multi_label_: whether fit got several labels per text.
        history_: for each epoch of each run of training the encoder a dict with ``run``, ``epoch``, ``train_loss`` and
            ``valid_accuracy``.

    Example:
        >>> from ctx_embed import TextClassifier
        >>> texts = ["great food", "lovely staff", "cold soup", "rude waiter"]
        >>> classifier = TextClassifier().fit(texts, ["good", "good", "bad", "bad"])
        >>> str(classifier.predict("friendly service"))
        'good'
    """

    def __init__(
        self,
        model: str | Path | SentenceTransformer = "default",
        *,
        words: bool = True,
        frozen: bool | None = None,
        epochs: int | None = None,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        token_dropout: float | None = None,
        runs: int | None = None,
        class_weight: ClassWeight = None,
        valid_share: float = 0.1,
        random_state: int = 0,
        device: str | None = None,
        verbose: bool = False,
    ) -> None:
        self.model = model
        self.words = words
        self.frozen = frozen
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.token_dropout = token_dropout
        self.runs = runs
        self.class_weight = class_weight
        self.valid_share = valid_share
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    def fit(self, X: Iterable[str], y: Labels, *, valid: tuple[Iterable[str], Labels] | None = None) -> Self:
        """Learn from labelled texts.

        Args:
            X: texts: a list, an array, a series of any library, or a generator.
            y: one label for each text, a string, number or boolean; or any number of labels for each, as lists or as an
                array (texts, classes) of 0 and 1, in which case predictions are such arrays too.
            valid: texts and labels to choose the epoch when the encoder is trained; None holds out a share of X. A
                frozen encoder has no use for them.

        Raises:
            InputError: a text or label of the wrong type, only one class, or an option out of range.
        """
        given = self.model
        if not isinstance(given, str | Path) and not hasattr(given, "preprocess"):
            raise InputError(f"model must be a folder, a name or a SentenceTransformer, got {described(given)}")
        data, columns = _labelled(X, y)
        chosen = {name: value for name in OF_TRAINING if (value := getattr(self, name)) is not None}
        if self.frozen and chosen:
            names = ", ".join(chosen)
            raise InputError(
                f"{names} cannot be given with frozen=True, which does not train the encoder; leave out one of them"
            )
        if self.frozen or (self.frozen is None and not chosen):
            if valid is not None:
                raise InputError("valid chooses the epoch of a trained encoder; leave it out, or give frozen=False")
            encoder = open_encoder(given, self.device) if isinstance(given, str | Path) else Model(given)
            predictor = fitted_predictor(encoder, data, self.class_weight, self.words)
            self.history_: list[dict[str, float]] = []
        else:
            from ctx_embed.loading import load
            from ctx_embed.training.supervised.train import train_classifier

            held_out = None if valid is None else _labelled(*valid)[0].matched(data.classes())
            options = replace(FINE_TUNING, valid_share=self.valid_share, seed=self.random_state, **chosen)
            model = load(given, self.device) if isinstance(given, str | Path) else copy.deepcopy(given)
            how: dict[str, Any] = {"class_weight": self.class_weight, "words": self.words, "progress": self.verbose}
            predictor, self.history_ = train_classifier(model, data, held_out, options, store="int8", **how)
        if columns:
            predictor = replace(predictor, head=predictor.head.for_indicators(columns, len(data.texts)))
        return self._with(predictor)

    def _with(self, predictor: Predictor) -> Self:
        self.predictor_ = predictor
        self.classes_ = as_array(predictor.head.labels)
        self.multi_label_ = predictor.head.multi_label
        return self

    def predict(self, X: str | Iterable[str]) -> Label | tuple[Label, ...] | NDArray[Any] | list[tuple[Label, ...]]:
        """Return the most likely label of each text, (texts,), or of a single string.

        With several labels per text, return a list of tuples of labels, those with a probability of at least 0.5; or
        an array (texts, classes) of 0 and 1 if fit was given one.

        Raises:
            InputError: an element of X is not a string.
        """
        logits, single = self._logits(X)
        head = self.predictor_.head
        if head.indicators:
            found: Any = (head.probabilities(logits) >= THRESHOLD).astype(np.int64)
        else:
            found = head.chosen(logits) if self.multi_label_ else self.classes_[logits.argmax(1)]
        chosen: NDArray[Any] | list[tuple[Label, ...]] = found[0] if single else found
        return chosen

    def predict_proba(self, X: str | Iterable[str]) -> NDArray[np.float64]:
        """Return the probability of each class, (texts, classes), or (classes,) for a single string.

        A row sums to 1; with several labels per text, the probabilities are independent.
        """
        logits, single = self._logits(X)
        found: NDArray[np.float64] = self.predictor_.head.probabilities(logits)
        return found[0] if single else found

    def predict_log_proba(self, X: str | Iterable[str]) -> NDArray[np.float64]:
        """Return the logarithms of :meth:`predict_proba`."""
        with np.errstate(divide="ignore"):
            return np.log(self.predict_proba(X))

    def decision_function(self, X: str | Iterable[str]) -> NDArray[Any]:
        """Return the logits (texts, classes); with two classes (texts,), where a value above 0 means the second."""
        logits, single = self._logits(X)
        if len(self.classes_) == 2 and not self.multi_label_:
            logits = logits[:, 1] - logits[:, 0]
        return np.asarray(logits[0] if single else logits)

    def score(self, X: Iterable[str], y: Labels, sample_weight: Iterable[float] | None = None) -> float:
        """Return the accuracy; with several labels per text, the share of texts whose labels are all correct.

        A label means the class that is spelled like it: "1" is the class 1.

        Raises:
            InputError: there are no texts, or the labels do not have the form that fit got: one for each text, several
                for each, or an array with a column for each class.
        """
        check_is_fitted(self)
        weights = None if sample_weight is None else np.asarray(sample_weight)
        truth, columns = _labelled(X, y)
        if not truth.texts:
            raise InputError("score needs at least one text")
        if truth.multi_label != self.multi_label_:
            raise InputError(
                f"y must hold {'lists of labels' if self.multi_label_ else 'one label for each text'}, as in fit"
            )
        if columns and self.predictor_.head.indicators and columns != len(self.classes_):
            raise InputError(f"y must have {len(self.classes_)} columns, as in fit, got {columns}")
        if weights is not None and weights.shape != (len(truth.texts),):
            raise InputError(
                f"sample_weight must hold a number for each of {len(truth.texts)} texts, got an array {weights.shape}"
            )
        truth = truth.matched(self.predictor_.head.labels)
        pairs = zip(self.predictor_.predict(truth.texts), truth.labels, strict=True)
        right = [set(a) == set(b) if self.multi_label_ else a == b for a, b in pairs]
        return float(np.average(right, weights=weights))

    def explain(self, X: str | Iterable[str]) -> list[list[Explanation]]:
        """Return the reasons for the label of each text, or for each of several labels, as :class:`.Explanation`."""
        check_is_fitted(self)
        return [self.predictor_.explain(text) for text in ([X] if isinstance(X, str) else as_texts(X))]

    def save(self, folder: str | Path) -> None:
        """Write a model folder for ``ctx-embed predict`` and :meth:`load`, completely or not at all.

        It also holds the encoder, which :func:`ctx_embed.load` opens.

        Raises:
            InputError: the folder cannot be written, or holds something else.
        """
        check_is_fitted(self)
        require_replaceable(Path(folder), "modules.json")
        params = {name: _plain(value) for name, value in self.get_params(deep=False).items() if name != "device"}
        if isinstance(params["model"], str | Path):
            params["model"] = str(params["model"])
        else:
            # Fitted again, a loaded classifier begins with its own encoder.
            del params["model"]
        if isinstance(weights := params["class_weight"], Mapping):
            params["class_weight"] = [[_plain(label), _plain(weight)] for label, weight in weights.items()]
        head = replace(self.predictor_.head, params=params)
        with replaced_folder(folder) as beside:
            replace(self.predictor_, head=head).save(beside)

    @classmethod
    def load(cls, folder: str | Path, device: str | None = None) -> Self:
        """Open a classifier written by :meth:`save` or ``ctx-embed train``, with the arguments that it was made with.

        Args:
            folder: the model folder.
            device: as in sentence-transformers; None predicts without torch if the model allows it.

        Raises:
            InputError: no model folder, or one without a head that fits.
        """
        predictor = Predictor.load(folder, device)
        params = {"model": str(folder), **predictor.head.params, "device": device}
        if unknown := sorted(set(params) - set(cls().get_params())):
            raise InputError(f"{folder}: made by another version: TextClassifier has no argument {unknown[0]!r:.80}")
        if isinstance(weights := params.get("class_weight"), list):
            params["class_weight"] = {label: weight for label, weight in weights}  # noqa: C416
        return cls(**params)._with(predictor)

    def _logits(self, X: str | Iterable[str]) -> tuple[NDArray[Any], bool]:
        check_is_fitted(self)
        single = isinstance(X, str)
        return self.predictor_.logits([X] if isinstance(X, str) else as_texts(X)), single

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "predictor_")

    def __sklearn_clone__(self) -> Self:
        # Share the SentenceTransformer, which scikit-learn would copy: fit never changes it.
        return type(self)(**self.get_params())

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.two_d_array = False
        tags.classifier_tags.multi_label = True
        return tags


def _labelled(X: Iterable[str], y: Any) -> tuple[Labelled, int]:
    """Return texts with their labels, and the number of columns if these came as an array of 0 and 1."""
    texts = as_texts(X)
    if isinstance(y, str | bytes | Mapping) or not isinstance(y, Iterable):
        raise InputError(f"y must be a list of labels, got {described(y)}")
    labels: Any
    if hasattr(y, "columns") or getattr(y, "ndim", 1) == 2:
        # A table or array. A sparse array of SciPy is not an array of NumPy.
        table = np.asarray(y.toarray() if hasattr(y, "toarray") else y)
        labels = [_plain(label) for label in table[:, 0]] if table.shape[1] == 1 else table
    else:
        labels = [_plain(label) for label in (y.to_pylist() if hasattr(y, "to_pylist") else y)]
    if len(labels) != len(texts):
        raise InputError(f"X and y must be of equal length, got {len(texts)} texts and {len(labels)} labels")
    if isinstance(labels, np.ndarray):
        if not np.isin(labels, (0, 1)).all():
            raise InputError("y of shape (texts, classes) must hold 0 and 1 only")
        return Labelled([tuple(np.flatnonzero(row).tolist()) for row in labels], texts), labels.shape[1]
    several = [isinstance(label, (*SEVERAL, np.ndarray)) for label in labels]
    if any(several) and not all(several):
        raise InputError("y must hold one label for each text, or a list of labels for each, got both")
    if any(several):
        labels = [tuple(_plain(label) for label in of_text) for of_text in labels]
        if found := next((row for row in labels if len(row) > len(set(row)) and set(row) <= {0, 1}), None):
            raise InputError(f"y of 0 and 1 for each class must be an array, got {list(found)}; give numpy.array(y)")
    data = Labelled(labels, texts)
    data.require_labels()
    return data, 0


def _plain(label: Any) -> Any:
    """Return a number or string of NumPy or torch as Python's own; a date stays what it is."""
    is_scalar = getattr(label, "ndim", None) == 0 and hasattr(label, "item")
    return label.item() if is_scalar and getattr(getattr(label, "dtype", None), "kind", "") not in "mM" else label
