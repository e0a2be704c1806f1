"""What speaks for a label: words, pairs of words, and what of the meaning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ctx_embed.classify.vocabulary import words_of

# Parts shown of each kind, and words of a text that are left out in turn.
MOST_PARTS, MOST_WORDS = 10, 200


@dataclass(frozen=True)
class Explanation:
    """The parts of the logit by which a label is ahead of the mean of all classes, or of 0 with several labels.

    Attributes:
        label: the label.
        logit: the sum of ``bias``, ``meaning`` and all words and pairs.
        bias: the part that no text changes.
        meaning: the part of the embedding.
        words: words and pairs of the text with their parts, those of the largest parts first.
        of_meaning: words of the text with the change of ``meaning`` that each makes, compared with the same text
            without it, both in lower case with a space between words; those of the largest changes first.
    """

    label: Any
    logit: float
    bias: float
    meaning: float
    words: list[tuple[str, float]]
    of_meaning: list[tuple[str, float]]


def explained(predictor: Any, text: str) -> list[Explanation]:
    """Return the explanation of the label that a text gets; with several labels, of each."""
    head = predictor.head
    words = list(dict.fromkeys(words_of(text)[:MOST_WORDS]))
    # Leave each word out in turn, wherever it occurs, and compare with all of them, spelled in the same way.
    others = [" ".join(other for other in words_of(text) if other != word) for word in (None, *words)]
    embeddings = predictor.encoder.embed([text, *others])
    logits = head.logits(embeddings[:1], [text])[0]
    meanings = head.of_meaning(embeddings)
    return [
        _explained(head, text, label, head.labels.index(label), logits, meanings, words)
        for label in (head.chosen(logits[None])[0] if head.multi_label else head.chosen(logits[None]))
    ]


def _explained(
    head: Any, text: str, label: Any, place: int, logits: Any, meanings: Any, words: list[str]
) -> Explanation:
    def ahead(values: Any) -> Any:
        """Return the values (..., classes) of the label less the mean of all classes."""
        return values[..., place] if head.multi_label else values[..., place] - values.mean(-1)

    meaning = ahead(meanings)
    parts: dict[str, float] = {}
    if head.words is not None:
        _, features, values = head.words.vocabulary.occurrences([text])
        for feature, part in zip(
            features.tolist(), (values * ahead(head.words.weight[features])).tolist(), strict=True
        ):
            name = head.words.vocabulary.name(feature)
            parts[name] = parts.get(name, 0.0) + part
    changes = dict(zip(words, (meaning[1] - meaning[2:]).tolist(), strict=True))
    return Explanation(
        label, float(ahead(logits)), float(ahead(head.bias)), float(meaning[0]), _largest(parts), _largest(changes)
    )


def _largest(parts: dict[str, float]) -> list[tuple[str, float]]:
    ordered = sorted(parts.items(), key=lambda part: -abs(part[1]))
    return [(name, part) for name, part in ordered[:MOST_PARTS] if not np.isclose(part, 0, atol=1e-4)]
