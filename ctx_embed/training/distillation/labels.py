"""What a student learns from labels: those of spans, a text's file family, and labels read from a second teacher."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from ctx_embed.errors import InputError
from ctx_embed.text.tokenizer import TextTokenizer
from ctx_embed.training.batches import PackedTexts, held_out, numbered, ranges
from ctx_embed.training.distillation.objectives import Batch, Embed, Objective

SPAN_TOKENS = (8, 64)
HELD_OUT_LABELLED = 2048
FEWEST_TAUGHT = 100


class LabelHead(nn.Module):
    """A linear classifier over the last ``dimension`` dimensions of the embedding at unit length."""

    def __init__(self, dimension: int, classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(dimension, classes)
        # Logits of unit vectors would be small; scale the vectors to a length of the square root of their dimension.
        self.scale = dimension**0.5

    def forward(self, embeddings: Tensor) -> Tensor:
        """Return the logits (B, classes) of embeddings (B, m)."""
        read = embeddings[:, -self.linear.in_features :]
        logits: Tensor = self.linear(F.normalize(read, dim=1) * self.scale)
        return logits


class LabelledSpans:
    """Random spans of labelled texts. Each label is equally frequent; ``seed`` holds out texts with all their copies.

    A span mostly has the sentiment of its review, and is as short as the sentences that users embed.
    """

    def __init__(self, tokenizer: TextTokenizer, labels: Sequence[str], texts: Sequence[str], seed: int) -> None:
        self.classes = sorted(set(labels))
        self.seed = seed
        self.packed = PackedTexts.tokenize(tokenizer, texts)
        index = {label: position for position, label in enumerate(self.classes)}
        self.targets = np.array([index[label] for label in labels])
        order = np.random.default_rng([seed, 1]).permutation(len(texts))
        self.held_out_rows, rows = held_out(order, numbered(texts), min(HELD_OUT_LABELLED, len(texts) // 10))
        self.rows_of_class = [rows[self.targets[rows] == target] for target in range(len(self.classes))]
        for label, rows in zip(self.classes, self.rows_of_class, strict=True):
            if not len(rows):
                raise InputError(
                    f"the label {label!r} must have texts that are not held out, got none; give more texts"
                )

    def _spans(self, rows: NDArray[np.int64], generator: np.random.Generator) -> tuple[Tensor, list[int]]:
        begin, end = self.packed.offsets[rows], self.packed.offsets[rows + 1]
        length = np.minimum(generator.integers(SPAN_TOKENS[0], SPAN_TOKENS[1] + 1, len(rows)), end - begin)
        first = begin + (generator.random(len(rows)) * (end - begin - length + 1)).astype(np.int64)
        return torch.from_numpy(self.packed.ids[ranges(first, length)].astype(np.int64)), length.tolist()

    def draw(self, count: int, step: int) -> tuple[Tensor, list[int], Tensor]:
        """Return spans for a training step: concatenated ids, ``count`` lengths, and the classes (count,)."""
        generator = np.random.default_rng([self.seed, 2, step])
        targets = generator.integers(len(self.classes), size=count)
        rows = np.array([generator.choice(self.rows_of_class[target]) for target in targets])
        return *self._spans(rows, generator), torch.from_numpy(targets)

    def held_out(self) -> tuple[Tensor, list[int], Tensor]:
        """Return one span of each held-out text, always the same, in the form of :meth:`draw`."""
        spans = self._spans(self.held_out_rows, np.random.default_rng([self.seed, 3]))
        return *spans, torch.from_numpy(self.targets[self.held_out_rows])


class Labels(Objective):
    """Predict the labels of ``count`` spans of labelled texts from the last ``dimension`` dimensions."""

    def __init__(self, dimension: int, spans: LabelledSpans, count: int) -> None:
        super().__init__()
        self.head = LabelHead(dimension, len(spans.classes))
        self.spans = spans
        self.count = count

    def more_texts(self, batch: Batch) -> tuple[Tensor, list[int]]:
        """Return the spans of the step."""
        ids, lengths, self._targets = self.spans.draw(self.count, batch.step)
        return ids, lengths

    def loss(self, batch: Batch, student: Tensor, more: Tensor) -> Tensor:
        """Return the cross-entropy of the spans."""
        return F.cross_entropy(self.head(more), self._targets.to(more.device))

    def measures(self, embed: Embed) -> dict[str, float]:
        """Return the accuracy on the held-out texts."""
        ids, lengths, targets = self.spans.held_out()
        predicted = self.head(embed(ids, lengths)).argmax(1).cpu()
        return {"held_out_label_accuracy": float((predicted == targets).float().mean())}


class Genres(Objective):
    """Predict the family of files that a text came from, ``genres`` (texts,), from its last ``dimension`` features."""

    def __init__(self, dimension: int, genres: NDArray[np.int64]) -> None:
        super().__init__()
        self.head = LabelHead(dimension, int(genres.max()) + 1)
        self.genres = torch.from_numpy(genres)

    def loss(self, batch: Batch, student: Tensor, more: Tensor) -> Tensor:
        """Return the cross-entropy of the genres."""
        return F.cross_entropy(self.head(student), self.genres[torch.from_numpy(batch.rows)].to(student.device))


def taught_labels(
    embeddings: NDArray[np.float16],
    texts: Sequence[str],
    labels: Sequence[str],
    labelled: Sequence[str],
    decay: float = 1e-3,
) -> Tensor:
    """Return the probabilities (texts, classes) of labels, by logistic regression on a teacher's embeddings (texts, d).

    It is fitted on those of the texts that are among the ``labelled`` ones, whose labels are ``labels``.
    """
    classes = {label: number for number, label in enumerate(sorted(set(labels)))}
    known = dict(zip(labelled, labels, strict=True))
    rows = np.array([row for row, text in enumerate(texts) if text in known], dtype=np.int64)
    if len(rows) < FEWEST_TAUGHT:
        raise InputError(
            f"the second teacher must embed at least {FEWEST_TAUGHT} labelled texts for its labels, got {len(rows)}; "
            "give second_texts to a source of labelled files"
        )
    inputs = torch.from_numpy(embeddings.astype(np.float32))
    center, deviation = inputs[rows].mean(0), inputs[rows].std(0).clamp_min(1e-6)
    inputs = (inputs - center) / deviation
    targets = torch.tensor([classes[known[texts[row]]] for row in rows])
    weights = torch.zeros(inputs.shape[1] + 1, len(classes), requires_grad=True)
    optimizer = torch.optim.LBFGS([weights], max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = F.cross_entropy(inputs[rows] @ weights[:-1] + weights[-1], targets) + decay * weights.square().sum()
        value.backward()
        return value

    optimizer.step(loss)
    return (inputs @ weights[:-1] + weights[-1]).detach().softmax(1)


class TaughtLabels(Objective):
    """Predict the ``probabilities`` (n, classes) of labels that a linear classifier reads from a teacher's embeddings.

    ``places`` (texts,) is the row of each text among them, or -1.
    """

    def __init__(self, head: LabelHead, places: NDArray[np.int64], probabilities: Tensor) -> None:
        super().__init__()
        self.head = head
        self.places, self.probabilities = places, probabilities

    def loss(self, batch: Batch, student: Tensor, more: Tensor) -> Tensor:
        """Return the cross-entropy to the teacher's probabilities."""
        places = self.places[batch.rows]
        known = torch.from_numpy(np.flatnonzero(places >= 0)).to(student.device)
        if not len(known):
            return student.sum() * 0
        targets = self.probabilities[torch.from_numpy(places[places >= 0])].to(student.device)
        return F.cross_entropy(self.head(student[known]), targets)
