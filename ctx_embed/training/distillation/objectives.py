"""What a student learns: its teacher's embeddings, and optionally labels, sources, partners and its texts' words.

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

from ctx_embed.errors import InputError
from ctx_embed.training.batches import PackedTexts
from ctx_embed.training.distillation.heads import LabelHead, WordHead
from ctx_embed.training.distillation.labelled import LabelledSpans

# Texts per batch whose words are predicted: each needs a score for every word.
WORD_TEXTS = 64
# Held-out pairs on which finding partners is measured.
MEASURED_PAIRS = 1000
# Temperature of the softmax over the texts of a batch.
RANKING_TEMPERATURE = 0.05


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
    """A term of the loss; its parameters are trained with the student's."""

    def more_texts(self, batch: Batch) -> tuple[Tensor, list[int]] | None:
        """Return the packed tokens of further texts to embed with the batch, or None."""
        return None

    @abstractmethod
    def loss(self, batch: Batch, student: Tensor, more: Tensor) -> Tensor:
        """Return the loss, a scalar.

        Args:
            batch: the texts.
            student: (B, m) their embeddings.
            more: (texts, m) the embeddings of :meth:`more_texts`.
        """

    def measures(self, embed: Callable[[Tensor, list[int]], Tensor]) -> dict[str, float]:
        """Return metrics on held-out texts."""
        return {}


def similarity_loss(student: Tensor, target: Tensor) -> Tensor:
    """Return mean(1 - cos(student, target)) of two (B, m)."""
    return (1 - F.cosine_similarity(student, target, dim=1)).mean()


def relation_loss(student: Tensor, teacher: Tensor) -> Tensor:
    """Return mean((S - S_teacher)^2), S the cosines of all pairs of the batch; of (B, m) and l2-normalised (B, d)."""
    student = F.normalize(student, dim=1)
    return (student @ student.T - teacher @ teacher.T).square().mean()


class Similarity(Objective):
    """Have the direction of the rotated teacher's embedding: :func:`similarity_loss`."""

    def loss(self, batch: Batch, student: Tensor, more: Tensor) -> Tensor:
        """Return the mean of 1 - cos."""
        return similarity_loss(student, batch.target)


class Relations(Objective):
    """Keep the teacher's cosines between texts: :func:`relation_loss`."""

    def loss(self, batch: Batch, student: Tensor, more: Tensor) -> Tensor:
        """Return the mean squared difference of cosines."""
        return relation_loss(student, batch.teacher)


class Labels(Objective):
    """Predict the labels of spans of labelled texts from their embeddings.

    Args:
        dimension: see :class:`ctx_embed.training.distillation.heads.LabelHead`.
        spans: the labelled texts.
        count: spans per batch.
    """

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
        return self.head.loss(more, self._targets)

    def measures(self, embed: Callable[[Tensor, list[int]], Tensor]) -> dict[str, float]:
        """Return the accuracy on the held-out texts."""
        ids, lengths, targets = self.spans.held_out()
        predicted = self.head(embed(ids, lengths)).argmax(1)
        return {"held_out_label_accuracy": float((predicted == targets).float().mean())}


class Words(Objective):
    """Predict a text's frequent words from its embedding, for the first 64 texts of a batch.

    Args:
        dimension, counts, most: see :class:`ctx_embed.training.distillation.heads.WordHead`.
    """

    def __init__(self, dimension: int, counts: NDArray[np.int64], most: int) -> None:
        super().__init__()
        self.head = WordHead(dimension, counts, most)

    def loss(self, batch: Batch, student: Tensor, more: Tensor) -> Tensor:
        """Return the cross-entropy of the words."""
        lengths = batch.lengths[:WORD_TEXTS]
        return self.head.loss(student[:WORD_TEXTS], batch.ids[: sum(lengths)], lengths)


class Genres(Objective):
    """Predict the family of files that a text came from.

    Args:
        dimension: see :class:`ctx_embed.training.distillation.heads.LabelHead`.
        genres: (texts,) numbers of the families.
    """

    def __init__(self, dimension: int, genres: NDArray[np.int64]) -> None:
        super().__init__()
        self.head = LabelHead(dimension, int(genres.max()) + 1)
        self.genres = torch.from_numpy(genres)

    def loss(self, batch: Batch, student: Tensor, more: Tensor) -> Tensor:
        """Return the cross-entropy of the genres."""
        return self.head.loss(student, self.genres[torch.from_numpy(batch.rows)])


def contrast_loss(first: Tensor, second: Tensor, alike: Tensor, teacher: Tensor) -> Tensor:
    """Return how well texts find their partners: the contrast in the batch, and the teacher's ranking of the batch.

    The contrast is InfoNCE (van den Oord et al. 2018) of each text among the other side's, in both directions; to it
    KL(softmax(S_teacher / 0.05) || softmax(S / 0.05)) is added.

    Args:
        first, second: (B, m) embeddings of texts and of their partners.
        alike: (B, B) True where a text and another text's partner are equal, so that they are no contrast.
        teacher: (B, B) the teacher's cosines.
    """
    own = torch.arange(len(first), device=first.device)
    cosines = F.normalize(first, dim=1) @ F.normalize(second, dim=1).T
    logits = (cosines / RANKING_TEMPERATURE).masked_fill(alike, -1e4)
    contrast = (F.cross_entropy(logits, own) + F.cross_entropy(logits.T, own)) / 2
    ranked = (teacher / RANKING_TEMPERATURE).log_softmax(1)
    ranking = F.kl_div((cosines / RANKING_TEMPERATURE).log_softmax(1), ranked, log_target=True, reduction="batchmean")
    return contrast + ranking


