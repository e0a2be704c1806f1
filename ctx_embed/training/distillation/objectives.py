"""What a student learns: its teachers' embeddings, its texts' words, and more of :mod:`.labels` and :mod:`.pairs`.

The loss of a batch is the sum of each objective's loss times its weight. An objective may ask for more texts to be
embedded with the batch, so that the student embeds all of them in one pass.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from ctx_embed.training.batches import PackedTexts

# Number of the most frequent entries that are predicted; others are ignored.
WORDS = 8000
# Maximum number of texts per batch whose words are predicted: each text needs a score for every word.
WORD_TEXTS = 64
# Embeds packed texts.
Embed = Callable[[Tensor, list[int]], Tensor]


@dataclass(frozen=True)
class Batch:
    """A batch of B texts.

    Attributes:
        step: number of the training step, from 0.
        rows: (B,) numbers of the texts.
        ids, lengths: their packed tokens.
        teacher: (B, d) the teacher's embeddings, l2-normalised.
        target: (B, m) the embeddings that the student should have.
    """

    step: int
    rows: NDArray[np.int64]
    ids: Tensor
    lengths: list[int]
    teacher: Tensor
    target: Tensor


class Objective(nn.Module, ABC):
    """A term of the loss. Its parameters are trained with the student's."""

    def more_texts(self, batch: Batch) -> tuple[Tensor, list[int]] | None:
        """Return the packed tokens of further texts to embed with the batch, or None."""
        return None

    @abstractmethod
    def loss(self, batch: Batch, student: Tensor, more: Tensor) -> Tensor:
        """Return the loss, a scalar, for the batch's embeddings (B, m) and those of :meth:`more_texts`, (texts, m)."""

    def measures(self, embed: Embed) -> dict[str, float]:
        """Return metrics on held-out texts."""
        return {}


def similarity_loss(student: Tensor, target: Tensor) -> Tensor:
    """Return mean(1 - cos(student, target)) of two (B, m)."""
    return (1 - F.cosine_similarity(student, target, dim=1)).mean()


def relation_loss(student: Tensor, teacher: Tensor) -> Tensor:
    """Return mean((S - S_teacher)^2) over all pairs of a batch; S, S_teacher: cosines of (B, m) and of unit (B, d)."""
    student = F.normalize(student, dim=1)
    return (student @ student.T - teacher @ teacher.T).square().mean()


class Similarity(Objective):
    """Point in the direction of the teacher's rotated embedding: :func:`similarity_loss`."""

    def loss(self, batch: Batch, student: Tensor, more: Tensor) -> Tensor:
        """Return the mean of 1 - cos."""
        return similarity_loss(student, batch.target)


class Relations(Objective):
    """Keep the teacher's cosines between texts: :func:`relation_loss`."""

    def loss(self, batch: Batch, student: Tensor, more: Tensor) -> Tensor:
        """Return the mean squared difference of cosines."""
        return relation_loss(student, batch.teacher)


class Features(Objective):
    """Keep each feature of the target at unit variance: the loss of cosines hardly sees those that vary little.

    ``deviations`` (m,) are the standard deviations of the target's features; features with 0 do not count.
    """

    def __init__(self, deviations: NDArray[np.float32]) -> None:
        super().__init__()
        scale = np.divide(1, deviations, out=np.zeros_like(deviations), where=deviations > 0)
        self.scale: Tensor
        self.register_buffer("scale", torch.from_numpy(scale), persistent=False)

    def loss(self, batch: Batch, student: Tensor, more: Tensor) -> Tensor:
        """Return the mean squared difference of the features, in standard deviations."""
        return ((F.normalize(student, dim=1) - batch.target) * self.scale).square().mean()


class Words(Objective):
    """Predict which of the most frequent entries are in a text, from its embedding, for the first texts of a batch.

    Loss: the mean over texts of the mean over their tokens of -log softmax(linear(c^K)) at the token. ``counts`` has
    for each entry how often it occurs in the corpus.
    """

    def __init__(self, dimension: int, counts: NDArray[np.int64]) -> None:
        super().__init__()
        kept = np.argsort(-counts, kind="stable")[:WORDS]
        place = np.full(len(counts), -1)
        place[kept] = np.arange(len(kept))
        self.linear = nn.Linear(dimension, len(kept))
        self.place: Tensor
        self.register_buffer("place", torch.from_numpy(place))

    def loss(self, batch: Batch, student: Tensor, more: Tensor) -> Tensor:
        """Return the cross-entropy of the words; texts without a frequent one do not count."""
        lengths, embeddings = batch.lengths[:WORD_TEXTS], student[:WORD_TEXTS]
        places = self.place[batch.ids[: sum(lengths)]]
        documents = torch.repeat_interleave(torch.tensor(lengths)).to(places.device)
        documents, places = documents[places >= 0], places[places >= 0]
        counts = torch.bincount(documents, minlength=len(lengths))
        named = counts > 0
        log_softmax = F.log_softmax(self.linear(F.normalize(embeddings, dim=1) * embeddings.shape[1] ** 0.5), dim=1)
        sums = embeddings.new_zeros(len(lengths)).index_add(0, documents, log_softmax[documents, places])
        return -(sums[named] / counts[named]).mean() if bool(named.any()) else sums.sum()


def places_of(rows: NDArray[np.int64], texts: int) -> NDArray[np.int64]:
    """Return the place of each text among ``rows``, or -1."""
    places = np.full(texts, -1)
    places[rows] = np.arange(len(rows))
    return places


class SecondTeacher(Objective):
    """Learn a second teacher's embeddings (n, d) of the texts ``rows`` (n,), ascending, rotated by (d, m).

    The rows ``held_out`` are not trained on; ``relation_weight`` is the weight of :func:`relation_loss`.
    """

    def __init__(
        self,
        texts: PackedTexts,
        rows: NDArray[np.int64],
        embeddings: NDArray[np.float16],
        rotation: NDArray[np.float32],
        held_out: NDArray[np.int64],
        relation_weight: float,
    ) -> None:
        super().__init__()
        self.texts, self.embeddings = texts, embeddings
        self.rotation = torch.from_numpy(rotation)
        self.places = places_of(rows, len(texts))
        # Of zeros nothing can be learned.
        self.places[rows[~(embeddings != 0).any(axis=1)]] = -1
        self.held_out = held_out[self.places[held_out] >= 0]
        self.relation_weight = relation_weight

    def _teacher(self, rows: NDArray[np.int64]) -> Tensor:
        return F.normalize(torch.from_numpy(self.embeddings[self.places[rows]].astype(np.float32)), dim=1)

    def loss(self, batch: Batch, student: Tensor, more: Tensor) -> Tensor:
        """Return 1 - cos plus weighted squared differences of cosines, averaged over the texts that it has embedded."""
        known = np.flatnonzero(self.places[batch.rows] >= 0)
        if len(known) < 2:
            return student.sum() * 0
        embedded, teacher = (
            student[torch.from_numpy(known).to(student.device)],
            self._teacher(batch.rows[known]).to(student.device),
        )
        loss = similarity_loss(embedded, teacher @ self.rotation.to(student.device))
        return loss + self.relation_weight * relation_loss(embedded, teacher)

    def measures(self, embed: Embed) -> dict[str, float]:
        """Return the mean of 1 - cos to its rotated embeddings, over the held-out texts that it has embedded."""
        if not len(self.held_out):
            return {}
        student = torch.cat([embed(*self.texts.batch(part)) for part in np.array_split(self.held_out, 4)])
        target = self._teacher(self.held_out) @ self.rotation
        return {"held_out_second_distance": float(similarity_loss(student, target.to(student.device)))}
