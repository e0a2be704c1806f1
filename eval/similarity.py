"""Semantic textual similarity: do the cosines of the embeddings rank pairs of texts as people do?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr

from ctx_embed.errors import InputError


@dataclass(frozen=True)
class SimilarityScore:
    """Spearman's rank correlation times 100 of each subset."""

    subsets: Mapping[str, float]

    @property
    def mean(self) -> float:
        """The mean over the subsets, each of equal weight."""
        return float(np.mean(list(self.subsets.values())))


def spearman(A: NDArray[Any], B: NDArray[Any], scores: Sequence[float]) -> float:
    """Spearman's rank correlation times 100 between ``cos(A_i, B_i)`` and ``scores_i``.

    Args:
        A, B: (n, d) embeddings of the first and of the second texts; the cosine with a zero vector is 0.
        scores: n judgements.

    Raises:
        InputError: fewer than two pairs, or all cosines or all judgements alike: there is no ranking then.
    """
    A, B = A.astype(np.float64), B.astype(np.float64)
    lengths = np.linalg.norm(A, axis=1) * np.linalg.norm(B, axis=1)
    cosines = (A * B).sum(axis=1) / np.where(lengths > 0, lengths, 1.0)
    if len(set(scores)) < 2 or len(set(cosines.tolist())) < 2:
        what = "cosine" if len(set(scores)) > 1 else "score"
        raise InputError(f"all {len(scores)} pairs have the same {what}, there is nothing to rank")
    return 100.0 * float(spearmanr(cosines, np.asarray(scores)).statistic)
