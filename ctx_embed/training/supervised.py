"""Training from labels: an encoder and a linear head, end to end (the paper's protocol)."""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize
from sentence_transformers.util import batch_to_device
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm import tqdm
from typing_extensions import Self

from ctx_embed.errors import InputError
from ctx_embed.loading import load, require_device
from ctx_embed.modules import Contextualizer
from ctx_embed.training.checkpoint import Checkpoint
from ctx_embed.training.divergence import require_finite
from ctx_embed.training.packed import seeded_batches
from ctx_embed.training.vocabulary import learn_vocabulary, read_tokenizer

PREDICTION_BATCH = 256


@dataclass(frozen=True)
class SupervisedOptions:
    """How an encoder and its head are trained.

    Args:
        epochs: passes over the training texts; the epoch of the best validation accuracy is kept (ties: the first).
        batch_size: texts of a batch.
        learning_rate: Adam's, constant.
        valid_share: the share of the training texts held out for validation where no validation texts are given.
        seed: of the split, the order and the head's weights.
    """

    epochs: int = 10
    batch_size: int = 32
    learning_rate: float = 1e-4
    valid_share: float = 0.1
    seed: int = 0


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
            raise InputError(
                f"{len(rows)} texts with {len(set(self.labels))} labels are too few to hold out {share:.0%} in which "
                "each label occurs; give more texts, or --valid FILE"
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

    def _embeddings(self, texts: list[str]) -> Tensor:
        features = batch_to_device(self.encoder.preprocess(texts), self.encoder.device)
        for module in self.encoder:
            # A unit-length embedding would bound the logits; the head reads c^K itself.
            if not isinstance(module, Normalize):
                features = module(features)
        embeddings: Tensor = features["sentence_embedding"]
        return embeddings

    def forward(self, texts: list[str]) -> Tensor:
        """The logits (texts, classes)."""
        logits: Tensor = self.head(self._embeddings(texts).to(self.head.weight.dtype))
        return logits

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


def new_encoder(
    start: str | None,
    texts: Sequence[str],
    tokenizer: str | None = None,
    vocabulary_size: int = 16_000,
    seed: int = 0,
    device: str | None = None,
    **architecture: Any,
) -> SentenceTransformer:
    """The encoder a training starts from.

    Args:
        start: a model's path, or ``default``; None draws a Contextualizer, which all other arguments shape.
        texts: from which a vocabulary is learned where no ``tokenizer`` is given.
        tokenizer: path of a ``tokenizer.json``.
        vocabulary_size: entries at most of a learned vocabulary.
        seed: of the weights drawn.
        device: as in sentence-transformers.
        **architecture: options of :class:`ctx_embed.Contextualizer`.
    """
    require_device(device)
    if start is not None:
        return load(start, device)
    own = read_tokenizer(tokenizer) if tokenizer else learn_vocabulary(texts, vocabulary_size, progress=False)
    torch.manual_seed(seed)
    return SentenceTransformer(modules=[Contextualizer(own, **architecture), Normalize()], device=device)


def architecture_of(encoder: SentenceTransformer) -> list[dict[str, Any]]:
    """The name and config of each of the encoder's modules."""
    described: list[dict[str, Any]] = []
    for module in encoder.children():
        config: Any = getattr(module, "get_config_dict", dict)
        described.append({"module": type(module).__name__, **config()})
    return described


def train_classifier(
    encoder: SentenceTransformer,
    train: Labelled,
    valid: Labelled | None = None,
    options: SupervisedOptions | None = None,
    checkpoint: Checkpoint | None = None,
    *,
    progress: bool = True,
) -> tuple[TextClassifier, list[dict[str, float]]]:
    """Train an encoder and a linear head end to end by cross-entropy, and keep the best epoch.

    Args:
        encoder: trained in place.
        train: at least two classes.
        valid: chooses the epoch; None holds out a stratified share of ``train``.
        options: how to train.
        checkpoint: where the state is kept after each epoch; None keeps none.
        progress: show a bar on stderr.

    Returns:
        The classifier of the best epoch, and for each epoch its number, mean training loss and validation accuracy.

    Raises:
        InputError: one class only, validation labels that training does not know, or a training that diverges.
    """
    options = options or SupervisedOptions()
    labels = sorted(set(train.labels))
    if len(labels) < 2:
        raise InputError(f"the training texts have one class only ({labels[0]!r}), at least two are needed")
    if valid is None:
        train, valid = train.split(options.valid_share, options.seed)
    valid.require_labels_of(train, "validation")
    torch.manual_seed(options.seed)
    classifier = TextClassifier(encoder, labels)
    optimizer = torch.optim.Adam(classifier.parameters(), lr=options.learning_rate)
    targets = torch.tensor([labels.index(label) for label in train.labels], device=encoder.device)
    history: list[dict[str, float]] = []
    best = copy.deepcopy(classifier.state_dict())
    state = checkpoint.load() if checkpoint is not None else None
    if state is not None:
        classifier.load_state_dict(state["classifier"])
        optimizer.load_state_dict(state["optimizer"])
        history, best = state["history"], state["best"]
    for epoch in range(len(history), options.epochs):
        # Seeded by the epoch, so that an encoder with dropout resumes as it would have gone on.
        torch.manual_seed(options.seed + epoch)
        classifier.train()
        total = 0.0
        batches = list(seeded_batches(len(train.texts), options.batch_size, options.seed, epoch))
        bar = tqdm(batches, desc=f"epoch {epoch + 1}", unit=" batches", disable=None if progress else True, leave=False)
        for number, rows in enumerate(bar, 1):
            loss = F.cross_entropy(classifier([train.texts[row] for row in rows]), targets[rows])
            require_finite(loss.item(), epoch * len(batches) + number)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(rows)
        accuracy = classifier.accuracy(valid)
        if all(accuracy > earlier["valid_accuracy"] for earlier in history):
            best = copy.deepcopy(classifier.state_dict())
        history.append({"epoch": epoch + 1, "train_loss": total / len(train.texts), "valid_accuracy": accuracy})
        if progress:
            tqdm.write(
                f"epoch {epoch + 1}: loss {total / len(train.texts):.4f}, validation accuracy {accuracy:.4f}",
                file=sys.stderr,
            )
        if checkpoint is not None:
            checkpoint.save(
                {
                    "classifier": classifier.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "history": history,
                    "best": best,
                }
            )
    classifier.load_state_dict(best)
    classifier.eval()
    return classifier, history
