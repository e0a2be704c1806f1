"""Chunking: cut documents into passages, which have a vector each and refer to their document."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any, TypeAlias

from ctx_embed.errors import InputError
from ctx_embed.index.storage.documents import Span

Chunker: TypeAlias = Callable[[str], list[Span]]

_SENTENCE_END = re.compile(r"[.!?\u2026]+[\"'\u201d\u2019)\]]*\s+(?=[\"'\u201c\u2018(\[]*[^\W_a-z])|\s*\n\s*\n\s*")
_WORD = re.compile(r"\w+|[^\w\s]")


def whole(text: str) -> list[Span]:
    """Return the whole text as one passage."""
    return [(0, len(text))]


def sentences(text: str) -> list[Span]:
    """Return the sentences; they end with . ! ? or … before a space and a capital or a digit, and at blank lines."""
    starts = [0, *(match.end() for match in _SENTENCE_END.finditer(text)), len(text)]
    return _trimmed(text, list(pairwise(starts)))


def tokens(size: int, offsets: Callable[[str], list[Span]]) -> Chunker:
    """Return a chunker into passages of at most ``size`` tokens; only words longer than that are cut.

    Args:
        size: the most tokens of a passage, at least 1.
        offsets: returns the tokens of a text as spans.
    """

    def chunk(text: str) -> list[Span]:
        found = offsets(text)
        spans: list[Span] = []
        first = 0
        while first < len(found):
            last = min(first + size, len(found))
            while last < len(found) and last > first + 1 and _joined(text, found[last - 1], found[last]):
                last -= 1
            if last == first + 1 and size > 1 and last < len(found) and _joined(text, found[first], found[last]):
                last = min(first + size, len(found))
            spans.append((found[first][0], found[last - 1][1]))
            first = last
        return spans or whole(text)

    return chunk


def _joined(text: str, left: Span, right: Span) -> bool:
    """Return whether two adjacent tokens are parts of one word."""
    return left[1] >= right[0] and text[left[1] - 1 : left[1]].isalnum() and text[right[0] : right[0] + 1].isalnum()


def _trimmed(text: str, spans: list[Span]) -> list[Span]:
    """Return the spans without white space at their ends, leaving out those with nothing else."""
    trimmed = []
    for start, stop in spans:
        passage = text[start:stop]
        if passage.strip():
            begin = start + len(passage) - len(passage.lstrip())
            trimmed.append((begin, begin + len(passage.strip())))
    return trimmed or whole(text)


def words(text: str) -> list[Span]:
    """Return words and punctuation marks as tokens, for models without a tokenizer."""
    return [match.span() for match in _WORD.finditer(text)]


def tokenizer_of(model: Any) -> Callable[[str], list[Span]]:
    """Return a function that returns the tokens of a text as spans, by the model's tokenizer if it has one."""
    tokenizer: Any = getattr(model, "tokenizer", None)
    tokenizer = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if not hasattr(tokenizer, "encode_batch_fast"):
        return words
    own = type(tokenizer).from_str(tokenizer.to_str())
    own.no_truncation()
    own.no_padding()
    return lambda text: [span for span in own.encode(text, add_special_tokens=False).offsets if span[1] > span[0]]


def checked_chunk(chunk: Any) -> str:
    """Return ``chunk`` if it is valid.

    Raises:
        InputError: it is not ``none``, ``sentences`` or ``tokens:N``.
    """
    match = re.fullmatch(r"tokens:(\d{1,9})", chunk) if isinstance(chunk, str) else None
    if chunk in ("none", "sentences") or (match and int(match[1]) > 0):
        return str(chunk)
    raise InputError(
        f"chunk must be none, sentences or tokens:N with a number of tokens N, e.g. tokens:256, got {chunk!r}"
    )


def chunker(chunk: str, model: Any) -> Chunker:
    """Return the function that cuts texts as ``chunk`` says, with the tokenizer of ``model``, the index's model."""
    if chunk.startswith("tokens:"):
        return tokens(int(chunk.removeprefix("tokens:")), tokenizer_of(model))
    return {"none": whole, "sentences": sentences}[chunk]
