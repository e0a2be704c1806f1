"""An encoder with a linear head as one torch module, and tables that are trained only in the rows that texts use."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn

from ctx_embed.classify.embedding import dimension_of, embedded, embeddings
from ctx_embed.classify.fitting import Regression
from ctx_embed.classify.head import Floats, Head, Words
from ctx_embed.classify.labelled import Labelled, label_accuracy
from ctx_embed.classify.predictor import Predictor, TorchEncoder
from ctx_embed.modules.token_encoder import TokenEncoder
from ctx_embed.text.tokenizer import TextTokenizer

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
    def fit_head(self, data: Labelled, weights: Floats | None = None) -> None:
        """Set the head to a logistic regression on the encoder's current embeddings; classes have these weights."""
        regression = Regression(
            embedded(self.encoder, data.texts), None, data.targets(self.labels), len(self.labels), weights
        )
        every = np.arange(len(data.texts))
        weight, _, bias = regression.weights(regression.coefficients(every, PROBE_DEVIATION, 0.0))
        self.head.weight.copy_(torch.from_numpy(weight))
        self.head.bias.copy_(torch.from_numpy(bias))

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
        """Return the logits (texts, classes), without dropout; raise an InputError unless they are finite."""
        self.eval()
        return self.trained_head().logits(embedded(self.encoder, texts), texts)

    def predict(self, texts: Sequence[str]) -> list[Any]:
        """Return the most likely label of each text, or with several labels a tuple of them."""
        return list(self.trained_head().chosen(self.logits(texts))) if len(texts) else []

    def accuracy(self, data: Labelled) -> float:
        """Return the accuracy on labelled texts, see :func:`label_accuracy`."""
        return label_accuracy(self.predict(data.texts), data)


class _Renumbered:
    """A text tokenizer whose ids are positions in a list of entries."""

    def __init__(self, tokenizer: TextTokenizer, entries: NDArray[np.int32]) -> None:
        self.tokenizer = tokenizer
        self.entries = entries

    def read(
        self, texts: Sequence[str], prompt: str | None = None, limit: int | None = None
    ) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        ids, lengths = self.tokenizer.read(texts, prompt, limit)
        return np.searchsorted(self.entries, ids).astype(np.int32), lengths


@contextmanager
def compact_tables(encoder: SentenceTransformer, texts: Sequence[str]) -> Iterator[None]:
    """Reduce token tables to the entries of ``texts`` within a ``with`` block. The trained rows are then put back.

    No other texts may be encoded inside. Rows that no text uses would have no gradient, and Adam does not change such
    rows: the result is that of training the whole table.

    Args:
        encoder: its modules that only look up rows by ids are changed in place.
        texts: all texts that are encoded inside.
    """
    changed: list[tuple[Any, nn.Embedding, TextTokenizer, NDArray[np.int32]]] = []
    for module in encoder.children():
        if isinstance(module, TokenEncoder) and module.ids_may_be_renumbered:
            entries = np.unique(module.text_tokenizer(texts)[0])
            if len(entries):
                changed.append((module, module.embedding, module.text_tokenizer, entries))
                rows = module.embedding.weight.detach()[torch.from_numpy(entries).long()]
                trained = module.embedding.weight.requires_grad
                module.embedding = nn.Embedding(len(rows), rows.shape[1], _weight=rows).requires_grad_(trained)
                module.text_tokenizer = _Renumbered(module.text_tokenizer, entries)  # type: ignore[assignment]
    try:
        yield
    finally:
        for module, embedding, tokenizer, entries in changed:
            with torch.no_grad():
                embedding.weight[torch.from_numpy(entries).long()] = module.embedding.weight
            module.embedding, module.text_tokenizer = embedding, tokenizer
