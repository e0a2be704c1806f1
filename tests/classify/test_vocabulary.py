from __future__ import annotations

import numpy as np
import pytest

from ctx_embed.classify.head import Vocabulary, Words

TEXTS = ["Very good!", "very good food", "good, not bad", "bad food", "bad food, very", "", "odd"]


def names(vocabulary: Vocabulary) -> list[str]:
    return [vocabulary.name(feature) for feature in range(len(vocabulary))]


def test_words_and_pairs_of_two_texts_by_frequency_and_first_occurrence():
    vocabulary = Vocabulary.learn(TEXTS, 100)
    assert names(vocabulary) == ["very", "good", "food", "bad", ",", "very good", "bad food"]
    assert names(Vocabulary.learn(TEXTS, 3)) == ["very", "good", "food"]
    # Pairs bring their words.
    part, features = vocabulary.part(np.array([6]))
    assert (names(part), features.tolist()) == (["food", "bad", "bad food"], [2, 3, 6])


@pytest.mark.parametrize("texts", [[], [""], ["a", "b"], ["a b"]])
def test_no_features(texts):
    vocabulary = Vocabulary.learn(texts, 100)
    assert len(vocabulary) == 0
    assert vocabulary.matrix(["a b c", ""]).shape == (2, 0)
    assert Words(vocabulary, np.zeros((0, 2))).logits(["a b c", ""]).tolist() == [[0, 0], [0, 0]]


def test_features_are_counted_once_for_each_occurrence():
    vocabulary = Vocabulary(["a", "b"], np.array([[0, 1], [1, 0]]))
    texts = ["a b a", "b", "a c b", "A\nB", "a" * 3]
    dense = vocabulary.matrix(texts).toarray()
    expected = [[2, 1, 1, 1], [0, 1, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [0, 0, 0, 0]]
    lengths = np.array([3, 1, 3, 2, 1])
    assert dense == pytest.approx(np.array(expected) / np.sqrt(2 * lengths)[:, None])
    weight = np.random.default_rng(0).normal(size=(4, 3))
    assert Words(vocabulary, weight).logits(texts) == pytest.approx(dense @ weight, abs=1e-6)


def test_a_text_has_the_same_sum_in_any_batch():
    vocabulary = Vocabulary.learn(TEXTS, 100)
    weight = np.random.default_rng(0).normal(size=(len(vocabulary), 2))
    words = Words(vocabulary, weight)
    assert np.array_equal(words.logits(TEXTS), np.concatenate([words.logits([text]) for text in TEXTS]))
