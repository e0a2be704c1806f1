"""What a student learns: its teacher's embeddings, and besides them labels, sources, partners and its own words.

The loss of a batch is the sum of each objective's loss times its weight. An objective may ask for more texts to be
embedded with the batch, so that all of them pass the student at once.
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

# Texts of a batch whose words are named: each costs a score for every word.
WORD_TEXTS = 64
# Held-out pairs among which partners are looked for.
MEASURED_PAIRS = 1000
# Of the softmax over the texts of a batch.
RANKING_TEMPERATURE = 0.05


@dataclass(frozen=True)
class Batch:
    """What is known of a batch of B texts.

    Attributes:
        step: of the training, from 0.
        rows: (B,) which texts they are.
        ids, lengths: their packed tokens.
        teacher: (B, d) the teacher's embeddings, l2-normalised.
        target: (B, m) what the student is to point to.
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
        """The packed tokens of texts to embed beside the batch; None: none."""
        return None

    @abstractmethod
    def loss(self, batch: Batch, student: Tensor, more: Tensor) -> Tensor:
        """The loss, a scalar.

        Args:
            batch: what the student read.
            student: (B, m) its embeddings.
            more: (texts, m) those of :meth:`more_texts`.
        """

    def measures(self, embed: Callable[[Tensor, list[int]], Tensor]) -> dict[str, float]:
        """Figures on texts that are held out."""
        return {}


def similarity_loss(student: Tensor, target: Tensor) -> Tensor:
    """mean(1 - cos(student, target)) of two (B, m)."""
    return (1 - F.cosine_similarity(student, target, dim=1)).mean()


def relation_loss(student: Tensor, teacher: Tensor) -> Tensor:
    """mean((S - S_teacher)^2), S the cosines between all pairs of the batch; (B, m) and l2-normalised (B, d)."""
    student = F.normalize(student, dim=1)
    return (student @ student.T - teacher @ teacher.T).square().mean()


class Similarity(Objective):
    """Point to where the rotated teacher points: :func:`similarity_loss`."""

    def loss(self, batch: Batch, student: Tensor, more: Tensor) -> Tensor:
        """1 - cos, averaged."""
        return similarity_loss(student, batch.target)


class Relations(Objective):
    """Keep the teacher's cosines between texts: :func:`relation_loss`."""

    def loss(self, batch: Batch, student: Tensor, more: Tensor) -> Tensor:
        """Squared differences of cosines, averaged."""
        return relation_loss(student, batch.teacher)


class Labels(Objective):
    """Name the label of spans of labelled texts from their embedding.

    Args:
        dimension: of :class:`ctx_embed.training.distillation.heads.LabelHead`.
        spans: where they are drawn from.
        count: spans of a batch.
    """

    def __init__(self, dimension: int, spans: LabelledSpans, count: int) -> None:
        super().__init__()
        self.head = LabelHead(dimension, len(spans.classes))
        self.spans = spans
        self.count = count

    def more_texts(self, batch: Batch) -> tuple[Tensor, list[int]]:
        """The spans of the step."""
        ids, lengths, self._targets = self.spans.draw(self.count, batch.step)
        return ids, lengths

    def loss(self, batch: Batch, student: Tensor, more: Tensor) -> Tensor:
        """Cross-entropy of the spans."""
        return self.head.loss(more, self._targets)

    def measures(self, embed: Callable[[Tensor, list[int]], Tensor]) -> dict[str, float]:
        """The accuracy on the held-out texts."""
        ids, lengths, targets = self.spans.held_out()
        predicted = self.head(embed(ids, lengths)).argmax(1)
        return {"held_out_label_accuracy": float((predicted == targets).float().mean())}


class Words(Objective):
    """Name the text's own frequent words from its embedding, for the first 64 texts of a batch.

    Args:
        dimension, counts, most: of :class:`ctx_embed.training.distillation.heads.WordHead`.
    """

    def __init__(self, dimension: int, counts: NDArray[np.int64], most: int) -> None:
        super().__init__()
        self.head = WordHead(dimension, counts, most)

    def loss(self, batch: Batch, student: Tensor, more: Tensor) -> Tensor:
        """Cross-entropy of the words."""
        lengths = batch.lengths[:WORD_TEXTS]
        return self.head.loss(student[:WORD_TEXTS], batch.ids[: sum(lengths)], lengths)


