"""The TF-IDF baseline over words and word pairs, fitted on each training fold only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.preprocessing import normalize

from ctx_embed.errors import InputError
from ctx_embed.eval.scoring.probes import Indices, Matrix

WORD = r"(?u)\b\w+\b"
FEWEST_TEXTS = 2


class Tfidf:
    """TF-IDF features of texts: (1 + log tf) * (1 + log((1 + n) / (1 + df))), each row of unit length.

    Words are counted once for all rows; the vocabulary (words in at least two training texts) and the weights come from
    the training rows only.

    Args:
        texts: the texts of n rows.

    Raises:
        InputError: no text holds a word.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        try:
            counts = CountVectorizer(token_pattern=WORD, ngram_range=(1, 2), dtype=np.float64).fit_transform(texts)
        except ValueError:
            raise InputError("tfidf: at least one text must hold a word, got none") from None
        counts.data = 1.0 + np.log(counts.data)
        self._log_counts: Any = sparse.csr_array(counts)

    def __call__(self, train: Indices, other: Indices) -> tuple[Matrix, Matrix]:
        """Return the features (rows, words) of the training rows and of other rows."""
        fitted = self._log_counts[train]
        texts_with = np.bincount(fitted.indices, minlength=fitted.shape[1])
        used = np.flatnonzero(texts_with >= min(FEWEST_TEXTS, len(train)))
        weights = 1.0 + np.log((1.0 + len(train)) / (1.0 + texts_with[used]))
        first, second = (
            normalize(sparse.csr_array(rows[:, used] * weights[None, :])) for rows in (fitted, self._log_counts[other])
        )
        return first, second
