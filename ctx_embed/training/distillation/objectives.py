"""What a student learns: its teachers' embeddings, its texts' words, labels, and to find a text's partner.

The loss of a batch is the sum of each objective's loss times its weight. An objective may ask for more texts to be
embedded with the batch, so that the student embeds all of them in one pass.
"""

import re
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from ctx_embed.errors import InputError, quoted
from ctx_embed.text.tokenizer import TextTokenizer
from ctx_embed.training.batches import PackedTexts, held_out, numbered, ranges

# Number of entries that ``Words`` predicts: the most frequent ones.
WORDS = 8000
# Maximum number of texts per batch whose words are predicted: each text needs a score for every word.
WORD_TEXTS = 64
# Number of labelled spans per batch, minimum and maximum tokens of a span, and maximum number of held-out texts.
LABEL_BATCH, SPAN_TOKENS, HELD_OUT_LABELLED = 64, (8, 64), 2048
FEWEST_TAUGHT = 100
# Maximum number of held-out pairs (or triples) to measure on.
MEASURED_PAIRS = 1000
# Temperature of the softmax over the texts of a batch.
RANKING_TEMPERATURE = 0.05
# Temperature of the loss on contrasts: it divides the difference between two cosines.
CONTRAST_TEMPERATURE = 0.1
FEWEST_TRIPLES = 40
# Verbs after which the word "not" negates a clause.
_AUXILIARIES = r"is|are|was|were|will|would|can|could|should|must|has|have|had|does|do|did|am|may|might"
_NOT = re.compile(
    rf"\b({_AUXILIARIES})\s+not\b|\b(is|are|was|were|would|could|should|has|have|had|does|do|did)n't\b", re.I
)
_PLAIN = re.compile(rf"\b({_AUXILIARIES})\b(?!\s+not\b)", re.I)
_SHORTENED = frozenset(
    {"is", "are", "was", "were", "would", "could", "should", "has", "have", "had", "does", "do", "did"}
)
MOST_WORDS = 30
# Embeds packed texts.
Embed = Callable[[Tensor, list[int]], Tensor]


@dataclass(frozen=True)
class Batch:
    """A batch of B texts.

    ``step`` counts from 0; ``rows`` are the texts' numbers and ``ids``, ``lengths`` their packed tokens. ``teacher``
    (B, d) are the teacher's embeddings, l2-normalised, and ``target`` (B, m) what the student should return.
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
    """Return the mean squared difference of all pairs' cosines in ``student`` (B, m) and in unit ``teacher`` (B, d)."""
    student = F.normalize(student, dim=1)
    return (student @ student.T - teacher @ teacher.T).square().mean()


