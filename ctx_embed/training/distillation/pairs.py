"""What a student learns from pairs: to find a text's partner, and to tell it from similar words of other meaning."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from ctx_embed.errors import InputError
from ctx_embed.text.tokenizer import TextTokenizer
from ctx_embed.training.batches import PackedTexts, held_out, numbered
from ctx_embed.training.distillation.objectives import Batch, Embed, Objective

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


def contrast_loss(first: Tensor, second: Tensor, teacher: Tensor, known: Tensor | None = None) -> Tensor:
    """Return how well texts find their partners: the contrast in the batch, and the teacher's ranking of the batch.

    The contrast is InfoNCE (van den Oord et al. 2018) of each text (B, m) among the other side's, in both directions.
    To it KL(softmax(S_teacher / 0.05) || softmax(S / 0.05)) is added, among the pairs ``known`` (n,) to the teacher.
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
    """Return the text without its first negation after an auxiliary verb, or with one added if it has none.

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
    """Return texts, partners and contrasts of pairs (P, 2): known contradictions (Q, 2), and the texts negated."""
    contradictions = {texts[first]: texts[second] for first, second in opposed.tolist()}
    found = []
    for first, second in pairs.tolist():
        text, partner = texts[first], texts[second]
        if max(len(text.split()), len(partner.split())) > MOST_WORDS:
            continue
        found += [(text, partner, contrast) for contrast in (contradictions.get(text), negated(text)) if contrast]
    return found


class Contrasts(Objective):
    """Move a text nearer to one of the same meaning than to one of similar words and another meaning.

    Loss: the mean of log(1 + exp((cos(text, contrast) - cos(text, partner)) / 0.1)), over ``count`` triples of text,
    partner and contrast a batch. A twentieth of them is held out.
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

    def measures(self, embed: Embed) -> dict[str, float]:
        """Return the share of held-out triples whose text is nearer to its partner than to its contrast."""
        return {"held_out_contrasts": float((self._margins(embed(*self._batch(self.held_out))) > 0).float().mean())}
