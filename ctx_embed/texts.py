"""Texts and documents, and batches of texts of similar length."""

import numbers
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ctx_embed.deadlines import in_pieces
from ctx_embed.errors import InputError, described

# Maximum characters of a batch, including the padding of its texts to the longest one.
BATCH_CHARACTERS = 1 << 20
BATCH_TEXTS = 256
# Maximum characters of a text to explain: about 3,500 English words.
MOST_EXPLAINED = 20_000
# Where no half of a character is parted from its other half.
_BETWEEN = re.compile(r"(?<![\ud800-\udbff])|(?![\udc00-\udfff])")


@dataclass(frozen=True)
class Document:
    """A text with its id (None: the store chooses one) and its metadata (JSON values by name)."""

    text: str
    id: str | int | None = None
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Embedded(Document):
    """A document with its embedding, which need not have length 1; None: embed the text later.

    With ``spans``, the document is already cut into these passages, and ``embedding`` are their unit vectors.
    """

    embedding: Any = None
    spans: Sequence[tuple[int, int]] | None = None


def well_formed(text: str) -> str:
    """Return ``text`` with each lone surrogate replaced by U+FFFD, so that it can be encoded as UTF-8."""
    if text.isascii():
        return text
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        pieces = (piece.encode("utf-16", "surrogatepass") for piece in in_pieces(text, _BETWEEN))
        return "".join(piece.decode("utf-16", "replace") for piece in pieces)
    return text


def composed(text: str) -> str:
    """Return a name in NFC, as keyboards type it; macOS and some archives write é as e and an accent."""
    return text if text.isascii() else unicodedata.normalize("NFC", text)


def as_texts(texts: Iterable[str]) -> list[str]:
    """Return texts as a list: given a list, an array, a series of any library, or a generator."""
    # NumPy's strings and members of enumerations become str, by their value: str() itself may return another text.
    listed = as_list(texts, "texts", "a list of strings")
    listed = [str.__str__(text) if isinstance(text, str) else text for text in listed]
    for place, text in enumerate(listed):
        if not isinstance(text, str):
            raise InputError(f"text {place} must be a string, got {described(text)}")
    return listed


def require_explainable(text: str, name: str = "the text") -> None:
    """Refuse to explain anything but a string, or a text with too many tokens to show one by one."""
    if not isinstance(text, str):
        raise InputError(f"{name} must be a string, got {described(text)}; explain texts one at a time")
    if len(text) > MOST_EXPLAINED:
        raise InputError(
            f"{name} must have at most {MOST_EXPLAINED:,} characters to be explained, got {len(text):,}; explain a part"
        )


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


def as_list(values: Any, name: str, needed: str) -> list[Any]:
    """Return ``values`` as a list: given a list, an array, a series of any library, or a generator."""
    if hasattr(values, "columns"):
        # In a table of pyarrow, ``columns`` are arrays without names.
        columns = ", ".join(map(repr, map(str, list(getattr(values, "column_names", values.columns))[:5])))
        remedy = "its rows as dictionaries" if name == "metadata" else f"one of its columns ({columns})"
        raise InputError(f"{name} must be {needed}, got {described(values)}; give {remedy}")
    is_array_of_one = getattr(values, "shape", None) == ()
    if isinstance(values, str | bytes | dict) or not isinstance(values, Iterable) or is_array_of_one:
        remedy = "; give [text]" if name == "texts" and isinstance(values, str) else ""
        raise InputError(f"{name} must be {needed}, got {described(values)}{remedy}")
    return values.to_pylist() if hasattr(values, "to_pylist") else list(values)


def listed(values: Any, name: str, needed: str) -> list[Any]:
    """Return ids or texts as a list; a single one becomes a list of one."""
    return [values] if isinstance(values, str | numbers.Integral) else as_list(values, name, needed)


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Return the rows of a table as lines: the first column is left-aligned, the others right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in rows
    )
