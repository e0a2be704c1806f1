"""A classifier that reads words beside embeddings, in the place of a probe."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ctx_embed.classify.fitting import fitted_head
from ctx_embed.classify.labelled import Labelled
from ctx_embed.errors import InputError
from ctx_embed.eval.scoring.probes import Features, Fit, Indices


def rows_alone(train: Indices, other: Indices) -> tuple[Indices, Indices]:
    """Return the rows themselves as features, for a classifier that finds their texts."""
    return train, other


def reading_words(features: Features, texts: Sequence[Sequence[str]]) -> Fit:
    """Return the fit of a classifier on rows: it chooses its own options on the training rows, not a penalty.

    Args:
        features: of the embeddings.
        texts: of the rows, one each.

    Raises:
        InputError: rows of two texts.
    """
    if len(texts[0]) != 1:
        raise InputError("an encoder named NAME+words needs a task with one text a row, got pairs of texts")

    def fit(train: Indices, y: Indices, classes: int, penalties: Sequence[float], other: Indices) -> list[Indices]:
        X, X_other = features(train, other)
        data = Labelled(y.tolist(), [texts[row][0] for row in train])
        head = fitted_head(X, data, data.classes())
        return [np.array(head.chosen(head.logits(X_other, [texts[row][0] for row in other])), np.intp)]

    return fit
