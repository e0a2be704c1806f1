"""Near-duplicates and topics of the stored vectors."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from ctx_embed import InputError, SearchIndex
from ctx_embed.index.analysis import duplicates
from ctx_embed.index.ann import vector_index
from tests.index.support.hash_model import hash_vectors

TEXTS = [f"text {number}" for number in range(200)]


def expected_pairs(texts, threshold):
    cosines = hash_vectors(texts).astype(np.float64) @ hash_vectors(texts).astype(np.float64).T
    return {
        (a, b): cosines[a, b] for a, b in itertools.combinations(range(len(texts)), 2) if cosines[a, b] >= threshold
    }


@pytest.mark.parametrize("factory", ["auto", "HNSW32"])
def test_duplicates_are_all_pairs_above_the_threshold(tmp_path, hash_model, factory, monkeypatch):
    monkeypatch.setattr(duplicates, "ROWS_AT_ONCE", 32)
    monkeypatch.setattr(duplicates, "NEIGHBOURS", 4)
    monkeypatch.setattr(vector_index, "FEW_ROWS", 0)
    with SearchIndex.create(tmp_path / "index", hash_model, factory) as index:
        index.add(TEXTS)
        pairs = index.duplicates(0.8, 10_000)
        expected = expected_pairs(TEXTS, 0.8)
        assert len(expected) > 50
        assert {(pair.left, pair.right) for pair in pairs} == set(expected)
        for pair in pairs:
            assert pair.score == pytest.approx(expected[pair.left, pair.right], abs=1e-6)
        assert [pair.score for pair in pairs] == sorted((pair.score for pair in pairs), reverse=True)
        assert index.duplicates(0.8, 5) == pairs[:5]
        gone = pairs[0].left
        index.delete(gone)
        left = {(pair.left, pair.right) for pair in index.duplicates(0.8, 10_000)}
        assert left == {pair for pair in expected if gone not in pair}


def test_passages_of_one_document_are_no_duplicates(tmp_path, hash_model):
    with SearchIndex.create(tmp_path / "index", hash_model, chunk="sentences") as index:
        index.add(["Same. Same. Other.", "Same."], ["a", "b"])
        pairs = index.duplicates(0.99, 10)
        assert [(pair.left, pair.right, pair.left_text) for pair in pairs] == [("a", "b", "Same.")] * 2


def test_a_threshold_that_is_no_cosine(tmp_path, hash_model):
    with SearchIndex.create(tmp_path / "index", hash_model) as index, pytest.raises(InputError) as caught:
        index.duplicates(1.5, 10)
    assert str(caught.value) == "the threshold must be a cosine from -1 to 1, got 1.5"


def test_topics_are_clusters_with_their_words(tmp_path, hash_model):
    generator = np.random.default_rng(0)
    subjects = {"cat kitten purring": 0, "stock market prices": 1, "rain clouds storm": 2}
    texts, embeddings = [], []
    for words, axis in subjects.items():
        for number in range(30 + 10 * axis):
            texts.append(f"the {words.split()[number % 3]} and the {words.split()[(number + 1) % 3]}")
            embeddings.append(np.eye(8)[axis] + 0.1 * generator.standard_normal(8))
    with SearchIndex.create(tmp_path / "index", hash_model) as index:
        index.add(texts, embeddings=embeddings)
        topics = index.topics(3)
        assert [topic.size for topic in topics] == [50, 40, 30]
        assert [set(topic.words) for topic in topics] == [set(words.split()) for words in reversed(subjects)]
        assert all(len(topic.examples) == 3 for topic in topics)
        assert index.topics(3) == topics
        assert 2 <= len(index.topics()) <= 8
        with pytest.raises(InputError, match="120 passages cannot make 121 topics; ask for fewer"):
            index.topics(121)


def test_topics_of_texts_without_words(tmp_path, hash_model):
    with SearchIndex.create(tmp_path / "index", hash_model) as index:
        index.add(["1", "2", "3", "the"])
        assert [topic.words for topic in index.topics(2)] == [[], []]


def test_repeated_sentences_of_one_document_leave_room_for_real_duplicates(tmp_path, hash_model):
    with SearchIndex.create(tmp_path / "index", hash_model, chunk="sentences") as index:
        index.add(["Again. " * 12, "Shared once.", "Shared once."], ["a", "b", "c"])
        # Document a alone has 66 pairs of passages with cosine 1.
        assert [(pair.left, pair.right) for pair in index.duplicates(0.99, 3)] == [("b", "c")]
