"""What a student learns: its teacher's embeddings, and optionally labels, sources, partners and its texts' words.

The loss of a batch is the sum of each objective's loss times its weight. An objective may ask for more texts to be
embedded with the batch, so that the student embeds all of them in one pass.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from ctx_embed.errors import InputError
from ctx_embed.text.tokenizer import TextTokenizer
from ctx_embed.training.batches import PackedTexts, held_out, numbered
from ctx_embed.training.distillation.loop.heads import LabelHead, WordHead
from ctx_embed.training.distillation.loop.labelled_spans import LabelledSpans

# Maximum number of texts per batch whose words are predicted: each text needs a score for every word.
WORD_TEXTS = 64
# Maximum number of held-out pairs (or triples) to measure on.
MEASURED_PAIRS = 1000
# Temperature of the softmax over the texts of a batch.
RANKING_TEMPERATURE = 0.05
# Temperature of the loss on contrasts: it divides the difference between two cosines.
CONTRAST_TEMPERATURE = 0.1
FEWEST_TRIPLES = 40


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


class Labels(Objective):
    """Predict the labels of spans of labelled texts from their embeddings.

    Args:
        dimension: see :class:`ctx_embed.training.distillation.loop.heads.LabelHead`.
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
        return self.head.loss(more, self._targets.to(more.device))

    def measures(self, embed: Callable[[Tensor, list[int]], Tensor]) -> dict[str, float]:
        """Return the accuracy on the held-out texts."""
        ids, lengths, targets = self.spans.held_out()
        predicted = self.head(embed(ids, lengths)).argmax(1).cpu()
        return {"held_out_label_accuracy": float((predicted == targets).float().mean())}


class Words(Objective):
    """Predict a text's frequent words from its embedding, for the first 64 texts of a batch.

    Args:
        dimension, counts: see :class:`ctx_embed.training.distillation.loop.heads.WordHead`.
    """

    def __init__(self, dimension: int, counts: NDArray[np.int64]) -> None:
        super().__init__()
        self.head = WordHead(dimension, counts)

    def loss(self, batch: Batch, student: Tensor, more: Tensor) -> Tensor:
        """Return the cross-entropy of the words."""
        lengths = batch.lengths[:WORD_TEXTS]
        return self.head.loss(student[:WORD_TEXTS], batch.ids[: sum(lengths)], lengths)


class Genres(Objective):
    """Predict the family of files that a text came from.

    Args:
        dimension: see :class:`ctx_embed.training.distillation.loop.heads.LabelHead`.
        genres: (texts,) numbers of the families.
    """

    def __init__(self, dimension: int, genres: NDArray[np.int64]) -> None:
        super().__init__()
        self.head = LabelHead(dimension, int(genres.max()) + 1)
        self.genres = torch.from_numpy(genres)

    def loss(self, batch: Batch, student: Tensor, more: Tensor) -> Tensor:
        """Return the cross-entropy of the genres."""
        return self.head.loss(student, self.genres[torch.from_numpy(batch.rows)].to(student.device))


def contrast_loss(first: Tensor, second: Tensor, teacher: Tensor, known: Tensor | None = None) -> Tensor:
    """Return how well texts find their partners: the contrast in the batch, and the teacher's ranking of the batch.

    The contrast is InfoNCE (van den Oord et al. 2018) of each text among the other side's, in both directions; to it
    KL(softmax(S_teacher / 0.05) || softmax(S / 0.05)) is added, among the pairs that the teacher knows.

    Args:
        first, second: (B, m) embeddings of different texts and of their partners, also different.
        teacher: (B, B) the teacher's cosines.
        known: (n,) the pairs of which it has embedded both texts; None: all.
    """
    own = torch.arange(len(first), device=first.device)
    cosines = F.normalize(first, dim=1) @ F.normalize(second, dim=1).T
    logits = cosines / RANKING_TEMPERATURE
    contrast = (F.cross_entropy(logits, own) + F.cross_entropy(logits.T, own)) / 2
    if known is not None:
        if len(known) < 2:
            return contrast
        teacher, cosines = teacher[known][:, known], cosines[known][:, known]
    ranked = (teacher / RANKING_TEMPERATURE).log_softmax(1)
    ranking = F.kl_div((cosines / RANKING_TEMPERATURE).log_softmax(1), ranked, log_target=True, reduction="batchmean")
    return contrast + ranking


