"""Learning which neighbouring entries become entries of their own: phrases, and words that fall into pieces."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from ctx_embed.text.phrases import CONTINUED, Phrases
from ctx_embed.text.tokenizer import TextTokenizer

# This share of the phrases, learned first, joins two words; the rest also joins such phrases ("do n't", "one of the").
FIRST_SHARE = 0.7
# A phrase must occur at least this often: rarer ones have too few texts to learn from.
FEWEST = 20
# For a whole word fewer occurrences suffice, since it is initialised as the sum of its pieces.
FEWEST_PIECES = 10
APOSTROPHE = "'"
# Of the phrases that are added to a model, this share joins the pieces of words, in rounds that each add a piece. The
# others begin with a negation, since the sum of two words cannot have the meaning of a negated word.
PIECES_SHARE = 0.8
PIECES_ROUNDS = (0.7, 0.2, 0.1)
NEGATIONS = frozenset({"not", "no", "never", "nothing", "nobody", "none", "neither", "nor", "without", "hardly", "t"})


def _strongest(
    ids: NDArray[np.int32],
    lengths: NDArray[np.int64],
    first: NDArray[np.bool_],
    second: NDArray[np.bool_],
    count: int,
    fewest: int = FEWEST,
    before: NDArray[np.bool_] | None = None,
) -> NDArray[np.int32]:
    """Return the (<= count, 2) pairs of neighbours that occur most often beyond chance, strongest first.

    A pair's strength is n log(n N / (n_first n_second)), the leading term of the log-likelihood ratio (Dunning 1993).
    Its entries are among ``first`` and ``second`` (entries,). A pair that one of ``before`` follows, a continuation,
    ends within a word and is left out.
    """
    width = len(first)
    both = first[ids[:-1]] & second[ids[1:]]
    ends = lengths.cumsum()
    both[ends[(ends > 0) & (ends < len(ids))] - 1] = False
    if before is not None:
        both[:-1] &= ~before[ids[2:]]
    keys, counts = np.unique(ids[:-1][both].astype(np.int64) * width + ids[1:][both], return_counts=True)
    keys, counts = keys[counts >= fewest], counts[counts >= fewest]
    occurs = np.bincount(ids, minlength=width).astype(np.float64)
    left, right = keys // width, keys % width
    strength = counts * np.log(counts * len(ids) / (occurs[left] * occurs[right]))
    best = np.argsort(-strength, kind="stable")[:count]
    return np.stack([left, right], axis=1)[best].astype(np.int32)


def learn_phrases(
    texts: Sequence[str], tokenizer: Tokenizer, count: int, fewest: int = FEWEST
) -> NDArray[np.int32] | None:
    """Return the pairs (<= count, 2) of a :class:`ctx_embed.text.phrases.Phrases`, or None: two to four whole words."""
    vocabulary = tokenizer.get_vocab()
    # Whole words, and the apostrophe between them.
    entries = sorted(vocabulary, key=vocabulary.__getitem__)
    joinable = np.array([entry == APOSTROPHE or entry.isalpha() for entry in entries])
    ids, lengths = TextTokenizer(tokenizer)(texts)
    first = round(FIRST_SHARE * count)
    pairs = np.zeros((0, 2), dtype=np.int32)
    for more in (first, count - first):
        if len(ids) < 2 or more == 0:
            break
        found = _strongest(ids, lengths, joinable, joinable, more, fewest)
        if not len(found):
            break
        pairs = np.concatenate([pairs, found])
        joinable = np.concatenate([joinable, np.ones(len(found), dtype=bool)])
        ids, lengths = Phrases(pairs, len(vocabulary))(*TextTokenizer(tokenizer)(texts))
    return pairs if len(pairs) else None


def more_phrases(
    texts: Sequence[str], tokenizer: Tokenizer, known: NDArray[np.int32] | None, count: int
) -> NDArray[np.int32] | None:
    """Return a model's phrases and up to ``count`` more, learned from texts: words in pieces, and negated words.

    A word that the tokenizer cuts, as "metasta ##sis", becomes one entry without another tokenizer. The phrases that
    are ``known`` (P, 2) come first, in the same order.
    """
    vocabulary = tokenizer.get_vocab()
    entries = sorted(vocabulary, key=vocabulary.__getitem__)
    pairs = np.zeros((0, 2), dtype=np.int32) if known is None else known
    packed = TextTokenizer(tokenizer)(texts)
    for kind, share in [*(("pieces", PIECES_SHARE * share) for share in PIECES_ROUNDS), ("negated", 1 - PIECES_SHARE)]:
        if len(packed[0]) < 2 or not count:
            break
        named, (ids, lengths) = entries, packed
        if len(pairs):
            phrases = Phrases(pairs, len(entries))
            named, (ids, lengths) = entries + phrases.texts(entries), phrases(*packed)
        piece = np.array([text.startswith(CONTINUED) for text in named])
        word = ~piece & np.array([text.replace(" ", "").replace(APOSTROPHE, "a").isalpha() for text in named])
        negated = word & np.array([text.rpartition(" ")[2] in NEGATIONS for text in named])
        if kind == "pieces":
            found = _strongest(ids, lengths, word, piece, round(share * count), FEWEST_PIECES)
        else:
            # Leave out pairs that a piece follows: their second word is only the beginning of a word.
            found = _strongest(ids, lengths, negated, word & ~negated, round(share * count), FEWEST, piece)
        pairs = np.concatenate([pairs, found])
    return pairs if len(pairs) else None
