"""Semantic textual similarity: do the cosines of the embeddings rank pairs of texts as people do?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.stats import spearmanr

from ctx_embed.errors import InputError


@dataclass(frozen=True)
class SimilarityScore:
    """Spearman's rank correlation times 100 of each subset, and the cosines of its pairs in order."""

    subsets: Mapping[str, float]
    cosines: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    @property
    def mean(self) -> float:
        """The mean over the subsets, each of equal weight."""
        return float(np.mean(list(self.subsets.values())))


def spearman(cosines: Sequence[float], scores: Sequence[float]) -> float:
    """Return Spearman's rank correlation times 100 between n cosines and n judgements.

    Raises:
        InputError: all cosines or all judgements are equal, so that there is no ranking.
    """
    if len(set(scores)) < 2 or len(set(cosines)) < 2:
        what = "cosine" if len(set(scores)) > 1 else "score"
        raise InputError(f"all {len(scores)} pairs have the same {what}; there is nothing to rank")
    return 100.0 * float(spearmanr(cosines, scores).statistic)
