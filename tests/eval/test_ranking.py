"""Cosines and rankings, and the statistics of differences."""

import math
import sqlite3
from contextlib import closing

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy import sparse
from scipy.stats import binomtest, bootstrap, spearmanr, ttest_1samp
from sklearn.metrics import ndcg_score

from ctx_embed.eval.scoring import statistics
from ctx_embed.eval.scoring.ranking import SimilarityScore, ndcg, paired, retrieve, score_retrieval, spearman
from ctx_embed.eval.tasks import TASKS, DataReader
from ctx_embed.index.database import TOKENIZER
from ctx_embed.text.normalisation import words
from tests.helpers.errors import error


def test_cosines_and_ranks_by_hand():
    A, B = np.array([[3.0, 4.0], [0.0, 0.0], [1.0, 0.0]]), np.array([[4.0, 3.0], [1.0, 1.0], [-2.0, 0.0]])
    for of in (np.asarray, sparse.csr_array):
        np.testing.assert_allclose(paired(of(A), of(B)), [24 / 25, 0.0, -1.0])
    # The length of a row does not matter, and half precision is widened first.
    for length in (1e-40, 1e30):
        np.testing.assert_allclose(paired(length * A, B), [24 / 25, 0.0, -1.0])
    wide = np.array([[300.0, 300.0]], np.float16)
    np.testing.assert_allclose(paired(wide, wide), [1.0])
    # Ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4; two different values are a ranking.
    assert spearman([0.0, 0.5, 0.5, 1.0], [1, 2, 3, 4]) == pytest.approx(100 * 4.5 / (4.5 * 5) ** 0.5)
    assert spearman([0.2, 0.1, 0.2, 0.1], [1.0, 2.0, 1.0, 2.0]) == pytest.approx(-100)
    assert SimilarityScore({"a": 60.0, "b": 70.0}).mean == 65.0
    for cosines, scores, what in (([0.5, 0.5], [1, 2], "cosine"), ([0.1, 0.2], [3, 3], "score"), ([0.1], [1], "score")):
        message = f"all {len(scores)} pairs have the same {what}; there is nothing to rank"
        assert error(spearman, cosines, scores) == message


@given(st.lists(st.integers(-1, 3), min_size=2, max_size=25).filter(lambda judged: max(judged) > 0), st.randoms())
def test_ndcg_is_scikit_learns_of_the_first_ten_where_below_0_is_not_relevant(judged, random):
    found = random.sample(judged, len(judged))
    expected = ndcg_score(np.maximum(found, 0)[None], np.arange(len(found))[None, ::-1], k=10)
    assert ndcg(found, judged) == ndcg(found[:10], judged) == pytest.approx(expected)


def test_equal_cosines_put_the_larger_id_first_whatever_the_order():
    queries, documents = np.array([[1.0, 0.0]]), np.array([[2.0, 0.0], [1.0, 1.0], [5.0, 0.0], [0.0, 0.0]])
    assert retrieve(queries, documents[::-1], ["d", "c", "b", "a"], k=2) == [["c", "a"]]
    for form in (np.asarray, sparse.csr_array):
        assert retrieve(form(queries), form(documents), ["a", "b", "c", "d"]) == [["c", "a", "b", "d"]]
    # Blocks of queries give the same.
    generator = np.random.default_rng(0)
    queries, documents, ids = generator.normal(size=(7, 4)), generator.normal(size=(20, 4)), list(map(str, range(20)))
    assert retrieve(queries, documents, ids, block_scores=40) == retrieve(queries, documents, ids)


