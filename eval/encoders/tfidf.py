"""The baseline of words and word pairs weighted by tf-idf, fitted on each training fold alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.preprocessing import normalize

from ctx_embed.errors import InputError
from ctx_embed.eval.features import Matrix, Rows

WORD = r"(?u)\b\w+\b"
FEWEST_TEXTS = 2


class Tfidf:
    """The features of texts: (1 + log tf) * (1 + log((1 + n) / (1 + df))), each row of unit length.

    The counts of a text are its own affair and are made once; which words are kept (those in two training texts or
    more) and how they weigh is decided by the training rows alone.

    Args:
        texts: n, the rows.

    Raises:
        InputError: no word in any of them.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        try:
            counts = CountVectorizer(token_pattern=WORD, ngram_range=(1, 2), dtype=np.float64).fit_transform(texts)
        except ValueError:
            raise InputError("tfidf: there is no word in any of the texts") from None
        counts.data = 1.0 + np.log(counts.data)
        self._log_counts: Any = sparse.csr_array(counts)

    def __call__(self, train: Rows, other: Rows) -> tuple[Matrix, Matrix]:
        """The features (rows, words kept) of the training rows and of other rows."""
        fitted = self._log_counts[train]
        texts_with = np.bincount(fitted.indices, minlength=fitted.shape[1])
        kept = np.flatnonzero(texts_with >= min(FEWEST_TEXTS, len(train)))
        weights = 1.0 + np.log((1.0 + len(train)) / (1.0 + texts_with[kept]))
        first, second = (
            normalize(sparse.csr_array(rows[:, kept] * weights[None, :])) for rows in (fitted, self._log_counts[other])
        )
        return first, second
