"""The sentence of a passage that answers a query best, by meaning and by words."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ctx_embed.documents.blocks import rows
from ctx_embed.index.searching.by_words import content_words
from ctx_embed.index.searching.hits import densest, word_shares
from ctx_embed.index.storage.database import require_time
from ctx_embed.index.storage.documents import Span
from ctx_embed.index.storage.vectors import Vectors
from ctx_embed.index.writing.chunking import sentences

# The weight of all of a query's words relative to a cosine of 1; benchmarks/highlights.py shows its effect.
WORDS_WEIGHT = 0.5
# Sentences with more characters than this are cut at line ends, and longer lines between words.
LONG_SENTENCE = 400
_LINES = re.compile(rf"\S.{{0,{LONG_SENTENCE - 1}}}(?!\S)|\S{{1,{LONG_SENTENCE}}}")
# Two lines are of one paragraph if both begin with a word (the first may be an item of a list), and the first is at
# least this long and ends neither a sentence nor a statement nor a row of a table.
SHORT_LINE = 40
_PARAGRAPH = re.compile(r"(?:(?:[-*+•]|\d+[.)])\s+)?[\"'`(]*[^\W\d_].*[^.!?;{}|]")
_WORD_START = re.compile(r"[\"'`(]*[^\W\d_]")


def places(text: str) -> list[Span]:
    """Return the parts of a text of which one is highlighted, as spans of characters.

    They are the sentences of its paragraphs, and its other lines, such as those of lists and source code.
    """
    paragraphs: list[Span] = []
    above = ""
    for start, stop, *_ in rows(text):
        line = text[start:stop]
        is_paragraph = len(above) >= SHORT_LINE and _PARAGRAPH.fullmatch(above.strip())
        if is_paragraph and start == paragraphs[-1][1] + 1 and _WORD_START.match(line.strip()):
            paragraphs[-1] = (paragraphs[-1][0], stop)
        else:
            paragraphs.append((start, stop))
        above = line
    spans: list[Span] = []
    for first, last in paragraphs:
        for start, stop in ((first + start, first + stop) for start, stop in sentences(text[first:last])):
            is_long = stop - start > LONG_SENTENCE
            spans += [found.span() for found in _LINES.finditer(text, start, stop)] if is_long else [(start, stop)]
    return spans or [(0, len(text))]


def highlights(
    texts: Sequence[str], queries: Sequence[str], vectors: Vectors, embed: Callable[[Sequence[str]], Vectors]
) -> list[Span]:
    """Return the place in each text that answers one of the queries best, as a span of characters.

    ``vectors`` are the queries' (queries, dimension), zeros for one that the model cannot read; ``embed`` returns unit
    vectors (n, dimension) of texts.
    """
    words = list(dict.fromkeys(word for query in queries for word in content_words(query)))
    spans = []
    for text, (first, last) in zip(texts, densest(words, texts), strict=True):
        require_time()
        spans.append([(first + start, first + stop) for start, stop in places(text[first:last])])
    # The only sentence of a passage is its answer, without comparing.
    parts = [
        text[slice(*span)] for text, of_text in zip(texts, spans, strict=True) if len(of_text) > 1 for span in of_text
    ]
    if not parts:
        return [span for (span,) in spans]
    with warnings.catch_warnings():
        # The model may know too few words of a line.
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
