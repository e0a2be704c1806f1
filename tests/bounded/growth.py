"""Whether the work of a call grows in proportion to what it is given, and families of odd inputs of any size."""

import gc
import itertools
import random
import time
import tracemalloc
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from ctx_embed.errors import InputError
from ctx_embed.reading.decoding import UnreadableFileError

# Calls of at least 20 ms and 256 kB are compared; for four times as much, a call may take six times as much.
LEAST_SECONDS, LEAST_BYTES, TIMES_SIZE, TIMES_COST, TRIES = 0.02, 1 << 18, 4, 6, 3
# A call of 5 ms that takes at most this many times as long for four times as much needs no longer look: work that grows
# as the square would have a twentieth of it, a sixth of a call of 20 ms, and so take six times as long there.
SURE_COST = 4.6

REFUSALS = (InputError, UnreadableFileError, RecursionError)

Make = Callable[[int], Any]


class Entry(NamedTuple):
    """A call that takes bytes from outside, the inputs to try at each size, and the largest size to try."""

    call: Callable[[Any], Any]
    families: dict[str, Make]
    most: int = 1 << 16


def seconds(entry: Entry, make: Make, n: int) -> float:
    """Return the seconds of the processor that a call takes; a refusal ends it, too."""
    given, begin = make(n), time.process_time()
    with suppress(*REFUSALS):
        entry.call(given)
    return time.process_time() - begin


def memory(entry: Entry, make: Make, n: int) -> int:
    """Return the bytes that a call takes at most."""
    given = make(n)
    tracemalloc.start()
    try:
        with suppress(*REFUSALS):
            entry.call(given)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def growth(entry: Entry, make: Make) -> tuple[int, float, float]:
    """Return a size, and how many times as long a call takes for four times as much, and how much memory.

    The size is the least one that takes 20 ms, or a quarter of the entry's limit; what a call takes for the least input
    does not count. Memory is compared for a sixty-fourth part of that, as counting it slows a call down.
    """
    last = max(entry.most // TIMES_SIZE, 1)
    n = min(256, last)
    gc.disable()
    try:
        fixed = min(seconds(entry, make, size) for size in (min(16, last), n))
        for of_n, times in ((LEAST_SECONDS / TIMES_SIZE, SURE_COST), (LEAST_SECONDS, TIMES_COST)):
            least = max(of_n, fixed)
            while (few := seconds(entry, make, n) - fixed) < least and n < last:
                n = min(last, int(n * max(1.3, min(16, 1.2 * least / max(few, 1e-6)))))
            many = seconds(entry, make, TIMES_SIZE * n) - fixed
            part = max(int(n * LEAST_SECONDS / of_n) // 64, 1)
            if many <= times * max(few, least):
                break
        for _ in range(TRIES - 1):
            if many <= TIMES_COST * max(few, least):
                break
            # At one size alone, memory that leaves a cache costs more; quadratic work does at any.
            n = min(last, 2 * n)
            few, many = (seconds(entry, make, times * n) - fixed for times in (1, TIMES_SIZE))
        # What takes no time fills little memory, and much in little memory needs no look at less. What is kept after
        # the first call counts for none.
        more, some = memory(entry, make, TIMES_SIZE * part) if many > LEAST_SECONDS / 2 else 0, 0
        if more > TIMES_COST * LEAST_BYTES:
            some, more = (memory(entry, make, size) for size in (part, TIMES_SIZE * part))
    finally:
        gc.enable()
    return n, many / max(few, least), more / max(some, LEAST_BYTES)


# Families of texts


def categories() -> dict[str, str]:
    """Return up to 64 characters of each general category of Unicode, spread over it."""
    found: dict[str, list[str]] = defaultdict(list)
    # The other planes have none but private and unassigned ones.
    for character in map(chr, (*range(0x18000), *range(0x1B000, 0x20000), *range(0xE0000, 0xE0200), 0xF0000, 0x10FFFD)):
        found[unicodedata.category(character)].append(character)
    return {name: "".join(of[:: -(-len(of) // 64)]) for name, of in sorted(found.items())}


CATEGORIES = categories()
MIXED = "".join(random.Random(0).choices("".join(CATEGORIES.values()), k=4096))


def repeated(piece: str | bytes) -> Make:
    return lambda n: piece * (n // len(piece) + 1)


def around(begin: str, families: dict[str, Make], end: str = "") -> dict[str, Make]:
    return {name: lambda n, make=make: f"{begin}{make(n)}{end}" for name, make in families.items()}


def strings(*pieces: str, end: str = "") -> dict[str, Make]:
    """Each piece repeated; each two neighbours among them in turn, and many of one before as many of the other."""

    found = {ascii(piece): repeated(piece) for piece in pieces}
    for left, right in itertools.pairwise(pieces):
        found[f"{left!a} {right!a}"] = repeated(left + right)
        found[f"{left!a}, {right!a}"] = lambda n, two=(left, right): "".join(repeated(of)(n // 2) for of in two)
    return around("", found, end)


def different(n: int) -> Iterator[str]:
    """Return words that differ, with n characters or more."""
    return (f"{chr(97 + place % 26)}x{place:x}" for place in range(n // 6 + 1))


# Texts of words and lines, all characters, and what once took quadratic time.
TEXTS = {
    "words": lambda n: " ".join(different(n)),
    "lines": lambda n: "\n".join(different(n)),
    "mixed": repeated(MIXED),
    "one category after the other": lambda n: "".join(repeated(of)(n // len(CATEGORIES)) for of in CATEGORIES.values()),
}
TEXTS |= {ascii(piece): repeated(piece) for piece in ("a", " ", "\xad", "\u200b\xad", "\u0301", "a\u0301 ", "-\n")}
TEXTS |= {ascii(piece): repeated(piece) for piece in ('"a" ', "(", "\ufdfa", "\u6771", "\U0001f3f4\U000e0067")}
ALONE = {name: repeated(of) for name, of in CATEGORIES.items()}
