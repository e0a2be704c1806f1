"""Features for comparing texts: lower-case words, sequences of characters, numbers and MinHash signatures."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from ctx_embed.text.normalisation import normalised

# Two texts with similarity s share a band with probability 1 - (1 - s^5)^50: 0.98 for s = 0.6, and below 1e-6 for
# two unrelated sentences.
BANDS, BAND_SIZE = 50, 5
# Length of a sequence in bytes, at most 8. Unrelated texts of a megabyte of English share .30 of them; of sequences of
# four they share .64.
GRAM = 6
# Punctuation that says something, unlike commas and brackets.
_SYMBOLS = "#%&@*/\\\u2030\u2031"
_MINUS = re.compile(r"(?<![\w)\].])[-\u2012\u2013](?=[.,]?\d)")
_POINT = re.compile(r"(?<=\d)[.,:](?=\d)")
# Points within numbers are these, so that they are no punctuation: characters for private use.
_PRIVATE = 0xE000
_NUMBER = re.compile("\u2212?\\d+(?:[\ue000-\ue07f/]\\d+)*")


class _Meanings(dict[int, str]):
    """Each character by its code, punctuation as a space; filled as characters are met."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        drops = unicodedata.category(character).startswith("P") and character not in _SYMBOLS
        return self.setdefault(code, " " if drops else character)


_MEANINGS = _Meanings()


def normalized(text: str) -> str:
    """Return a text in lower case without punctuation, with single spaces: letters with accents, digits and symbols.

    Minus signs and the points within numbers stay. A text of punctuation alone stays as it is, but for outer spaces.
    """
    read = normalised(text).casefold()
    read = _POINT.sub(lambda found: chr(_PRIVATE + ord(found[0])), _MINUS.sub("\u2212", read))
    return " ".join(read.translate(_MEANINGS).split()) or text.strip()


def hash_of(text: str) -> int:
    """Return 64 bits of a text's BLAKE2 hash as a signed integer."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little", signed=True)


def hash_of_digits(plain: str) -> int:
    """Return a hash of the numbers in a normalised text, in the order of the text."""
    return hash_of(" ".join(_NUMBER.findall(plain)))


def grams(plain: str) -> NDArray[np.uint64]:
    """Return the distinct sequences of six consecutive bytes in a normalised text, as sorted numbers."""
    content = f" {plain} ".encode().ljust(GRAM)
    count = len(content) - GRAM + 1
    # Eight bytes from each place; the mask below drops the last two, which are not of the sequence.
    eights = np.ndarray((count,), "<u8", content + bytes(8 - GRAM), strides=(1,))
    return np.unique(eights & np.uint64((1 << 8 * GRAM) - 1))


def similarity(left: NDArray[np.uint64], right: NDArray[np.uint64]) -> float:
    """Return the Jaccard similarity of two sets of :func:`grams`."""
    common = len(np.intersect1d(left, right, assume_unique=True))
    return common / (len(left) + len(right) - common)


def band_keys(plain: Sequence[str]) -> Iterator[NDArray[np.uint32]]:
    """Yield the texts' keys (texts,) for each band: a key combines the minima of five hashes over the text's sequences.

    The probability that two texts have the same minimum of a hash is their Jaccard similarity (Broder 1997).
    """
    sets = [grams(text) for text in plain]
    starts = np.cumsum([0, *map(len, sets[:-1])])
    codes = (np.concatenate(sets) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(32)).astype(np.uint32)
    # The finalizer of MurmurHash3 spreads the codes evenly, as the hashes below need.
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        codes ^= codes >> np.uint32(shift)
        codes *= np.uint32(factor)
    codes ^= codes >> np.uint32(16)
    hashes = np.empty_like(codes)
    for numbers in np.random.default_rng(0).integers(0, 2**32, (BANDS, BAND_SIZE, 2), np.uint32):
        key = np.zeros(len(plain), np.uint32)
        for factor, offset in numbers:
            np.multiply(codes, factor | np.uint32(1), out=hashes)
            np.add(hashes, offset, out=hashes)
            key = (key ^ np.minimum.reduceat(hashes, starts)) * np.uint32(0x9E3779B1)
            key ^= key >> np.uint32(15)
        yield key
