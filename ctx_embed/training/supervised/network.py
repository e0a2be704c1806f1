"""An encoder with a linear head as one torch module, which is trained as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn

from ctx_embed.classify.embedding import dimension_of, embedded, embeddings
from ctx_embed.classify.encoder import TorchEncoder
from ctx_embed.classify.fitting import Regression
from ctx_embed.classify.head import Floats, Head
from ctx_embed.classify.labelled import Labelled, label_accuracy
from ctx_embed.classify.predictor import Predictor
from ctx_embed.classify.vocabulary import Words
from ctx_embed.modules.token_encoder import TokenEncoder

# Prior deviation of the weights of the first head, a linear probe.
PROBE_DEVIATION = 0.1


class ClassifierNetwork(nn.Module):
    """An encoder with a linear head over its embedding, before any normalisation.

    Args:
        encoder: a SentenceTransformer.
        labels: the names of the classes, in the order of the head's outputs.
        multi_label: whether a text may have several labels.
    """

    def __init__(self, encoder: SentenceTransformer, labels: Sequence[Any], multi_label: bool = False) -> None:
        super().__init__()
        self.encoder = encoder
        self.labels = list(labels)
        self.multi_label = multi_label
        self.head = nn.Linear(dimension_of(encoder), len(self.labels)).to(encoder.device)
        self.words: Words | None = None

    def forward(self, texts: list[str], *, token_dropout: float = 0.0) -> Tensor:
        """Return the logits (texts, classes); ``token_dropout`` is the fraction of tokens dropped at random."""
        logits: Tensor = self.head(embeddings(self.encoder, texts, token_dropout).to(self.head.weight.dtype))
        return logits

    @torch.no_grad()
    def clear_head(self) -> None:
        """Set the head to zeros, so that it learns before the encoder, whose gradients are zero at first."""
        self.head.weight.zero_()
        self.head.bias.zero_()

    @torch.no_grad()
    def fit_head(self, data: Labelled, weights: Floats | None = None) -> None:
        """Set the head to a logistic regression on the encoder's current embeddings, standardised.

        Args:
            data: labelled texts.
            weights: (classes,) weights of the classes in the loss.
        """
        regression = Regression(
            embedded(self.encoder, data.texts), None, data.targets(self.labels), len(self.labels), weights
        )
        every = np.arange(len(data.texts))
        weight, _, bias = regression.weights(regression.coefficients(every, PROBE_DEVIATION, 0.0))
        self.head.weight.copy_(torch.from_numpy(weight))
        self.head.bias.copy_(torch.from_numpy(bias))

    @torch.no_grad()
    def read_words(self, factor: float, words: Words, factor_of_words: float) -> None:
        """Multiply the logits by a factor, and add words times another one."""
        self.head.weight.mul_(factor)
        self.head.bias.mul_(factor)
        self.words = Words(words.vocabulary, (factor_of_words * words.weight).astype(np.float16).astype(np.float32))

    def regularizer(self) -> Tensor | float:
        """Return the encoder's own loss term for the texts last embedded."""
        return sum((module.regularizer() for module in self.encoder if isinstance(module, TokenEncoder)), 0.0)

    def trained_head(self) -> Head:
        """Return a copy of the head."""
        weight, bias = (tensor.detach().float().cpu().numpy().copy() for tensor in (self.head.weight, self.head.bias))
        return Head(weight, bias, self.labels, self.multi_label, words=self.words)

    def predictor(self) -> Predictor:
        """Return the trained classifier. The token table is rounded to the int8 rows that are saved."""
        if isinstance(module := self.encoder[0], TokenEncoder):
            module.round_table()
        return Predictor(TorchEncoder(self.encoder), self.trained_head())

    def logits(self, texts: Sequence[str]) -> Floats:
        """Return the logits (texts, classes), without dropout.

        Raises:
            InputError: they are not finite.
        """
        self.eval()
        return self.trained_head().logits(embedded(self.encoder, texts), texts)

    def predict(self, texts: Sequence[str]) -> list[Any]:
        """Return the most likely label of each text, or with several labels a tuple of them.

        Raises:
            InputError: the outputs are not finite.
        """
        return list(self.trained_head().chosen(self.logits(texts))) if len(texts) else []

    def accuracy(self, data: Labelled) -> float:
        """Return the accuracy on labelled texts, see :func:`label_accuracy`."""
        return label_accuracy(self.predict(data.texts), data)