class Genres(Objective):
    """Name the family of files that a text came from.

    Args:
        dimension: of :class:`ctx_embed.training.distillation.heads.LabelHead`.
        genres: (texts,) numbers.
    """

    def __init__(self, dimension: int, genres: NDArray[np.int64]) -> None:
        super().__init__()
        self.head = LabelHead(dimension, int(genres.max()) + 1)
        self.genres = torch.from_numpy(genres)

    def loss(self, batch: Batch, student: Tensor, more: Tensor) -> Tensor:
        """Cross-entropy of the genres."""
        return self.head.loss(student, self.genres[torch.from_numpy(batch.rows)])


def contrast_loss(first: Tensor, second: Tensor, alike: Tensor, teacher: Tensor) -> Tensor:
    """Return how well texts find their partners: the contrast in the batch, and the teacher's ranking of the batch.

    The contrast is InfoNCE (van den Oord et al. 2018) of each text among the other side's, in both directions; to it
    KL(softmax(S_teacher / 0.05) || softmax(S / 0.05)) is added.

    Args:
        first, second: (B, m) embeddings of texts and of their partners.
        alike: (B, B) where a text and another's partner are no contrast, as both are the same text.
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
    """Lie nearer to the text that belongs to it, as a question to its answer: :func:`contrast_loss`.

    Args:
        texts: of the training.
        pairs: (P, 2) rows.
        held_out: rows that are not trained on: a pair of which a text is among them measures, and is not learned.
        teacher: (texts, d) the teacher's embeddings.
        same: (texts,) a number of each text, the same for equal texts.
        count: pairs of a batch.
        seed: of the draw.

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
            raise InputError(f"{len(self.pairs)} pairs are too few to learn from: give a fair source of pairs (.jsonl)")
        self.texts, self.teacher, self.same = texts, teacher, same
        self.count = min(count, len(self.pairs))
        self.seed = seed

    def more_texts(self, batch: Batch) -> tuple[Tensor, list[int]]:
        """The step's first texts, and then their partners."""
        generator = np.random.default_rng([self.seed, 6, batch.step])
        self._drawn = self.pairs[generator.choice(len(self.pairs), self.count, replace=False)]
        return self.texts.batch(self._drawn.T.flatten())

    def loss(self, batch: Batch, student: Tensor, more: Tensor) -> Tensor:
        """Contrast and ranking, averaged."""
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
        """The share of held-out texts to which no other's partner is nearer than their own."""
        if len(self.held_out_pairs) < 2:
            return {}
        first, second = (F.normalize(embed(*self.texts.batch(rows)), dim=1) for rows in self.held_out_pairs.T)
        cosines = first @ second.T
        return {"held_out_pairs_found": float((cosines.max(1).values <= cosines.diagonal()).float().mean())}


class SecondTeacher(Objective):
    """Give another teacher's embeddings, of those texts that it has embedded, under a rotation of its own.

    Args:
        texts: of the training.
        rows: (n,) the texts that it has embedded, ascending.
        embeddings: (n, d).
        rotation: (d, m).
        held_out: rows that are not trained on.
        relation_weight: of its cosines between the texts of a batch, see :func:`relation_loss`.
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
        """1 - cos and squared differences of cosines, averaged over the texts that it knows."""
        known = np.flatnonzero(self.places[batch.rows] >= 0)
        if len(known) < 2:
            return student.sum() * 0
        embedded, teacher = student[torch.from_numpy(known)], self._teacher(batch.rows[known]).to(student.device)
        loss = similarity_loss(embedded, teacher @ self.rotation.to(student.device))
        return loss + self.relation_weight * relation_loss(embedded, teacher)

    def measures(self, embed: Callable[[Tensor, list[int]], Tensor]) -> dict[str, float]:
        """The mean of 1 - cos to its rotated embeddings, over the held-out texts that it knows."""
        if not len(self.held_out):
            return {}
        student = torch.cat([embed(*self.texts.batch(part)) for part in np.array_split(self.held_out, 4)])
        return {
            "held_out_second_distance": float(similarity_loss(student, self._teacher(self.held_out) @ self.rotation))
        }
