"""Tokenized texts packed into one array, and seeded batches of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ctx_embed.text.tokenizer import TextTokenizer

# Rows are sorted by length within pools of this many batches.
POOL_BATCHES = 50


@dataclass(frozen=True)
class PackedTexts:
    """Token ids (N,) of concatenated texts, and the start of each text, (texts + 1,)."""

    ids: NDArray[np.int32]
    offsets: NDArray[np.int64]

    @classmethod
    def tokenize(cls, tokenizer: TextTokenizer, texts: Sequence[str]) -> PackedTexts:
        """Pack the tokens of ``texts``."""
        ids, lengths = tokenizer(texts)
        return cls(ids, np.concatenate([[0], lengths.cumsum()]))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def batch(self, rows: NDArray[np.int64]) -> tuple[Tensor, list[int]]:
        """Return the concatenated ids of the texts ``rows``, (tokens,) int64, and their lengths."""
        lengths = self.offsets[rows + 1] - self.offsets[rows]
        return torch.from_numpy(self.ids[ranges(self.offsets[rows], lengths)].astype(np.int64)), lengths.tolist()


def ranges(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the concatenated ranges start, .., start + length - 1 of all ``starts`` and their ``lengths``."""
    return np.arange(lengths.sum()) + np.repeat(starts - (lengths.cumsum() - lengths), lengths)


def numbered(texts: Sequence[str]) -> NDArray[np.int64]:
    """Return a number for each text, (texts,), the same for equal texts."""
    numbers: dict[str, int] = {}
    return np.array([numbers.setdefault(text, len(numbers)) for text in texts], np.int64)


def held_out(
    order: NDArray[np.int64], same: NDArray[np.int64], count: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Split the rows of ``order`` into the first ``count``, or a few more, and the others; no text is on both sides.

    ``same`` numbers the texts of all rows, see :func:`numbered`.
    """
    if not count:
        return order[:0], order
    _, first, copies = np.unique(same[order], return_index=True, return_inverse=True)
    ranked = np.argsort(first)
    texts = np.searchsorted(np.bincount(copies)[ranked].cumsum(), count) + 1
    is_held_out = np.isin(copies, ranked[:texts])
    return order[is_held_out], order[~is_held_out]


def seeded_batches(count: int, batch_size: int, seed: int, epoch: int) -> Iterator[NDArray[np.int64]]:
    """Yield batches of rows 0..count-1, shuffled by seed and epoch; a last single row joins the batch before it."""
    order = np.random.default_rng([seed, epoch]).permutation(count)
    starts = list(range(0, count, batch_size))
    if len(starts) > 1 and count % batch_size == 1:
        starts.pop()
    for start, stop in zip(starts, [*starts[1:], count], strict=True):
        yield order[start:stop]


def like_length_batches(
    lengths: NDArray[np.int64], batch_size: int, seed: int, epoch: int
) -> Iterator[NDArray[np.int64]]:
    """Yield seeded batches of rows of similar length: rows are sorted by length within pools of batches."""
    batches: list[NDArray[np.int64]] = []
    drawn = list(seeded_batches(len(lengths), batch_size, seed, epoch))
    for start in range(0, len(drawn), POOL_BATCHES):
        pool = drawn[start : start + POOL_BATCHES]
        rows = np.concatenate(pool)
        by_length = rows[np.argsort(lengths[rows], kind="stable")]
        batches += np.split(by_length, np.cumsum([len(batch) for batch in pool])[:-1])
    for place in np.random.default_rng([seed, epoch, 2]).permutation(len(batches)):
        yield batches[place]
