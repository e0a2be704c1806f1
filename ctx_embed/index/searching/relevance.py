"""Relevance: the chance that a question without an answer among these passages would find nothing as good as a hit.

The best of N passages scores like a maximum, so the chance follows a Gumbel distribution:

    relevance = exp(-exp(-(DEVIATIONS * d + WORDS * share - PASSAGES * sqrt(2 ln(N + 3)) + BASE)))

d says how many standard deviations the cosine lies above that of unrelated questions, share is the share of the query's
words that the passage has, and the square root is how many deviations the best of N unrelated passages reaches (the 3
is for the smallest N). The four constants were fitted once, to questions asked to other collections of their field
(``benchmarks/unanswered.py --development``); only the mean and deviation of unrelated cosines belong to a model.

Source: Gumbel, Statistics of Extremes (1958).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from importlib.resources import files
from typing import Any, NamedTuple

import numpy as np

from ctx_embed.index.searching.bm25 import MOST_WORDS, content_words
from ctx_embed.index.storage.database import require_time
from ctx_embed.text.words import indexed

# Of ten questions without an answer, about two have a hit that is at least this relevant.
DEFAULT_RELEVANCE = 0.8
DEVIATIONS, WORDS, PASSAGES, BASE = 0.68, 1.9, 1.15, 1.82
# Longer texts are searched for words as they are.
LONG_TEXT = 50_000
# A model that can read fewer of the general questions has no relevance.
LEAST_QUESTIONS = 128
_ENDINGS = ("ing", "ies", "ed", "es", "s")
# The fewest letters of a word without its ending, and the most that a passage's word may have beyond them.
_LEAST_STEM, _MOST_ENDING = 3, 3


class Unrelated(NamedTuple):
    """The mean and the standard deviation of a model's cosines of unrelated questions; the deviation is above 0."""

    mean: float
    deviation: float

    @classmethod
    def of(cls, embed: Callable[[Sequence[str]], Any]) -> Unrelated | None:
        """Return those of the general questions in ``unanswered.txt``.

        Args:
            embed: returns the unit vectors (n, dimension) of n queries.

        Returns:
            None if the model can read too few of them, or gives all the same vector.
        """
        questions = (files("ctx_embed.index.searching") / "unanswered.txt").read_text(encoding="utf-8").splitlines()
        vectors = np.asarray(embed(questions), np.float32)
        vectors = vectors[vectors.any(axis=1)]
        if len(vectors) < LEAST_QUESTIONS:
            return None
        cosines = (vectors @ vectors.T)[np.triu_indices(len(vectors), 1)]
        deviation = float(cosines.std())
        return cls(float(cosines.mean()), deviation) if deviation > 0 else None

    def relevance(self, cosine: float, share: float, passages: int) -> float:
        """Return the relevance (0 to 1) of a hit.

        Args:
            cosine: that of the query and the passage.
            share: the share of the query's words that the passage has, see :func:`word_shares`.
            passages: the number of passages that were searched, at least 1.
        """
        height = DEVIATIONS * (cosine - self.mean) / self.deviation + WORDS * share + BASE
        height -= PASSAGES * math.sqrt(2 * math.log(passages + 3))
        # Beyond 50 the result is 0 or 1 to the last digit.
        return math.exp(-math.exp(-min(max(height, -50.0), 50.0)))


def word_shares(query: str, texts: Iterable[str]) -> list[float]:
    """Return for each text the share of the query's words that it has, in any form; function words do not count."""
    stems = {_stem(word.lower()) for word in content_words(query)[:MOST_WORDS]}
    if not stems:
        return [0.0 for _ in texts]
    shares = []
    for text in texts:
        require_time()
        # Reading a long text as it is indexed takes too long for a search.
        lowered = (indexed(text) if len(text) <= LONG_TEXT else text).lower()
        shares.append(sum(_has(lowered, stem) for stem in stems) / len(stems))
    return shares


def _stem(word: str) -> str:
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) >= len(ending) + _LEAST_STEM:
            return word[: -len(ending)]
    return word


def _has(text: str, stem: str) -> bool:
    """Return whether a word of a text begins with a stem and is hardly longer."""
    place = text.find(stem)
    while place >= 0:
        if not (place and text[place - 1].isalnum()):
            end = place + len(stem)
            after = text[end : end + _MOST_ENDING + 1]
            if len(after) <= _MOST_ENDING or not after.isalnum():
                return True
        place = text.find(stem, place + 1)
    return False