class Words(Objective):
    """Predict from a text's embedding which of the most frequent entries it has; only for a batch's first texts.

    Loss: the mean over texts of the mean over their tokens of -log softmax(linear(c^K)) at the token. ``counts`` says
    how often each entry occurs in the corpus.
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
        """Return the cross-entropy of the words; texts without a frequent word do not count."""
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
        # Nothing can be learned from zero vectors.
        self.places[rows[~(embeddings != 0).any(axis=1)]] = -1
        self.held_out = held_out[self.places[held_out] >= 0]
        self.relation_weight = relation_weight

    def _teacher(self, rows: NDArray[np.int64]) -> Tensor:
        return F.normalize(torch.from_numpy(self.embeddings[self.places[rows]].astype(np.float32)), dim=1)

    def loss(self, batch: Batch, student: Tensor, more: Tensor) -> Tensor:
        """Return 1 - cos plus weighted squared differences of cosines, over texts that the second teacher embedded."""
        known = np.flatnonzero(self.places[batch.rows] >= 0)
        if len(known) < 2:
            return student.sum() * 0
        embedded = student[torch.from_numpy(known).to(student.device)]
        teacher = self._teacher(batch.rows[known]).to(student.device)
        loss = similarity_loss(embedded, teacher @ self.rotation.to(student.device))
        return loss + self.relation_weight * relation_loss(embedded, teacher)

    def measures(self, embed: Embed) -> dict[str, float]:
        """Return the mean of 1 - cos over the held-out texts that the second teacher has embedded."""
        if not len(self.held_out):
            return {}
        student = torch.cat([embed(*self.texts.batch(part)) for part in np.array_split(self.held_out, 4)])
        target = self._teacher(self.held_out) @ self.rotation
        return {"held_out_second_distance": float(similarity_loss(student, target.to(student.device)))}


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


class Labels(Objective):
    """Predict the labels of random spans of labelled texts from the last ``dimension`` dimensions.

    A span mostly has the sentiment of its review, and is as short as the sentences that users embed. Each label has
    equally many spans. ``seed`` chooses the held-out texts; copies of a text are held out together.
    """

    def __init__(
        self, dimension: int, tokenizer: TextTokenizer, labels: Sequence[str], texts: Sequence[str], seed: int
    ) -> None:
        super().__init__()
        classes = sorted(set(labels))
        self.head = LabelHead(dimension, len(classes))
        self.seed = seed
        self.packed = PackedTexts.tokenize(tokenizer, texts)
        index = {label: position for position, label in enumerate(classes)}
        self.targets = np.array([index[label] for label in labels])
        order = np.random.default_rng([seed, 1]).permutation(len(texts))
        self.held_out_rows, rows = held_out(order, numbered(texts), min(HELD_OUT_LABELLED, len(texts) // 10))
        self.rows_of_class = [rows[self.targets[rows] == target] for target in range(len(classes))]
        for label, rows in zip(classes, self.rows_of_class, strict=True):
            if not len(rows):
                raise InputError(
                    f"the label {quoted(label)} must have texts that are not held out, got none; give more texts"
                )

    def _spans(self, rows: NDArray[np.int64], generator: np.random.Generator) -> tuple[Tensor, list[int]]:
        begin, end = self.packed.offsets[rows], self.packed.offsets[rows + 1]
        length = np.minimum(generator.integers(SPAN_TOKENS[0], SPAN_TOKENS[1] + 1, len(rows)), end - begin)
        first = begin + (generator.random(len(rows)) * (end - begin - length + 1)).astype(np.int64)
        return torch.from_numpy(self.packed.ids[ranges(first, length)].astype(np.int64)), length.tolist()

    def more_texts(self, batch: Batch) -> tuple[Tensor, list[int]]:
        """Return the spans of the step."""
        generator = np.random.default_rng([self.seed, 2, batch.step])
        self._drawn = generator.integers(len(self.rows_of_class), size=LABEL_BATCH)
        rows = np.array([generator.choice(self.rows_of_class[target]) for target in self._drawn])
        return self._spans(rows, generator)

    def loss(self, batch: Batch, student: Tensor, more: Tensor) -> Tensor:
        """Return the cross-entropy of the spans."""
        return F.cross_entropy(self.head(more), torch.from_numpy(self._drawn).to(more.device))

    def measures(self, embed: Embed) -> dict[str, float]:
        """Return the accuracy on one span of each held-out text; these spans never change."""
        spans = self._spans(self.held_out_rows, np.random.default_rng([self.seed, 3]))
        right = self.head(embed(*spans)).argmax(1).cpu() == torch.from_numpy(self.targets[self.held_out_rows])
        return {"held_out_label_accuracy": float(right.float().mean())}


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

    It is fitted on those ``texts`` that are also in ``labelled``; ``labels`` are the labels of ``labelled``.
    """
    classes = {label: number for number, label in enumerate(sorted(set(labels)))}
    known = dict(zip(labelled, labels, strict=True))
    rows = np.array([row for row, text in enumerate(texts) if text in known], dtype=np.int64)
    if len(rows) < FEWEST_TAUGHT:
        raise InputError(
            f"each teacher must embed at least {FEWEST_TAUGHT} labelled texts for its labels, got {len(rows)}; "
            "make the labelled files a source, with second_texts for the second teacher"
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
    """Predict what a linear classifier over a teacher's embeddings predicts: ``probabilities`` (n, classes) of labels.

    ``places`` (texts,) is the row of each text in ``probabilities``, or -1.
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


def contrast_loss(first: Tensor, second: Tensor, teacher: Tensor, known: Tensor | None = None) -> Tensor:
    """Return the loss of finding each text's partner in the batch: a contrast plus a distance to the teacher's ranking.

    The contrast is InfoNCE (van den Oord et al. 2018) between ``first`` and ``second`` (B, m), in both directions.
    The distance is KL(softmax(S_teacher / 0.05) || softmax(S / 0.05)); the teacher has embedded the pairs ``known``.
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
    proportion to the square root of their size. Pairs (P, 2) with a row in ``held_out`` are measured, not trained on.
    The teacher's embeddings are 0 for texts that it has not embedded; equal texts have the same number in ``same``.
    A batch has at most ``count`` pairs: of pairs with the same first or the same second text, only one stays.
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
        is_held_out = np.isin(pairs, held_out).any(1)
        self.pairs, self.held_out_pairs = pairs[~is_held_out], pairs[is_held_out][:MEASURED_PAIRS]
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

    def more_texts(self, batch: Batch) -> tuple[Tensor, list[int]]:
        """Return the step's first texts, followed by their partners. The texts of each side all differ."""
        generator = np.random.default_rng([self.seed, 6, batch.step])
        half = self.count // 2
        counts = generator.multinomial(self.count - half, self.shares)
        counts[generator.choice(len(self.families), p=self.shares)] += half
        drawn = np.concatenate(
            [generator.permutation(rows)[:count] for rows, count in zip(self.families, counts, strict=True) if count]
        )
        for texts in self.same.T:
            drawn = drawn[np.unique(texts[drawn], return_index=True)[1]]
        self._drawn, self._known = self.pairs[drawn], np.flatnonzero(self.known[drawn])
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

    def measures(self, embed: Embed) -> dict[str, float]:
        """Return the share of held-out texts that are at least as close to their own partner as to any other."""
        if len(self.held_out_pairs) < 2:
            return {}
        first, second = (F.normalize(embed(*self.texts.batch(rows)), dim=1) for rows in self.held_out_pairs.T)
        cosines = first @ second.T
        return {"held_out_pairs_found": float((cosines.max(1).values <= cosines.diagonal()).float().mean())}


def negated(text: str) -> str | None:
    """Return the text without its first negation after an auxiliary verb; if it has none, with a negation added.

    Return None for a text without an auxiliary verb, a question, or a long text. About half of the added negations are
    shortened to n't; a hash of the text decides.
    """
    if len(text.split()) > MOST_WORDS or "?" in text:
        return None
    if found := _NOT.search(text):
        return text[: found.start()] + (found[1] or found[2]) + text[found.end() :]
    found = _PLAIN.search(text)
    if found is None:
        return None
    short = found[1].lower() in _SHORTENED and zlib.crc32(text.encode()) % 2 == 0
    return text[: found.start()] + found[1] + ("n't" if short else " not") + text[found.end() :]


def triples(texts: Sequence[str], pairs: NDArray[np.int64], opposed: NDArray[np.int64]) -> list[tuple[str, str, str]]:
    """Return triples of text, partner and contrast: ``pairs`` (P, 2) with contradictions (Q, 2) and negated texts."""
    contradictions = {texts[first]: texts[second] for first, second in opposed.tolist()}
    found = []
    for first, second in pairs.tolist():
        text, partner = texts[first], texts[second]
        if max(len(text.split()), len(partner.split())) > MOST_WORDS:
            continue
        found += [(text, partner, contrast) for contrast in (contradictions.get(text), negated(text)) if contrast]
    return found


class Contrasts(Objective):
    """Move a text nearer to a text of the same meaning than to a text of similar words and another meaning.

    Loss: the mean of log(1 + exp((cos(text, contrast) - cos(text, partner)) / 0.1)), over ``count`` triples of text,
    partner and contrast per batch. A twentieth of all triples is held out.
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
        """Return the mean loss of the step's triples."""
        return F.softplus(-self._margins(more) / CONTRAST_TEMPERATURE).mean()

    def measures(self, embed: Embed) -> dict[str, float]:
        """Return the share of held-out triples whose text is nearer to its partner than to its contrast."""
        return {"held_out_contrasts": float((self._margins(embed(*self._batch(self.held_out))) > 0).float().mean())}
