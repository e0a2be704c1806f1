from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from ctx_embed.errors import InputError
from ctx_embed.eval.retrieval import ndcg, retrieve, score_retrieval


def test_ndcg_by_hand():
    # DCG = 3 / log2(2) + 0 + 2 / log2(4) = 4; the best order 3, 2, 1: 3 + 2 / log2(3) + 1 / 2.
    assert ndcg([3, 0, 2], [2, 3, 1, 0]) == pytest.approx(4 / (3 + 2 / math.log2(3) + 0.5))
    assert ndcg([1], [1]) == 1.0
    assert ndcg([0, 0], [1]) == 0.0
    # The eleventh counts neither among the found nor among the best.
    assert ndcg([0] * 10 + [1], [1]) == 0.0
    assert ndcg([1] * 10, [1] * 20) == 1.0
    # Below 0 is not relevant.
    assert ndcg([-2, 1], [-2, 1]) == pytest.approx(1 / math.log2(3))


@given(st.lists(st.integers(0, 3), min_size=1, max_size=15).filter(any), st.randoms())
def test_ndcg_is_1_in_the_best_order_and_less_in_others(judged, random):
    best = sorted(judged, reverse=True)
    assert ndcg(best, judged) == pytest.approx(1.0)
    random.shuffle(judged)
    assert 0.0 <= ndcg(judged, judged) <= 1.0 + 1e-12


def test_equal_cosines_put_the_larger_id_first_whatever_the_order():
    queries = np.array([[1.0, 0.0]])
    documents = np.array([[2.0, 0.0], [1.0, 1.0], [5.0, 0.0], [0.0, 0.0]])
    assert retrieve(queries, documents, ["a", "b", "c", "d"]) == [["c", "a", "b", "d"]]
    assert retrieve(queries, documents[::-1], ["d", "c", "b", "a"], k=2) == [["c", "a"]]
    assert retrieve(sparse.csr_array(queries), sparse.csr_array(documents), ["a", "b", "c", "d"], 2) == [["c", "a"]]


def test_blocks_of_queries_give_the_same(monkeypatch):
    generator = np.random.default_rng(0)
    queries, documents = generator.normal(size=(7, 4)), generator.normal(size=(20, 4))
    ids = [str(i) for i in range(20)]
    whole = retrieve(queries, documents, ids)
    monkeypatch.setattr("ctx_embed.eval.retrieval.BLOCK_SCORES", 40)
    assert retrieve(queries, documents, ids) == whole


def test_measures_by_hand():
    queries = np.eye(3)
    documents = np.array([[1.0, 0.1, 0], [0.9, 0.5, 0], [0, 1.0, 0.2], [0, 0, 1.0]])
    judgements = [("q1", "b", "1"), ("q1", "d", "2"), ("q2", "c", "1"), ("q3", "a", "0")]
    score = score_retrieval(["q1", "q2", "q3"], queries, ["a", "b", "c", "d"], documents, judgements)
    # q1 finds a, b, d, c: 1 / log2(3) + 2 / log2(4) of 2 + 1 / log2(3). q3 has nothing relevant and does not count.
    expected = 100 * (1 / math.log2(3) + 1) / (2 + 1 / math.log2(3))
    assert score.ndcg == pytest.approx((expected, 100.0))
    assert score.recall == (100.0, 100.0)
    assert score.reciprocal_rank == (50.0, 100.0)
    assert score.mean == pytest.approx((expected + 100) / 2)
    assert list(score.measures) == ["nDCG@10", "recall@100", "MRR@10"]


def test_nothing_relevant():
    with pytest.raises(InputError, match=r"^no query has a relevant document, there is nothing to find$"):
        score_retrieval(["q"], np.eye(1), ["d"], np.eye(1), [("q", "d", "0")])
