from __future__ import annotations

import numpy as np
import pytest

from ctx_embed.errors import InputError
from ctx_embed.eval.similarity import SimilarityScore, spearman

# Cosines 1, 0.8, 0.6, 0 of pairs of different lengths.
A = np.array([[1.0, 0.0]] * 4)
B = np.array([[2.0, 0.0], [0.8, 0.6], [6.0, 8.0], [0.0, 1.0]])


def test_by_hand():
    assert spearman(A, B, [4, 3, 2, 1]) == pytest.approx(100.0)
    assert spearman(A, B, [1, 2, 3, 4]) == pytest.approx(-100.0)
    # Two neighbouring ranks swapped: 1 - 6 * 2 / (4 * 15).
    assert spearman(A, B, [4, 2, 3, 1]) == pytest.approx(80.0)


def test_lengths_and_order_of_the_pairs_do_not_matter():
    scores = [4.0, 2.0, 3.0, 1.0]
    order = [2, 0, 3, 1]
    assert spearman(5 * A, 0.1 * B, scores) == pytest.approx(spearman(A, B, scores))
    assert spearman(A[order], B[order], [scores[i] for i in order]) == pytest.approx(spearman(A, B, scores))


def test_a_zero_vector_has_cosine_zero():
    assert spearman(A, np.vstack([B[:3], np.zeros((1, 2))]), [4, 3, 2, 1]) == pytest.approx(100.0)


@pytest.mark.parametrize(("scores", "what"), [([1, 2, 3, 4], "cosine"), ([2, 2, 2, 2], "score")])
def test_nothing_to_rank(scores, what):
    with pytest.raises(InputError, match=f"^all 4 pairs have the same {what}, there is nothing to rank$"):
        spearman(A, A, scores)


def test_mean_over_subsets_of_equal_weight():
    assert SimilarityScore({"small": 60.0, "large": 80.0}).mean == 70.0