class Partners(Objective):
    """Move texts closer to their partners, such as questions to their answers: :func:`contrast_loss`.

    Half of a batch's pairs come from one file family, where partners are harder to tell apart. Families are chosen in
    proportion to the square root of their size.

    Args:
        texts: all texts of the training.
        pairs: (P, 2) rows of texts.
        held_out: rows that are not trained on; pairs with one of them are for measuring only.
        teacher: (texts, d) the teacher's embeddings, 0 for texts that it has not embedded.
        same: (texts,) a number for each text, the same for equal texts.
        count: pairs per batch at most; a text that occurs again on its side is left out.
        seed: seed of the choice of pairs.
        families: (texts,) the number of each text's file family.

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
        families: NDArray[np.int64],
    ) -> None:
        super().__init__()
        apart = np.isin(pairs, held_out).any(1)
        self.pairs, self.held_out_pairs = pairs[~apart], pairs[apart][:MEASURED_PAIRS]
        if len(self.pairs) < 2:
            raise InputError(
                f"pairs must be at least 2, got {len(self.pairs)}; give a source of pairs that has `fair = true`"
            )
        self.texts, self.teacher, self.same = texts, teacher, same[self.pairs]
        self.count, self.seed = count, seed
        family = families[self.pairs[:, 0]]
        self.families = [np.flatnonzero(family == number) for number in np.unique(family)]
        roots = np.sqrt([len(rows) for rows in self.families])
        self.shares = roots / roots.sum()
        self.known: NDArray[np.bool_] = (teacher != 0).any(1)[self.pairs].all(1)

    def _draw(self, step: int) -> NDArray[np.int64]:
        """Return the numbers of a step's pairs, whose first texts all differ, and whose second texts all differ."""
        generator = np.random.default_rng([self.seed, 6, step])
        half = self.count // 2
        counts = generator.multinomial(self.count - half, self.shares)
        counts[generator.choice(len(self.families), p=self.shares)] += half
        drawn = np.concatenate(
            [generator.permutation(rows)[:count] for rows, count in zip(self.families, counts, strict=True) if count]
        )
        for texts in self.same.T:
            drawn = drawn[np.unique(texts[drawn], return_index=True)[1]]
        return drawn

    def more_texts(self, batch: Batch) -> tuple[Tensor, list[int]]:
        """Return the step's first texts, followed by their partners."""
        chosen = self._draw(batch.step)
        self._drawn, self._known = self.pairs[chosen], np.flatnonzero(self.known[chosen])
        return self.texts.batch(self._drawn.T.flatten())

    def loss(self, batch: Batch, student: Tensor, more: Tensor) -> Tensor:
        """Return contrast plus ranking, averaged over the pairs."""
        first, second = (
            F.normalize(torch.from_numpy(self.teacher[rows].astype(np.float32)), dim=1).to(more.device)
            for rows in self._drawn.T
        )
        of_first, of_second = more.chunk(2)
        known = torch.from_numpy(self._known).to(more.device)
        return contrast_loss(of_first, of_second, first @ second.T, known)

    def measures(self, embed: Callable[[Tensor, list[int]], Tensor]) -> dict[str, float]:
        """Return the share of held-out texts that are at least as close to their own partner as to any other."""
        if len(self.held_out_pairs) < 2:
            return {}
        first, second = (F.normalize(embed(*self.texts.batch(rows)), dim=1) for rows in self.held_out_pairs.T)
        cosines = first @ second.T
        return {"held_out_pairs_found": float((cosines.max(1).values <= cosines.diagonal()).float().mean())}


class Contrasts(Objective):
    """Move a text nearer to one of the same meaning than to one of similar words and another meaning.

    Loss: the mean of log(1 + exp((cos(text, contrast) - cos(text, partner)) / 0.1)).

    Args:
        tokenizer: the student's.
        triples: text, partner and contrast.
        count: triples per batch.
        seed: seed of the batches and of the held-out twentieth.

    Raises:
        InputError: fewer than forty triples.
    """

    def __init__(
        self, tokenizer: TextTokenizer, triples: Sequence[tuple[str, str, str]], count: int, seed: int
    ) -> None:
        super().__init__()
        if len(triples) < FEWEST_TRIPLES:
            raise InputError(
                f"the pairs must hold at least {FEWEST_TRIPLES} contrasts, got {len(triples)}; give more pairs"
            )
        self.texts = PackedTexts.tokenize(tokenizer, [text for triple in triples for text in triple])
        order = np.random.default_rng([seed, 7]).permutation(len(triples))
        same = numbered([text for text, _, _ in triples])
        self.held_out, self.rows = held_out(order, same, min(MEASURED_PAIRS, len(order) // 20))
        self.count, self.seed = min(count, len(self.rows)), seed

    def _batch(self, triples: NDArray[np.int64]) -> tuple[Tensor, list[int]]:
        return self.texts.batch((3 * triples[:, None] + np.arange(3)).T.flatten())

    @staticmethod
    def _margins(embeddings: Tensor) -> Tensor:
        text, partner, contrast = F.normalize(embeddings, dim=1).chunk(3)
        return (text * (partner - contrast)).sum(1)

    def more_texts(self, batch: Batch) -> tuple[Tensor, list[int]]:
        """Return the step's texts, then their partners, then their contrasts."""
        generator = np.random.default_rng([self.seed, 8, batch.step])
        return self._batch(generator.choice(self.rows, self.count, replace=False))

    def loss(self, batch: Batch, student: Tensor, more: Tensor) -> Tensor:
        """Return the soft ranking of partner before contrast."""
        return F.softplus(-self._margins(more) / CONTRAST_TEMPERATURE).mean()

    def measures(self, embed: Callable[[Tensor, list[int]], Tensor]) -> dict[str, float]:
        """Return the share of held-out triples whose text is nearer to its partner than to its contrast."""
        return {"held_out_contrasts": float((self._margins(embed(*self._batch(self.held_out))) > 0).float().mean())}


class TaughtLabels(Objective):
    """Predict the labels that a linear classifier reads from a teacher's embedding of each text.

    Args:
        head: predicts the labels from the student's embeddings.
        places: (texts,) the row of ``probabilities`` for each text; -1: it has none.
        probabilities: (n, classes) the classifier's predictions.
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


def places_of(rows: NDArray[np.int64], texts: int) -> NDArray[np.int64]:
    """Return the place of each text among ``rows``, or -1."""
    places = np.full(texts, -1)
    places[rows] = np.arange(len(rows))
    return places


class SecondTeacher(Objective):
    """Learn a second teacher's rotated embeddings of the texts that it has embedded.

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

    def measures(self, embed: Callable[[Tensor, list[int]], Tensor]) -> dict[str, float]:
        """Return the mean of 1 - cos to its rotated embeddings, over the held-out texts that it has embedded."""
        if not len(self.held_out):
            return {}
        student = torch.cat([embed(*self.texts.batch(part)) for part in np.array_split(self.held_out, 4)])
        target = self._teacher(self.held_out) @ self.rotation
        return {"held_out_second_distance": float(similarity_loss(student, target.to(student.device)))}
