"""A trained classifier for prediction, an encoder and a head, and what speaks for a label. Without torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ctx_embed.classify.encoder import SavedEncoder, TorchEncoder, open_encoder
from ctx_embed.classify.head import ClassWeight, Floats, Head, class_weights
from ctx_embed.classify.labelled import Labelled, label_accuracy
from ctx_embed.classify.vocabulary import words_of
from ctx_embed.errors import InputError
from ctx_embed.numpy_model.checks import modules_of

# Parts shown of each kind, and words of a text that are left out in turn.
MOST_PARTS, MOST_WORDS = 10, 200


@dataclass(frozen=True)
class Explanation:
    """The parts of the logit by which a label is ahead of the mean of all classes, or of 0 with several labels.

    Attributes:
        label: the label.
        logit: the sum of ``bias``, ``meaning`` and all words and pairs.
        bias: the part that no text changes.
        meaning: the part of the embedding.
        words: words and pairs of the text with their parts, those of the largest parts first.
        of_meaning: words of the text with the change of ``meaning`` that each makes, compared with the same text
            without it, both in lower case with a space between words; those of the largest changes first.
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

    encoder: SavedEncoder | TorchEncoder
    head: Head

    @classmethod
    def load(cls, folder: str | Path, device: str | None = None) -> Predictor:
        """Open a classifier made by ``ctx-embed train``, without torch if no device is named and the model allows."""
        folder = Path(folder)
        if str(folder) == "default" and not folder.exists():
            raise InputError("default: the default model has no labels; train it with `ctx-embed train --from default`")
        modules_of(folder)
        head = Head.load(folder)
        encoder = open_encoder(folder, device)
        if head.weight.shape[1] != (dimension := encoder.dimension):
            raise InputError(
                f"{folder}: the head reads {head.weight.shape[1]} dimensions, but the encoder has {dimension}; "
                "make the classifier again with ctx-embed train"
            )
        return cls(encoder, head)

    def logits(self, texts: Sequence[str]) -> Floats:
        """Return the outputs of the head, (texts, classes)."""
        if not texts:
            return np.empty((0, len(self.head.labels)), np.float32)
        return self.head.logits(self.encoder.embed(texts), texts)

    def predict(self, texts: Sequence[str]) -> list[Any]:
        """Return the most likely label of each text, or with several labels a tuple of them."""
        return list(self.head.chosen(self.logits(texts)))

    def explain(self, texts: Sequence[str]) -> list[list[Explanation]]:
        """Return what speaks for the label that each text gets, or with several labels for each of them."""
        return [self._explained(text) for text in texts]

    def _explained(self, text: str) -> list[Explanation]:
        head = self.head
        words = list(dict.fromkeys(words_of(text)[:MOST_WORDS]))
        # Leave each word out in turn, wherever it occurs, and compare with all of them, spelled in the same way.
        others = [" ".join(other for other in words_of(text) if other != word) for word in (None, *words)]
        embeddings = self.encoder.embed([text, *others])
        logits, meanings = head.logits(embeddings[:1], [text]), head.of_meaning(embeddings)
        found = []
        for label in head.chosen(logits)[0] if head.multi_label else head.chosen(logits):
            place = head.labels.index(label)

            def ahead(values: Floats, place: int = place) -> Floats:
                """Return the values (..., classes) of the label less the mean of all classes."""
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
            logit, bias = float(ahead(logits[0])), float(ahead(head.bias))
            found.append(Explanation(label, logit, bias, float(meaning[0]), _largest(parts), _largest(changes)))
        return found

    def accuracy(self, data: Labelled) -> float:
        """Return the accuracy on labelled texts, see :func:`label_accuracy`."""
        return label_accuracy(self.predict(data.texts), data)

    def save(self, folder: Path) -> None:
        """Write the model folder, which must exist."""
        self.encoder.save(folder)
        self.head.save(folder)


def fitted_predictor(
    encoder: SavedEncoder | TorchEncoder, data: Labelled, class_weight: ClassWeight, words: bool = True
) -> Predictor:
    """Return the encoder with a head fitted over it, which reads words too unless told otherwise."""
    from ctx_embed.classify.fitting import fitted_head

    labels = data.classes()
    weights = class_weights(class_weight, data, labels)
    return Predictor(encoder, fitted_head(encoder.embed(data.texts), data, labels, weights, words))


def _largest(parts: dict[str, float]) -> list[tuple[str, float]]:
    ordered = sorted(parts.items(), key=lambda part: -abs(part[1]))
    return [(name, part) for name, part in ordered[:MOST_PARTS] if not np.isclose(part, 0, atol=1e-4)]
