"""Texts of similar words and another meaning: contradictions of labelled pairs, and negations made by rule."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

# Verbs after which the word "not" negates a clause.
_AUXILIARIES = r"is|are|was|were|will|would|can|could|should|must|has|have|had|does|do|did|am|may|might"
_NOT = re.compile(
    rf"\b({_AUXILIARIES})\s+not\b|\b(is|are|was|were|would|could|should|has|have|had|does|do|did)n't\b", re.I
)
_PLAIN = re.compile(rf"\b({_AUXILIARIES})\b(?!\s+not\b)", re.I)
_SHORTENED = frozenset(
    {"is", "are", "was", "were", "would", "could", "should", "has", "have", "had", "does", "do", "did"}
)
MOST_WORDS = 30


def negated(text: str) -> str | None:
    """Return the text without its first negation after an auxiliary verb, or with one added if it has none.

    Return None for a text without an auxiliary verb, a question, or a long text. About half of the added negations are
    shortened to n't; a hash of the text decides.
    """
    if len(text.split()) > MOST_WORDS or "?" in text:
        return None
    if found := _NOT.search(text):
        return text[: found.start()] + (found[1] or found[2]) + text[found.end() :]
    found = _PLAIN.search(text)
    if found is None:
        return None
    short = found[1].lower() in _SHORTENED and zlib.crc32(text.encode()) % 2 == 0
    return text[: found.start()] + found[1] + ("n't" if short else " not") + text[found.end() :]


def triples(texts: Sequence[str], pairs: NDArray[np.int64], opposed: NDArray[np.int64]) -> list[tuple[str, str, str]]:
    """Return texts, their partners and their contrasts: a contradiction where one is known, or the text negated.

    Args:
        texts: all texts of the training.
        pairs: (P, 2) rows of texts with the same meaning.
        opposed: (Q, 2) rows of texts that contradict one another.
    """
    contradictions = {texts[first]: texts[second] for first, second in opposed.tolist()}
    found = []
    for first, second in pairs.tolist():
        text, partner = texts[first], texts[second]
        if max(len(text.split()), len(partner.split())) > MOST_WORDS:
            continue
        found += [(text, partner, contrast) for contrast in (contradictions.get(text), negated(text)) if contrast]
    return found
