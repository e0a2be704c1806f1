"""A trained classifier for prediction, an encoder and a head, without torch and scikit-learn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ctx_embed.classify.encoder import SavedEncoder, TorchEncoder, open_encoder
from ctx_embed.classify.explaining import Explanation, explained
from ctx_embed.classify.head import ClassWeight, Floats, Head, class_weights
from ctx_embed.classify.labelled import Labelled, label_accuracy
from ctx_embed.errors import InputError
from ctx_embed.numpy_model.checks import modules_of


@dataclass(frozen=True, eq=False)
class Predictor:
    """An encoder and the head over it."""

    encoder: SavedEncoder | TorchEncoder
    head: Head

    @classmethod
    def load(cls, folder: str | Path, device: str | None = None) -> Predictor:
        """Open a classifier written by ``ctx-embed train`` or :meth:`TextClassifier.save`.

        Args:
            folder: the model folder.
            device: as in sentence-transformers; None predicts without torch if the model allows it.

        Raises:
            InputError: no model folder, or one without a head that fits.
        """
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
        """Return the outputs of the head, (texts, classes).

        Raises:
            InputError: they are not finite.
        """
        if not texts:
            return np.empty((0, len(self.head.labels)), np.float32)
        return self.head.logits(self.encoder.embed(texts), texts)

    def predict(self, texts: Sequence[str]) -> list[Any]:
        """Return the most likely label of each text, or with several labels a tuple of them.

        Raises:
            InputError: the outputs are not finite.
        """
        return list(self.head.chosen(self.logits(texts)))

    def explain(self, texts: Sequence[str]) -> list[list[Explanation]]:
        """Return what speaks for the label that each text gets, or with several labels for each of them."""
        return [explained(self, text) for text in texts]

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
    """Return the encoder with a head fitted over it, which reads words too unless told otherwise.

    Raises:
        InputError: only one class, or class weights that do not fit.
    """
    from ctx_embed.classify.fitting import fitted_head

    labels = data.classes()
    weights = class_weights(class_weight, data, labels)
    return Predictor(encoder, fitted_head(encoder.embed(data.texts), data, labels, weights, words))
