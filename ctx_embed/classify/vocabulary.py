"""Words and pairs of neighbouring words as features of texts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

# A word, or one character that is neither part of a word nor white space.
WORD = re.compile(r"\w+|[^\w\s]")
# Features occur in at least this many training texts.
LEAST_TEXTS = 2

Integers = NDArray[np.int64]


class Vocabulary:
    """Words in lower case and pairs of neighbouring words: feature i is word i, and the pairs follow the words.

    In a text of n words, the value of a feature is its count / sqrt(2 n). So a long text does not outweigh a short one,
    and the value does not depend on which other words are known.

    Args:
        words: different words.
        pairs: (pairs, 2) places of words, in ascending order.
    """

    def __init__(self, words: Sequence[str], pairs: NDArray[Any]) -> None:
        self.words = list(words)
        self.pairs = pairs.astype(np.int64)

    def __len__(self) -> int:
        return len(self.words) + len(self.pairs)

    @classmethod
    def learn(cls, texts: Sequence[str], most: int) -> Vocabulary:
        """Return the words and pairs that occur in at least two different texts, the ``most`` frequent of them."""
        texts = list(dict.fromkeys(texts))
        # In the order of first occurrence, since that of a set differs from process to process.
        counts = Counter(chain.from_iterable(dict.fromkeys(words_of(text)) for text in texts))
        words, frequency = zip(*counts.most_common(most), strict=True) if counts else ((), ())
        common = cls(words[: sum(count >= LEAST_TEXTS for count in frequency)], np.empty((0, 2)))
        _, rows, keys, _ = common._tokens(texts)
        # A pair counts once for each text.
        squared = max(1, len(common)) ** 2
        keys, texts_with = np.unique(np.unique(rows * squared + keys) % squared, return_counts=True)
        keys, texts_with = keys[texts_with >= LEAST_TEXTS], texts_with[texts_with >= LEAST_TEXTS]
        whole = cls(common.words, np.stack(np.divmod(keys, max(1, len(common))), axis=1))
        order = np.argsort(-np.concatenate([frequency[: len(common)], texts_with]), kind="stable")
        return whole.part(np.sort(order[:most]))[0]

    def part(self, features: Integers) -> tuple[Vocabulary, Integers]:
        """Return the vocabulary of some features and of the words in their pairs; and all their numbers in this one.

        Args:
            features: numbers in ascending order.
        """
        words = len(self.words)
        pairs = self.pairs[features[features >= words] - words]
        needed = np.union1d(features[features < words], pairs)
        part = Vocabulary([self.words[place] for place in needed], np.searchsorted(needed, pairs))
        return part, np.concatenate([needed, features[features >= words]])

    def name(self, feature: int) -> str:
        """Return a feature as text: a word, or two."""
        words = len(self.words)
        return " ".join(self.words[place] for place in ([feature] if feature < words else self.pairs[feature - words]))

    def occurrences(self, texts: Sequence[str]) -> tuple[Integers, Integers, NDArray[np.float64]]:
        """Return each occurrence of a feature in the texts: the text's number, the feature's, and 1 / sqrt(2 n)."""
        words, rows, keys, lengths = self._tokens(texts)
        known = words >= 0
        pairs = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        paired = self.keys[pairs] == keys if len(self.keys) else np.zeros(len(keys), bool)
        rows = np.concatenate([np.repeat(np.arange(len(texts)), lengths)[known], rows[paired]])
        features = np.concatenate([words[known], len(self.words) + pairs[paired]])
        return rows, features, 1 / np.sqrt(2.0 * lengths[rows])

    def matrix(self, texts: Sequence[str]) -> Any:
        """Return the features of the texts as a scipy.sparse CSR array (texts, features) of float32."""
        from scipy.sparse import coo_array

        rows, features, values = self.occurrences(texts)
        return coo_array((values.astype(np.float32), (rows, features)), (len(texts), len(self))).tocsr()

    def sums(self, texts: Sequence[str], weight: NDArray[Any]) -> NDArray[np.float64]:
        """Return the sums of the features of each text times their weights (features, classes): (texts, classes)."""
        rows, features, values = self.occurrences(texts)
        columns = [np.bincount(rows, of_class[features] * values, len(texts)) for of_class in weight.T]
        return np.stack(columns, axis=1)

    def _tokens(self, texts: Sequence[str]) -> tuple[Integers, Integers, Integers, Integers]:
        """Return the place of each word of the texts (-1: unknown); of each pair of known words its text's number and
        its key; and the number of words of each text.
        """
        found = [words_of(text) for text in texts]
        lengths = np.fromiter(map(len, found), np.int64, len(found))
        words = np.fromiter(map(self._place.get, chain.from_iterable(found), repeat(-1)), np.int64, lengths.sum())
        rows = np.repeat(np.arange(len(texts)), lengths)
        paired = np.flatnonzero((words[:-1] >= 0) & (words[1:] >= 0) & (rows[:-1] == rows[1:]))
        return words, rows[paired], words[paired] * len(self.words) + words[paired + 1], lengths

    @cached_property
    def _place(self) -> dict[str, int]:
        return {word: place for place, word in enumerate(self.words)}

    @cached_property
    def keys(self) -> Integers:
        """The pairs as numbers, in ascending order."""
        keys: Integers = self.pairs[:, 0] * len(self.words) + self.pairs[:, 1]
        return keys


@dataclass(frozen=True, eq=False)
class Words:
    """Words and pairs with their weights.

    Args:
        vocabulary: the words and pairs.
        weight: (features of the vocabulary, classes).
    """

    vocabulary: Vocabulary
    weight: NDArray[Any]

    def __len__(self) -> int:
        return len(self.vocabulary)

    def logits(self, texts: Sequence[str]) -> NDArray[np.float64]:
        """Return the part of the outputs that the words make, (texts, classes)."""
        return self.vocabulary.sums(texts, self.weight)


def words_of(text: str) -> list[str]:
    """Return the words of a text in lower case, and its punctuation marks."""
    found: list[str] = WORD.findall(text.lower())
    return found
