"""Calls contextualizer.c's library with NumPy arrays, and holds what it allocates."""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from ctx_embed.kernel import PATHS, Kernel
from ctx_embed.texts import well_formed

# The arrays of the kernel's ctx_parameters, in their order after the numbers.
ARRAYS = ("levels", "scales", "rows", "U", "V", "W", "b", "gain", "bias", "c0", "s")
# What the kernel returns without memory; -2 stands for an id beyond the table.
WITHOUT_MEMORY = -1
# Maximum number of remembered words, about 12 MB, and of a table for a few texts, whose memory is in use sooner. When
# there are more, the table starts empty again.
MOST_WORDS, FEW_WORDS = 1 << 18, 1 << 13
# C reads words 8 bytes at a time.
END = "\0" * 9

Ids = NDArray[np.int32]
Lengths = NDArray[np.int64]


def address(array: NDArray[Any]) -> int:
    """Return where a contiguous array's values begin."""
    try:
        # A quarter of the time of reading NumPy's own description; but read-only and empty arrays have no such buffer.
        return ctypes.addressof(ctypes.c_char.from_buffer(cast(Any, array)))
    except (TypeError, ValueError):
        return int(array.__array_interface__["data"][0])


class Model:
    """A token table and the steps over it: the numbers of the kernel's ctx_parameters, and its arrays by name."""

    def __init__(self, kernel: Kernel, numbers: Sequence[int], arrays: Mapping[str, NDArray[Any] | None]) -> None:
        # The kernel reads the table where it is.
        self._arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items() if array is not None}
        pointers = [address(self._arrays[name]) if name in self._arrays else 0 for name in ARRAYS]
        self._features = numbers[0]
        # Numbers and pointers of a structure have 8 bytes each.
        given = np.array([*numbers, PATHS[kernel.name], *pointers], np.int64)
        self._pointer = kernel.ctx_model_new(address(given))
        if not self._pointer:
            raise MemoryError("not enough memory for the model")
        weakref.finalize(self, kernel.ctx_free, self._pointer).atexit = False
        self._embed, self._added, self._nearest = kernel.ctx_embed, kernel.ctx_added, kernel.ctx_nearest

    def embed(self, ids: NDArray[Any], lengths: Lengths, counts: Lengths | None, contexts: NDArray[np.float32]) -> bool:
        """Replace c^0 of packed texts by c^K in ``contexts`` (B, m); return False if an id is no row of the table."""
        ids, lengths = np.ascontiguousarray(ids, np.int32), np.ascontiguousarray(lengths, np.int64)
        times = None if counts is None else np.ascontiguousarray(counts, np.float64)
        given = (address(ids), address(lengths), None if times is None else address(times))
        failed = self._embed(self._pointer, *given, len(lengths), address(contexts))
        if failed == WITHOUT_MEMORY:
            raise MemoryError("not enough memory to embed these texts")
        return not failed

    def _padded(self, *rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return rows of several arrays (n, ..), padded with zeros to a multiple of 16 features."""
        padded = np.zeros((sum(map(len, rows)), -(-self._features // 16) * 16), np.float32)
        start = 0
        for part in rows:
            padded[start : start + len(part), : part.shape[1]] = part
            start += len(part)
        return padded

    def added(self, x: NDArray[np.float32], context: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return what each weighted token (n, m) of a text adds to c^K, (n, m); its c^0 is (1, m)."""
        given = self._padded(context, x)
        added = np.empty_like(given[1:])
        if self._added(self._pointer, address(given) + given.strides[0], len(x), address(given), address(added)):
            raise MemoryError("not enough memory to read this query")
        return added[:, : x.shape[1]]

    def nearest(
        self,
        table: NDArray[Any],
        query: NDArray[Any],
        tokens: NDArray[np.float32],
        ids: NDArray[Any],
        lengths: Lengths,
        contexts: NDArray[np.float32],
    ) -> tuple[NDArray[np.float32], NDArray[np.int32], Lengths]:
        """Return what the Q ids of a query, with their unit rows (Q, kept), find in n packed passages.

        It is the highest cosines (n, Q), at which tokens (n, Q), and how many passages have each id (Q,). A passage's
        context (n, kept) is added to its tokens' unit rows. A passage without tokens has -1 in both. Ids are places in
        ``table`` (entries, m), rows as the model's are stored; -1 in the query is none of them.
        """
        ids, lengths = np.ascontiguousarray(ids, np.int32), np.ascontiguousarray(lengths, np.int64)
        (count, kept), n = tokens.shape, len(lengths)
        # The kernel takes four tokens at a time.
        Q = -(-count // 4) * 4
        names, having = np.full(Q, -1, np.int32), np.empty(Q, np.int64)
        names[:count] = query
        rows = self._padded(tokens, np.zeros((Q - count, kept), np.float32), contexts)
        best, places = np.empty((n, Q), np.float32), np.empty((n, Q), np.int32)
        given = address(table), len(table), address(names), address(rows), Q, kept
        passages = address(ids), address(lengths), address(rows) + Q * rows.strides[0], n
        if self._nearest(self._pointer, *given, *passages, address(best), address(places), address(having)):
            raise MemoryError("not enough memory to compare these passages")
        return best[:, :count], places[:, :count], having[:count]


class Words:
    """The ids of words that a tokenizer has met. Reading needs no lock. One caller at a time may add.

    ``cuts`` are ASCII characters that are tokens of their own wherever they stand. ``wordpiece`` has the vocabulary as
    compact JSON, the number of ids, and the maximum length of a word; with it, words of ASCII letters and digits
    are read here, in lower case. ``few``: the table is for a few texts.
    """

    def __init__(self, kernel: Kernel, cuts: str, wordpiece: tuple[bytes, int, int] | None, few: bool) -> None:
        kinds = np.zeros(128, np.uint8)
        kinds[[ord(character) for character in cuts]] = 1
        seed = int.from_bytes(os.urandom(8), "little") >> 1
        self._table = kernel.ctx_words_new(seed, FEW_WORDS if few else MOST_WORDS, address(kinds))
        if not self._table:
            raise MemoryError("not enough memory for the model")
        weakref.finalize(self, kernel.ctx_free, self._table).atexit = False
        self._find, self._ids, self._add = kernel.ctx_words_find, kernel.ctx_words_ids, kernel.ctx_words_add
        self.reads_wordpiece = wordpiece is not None
        if wordpiece is not None:
            vocabulary, ids, longest = wordpiece
            # Without room for all entries, the tokenizer still reads these words.
            kernel.ctx_words_entries(self._table, vocabulary + END.encode(), len(vocabulary), ids, min(longest, 255))

    def add(self, batch: Found, ids: Ids, starts: Lengths) -> bool:
        """Remember words that were unknown, unless they are longer than 255 bytes; return whether there is room left.

        ``ids`` (I,) are those of the unknown words in ``batch``, and ``starts`` (U + 1,) where each word's begin.
        """
        return bool(self._add(self._table, batch.data, batch.spans, address(ids), address(starts), len(batch.unknown)))


class Found:
    """The words of a batch of texts: ``data`` in UTF-8. NUL separates words, as a space does, and ends each text.

    ``unknown`` are those that the table lacks, each once, in order of appearance; ``spans`` is the address of (U, 2)
    int64, where each of these begins and ends in the data.
    """

    def __init__(self, words: Words, texts: Sequence[str]) -> None:
        joined, count = "\0".join(texts), len(texts)
        if joined.count("\0") >= max(count, 1):
            joined = "\0".join([text.replace("\0", " ") for text in texts])
        try:
            self.data = (joined + END).encode()
        except UnicodeEncodeError:
            self.data = (well_formed(joined) + END).encode()
        size = len(self.data) - len(END) + 1
        slots = 1 << size.bit_length()
        self._words, self._count, self._size = words, count, size
        # One array for all that C writes: to get the addresses of four takes longer than C needs for a short text.
        self._scratch = np.empty(count + 2 * size + (size + slots) // 2 + 2, np.int64)
        self._scratch[count + 2 * size + size // 2 :] = 0
        self._ends = address(self._scratch)
        self.spans = self._ends + 8 * count
        self._records = self.spans + 16 * size
        written = self._records, self._ends, self.spans, self._records + 4 * size
        known = self._ends + self._scratch.nbytes - 8
        missing = words._find(words._table, self.data, count, *written, slots - 1, known)
        self._known = int(self._scratch[-1])
        self.unknown: list[str] = []
        if missing:
            spans = self._scratch[count : count + 2 * missing].reshape(-1, 2).tolist()
            self.unknown = [self.data[start:stop].decode() for start, stop in spans]

    def ids(self, ids: Ids | None, starts: Lengths | None, phrases: int | None) -> tuple[Ids, Lengths]:
        """Return the texts' ids one after the other, and how many each text has, with phrases merged.

        ``ids`` and ``starts`` are those of the unknown words, see :meth:`Words.add`; None: there are none. ``phrases``
        is the address of a ctx_phrases.
        """
        lengths, size = np.empty(self._count, np.int64), self._known
        others = (None, None) if ids is None or starts is None else (address(ids), address(starts))
        given = self._records, self._ends, self._count, *others
        if starts is not None:
            words = self._scratch[self._count + 2 * self._size :].view(np.int32)[: self._scratch[self._count - 1]]
            size += np.diff(starts)[-1 - words[words < 0]].sum()
        result = np.empty(size, np.int32)
        left = self._words._ids(self._words._table, phrases, *given, address(result), address(lengths))
        return result[:left], lengths
