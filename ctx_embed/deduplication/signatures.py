"""Features for comparing texts: lower-case words, sequences of characters, numbers and MinHash signatures."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from ctx_embed.text.normalisation import normalised

# Two texts with similarity s share a band with probability 1 - (1 - s^5)^50: 0.98 for s = 0.6, and 5e-7 for s = 0.025,
# which is typical of two unrelated sentences.
BANDS, BAND_SIZE = 50, 5
# Length of a sequence in bytes; the code below packs a sequence into 32 bits.
GRAM = 4
_NOT_WORD = re.compile(r"[\W_]+")
_NUMBER = re.compile(r"\d+")


def normalized(text: str) -> str:
    """Return the words of a text (letters and digits) in lower case without accents, with single spaces between them.

    A text without words stays as it is, but for spaces around it.
    """
    plain = text = normalised(text)
    if not text.isascii():
        decomposed = unicodedata.normalize("NFKD", text)
        plain = "".join(character for character in decomposed if not unicodedata.combining(character))
    return _NOT_WORD.sub(" ", plain.casefold()).strip() or text.strip()


def hash_of(text: str) -> int:
    """Return 64 bits of a text's BLAKE2 hash as a signed integer."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little", signed=True)


def hash_of_digits(plain: str) -> int:
    """Return a hash of the numbers in a normalised text, in the order of the text."""
    return hash_of(" ".join(_NUMBER.findall(plain)))


def padded(plain: str) -> bytes:
    """Return a normalised text as bytes, padded to the length of a sequence if it is shorter."""
    return f" {plain} ".encode().ljust(GRAM)


def grams(plain: str) -> set[bytes]:
    """Return the set of all sequences of four consecutive bytes in a normalised text."""
    content = padded(plain)
    return {content[place : place + GRAM] for place in range(len(content) - GRAM + 1)}


def similarity(left: set[bytes], right: set[bytes]) -> float:
    """Return the Jaccard similarity of two sets."""
    common = len(left & right)
    return common / (len(left) + len(right) - common)


def band_keys(plain: Sequence[str]) -> Iterator[NDArray[np.uint32]]:
    """Yield the texts' keys (texts,) for each band: a key combines the minima of five hashes over the text's sequences.

    The probability that two texts have the same minimum of a hash is their Jaccard similarity (Broder 1997).
    """
    contents = [padded(text) for text in plain]
    buffer = np.frombuffer(b"".join(contents), np.uint8).astype(np.uint32)
    ends = np.cumsum([len(content) for content in contents])
    codes = buffer[:-3] | buffer[1:-2] << 8 | buffer[2:-1] << 16 | buffer[3:] << 24
    # Drop the sequences that cross the end of a text.
    within = np.ones(len(buffer), bool)
    for place in range(1, GRAM):
        within[ends - place] = False
    codes = codes[within[: len(codes)]]
    starts = np.concatenate([[0], ends[:-1]]) - (GRAM - 1) * np.arange(len(ends))
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
