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

# Maximum bytes of stored products: enough for 62,000 of the default model's 99,000 entries.
HELD_BYTES = 112 << 20
# Maximum number of remembered words, about 8 MB. When there are more, the table starts empty again.
MOST_WORDS = 1 << 18
# What embedding in C returns: -2 stands for an id beyond the table.
WITHOUT_MEMORY = -1
# C reads words 8 bytes at a time.
END = "\0" * 9

Floats = NDArray[np.float32]
Ids = NDArray[np.int32]
Lengths = NDArray[np.int64]

# The arrays of C's ctx_parameters, in their order after the numbers.
_ARRAYS = ("levels", "scales", "rows", "U", "V", "W", "b", "gain", "bias", "c0", "s")


def _at(array: NDArray[Any]) -> int:
    """Return where a contiguous array's values begin."""
    try:
        # A quarter of the time of reading NumPy's own description; but read-only and empty arrays have no such buffer.
        return ctypes.addressof(ctypes.c_char.from_buffer(cast(Any, array)))
    except (TypeError, ValueError):
        address: int = array.__array_interface__["data"][0]
        return address


def _held(owner: Any, pointer: int | None, free: Any) -> int:
    """Return a pointer that is freed with its owner."""
    if not pointer:
        raise MemoryError("not enough memory for the model")
    weakref.finalize(owner, free, pointer).atexit = False
    return pointer


