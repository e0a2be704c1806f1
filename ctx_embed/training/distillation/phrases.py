"""Phrases: which neighbouring entries become entries of their own, and how their rows are trained.

In training, a phrase's row is the sum of its parts' rows and a row of its own. What is learned about a word thus serves
every phrase with it, and a rare phrase is initialised as its words. After training the sums are folded into the table,
so that a phrase costs one look-up.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F

from ctx_embed.modules.token_encoder import TokenEncoder
from ctx_embed.text.tokenizer import CONTINUED, Phrases, TextTokenizer
from ctx_embed.training.batches import ranges

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
    Its entries are among ``first`` and ``second`` (entries,). A pair before a continuation, one of ``before``,
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
    """Return pairs (<= count, 2) for :class:`ctx_embed.text.tokenizer.Phrases` of two to four words, or None."""
    vocabulary = tokenizer.get_vocab()
    # Whole words, and the apostrophe between them.
    entries = sorted(vocabulary, key=vocabulary.__getitem__)
    joinable = np.array([entry == APOSTROPHE or entry.isalpha() for entry in entries])
    reader = TextTokenizer(tokenizer)
    ids, lengths = reader(texts)
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
        reader.phrases = Phrases(pairs, len(vocabulary))
        ids, lengths = reader(texts)
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
    reader = TextTokenizer(tokenizer)
    for kind, share in [*(("pieces", PIECES_SHARE * share) for share in PIECES_ROUNDS), ("negated", 1 - PIECES_SHARE)]:
        named = entries
        if len(pairs):
            reader.phrases = Phrases(pairs, len(entries))
            named = entries + reader.phrases.texts(entries)
        ids, lengths = reader(texts)
        if len(ids) < 2 or not count:
            break
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


class Composition:
    """Maps each entry to the rows that it sums: its own row and, for a phrase, the rows of its parts.

    While the encoder is trained, its table stores own rows only.
    """

    def __init__(self, encoder: TokenEncoder) -> None:
        self.encoder = encoder
        # The numbers of the own rows that each entry sums: its own, and all those that its parts sum.
        summed = [[entry] for entry in range(encoder.entries)]
        if encoder.phrases is not None:
            words = encoder.backend_tokenizer.get_vocab_size()
            for phrase, (first, second) in enumerate(encoder.phrases.tolist(), words):
                summed[phrase] += summed[first] + summed[second]
        self.summed = np.array([row for rows in summed for row in rows])
        self.offsets = np.concatenate([[0], np.cumsum([len(rows) for rows in summed])])

    def _summed(self, entries: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the rows that each entry sums, entry by entry, and where each entry's rows begin."""
        counts = self.offsets[entries + 1] - self.offsets[entries]
        return self.summed[ranges(self.offsets[entries], counts)], counts.cumsum() - counts

    def used(self, ids: Tensor) -> Tensor:
        """Return the numbers of all rows that the rows of these ids sum, ascending, each once."""
        entries = np.unique(ids.cpu().numpy())
        return torch.from_numpy(np.unique(self._summed(entries)[0])).to(ids.device)

    def rows(self, entries: Tensor, used: Tensor, own: Tensor) -> Tensor:
        """Return the summed rows (entries, m); ``own`` holds the rows ``used``."""
        summed, starts = self._summed(entries.cpu().numpy())
        places = torch.searchsorted(used, torch.from_numpy(summed).to(used.device))
        return F.embedding_bag(places, own, torch.from_numpy(starts).to(used.device), mode="sum")

    def embed(self, ids: Tensor, lengths: list[int], used: Tensor, own: Tensor) -> Tensor:
        """Return the packed texts' embeddings over composed rows; ``own`` (used, m) rows get the gradient."""
        entries, renumbered = torch.unique(ids, return_inverse=True)
        rows = self.rows(entries, used, own)
        if self.encoder.ids_may_be_renumbered:
            ids, table = renumbered, rows
        else:
            table = self.encoder.embedding.weight.detach().index_copy(0, entries, rows)
        offsets = torch.tensor([0, *lengths], device=ids.device).cumsum(0).to(torch.int32)
        features = {"input_ids": ids[None], "cu_seq_lens_q": offsets}
        embedded = functional_call(self.encoder, {"embedding.weight": table}, (features,))
        embeddings: Tensor = embedded["sentence_embedding"]
        return embeddings

    @torch.no_grad()
    def fold(self) -> None:
        """Put the sums into the encoder's table, for good."""
        if self.encoder.phrases is not None:
            table = self.encoder.embedding.weight
            every = torch.arange(len(table), device=table.device)
            table.copy_(self.rows(every, every, table))

    @contextmanager
    def folded(self) -> Iterator[None]:
        """Put the sums into the encoder's table within a ``with`` block."""
        own = self.encoder.embedding.weight.detach().clone()
        self.fold()
        try:
            yield
        finally:
            with torch.no_grad():
                self.encoder.embedding.weight.copy_(own)