def test_measures_by_hand():
    queries = np.eye(3)
    documents = np.array([[1.0, 0.1, 0], [0.9, 0.5, 0], [0, 1.0, 0.2], [0, 0, 1.0]])
    judgements = [("q1", "b", "1"), ("q1", "d", "2"), ("q1", "a", "0"), ("q2", "c", "1"), ("q3", "a", "0")]
    score = score_retrieval(["q1", "q2", "q3"], queries, ["a", "b", "c", "d"], documents, judgements)
    # q1 finds a, b, d, c: 1 / log2(3) + 2 / log2(4) of 2 + 1 / log2(3). q3 has nothing relevant and does not count.
    expected = 100 * (1 / math.log2(3) + 1) / (2 + 1 / math.log2(3))
    assert (score.ndcg, score.recall) == (pytest.approx((expected, 100.0)), (100.0, 100.0))
    assert score.reciprocal_rank == (50.0, 100.0)
    assert score.mean == pytest.approx((expected + 100) / 2)
    assert list(score.measures) == ["nDCG@10", "recall@100", "MRR@10"]
    # A relevant document that is not there counts as not found.
    judgements = [("q", "d", "1"), ("q", "gone", "1")]
    score = score_retrieval(["q"], np.eye(1), ["d"], np.eye(1), judgements)
    assert (score.recall, score.mean) == ((50.0,), pytest.approx(100 / (1 + 1 / math.log2(3))))
    said = error(score_retrieval, ["q"], np.eye(1), ["d"], np.eye(1), [("q", "d", "0")])
    assert said.startswith("at least one query must have a relevant document")


@pytest.mark.parametrize("name", ["adi", "cranfield", "cisi", "cacm"])
def test_the_figures_of_bm25(name, data):
    subsets, scores = DataReader(data).read(TASKS[name]).subsets, []
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute(f"CREATE VIRTUAL TABLE words USING fts5(id UNINDEXED, text, tokenize='{TOKENIZER}')")
        connection.executemany("INSERT INTO words VALUES (?, ?)", subsets["corpus"])
        find = "SELECT id FROM words WHERE words MATCH ? ORDER BY rank, rowid LIMIT 10"
        for query, text in subsets["queries"]:
            judged = {document: int(relevance) for of, document, relevance in subsets["qrels"] if of == query}
            if max(judged.values(), default=0) > 0:
                any_word = " OR ".join(f'"{word}"' for word in dict.fromkeys(words(text.lower())))
                found = [judged.get(document, 0) for (document,) in connection.execute(find, (any_word,))]
                scores.append(ndcg(found, [*judged.values()]))
    assert TASKS[name].published["BM25"] == pytest.approx(100 * np.mean(scores), abs=0.1)


def test_a_query_that_is_a_document_is_left_out_of_its_own_results_alone():
    vectors = np.array([[1.0, 0.0], [0.0, 1.0], [0.9, 0.1], [0.1, 0.9]])
    judgements = [("a", "c", "1"), ("b", "d", "1")]
    known = (["a", "b"], vectors[:2], ["a", "b", "c", "d"], vectors, judgements)
    score = score_retrieval(*known, own={"a", "b"})
    assert (score.mean, score.recall, score.reciprocal_rank) == (100.0, (100.0, 100.0), (100.0, 100.0))
    assert score_retrieval(*known).mean == pytest.approx(100 / math.log2(3))
    # The hundred others are looked at.
    many, places = np.linspace([1.0, 0.0], [0.0, 1.0], 101), [str(place) for place in range(101)]
    last = (["0"], many[:1], places, many, [("0", "100", "1")], {"0"})
    assert score_retrieval(*last).recall == (100.0,)
    assert score_retrieval(*known, own={"a"}).ndcg == pytest.approx((100.0, 100 / math.log2(3)))


