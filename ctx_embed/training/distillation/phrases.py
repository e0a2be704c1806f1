"""Learning which neighbouring words become entries of their own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from ctx_embed.errors import InputError
from ctx_embed.text.phrases import Phrases
from ctx_embed.text.tokenizer import TextTokenizer

# The first part of all phrases joins two words; the rest joins these into longer ones ("do n't" and "one of the").
FIRST_SHARE = 0.7
# A rarer phrase has too few texts to learn from.
FEWEST = 20
APOSTROPHE = "'"


def _joinable(entries: Sequence[str]) -> NDArray[np.bool_]:
    """Return which entries are whole words, or the apostrophe between them."""
    return np.array([entry == APOSTROPHE or entry.isalpha() for entry in entries])


def _strongest(
    ids: NDArray[np.int32], lengths: NDArray[np.int64], joinable: NDArray[np.bool_], count: int
) -> NDArray[np.int32]:
    """Return the (<= count, 2) pairs of neighbours that occur most often beyond chance, strongest first.

    A pair's strength is n log(n N / (n_first n_second)), the leading term of the log-likelihood ratio (Dunning 1993).
    """
    width = len(joinable)
    both = joinable[ids[:-1]] & joinable[ids[1:]]
    ends = lengths.cumsum()
    both[ends[(ends > 0) & (ends < len(ids))] - 1] = False
    keys, counts = np.unique(ids[:-1][both].astype(np.int64) * width + ids[1:][both], return_counts=True)
    keys, counts = keys[counts >= FEWEST], counts[counts >= FEWEST]
    occurs = np.bincount(ids, minlength=width).astype(np.float64)
    first, second = keys // width, keys % width
    strength = counts * np.log(counts * len(ids) / (occurs[first] * occurs[second]))
    best = np.argsort(-strength, kind="stable")[:count]
    return np.stack([first, second], axis=1)[best].astype(np.int32)


def learn_phrases(texts: Sequence[str], tokenizer: Tokenizer, count: int) -> NDArray[np.int32] | None:
    """Return the pairs of a :class:`ctx_embed.text.phrases.Phrases`: frequent phrases of two to four words.

    Args:
        texts: the corpus.
        tokenizer: its entries that are whole words are joined.
        count: the most phrases to learn; 0 learns none.

    Returns:
        (<= count, 2) ids; None if there are none.

    Raises:
        InputError: a negative count.
    """
    if count < 0:
        raise InputError(f"phrases must be at least 0, got {count}")
    vocabulary = tokenizer.get_vocab()
    joinable = _joinable(sorted(vocabulary, key=vocabulary.__getitem__))
    ids, lengths = TextTokenizer(tokenizer)(texts)
    first = round(FIRST_SHARE * count)
    pairs = np.zeros((0, 2), dtype=np.int32)
    for more in (first, count - first):
        if len(ids) < 2 or more == 0:
            break
        found = _strongest(ids, lengths, joinable, more)
        if not len(found):
            break
        pairs = np.concatenate([pairs, found])
        joinable = np.concatenate([joinable, np.ones(len(found), dtype=bool)])
        ids, lengths = Phrases(pairs, len(vocabulary))(*TextTokenizer(tokenizer)(texts))
    return pairs if len(pairs) else None
