"""Entries of a vocabulary that stand for several words: neighbouring ids merged after tokenizing."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ctx_embed.errors import InputError

# WordPiece's prefix of entries that continue a word.
CONTINUED = "##"
# Maximum number of tokenizer entries in a phrase. It bounds the passes over a text, each of which needs tables as long
# as the vocabulary.
LONGEST_PHRASE = 64
# Up to this many ids, a single text is merged in Python rather than in NumPy.
SHORT_TEXT = 64


class Pairs:
    """Pairs of ids, each with the id that replaces it.

    Args:
        pairs: (P, 2), no pair twice.
        values: (P,) the id that replaces each pair.
        width: a number above all ids.
    """

    def __init__(self, pairs: NDArray[np.int32], values: NDArray[np.int32], width: int) -> None:
        keys = pairs[:, 0].astype(np.int64) * width + pairs[:, 1]
        order = np.argsort(keys)
        # The last key is above all pairs, so that every search returns a valid index.
        self.keys = np.append(keys[order], np.iinfo(np.int64).max)
        self.values, self.width = np.append(values[order], 0), width
        self._first, self._second = (np.zeros(width, bool) for _ in range(2))
        self._first[pairs[:, 0]] = True
        self._second[pairs[:, 1]] = True

    def find(self, ids: NDArray[np.int32]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Return the positions in ids (N,) at which pairs start, ascending, and the id that replaces each pair."""
        # Most ids neither start nor end a pair; looking that up in a table is faster than a search.
        at = np.flatnonzero(self._first[ids[:-1]] & self._second[ids[1:]])
        keys = ids[at].astype(np.int64) * self.width + ids[at + 1]
        place = np.searchsorted(self.keys, keys)
        found = self.keys[place] == keys
        return at[found], self.values[place[found]]

    @cached_property
    def by_key(self) -> dict[int, int]:
        """The id that replaces each pair, by ``first * width + second``."""
        return dict(zip(self.keys.tolist(), self.values.tolist(), strict=True))

    def merged(self, ids: list[int]) -> list[int]:
        """Return the ids of one short text with its pairs replaced, as :func:`merged` does for many."""
        result: list[int] = []
        place, last, width, find = 0, len(ids) - 1, self.width, self.by_key.get
        while place <= last:
            found = find(ids[place] * width + ids[place + 1]) if place < last else None
            result.append(ids[place] if found is None else found)
            place += 1 if found is None else 2
        return result


def merged(
    ids: NDArray[np.int32], lengths: NDArray[np.int64], pairs: Pairs
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Replace pairs of ids in packed texts, in one pass from left to right.

    Args:
        ids: (N,) the texts' ids one after the other.
        lengths: (B,) the number of ids in each text; they sum to N.
        pairs: the pairs to replace.

    Returns:
        The new ids and lengths. Where pairs overlap, the left one is merged.
    """
    at, values = pairs.find(ids)
    if len(at):
        ends = lengths.cumsum()
        inside = ends[np.searchsorted(ends, at, side="right")] > at + 1  # no pair reaches into the next text
        at, values = at[inside], values[inside]
    if not len(at):
        return ids, lengths
    # In a chain of overlapping pairs, every second one is merged, starting with the first.
    begins = np.concatenate([[True], np.diff(at) > 1])
    chain = np.maximum.accumulate(np.where(begins, np.arange(len(at)), 0))
    first = (np.arange(len(at)) - chain) % 2 == 0
    at = at[first]
    result = ids.copy()
    result[at] = values[first]
    kept = np.ones(len(ids), dtype=bool)
    kept[at + 1] = False
    removed = np.bincount(np.searchsorted(ends, at, side="right"), minlength=len(lengths))
    return result[kept], lengths - removed


class Phrases:
    """Phrases, each a pair of entries or earlier phrases: phrase p of ``pairs`` has the id ``entries + p``.

    A first pass over a text, from left to right, merges pairs of single entries. Later passes merge pairs that contain
    the phrases of earlier passes. So the result depends on the text alone.

    Args:
        pairs: (P, 2) ids of the parts: entries, or phrases with a lower number; no pair twice.
        entries: the tokenizer's number of entries.

    Raises:
        InputError: the shape is wrong, a part is neither an entry nor an earlier phrase, a pair occurs twice, or a
            phrase has more than 64 entries.
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
        width = entries + len(self.pairs)
        keys = np.sort(self.pairs[:, 0].astype(np.int64) * width + self.pairs[:, 1])
        if (keys[1:] == keys[:-1]).any():
            raise InputError("a pair occurs twice among the phrases")
        # A phrase has size 0 until the sizes of its parts are known.
        self._sizes = np.repeat([1, 0], [entries, len(self.pairs)])
        self._passes: list[Pairs] = []
        waiting = np.arange(len(self.pairs))
        while len(waiting):
            of_parts = self._sizes[self.pairs[waiting]]
            ready = of_parts.all(1)
            found, sizes = waiting[ready], of_parts[ready].sum(1)
            if sizes.max() > LONGEST_PHRASE:
                place = int(np.argmax(sizes > LONGEST_PHRASE))
                raise InputError(
                    f"phrase {found[place]} must stand for at most {LONGEST_PHRASE} entries, got {sizes[place]}"
                )
            self._sizes[numbers[found]] = sizes
            self._passes.append(Pairs(self.pairs[found], numbers[found], width))
            waiting = waiting[~ready]

    def __len__(self) -> int:
        return len(self.pairs)

    def __call__(
        self, ids: NDArray[np.int32], lengths: NDArray[np.int64]
    ) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Merge packed texts; arguments and result as those of :func:`merged`."""
        if len(lengths) == 1 and len(ids) <= SHORT_TEXT:
            # For a few ids, plain Python is faster than NumPy's calls.
            listed = ids.tolist()
            for pairs in self._passes:
                listed = pairs.merged(listed)
            return np.array(listed, np.int32), np.array([len(listed)])
        for pairs in self._passes:
            if len(ids) > 1:
                ids, lengths = merged(ids, lengths, pairs)
        return ids, lengths

    def sizes(self) -> NDArray[np.int64]:
        """Return how many ids of the tokenizer each id stands for, (entries + P,)."""
        return self._sizes

    def junctions(self) -> set[tuple[int, int]]:
        """Return the pairs of entries at which two parts of a phrase meet; other neighbours are never merged."""
        first, last = list(range(self.entries)), list(range(self.entries))
        found = set()
        for left, right in self.pairs.tolist():
            found.add((last[left], first[right]))
            first.append(first[left])
            last.append(last[right])
        return found

    def texts(self, entries: list[str]) -> list[str]:
        """Return the text of each phrase, given the entries' texts by id; ``##`` marks entries that continue a word."""
        known = list(entries)
        for first, second in self.pairs.tolist():
            text = known[second]
            joined = text.removeprefix(CONTINUED) if text.startswith(CONTINUED) else f" {text}"
            known.append(known[first] + joined)
        return known[self.entries :]
