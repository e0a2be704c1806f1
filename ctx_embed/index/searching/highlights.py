"""The place in a passage that answers a query: its sentence that is nearest by meaning and has the query's words."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ctx_embed.documents.blocks import rows
from ctx_embed.index.searching.hits import Hit
from ctx_embed.index.searching.relevance import word_shares
from ctx_embed.index.storage.documents import Span
from ctx_embed.index.storage.dtypes import Vectors
from ctx_embed.index.writing.chunking import sentences

# How much all of a query's words count against a cosine of 1; benchmarks/highlights.py shows what it changes.
WORDS_WEIGHT = 0.5
# Sentences of more characters are cut into their lines, such as those of a log or of source code.
LONG_SENTENCE = 400


def places(text: str) -> list[Span]:
    """Return the parts of a text of which one is highlighted, its sentences or lines, as spans of characters."""
    spans = []
    for start, stop in sentences(text):
        if stop - start <= LONG_SENTENCE:
            spans.append((start, stop))
        else:
            spans += [(start + line.start, start + line.stop) for line in rows(text[start:stop])]
    return spans or [(0, len(text))]


def highlighted(
    hits: Sequence[Hit], queries: Sequence[str], vectors: Vectors, embed: Callable[[Sequence[str]], Vectors]
) -> list[Hit]:
    """Return hits with their highlight; the arguments are those of :func:`highlights`."""
    spans = highlights([hit.text for hit in hits], queries, vectors, embed)
    return [replace(hit, highlight=span) for hit, span in zip(hits, spans, strict=True)]


def highlights(
    texts: Sequence[str], queries: Sequence[str], vectors: Vectors, embed: Callable[[Sequence[str]], Vectors]
) -> list[Span]:
    """Return the place in each text that answers a query best, as a span of characters.

    Args:
        texts: the passages.
        queries: one query, or several of which any may be answered.
        vectors: (queries, dimension) their unit vectors; zeros for a query of which the model knows no token.
        embed: returns the unit vectors (n, dimension) of texts.
    """
    spans = [places(text) for text in texts]
    # The only sentence of a passage is its answer, without comparing.
    parts = [
        text[slice(*span)] for text, of_text in zip(texts, spans, strict=True) if len(of_text) > 1 for span in of_text
    ]
    if not parts:
        return [span for (span,) in spans]
    with warnings.catch_warnings():
        # A line may have no token that the model knows.
        warnings.simplefilter("ignore")
        # Without the meaning of the query, its words decide.
        cosines = (embed(parts) @ vectors.T).max(axis=1) if vectors.any() else np.zeros(len(parts), np.float32)
    shares: Any = np.max([word_shares(query, parts) for query in queries], axis=0)
    nearness = cosines + np.float32(WORDS_WEIGHT) * shares
    found, first = [], 0
    for of_text in spans:
        best = 0
        if len(of_text) > 1:
            best = int(nearness[first : first + len(of_text)].argmax())
            first += len(of_text)
        found.append(of_text[best])
    return found
