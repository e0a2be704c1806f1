"""An encoder with a linear head: labelled texts in, labels out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize
from sentence_transformers.util import batch_to_device
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from typing_extensions import Self

from ctx_embed.errors import InputError
from ctx_embed.loading import load
from ctx_embed.modules.token_encoder import TokenEncoder
from ctx_embed.reading import header_hint

PREDICTION_BATCH = 256
# Inverse strength of the l2 penalty under which the head is fitted to standardised embeddings.
PROBE_C = 0.01
PROBE_ITERATIONS = 1000


@dataclass(frozen=True)
class Labelled:
    """Texts with a label each."""

    labels: Sequence[str]
    texts: Sequence[str]

    def split(self, share: float, seed: int) -> tuple[Labelled, Labelled]:
        """A part without and a part of ``share`` of the texts, labels in like proportion.

        Raises:
            InputError: too few texts for a part that holds each label.
        """
        rows = np.arange(len(self.labels))
        try:
            first, second = train_test_split(rows, test_size=share, random_state=seed, stratify=list(self.labels))
        except ValueError:
            labels = len(set(self.labels))
            if labels > len(set(self.texts)) > 1:
                hint = "the label comes first, label<TAB>text: are the columns swapped?"
            else:
                hint = header_hint(self.labels) or "give more texts, or --valid FILE"
            raise InputError(
                f"{len(rows)} texts with {labels} labels are too few to hold out {share:.0%} in which each label "
                f"occurs; {hint}"
            ) from None
        return self._rows(sorted(first)), self._rows(sorted(second))

    def require_labels_of(self, train: Labelled, name: str) -> None:
        """Refuse labels that the training texts do not have; ``name`` is what the error calls these texts.

        Raises:
            InputError: with the first few of them.
        """
        if unknown := sorted(set(self.labels) - set(train.labels)):
            shown = ", ".join(map(repr, unknown[:5])) + (", ..." if len(unknown) > 5 else "")
            raise InputError(f"the {name} texts have labels that the training texts lack: {shown}")

    def _rows(self, rows: Sequence[int]) -> Labelled:
        return Labelled([self.labels[row] for row in rows], [self.texts[row] for row in rows])


class TextClassifier(nn.Module):
    """An encoder with a linear head over its embedding, before any normalisation.

    Args:
        encoder: a SentenceTransformer.
        labels: the names of the classes, in the order of the head's outputs.
    """

    def __init__(self, encoder: SentenceTransformer, labels: Sequence[str]) -> None:
        super().__init__()
        self.encoder = encoder
        self.labels = list(labels)
        with torch.no_grad():
            # Not get_embedding_dimension(), which a truncate_dim lowers.
            dimension = self.eval()._embeddings([""]).shape[1]
        self.head = nn.Linear(dimension, len(self.labels)).to(encoder.device)

    def _embeddings(self, texts: list[str], token_dropout: float = 0.0) -> Tensor:
        features = batch_to_device(self.encoder.preprocess(texts), self.encoder.device)
        if token_dropout > 0 and "attention_mask" in features:
            seen = torch.rand(features["attention_mask"].shape, device=self.encoder.device) >= token_dropout
            features["attention_mask"] = features["attention_mask"] * seen
        for module in self.encoder:
            # A unit-length embedding would bound the logits; the head reads c^K itself.
            if not isinstance(module, Normalize):
                features = module(features)
        embeddings: Tensor = features["sentence_embedding"]
        return embeddings

    def forward(self, texts: list[str], *, token_dropout: float = 0.0) -> Tensor:
        """The logits (texts, classes); ``token_dropout`` is the share of the tokens that are left out at random."""
        logits: Tensor = self.head(self._embeddings(texts, token_dropout).to(self.head.weight.dtype))
        return logits

    @torch.no_grad()
    def clear_head(self) -> None:
        """Set the head to zeros: the first gradients are its own, and the encoder follows once it points somewhere."""
        self.head.weight.zero_()
        self.head.bias.zero_()

    @torch.no_grad()
    def fit_head(self, data: Labelled) -> None:
        """Set the head to a logistic regression on the encoder's present embeddings of labelled texts."""
        self.eval()
        starts = range(0, len(data.texts), PREDICTION_BATCH)
        parts = [self._embeddings(list(data.texts[start : start + PREDICTION_BATCH])) for start in starts]
        X = torch.cat(parts).double().cpu().numpy()
        mean, deviation = X.mean(0), X.std(0) + 1e-9
        y = np.array([self.labels.index(label) for label in data.labels])
        probe = LogisticRegression(C=PROBE_C, max_iter=PROBE_ITERATIONS).fit((X - mean) / deviation, y)
        weight, bias = probe.coef_ / deviation, probe.intercept_
        if len(self.labels) == 2:
            # One row tells two classes apart: half of it for the one, half against the other.
            weight, bias = np.concatenate([-weight, weight]) / 2, np.concatenate([-bias, bias]) / 2
        self.head.weight.copy_(torch.from_numpy(weight))
        self.head.bias.copy_(torch.from_numpy(bias - weight @ mean))

    def regularizer(self) -> Tensor | float:
        """What the encoder's modules add to the loss of the texts last read."""
        return sum((module.regularizer() for module in self.encoder if isinstance(module, TokenEncoder)), 0.0)

    @torch.inference_mode()
    def predict(self, texts: Sequence[str]) -> list[str]:
        """The likeliest label of each text.

        Raises:
            InputError: the model gives infinite or undefined numbers.
        """
        self.eval()
        predicted: list[str] = []
        for start in range(0, len(texts), PREDICTION_BATCH):
            logits = self(list(texts[start : start + PREDICTION_BATCH]))
            if not logits.isfinite().all():
                raise InputError("the classifier's outputs are not finite, train it with a lower learning rate")
            predicted.extend(self.labels[index] for index in logits.argmax(1).tolist())
        return predicted

    def accuracy(self, data: Labelled) -> float:
        """The share of texts whose predicted label is theirs."""
        predicted = self.predict(data.texts)
        return float(np.mean([a == b for a, b in zip(predicted, data.labels, strict=True)]))

    def save(self, folder: str | Path) -> None:
        """Write the encoder as a SentenceTransformer and the head beside it in ``classifier.*`` files."""
        folder = Path(folder)
        self.encoder.save_pretrained(str(folder))
        save_file({name: tensor.contiguous() for name, tensor in self.head.state_dict().items()}, _head(folder))
        (folder / "classifier.json").write_text(json.dumps({"labels": self.labels}, indent=2), encoding="utf-8")

    @classmethod
    def load(cls, folder: str | Path, device: str | None = None) -> Self:
        """Read what :meth:`save` wrote.

        Raises:
            InputError: no model folder, or one without a head that fits.
        """
        folder = Path(folder)
        encoder = load(folder, device)
        if not _head(folder).is_file():
            raise InputError(f"{folder}: no classifier.safetensors, this model was not trained from labels")
        try:
            classifier = cls(encoder, json.loads((folder / "classifier.json").read_text(encoding="utf-8"))["labels"])
            classifier.head.load_state_dict(load_file(_head(folder)))
        except (OSError, ValueError, LookupError, TypeError, RuntimeError, SafetensorError) as error:
            reason, *_ = str(error).split("\n")
            raise InputError(f"{folder}: the head cannot be loaded ({type(error).__name__}: {reason})") from None
        return classifier.eval()


def _head(folder: Path) -> Path:
    return folder / "classifier.safetensors"