# Intervals and tests
def test_intervals_are_scipys_and_those_of_correlations_by_hand():
    for right in (0, 8, 10):
        expected = binomtest(right, 10).proportion_ci(method="wilson")
        assert statistics.wilson(right, 10) == pytest.approx((100 * expected.low, 100 * expected.high), abs=1e-9)
    expected = ttest_1samp([1.0, 2.0, 4.0], 0).confidence_interval()
    assert statistics.mean_interval([1.0, 2.0, 4.0]) == pytest.approx((expected.low, expected.high))
    assert statistics.mean_interval([5.0]) == (5.0, 5.0)
    # Of correlations.
    low, high = statistics.correlation_interval([80.0], [1003])
    error = (1 - 0.64) * ((1 + 0.32) / 1000) ** 0.5
    assert (low, high) == pytest.approx((80 - 196 * error, 80 + 196 * error), abs=0.01)
    # Of two subsets of the same kind the mean is known 1.41 times as well.
    narrow = statistics.correlation_interval([80.0, 80.0], [1003, 1003])
    assert (high - low) / (narrow[1] - narrow[0]) == pytest.approx(2**0.5)
    assert statistics.correlation_interval([100.0], [3]) == (-100.0, 100.0)
    # Of four pairs: 1.96 (1 - 0.99^2) sqrt(1 + 0.99^2 / 2), cut at 100 or -100.
    assert statistics.correlation_interval([99.0], [4]) == (pytest.approx(99 - 4.76, abs=0.01), 100.0)
    assert statistics.correlation_interval([-99.0], [4]) == (-100.0, pytest.approx(-99 + 4.76, abs=0.01))


def test_mcnemar_and_paired_means_by_hand():
    right, other = np.array([1.0] * 9 + [0.0] + [1.0] * 10), np.array([0.0] * 9 + [1.0] + [1.0] * 10)
    found = statistics.mcnemar(right, other)
    assert found.value == pytest.approx(40.0)
    # 9 of 10 tosses, or more extreme, on either side: 2 (1 + 10) / 1024.
    assert found.p == pytest.approx(22 / 1024)
    # Half the width: 1.96 sqrt((10 / 20 - 0.4^2) / 20).
    assert found.interval == pytest.approx((40 - 25.5548, 40 + 25.5548), abs=1e-4)
    same = statistics.mcnemar(right, right)
    assert (same.value, same.p) == (0.0, 1.0)
    found = statistics.paired_means([3.0, 2.0, 4.0], [1.0, 1.0, 1.0])
    # All three are gains: of 8 ways to give signs, 2 are as extreme.
    assert (found.value, found.p) == (2.0, pytest.approx(2 / 8))
    assert statistics.paired_means([1.0, 2.0], [1.0, 2.0]).p == 1.0
    assert statistics.paired_means([1.0, 3.0], [1.0, 2.0]).p == 1.0
    # For encoders that do not differ, p < 0.1 occurs in one case of ten.
    ps = [statistics.paired_means(*pair).p for pair in np.random.default_rng(0).normal(size=(200, 2, 10))]
    assert 0.04 < np.mean(np.array(ps) < 0.1) < 0.17


def test_a_real_difference_of_correlations_is_found_and_none_is_not():
    generator = np.random.default_rng(3)
    gold = generator.normal(size=200)
    near, far, alike = (gold + noise * generator.normal(size=200) for noise in (0.3, 1.0, 0.3))
    found, again = (statistics.paired_correlations({"s": near}, {"s": far}, {"s": gold}) for _ in range(2))
    assert found == again
    assert found.p < 0.01
    assert 0 < found.interval[0] < found.value < found.interval[1]
    none = statistics.paired_correlations({"s": near}, {"s": alike}, {"s": gold})
    assert none.p > 0.05
    assert none.interval[0] < 0 < none.interval[1]

    def difference(a, b, g):
        return 100 * (spearmanr(a, g).statistic - spearmanr(b, g).statistic)

    few = [part[:50] for part in (near, far, gold)]
    found = statistics.paired_correlations(*({"s": part} for part in few))
    assert found.value == pytest.approx(difference(*few))
    resampled = bootstrap(few, difference, n_resamples=1000, paired=True, vectorized=False, method="percentile", rng=0)
    assert found.interval == pytest.approx(tuple(resampled.confidence_interval), abs=2.5)