class Partners(Objective):
    """Move texts closer to their partners, such as questions to their answers: :func:`contrast_loss`.

    Args:
        texts: all texts of the training.
        pairs: (P, 2) rows of texts.
        held_out: rows that are not trained on; pairs with one of them are for measuring only.
        teacher: (texts, d) the teacher's embeddings.
        same: (texts,) a number for each text, the same for equal texts.
        count: pairs per batch.
        seed: of the choice of pairs.

    Raises:
        InputError: fewer than two pairs to learn.
    """

    def __init__(
        self,
        texts: PackedTexts,
        pairs: NDArray[np.int64],
        held_out: NDArray[np.int64],
        teacher: NDArray[np.float16],
        same: NDArray[np.int64],
        count: int,
        seed: int,
    ) -> None:
        super().__init__()
        apart = np.isin(pairs, held_out).any(1)
        self.pairs, self.held_out_pairs = pairs[~apart], pairs[apart][:MEASURED_PAIRS]
        if len(self.pairs) < 2:
            raise InputError(f"pairs must be at least 2, got {len(self.pairs)}; give a fair source of pairs (.jsonl)")
        self.texts, self.teacher, self.same = texts, teacher, same
        self.count = min(count, len(self.pairs))
        self.seed = seed

    def more_texts(self, batch: Batch) -> tuple[Tensor, list[int]]:
        """Return the step's first texts, followed by their partners."""
        generator = np.random.default_rng([self.seed, 6, batch.step])
        self._drawn = self.pairs[generator.choice(len(self.pairs), self.count, replace=False)]
        return self.texts.batch(self._drawn.T.flatten())

    def loss(self, batch: Batch, student: Tensor, more: Tensor) -> Tensor:
        """Return contrast plus ranking, averaged over the pairs."""
        first, second = (
            F.normalize(torch.from_numpy(self.teacher[rows].astype(np.float32)), dim=1).to(more.device)
            for rows in self._drawn.T
        )
        same = self.same[self._drawn]
        alike = (same[:, :1] == same[:, 0]) | (same[:, 1:] == same[:, 1])
        np.fill_diagonal(alike, False)
        of_first, of_second = more[: self.count], more[self.count :]
        return contrast_loss(of_first, of_second, torch.from_numpy(alike).to(more.device), first @ second.T)

    def measures(self, embed: Callable[[Tensor, list[int]], Tensor]) -> dict[str, float]:
        """Return the share of held-out texts that are at least as close to their own partner as to any other."""
        if len(self.held_out_pairs) < 2:
            return {}
        first, second = (F.normalize(embed(*self.texts.batch(rows)), dim=1) for rows in self.held_out_pairs.T)
        cosines = first @ second.T
        return {"held_out_pairs_found": float((cosines.max(1).values <= cosines.diagonal()).float().mean())}


class SecondTeacher(Objective):
    """Learn a second teacher's embeddings, rotated, of the texts that it has embedded.

    Args:
        texts: all texts of the training.
        rows: (n,) numbers of the texts that it has embedded, ascending.
        embeddings: (n, d) its embeddings.
        rotation: (d, m).
        held_out: rows that are not trained on.
        relation_weight: weight of :func:`relation_loss`.
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
        self.places = np.full(len(texts), -1)
        self.places[rows] = np.arange(len(rows))
        self.held_out = held_out[self.places[held_out] >= 0]
        self.relation_weight = relation_weight

    def _teacher(self, rows: NDArray[np.int64]) -> Tensor:
        return F.normalize(torch.from_numpy(self.embeddings[self.places[rows]].astype(np.float32)), dim=1)

    def loss(self, batch: Batch, student: Tensor, more: Tensor) -> Tensor:
        """Return 1 - cos plus weighted squared differences of cosines, averaged over the texts that it has embedded."""
        known = np.flatnonzero(self.places[batch.rows] >= 0)
        if len(known) < 2:
            return student.sum() * 0
        embedded, teacher = student[torch.from_numpy(known)], self._teacher(batch.rows[known]).to(student.device)
        loss = similarity_loss(embedded, teacher @ self.rotation.to(student.device))
        return loss + self.relation_weight * relation_loss(embedded, teacher)

    def measures(self, embed: Callable[[Tensor, list[int]], Tensor]) -> dict[str, float]:
        """Return the mean of 1 - cos to its rotated embeddings, over the held-out texts that it has embedded."""
        if not len(self.held_out):
            return {}
        student = torch.cat([embed(*self.texts.batch(part)) for part in np.array_split(self.held_out, 4)])
        return {
            "held_out_second_distance": float(similarity_loss(student, self._teacher(self.held_out) @ self.rotation))
        }
