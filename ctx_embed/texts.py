"""Texts and documents, and batches of texts of similar length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

# Many models pad a batch to its longest text: the most characters of a batch, padding included.
BATCH_CHARACTERS = 1 << 20
BATCH_TEXTS = 256


@dataclass(frozen=True)
class Document:
    """A text with its id (None: to be given by whoever stores it) and its metadata (JSON values by name)."""

    text: str
    id: str | int | None = None
    metadata: dict[str, Any] = field(default_factory=dict)


def well_formed(text: str) -> str:
    """Return ``text`` with each lone surrogate replaced by U+FFFD, so that it can be encoded as UTF-8."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def length_batches(texts: Sequence[str], most: int = BATCH_TEXTS) -> Iterator[list[int]]:
    """Yield the positions of ``texts`` in batches of similar length, of at most ``most`` texts and bounded size."""
    batch: list[int] = []
    for position in sorted(range(len(texts)), key=lambda place: len(texts[place])):
        # Sorted by length, so that this text is the longest so far.
        if batch and (len(batch) == most or (len(batch) + 1) * len(texts[position]) > BATCH_CHARACTERS):
            yield batch
            batch = []
        batch.append(position)
    if batch:
        yield batch
