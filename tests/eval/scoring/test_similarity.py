from __future__ import annotations

import re

import pytest

from ctx_embed.errors import InputError
from ctx_embed.eval.scoring.similarity import SimilarityScore, spearman


def test_ranks_by_hand():
    assert spearman([0.1, 0.2, 0.9], [1, 2, 3]) == pytest.approx(100.0)
    assert spearman([0.9, 0.2, 0.1], [1, 2, 3]) == pytest.approx(-100.0)
    # Ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4.
    assert spearman([0.0, 0.5, 0.5, 1.0], [1, 2, 3, 4]) == pytest.approx(100 * 4.5 / (4.5 * 5) ** 0.5)


@pytest.mark.parametrize(
    ("cosines", "scores", "what"),
    [([0.5, 0.5], [1, 2], "cosine"), ([0.1, 0.2], [3, 3], "score"), ([0.1], [1], "score")],
)
def test_nothing_to_rank(cosines, scores, what):
    message = f"all {len(scores)} pairs have the same {what}; there is nothing to rank"
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        spearman(cosines, scores)


def test_subsets_weigh_the_same():
    assert SimilarityScore({"a": 60.0, "b": 70.0}).mean == 65.0
