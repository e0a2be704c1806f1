"""Entries of a vocabulary that stand for several words: neighbouring ids merged after tokenizing."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ctx_embed.errors import InputError
from ctx_embed.kernel import kernel
from ctx_embed.kernel.library import PhrasesInC

# WordPiece's prefix of entries that continue a word.
CONTINUED = "##"
# Maximum number of tokenizer entries in a phrase. It bounds the passes over a text.
LONGEST_PHRASE = 64


class Phrases:
    """Phrases, each a pair of entries or earlier phrases: phrase p of ``pairs`` has the id ``entries + p``.

    Passes over a text, from left to right, merge pairs until none is left: the first one pairs of single entries, later
    ones pairs that contain the phrases of earlier passes. So the result depends on the text alone.

    Args:
        pairs: (P, 2) ids of the parts: entries, or phrases with a lower number; no pair twice.
        entries: the tokenizer's number of entries.
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
            waiting = waiting[~ready]

    def __len__(self) -> int:
        return len(self.pairs)

    @cached_property
    def in_c(self) -> PhrasesInC | None:
        """The same phrases for the kernel's words; None without a kernel."""
        return None if kernel() is None else PhrasesInC(self.pairs, self.entries)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("in_c", "_by_pair")}

    @cached_property
    def _by_pair(self) -> dict[tuple[int, int], int]:
        return {(first, second): self.entries + place for place, (first, second) in enumerate(self.pairs.tolist())}

    def _merged(self, ids: list[int]) -> list[int]:
        """Return the ids of one text with pairs merged from left to right, until there are none."""
        left, find = -1, self._by_pair.get
        while left != len(ids):
            left, place, merged = len(ids), 0, []
            while place < left:
                found = find((ids[place], ids[place + 1])) if place + 1 < left else None
                merged.append(ids[place] if found is None else found)
                place += 1 if found is None else 2
            ids = merged
        return ids

    def __call__(
        self, ids: NDArray[np.int32], lengths: NDArray[np.int64]
    ) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Return packed ids (N,) and lengths (B,) of texts with phrases merged."""
        merged = [self._merged(part.tolist()) for part in np.split(ids, lengths.cumsum()[:-1])] if len(lengths) else []
        counts = np.array([len(part) for part in merged], np.int64)
        return np.array([number for part in merged for number in part], np.int32), counts

    def sizes(self) -> NDArray[np.int64]:
        """Return how many ids of the tokenizer each id stands for, (entries + P,)."""
        return self._sizes

    def junctions(self) -> set[tuple[int, int]]:
        """Return the pairs of entries at which two parts of a phrase meet. Other neighbours are never merged."""
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
