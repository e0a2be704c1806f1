"""Labelled texts as a student learns them: random spans, and labels predicted from a teacher's embeddings."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from ctx_embed.errors import InputError
from ctx_embed.text.tokenizer import TextTokenizer
from ctx_embed.training.batches import PackedTexts, held_out, numbered

SPAN_TOKENS = (8, 64)
HELD_OUT_LABELLED = 2048
FEWEST_TAUGHT = 100


class LabelledSpans:
    """Random spans of labelled texts. Each label is equally frequent.

    A span mostly has the sentiment of its review, and is as short as the sentences that users embed.

    Args:
        tokenizer: the student's.
        labels, texts: each text and its label; ``seed`` chooses those that are held out, with all their copies.
        seed: seed of the held-out part and of the spans.
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
        within = np.arange(length.sum()) - np.repeat(length.cumsum() - length, length)
        ids = self.packed.ids[np.repeat(first, length) + within]
        return torch.from_numpy(ids.astype(np.int64)), length.tolist()

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


def taught_labels(
    embeddings: NDArray[np.float16],
    texts: Sequence[str],
    labels: Sequence[str],
    labelled: Sequence[str],
    decay: float = 1e-3,
) -> Tensor:
    """Return the probabilities (texts, classes) of labels, by logistic regression on a teacher's embeddings.

    Args:
        embeddings: (texts, d) the teacher's embeddings of ``texts``.
        texts: texts, some of which have labels; the regression is fitted on these.
        labels, labelled: the labels, and the text of each.
        decay: penalty on the squared weights.

    Raises:
        InputError: fewer than 100 of the texts are labelled.
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
