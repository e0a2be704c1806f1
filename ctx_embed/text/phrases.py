"""Entries of a vocabulary that stand for several words: neighbouring ids merged after tokenizing."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ctx_embed.errors import InputError

# What a WordPiece entry begins with that continues a word.
CONTINUED = "##"


def merged(
    ids: NDArray[np.int32], lengths: NDArray[np.int64], keys: NDArray[np.int64], values: NDArray[np.int32], width: int
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Replace pairs of ids in packed texts, in one pass from left to right: a pair that is a key becomes its value.

    Args:
        ids: (N,) of texts one after the other.
        lengths: (B,) their numbers of ids, whose sum is N.
        keys: (P,) ascending, ``first * width + second`` of each pair.
        values: (P,) the id that takes the pair's place.
        width: more than any id.

    Returns:
        The ids and lengths after it. Where pairs overlap, the left one is merged.
    """
    pairs = ids[:-1].astype(np.int64) * width + ids[1:]
    place = np.searchsorted(keys, pairs).clip(max=len(keys) - 1)
    found = keys[place] == pairs
    ends = lengths.cumsum()
    found[ends[(ends > 0) & (ends < len(ids))] - 1] = False  # no pair reaches into the next text
    at = np.flatnonzero(found)
    if not len(at):
        return ids, lengths
    # Of pairs that overlap in a chain, every second one is merged, from the first on.
    begins = np.concatenate([[True], np.diff(at) > 1])
    chain = np.maximum.accumulate(np.where(begins, np.arange(len(at)), 0))
    at = at[(np.arange(len(at)) - chain) % 2 == 0]
    result = ids.copy()
    result[at] = values[place[at]]
    kept = np.ones(len(ids), dtype=bool)
    kept[at + 1] = False
    removed = np.bincount(np.searchsorted(ends, at, side="right"), minlength=len(lengths))
    return result[kept], lengths - removed


class Phrases:
    """Pairs of entries that are entries themselves, and so on: phrase p of ``pairs`` has the id ``entries + p``.

    Pairs of single entries are merged in one pass over a text from left to right, then pairs of what these gave, and
    so on: what a text becomes depends on nothing but the text.

    Args:
        pairs: (P, 2) ids of the parts, entries or phrases of a lower number, no pair twice.
        entries: of the tokenizer.

    Raises:
        InputError: another shape, a part that is no entry or earlier phrase, or a pair that occurs twice.
    """

    def __init__(self, pairs: ArrayLike, entries: int) -> None:
        # A copy: share_memory() frees the memory of the torch buffer that a view would read.
        self.pairs: NDArray[np.int32] = np.asarray(pairs, dtype=np.int32).copy()
        self.entries = entries
        if self.pairs.ndim != 2 or self.pairs.shape[1] != 2 or not len(self.pairs):
            raise InputError(f"phrases must have shape (phrases, 2) with at least one phrase, got {self.pairs.shape}")
        numbers = entries + np.arange(len(self.pairs), dtype=np.int32)
        wrong = np.flatnonzero(((self.pairs < 0) | (self.pairs >= numbers[:, None])).any(1))
        if len(wrong):
            part = self.pairs[wrong[0]].tolist()
            raise InputError(
                f"phrase {wrong[0]} is {part}: its parts must be entries below {entries} or phrases before it"
            )
        self._width = entries + len(self.pairs)
        keys = self.pairs[:, 0].astype(np.int64) * self._width + self.pairs[:, 1]
        if len(np.unique(keys)) < len(keys):
            raise InputError("a pair occurs twice among the phrases")
        depths = [0] * entries
        for first, second in self.pairs.tolist():
            depths.append(1 + max(depths[first], depths[second]))
        levels = np.array(depths[entries:])
        self._passes: list[tuple[NDArray[np.int64], NDArray[np.int32]]] = []
        for level in range(1, int(levels.max()) + 1):
            of_level = np.flatnonzero(levels == level)
            of_level = of_level[np.argsort(keys[of_level])]
            self._passes.append((keys[of_level], numbers[of_level]))

    def __len__(self) -> int:
        return len(self.pairs)

    def __call__(
        self, ids: NDArray[np.int32], lengths: NDArray[np.int64]
    ) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Merge packed texts; arguments and result as those of :func:`merged`."""
        for keys, values in self._passes:
            if len(ids) > 1:
                ids, lengths = merged(ids, lengths, keys, values, self._width)
        return ids, lengths

    def sizes(self) -> NDArray[np.int64]:
        """Return how many ids of the tokenizer each id stands for, (entries + P,)."""
        sizes = [1] * self.entries
        for first, second in self.pairs.tolist():
            sizes.append(sizes[first] + sizes[second])
        return np.array(sizes, np.int64)

    def junctions(self) -> set[tuple[int, int]]:
        """Return the pairs of single entries at which the parts of a phrase meet: between others none is merged."""
        first, last = list(range(self.entries)), list(range(self.entries))
        found = set()
        for left, right in self.pairs.tolist():
            found.add((last[left], first[right]))
            first.append(first[left])
            last.append(last[right])
        return found

    def texts(self, entries: list[str]) -> list[str]:
        """Return the words of each phrase, given the texts of the entries by id; ``##`` continues a word."""
        known = list(entries)
        for first, second in self.pairs.tolist():
            text = known[second]
            joined = text.removeprefix(CONTINUED) if text.startswith(CONTINUED) else f" {text}"
            known.append(known[first] + joined)
        return known[self.entries :]