class Attention:
    """K steps over a token table. Several threads may embed at once; copies and pickles are the callers' concern.

    The table (entries, m) is float32, or int8 to be multiplied by ``scales`` (entries,); it is not copied. The
    parameters are ``U``, ``V``, ``W``, ``b``, ``gain``, ``bias``, and ``s`` and ``c0`` if the options need them.
    """

    def __init__(
        self,
        kernel: Kernel,
        config: Mapping[str, Any],
        table: NDArray[Any],
        scales: Floats | None,
        parameters: Mapping[str, Floats],
    ) -> None:
        m, K, u = (config[name] for name in ("dimension", "steps", "rank"))
        bag = config["positions"] == "none"
        mean = config["scale"] == "mean"
        shared = bag and mean and config["initial_context"] != "uniform"
        self._table, self._scales = np.require(table, None, "C"), scales
        arrays = {name: np.require(values, np.float32, "C") for name, values in parameters.items()}
        arrays.setdefault("c0", np.ones(m, np.float32))
        arrays["levels" if scales is not None else "rows"] = self._table
        if scales is not None:
            self._scales = arrays["scales"] = np.require(scales, np.float32, "C")
        width = 4 * ((m if shared else 0) + (K - shared) * u)
        if bag:
            arrays.pop("s", None)
        sizes = (m, K, u, len(table), shared, mean, config["positions"] == "relative", HELD_BYTES // width)
        pointers = (_at(arrays[name]) if name in arrays else 0 for name in _ARRAYS)
        # Numbers and pointers of a structure have 8 bytes each.
        given = np.array([*sizes, PATHS[kernel.name], *pointers], np.int64)
        self._embed = kernel.ctx_embed
        self._model = _held(self, kernel.ctx_model_new(_at(given)), kernel.ctx_free)

    def embed(self, ids: Ids, lengths: Lengths, contexts: Floats, counts: NDArray[np.float64] | None = None) -> None:
        """Replace the first contexts (B, m) of packed texts by the last; texts without tokens keep theirs.

        ``counts`` (N,) says how often each id occurs; None: once.
        """
        given = None if counts is None else _at(counts)
        failed = self._embed(self._model, _at(ids), _at(lengths), given, len(lengths), _at(contexts))
        if failed == WITHOUT_MEMORY:
            raise MemoryError("not enough memory to embed these texts")
        if failed:
            raise IndexError(f"ids must be rows of the table, got {ids.min()} to {ids.max()}")


class PhrasesInC:
    """Pairs of ids (P, 2) that become one id, as :class:`ctx_embed.text.tokenizer.Phrases` defines them."""

    def __init__(self, pairs: Ids, entries: int) -> None:
        width = entries + len(pairs)
        keys = pairs[:, 0].astype(np.int64) * width + pairs[:, 1]
        bits = len(pairs).bit_length()
        buckets = keys.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(64 - bits)
        order = np.argsort(buckets)
        starts = np.searchsorted(buckets[order], np.arange((1 << bits) + 1, dtype=np.uint64)).astype(np.int32)
        self._arrays = keys[order], (entries + order).astype(np.int32), starts
        self._given = np.array([width, 64 - bits, *map(_at, self._arrays)], np.int64)
        self.pointer = _at(self._given)


class Words:
    """The ids of words that a tokenizer has met. Reading needs no lock. One caller at a time may add.

    ``cuts`` are ASCII characters that are tokens of their own wherever they stand. ``wordpiece`` has the vocabulary as
    compact JSON, the number of ids, and the maximum length of a word; with it, words of ASCII letters and digits
    are read here, in lower case.
    """

    def __init__(self, kernel: Kernel, cuts: str, wordpiece: tuple[bytes, int, int] | None = None) -> None:
        kinds = np.zeros(128, np.uint8)
        kinds[[ord(character) for character in cuts]] = 1
        seed = int.from_bytes(os.urandom(8), "little") >> 1
        self._table = _held(self, kernel.ctx_words_new(seed, MOST_WORDS, _at(kinds)), kernel.ctx_free)
        self._find, self._ids, self._add = kernel.ctx_words_find, kernel.ctx_words_ids, kernel.ctx_words_add
        self.reads_wordpiece = wordpiece is not None
        if wordpiece is not None:
            vocabulary, ids, longest = wordpiece
            # Without room for all entries, the tokenizer still reads these words.
            kernel.ctx_words_entries(self._table, vocabulary + END.encode(), len(vocabulary), ids, min(longest, 255))

    def add(self, found: Found, ids: Ids, starts: Lengths) -> bool:
        """Remember words that were unknown, unless they are longer than 255 bytes; return whether there is room left.

        ``ids`` (I,) are those of the unknown words in ``found``, and ``starts`` (U + 1,) where each word's begin.
        """
        return bool(self._add(self._table, found.data, found.spans, _at(ids), _at(starts), len(found.unknown)))


class Found:
    """The words of a batch of texts: ``data`` in UTF-8. NUL separates words, as a space does, and ends each text.

    ``unknown`` are those that the table lacks, each once, in order of appearance; ``spans`` is the address of (U, 2)
    int64, where each of these begins and ends in the data.
    """

    def __init__(self, words: Words, texts: Sequence[str]) -> None:
        joined, count = "\0".join(texts), len(texts)
        if joined.count("\0") >= max(count, 1):
            joined = "\0".join([text.replace("\0", " ") for text in texts])
        self.data = (joined + END).encode("utf-8", "surrogatepass")
        size = len(self.data) - len(END) + 1
        slots, known = 1 << size.bit_length(), ctypes.c_int64()
        self._words, self._count, self._size = words, count, size
        # One array for all that C writes: to get the addresses of four takes longer than C needs for a short text.
        self._scratch = np.zeros(count + 2 * size + (size + slots) // 2 + 1, np.int64)
        self._ends = _at(self._scratch)
        self.spans = self._ends + 8 * count
        self._records = self.spans + 16 * size
        missing = words._find(
            words._table,
            self.data,
            count,
            self._records,
            self._ends,
            self.spans,
            self._records + 4 * size,
            slots - 1,
            ctypes.addressof(known),
        )
        self._known: int = known.value
        self.unknown: list[str] = []
        if missing:
            spans = self._scratch[count : count + 2 * missing].reshape(-1, 2).tolist()
            self.unknown = [self.data[start:stop].decode("utf-8", "surrogatepass") for start, stop in spans]

    def ids(self, ids: Ids | None, starts: Lengths | None, phrases: PhrasesInC | None) -> tuple[Ids, Lengths]:
        """Return the texts' ids one after the other, and how many each text has, with phrases merged.

        ``ids`` and ``starts`` are those of the unknown words, see :meth:`Words.add`; None: there are none.
        """
        table, merged = self._words._table, None if phrases is None else phrases.pointer
        lengths, size = np.empty(self._count, np.int64), self._known
        others = (None, None) if ids is None or starts is None else (_at(ids), _at(starts))
        given = self._records, self._ends, self._count, *others
        if starts is not None:
            words = self._scratch[self._count + 2 * self._size :].view(np.int32)[: self._scratch[self._count - 1]]
            size += np.diff(starts)[-1 - words[words < 0]].sum()
        result = np.empty(size, np.int32)
        left = self._words._ids(table, merged, *given, _at(result), _at(lengths))
        return result[:left], lengths
