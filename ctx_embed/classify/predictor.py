"""A trained classifier for prediction: its encoder, on NumPy if the model allows it, and reasons for a label."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ctx_embed.classify.head import ClassWeight, Floats, Head, class_weights, words_of
from ctx_embed.classify.labelled import MOST_COMPARED, Labelled, label_accuracy
from ctx_embed.errors import InputError
from ctx_embed.model import Model
from ctx_embed.numpy_model.saved import modules_of
from ctx_embed.options import DEFAULT

# Maximum number of parts to show of each kind, and of words whose removal from a text is tried.
MOST_PARTS, MOST_WORDS = 10, 200


@dataclass(frozen=True)
class Explanation:
    """The parts of a label's logit minus the mean logit of all classes; with several labels per text, of the logit.

    Attributes:
        label: the label.
        logit: the sum of ``bias``, ``meaning`` and all words and pairs.
        bias: the part that is the same for all texts, from the classes' shares of the training texts.
        meaning: the part that the embedding adds.
        words: words and pairs of the text with the part that each adds, largest first.
        of_meaning: words of the text with ``meaning`` minus what it would be without the word, largest changes first.
            Both texts are in lower case with a space between words.
    """

    label: Any
    logit: float
    bias: float
    meaning: float
    words: list[tuple[str, float]]
    of_meaning: list[tuple[str, float]]


@dataclass(frozen=True, eq=False)
class Predictor:
    """An encoder and the head over it."""

    encoder: Model
    head: Head

    @classmethod
    def load(cls, folder: str | Path, device: str | None = None) -> Predictor:
        """Open a classifier made by ``ctx-embed train``; without a ``device``, use torch only if the model needs it."""
        folder = Path(folder)
        if str(folder) == DEFAULT and not folder.exists():
            raise InputError("default: the default model has no labels; train it with `ctx-embed train --from default`")
        modules_of(folder)
        head = Head.load(folder)
        encoder = open_encoder(folder, device)
        if head.weight.shape[1] != (dimension := encoder.raw_dimension):
            raise InputError(
                f"{folder}: the head reads {head.weight.shape[1]} dimensions, but the encoder has {dimension}; "
                "make the classifier again with ctx-embed train"
            )
        return cls(encoder, head)

    def logits(self, texts: Sequence[str]) -> Floats:
        """Return the outputs of the head, (texts, classes)."""
        if not texts:
            return np.empty((0, len(self.head.labels)), np.float32)
        return self.head.logits(self.encoder.raw(texts), texts)

    def predict(self, texts: Sequence[str]) -> list[Any]:
        """Return the most likely label of each text, or with several labels a tuple of them."""
        return list(self.head.chosen(self.logits(texts)))

    def accuracy(self, data: Labelled) -> float:
        """Return the accuracy on labelled texts, see :func:`label_accuracy`."""
        return label_accuracy(self.predict(data.texts), data)

    def explain(self, text: str) -> list[Explanation]:
        """Return the reasons for the predicted label of a text, or for each of several labels."""
        head = self.head
        words = list(dict.fromkeys(words_of(text)[:MOST_WORDS]))
        # Leave out all occurrences of a word, and compare with the whole text in the same spelling.
        others = [" ".join(other for other in words_of(text) if other != word) for word in (None, *words)]
        embeddings = self.encoder.raw([text, *others])
        logits, meanings = head.logits(embeddings[:1], [text]), head.of_meaning(embeddings)
        found = []
        for label in head.chosen(logits)[0] if head.multi_label else head.chosen(logits):
            place = head.labels.index(label)

            def ahead(values: Floats, place: int = place) -> Floats:
                """Return the label's value minus the mean over all classes, from values (..., classes)."""
                return np.asarray(values[..., place] if head.multi_label else values[..., place] - values.mean(-1))

            meaning = ahead(meanings)
            parts: dict[str, float] = {}
            if head.words is not None:
                vocabulary = head.words.vocabulary
                _, features, values = vocabulary.occurrences([text])
                values = values * ahead(head.words.weight[features])
                for feature, part in zip(features.tolist(), values.tolist(), strict=True):
                    name = vocabulary.name(feature)
                    parts[name] = parts.get(name, 0.0) + part
            changes = dict(zip(words, (meaning[1] - meaning[2:]).tolist(), strict=True))
            logit, bias = float(ahead(logits[0])), float(ahead(head.constant))
            found.append(Explanation(label, logit, bias, float(meaning[0]), _largest(parts), _largest(changes)))
        return found

    def save(self, folder: Path) -> None:
        """Write the model folder, which must exist."""
        self.encoder.save(folder)
        self.head.save(folder)


def fitted_predictor(encoder: Model, data: Labelled, class_weight: ClassWeight, words: bool) -> Predictor:
    """Return the encoder with a head fitted over it, which reads words too unless ``words`` is False."""
    from ctx_embed.classify.fitting import fitted_head

    labels = data.classes()
    if (compared := len(data.texts) * len(labels)) > MOST_COMPARED:
        of = f"{len(data.texts):,} texts with {len(labels):,} labels"
        raise InputError(f"texts times labels must be at most {MOST_COMPARED:,}, got {compared:,} ({of}); give fewer")
    weights = class_weights(class_weight, data, labels)
    return Predictor(encoder, fitted_head(encoder.raw(data.texts), data, labels, weights, words))


def _largest(parts: dict[str, float]) -> list[tuple[str, float]]:
    ordered = sorted(parts.items(), key=lambda part: -abs(part[1]))
    return [(name, part) for name, part in ordered[:MOST_PARTS] if not np.isclose(part, 0, atol=1e-4)]


def open_encoder(path: str | Path, device: str | None = None) -> Model:
    """Open a model folder, ``default``, or a name on the hub; a named device needs torch."""
    return _shipped() if device is None and str(path) == DEFAULT else Model.of(path, device=device)


@cache
def _shipped() -> Model:
    """Return the shipped model, opened once for all classifiers over it."""
    return Model.of()
