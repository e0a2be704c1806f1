"""Near-duplicates and topics of the stored vectors."""

import itertools
import re
import sys

import numpy as np
import pytest

from ctx_embed import SearchIndex
from ctx_embed.index.analysis import exploring
from ctx_embed.index.analysis.exploring import Field
from tests.helpers.errors import error
from tests.index.support.hash_model import hash_vectors

TEXTS = [f"text {number}" for number in range(200)]


def expected_pairs(texts, threshold):
    cosines = hash_vectors(texts).astype(np.float64) @ hash_vectors(texts).astype(np.float64).T
    return {
        (a, b): cosines[a, b] for a, b in itertools.combinations(range(len(texts)), 2) if cosines[a, b] >= threshold
    }


@pytest.mark.parametrize("factory", ["auto", "HNSW32"])
def test_duplicates_are_all_pairs_above_the_threshold(tmp_path, hash_model, factory, monkeypatch):
    with SearchIndex.create(tmp_path / "index", hash_model, factory) as index:
        index.add(TEXTS)
        usual = {(pair.left, pair.right): pair.score for pair in index.duplicates(0.8, 10_000)}
        monkeypatch.setattr(exploring, "ROWS_AT_ONCE", 32)
        monkeypatch.setattr(exploring, "NEIGHBOURS", 4)
        pairs = index.duplicates(0.8, 10_000)
        # Blocks of another size may change the last bit of a score.
        assert usual == pytest.approx({(pair.left, pair.right): pair.score for pair in pairs}, abs=1e-6)
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
        index.add(["Same. Same. Other.", "Same.", "Again. " * 12], ["a", "b", "c"])
        # Document c alone has 66 pairs of passages with cosine 1.
        pairs = index.duplicates(0.99, 3)
        assert [(pair.left, pair.right, pair.left_text) for pair in pairs] == [("a", "b", "Same.")] * 2
        assert error(index.duplicates, 1.5, 10) == "the threshold must be a cosine from -1 to 1, got 1.5"
        for most in (0, -1):
            assert "most must be an integer of at least 1" in error(index.duplicates, 0.9, most)


def test_topics_are_clusters_with_their_words(index):
    generator = np.random.default_rng(0)
    subjects = {"cat kitten purring": 0, "stock market prices": 1, "rain clouds storm": 2}
    texts, embeddings = [], []
    for words, axis in subjects.items():
        for number in range(30 + 10 * axis):
            texts.append(f"the {words.split()[number % 3]} and the {words.split()[(number + 1) % 3]}")
            embeddings.append(np.eye(8)[axis] + 0.1 * generator.standard_normal(8))
    index.add(texts, embeddings=embeddings)
    topics = index.topics(3)
    assert [topic.size for topic in topics] == [50, 40, 30]
    assert [set(topic.words) for topic in topics] == [set(words.split()) for words in reversed(subjects)]
    assert all(1 <= len({text for _, text in topic.examples}) == len(topic.examples) <= 3 for topic in topics)
    assert index.topics(3) == topics
    assert 2 <= len(index.topics()) <= 8
    assert "120 passages cannot make 121 topics; ask for fewer" in error(index.topics, 121)


def test_examples_of_a_topic_differ(tmp_path):
    kinds = [["Your order was shipped.", "Wash the apples."], ["Your order was shipped!", "wash the apples"]]
    rare = ["The parcel left our warehouse in Leeds.", "Your order is late by two days.", "Peel two pears."]
    with SearchIndex.create(tmp_path / "index") as index:
        index.add([*itertools.chain(*kinds)] * 5 + rare)
        for topic in index.topics(2):
            words = {" ".join(re.findall(r"\w+", text.lower())) for _, text in topic.examples}
            assert len(words) == len(topic.examples) >= 2
            assert all(index[identifier].text == text for identifier, text in topic.examples)


def test_each_document_gets_its_topic(tmp_path, hash_model):
    words = ["cat kitten purring", "stock market prices"]
    axes = np.eye(8)[:2]
    texts = [f"The {words[number % 2]}." for number in range(20)]
    with SearchIndex.create(tmp_path / "index", hash_model, chunk="sentences") as index:
        index.add(texts, ids=[f"d{number}" for number in range(20)], embeddings=[axes[n % 2] for n in range(20)])
        index.delete(["d0", "d3"])
        index.upsert(["The cat kitten purring. Here."], ["d1"], [{"year": 2020}], embeddings=[axes[0]])
        members = {frozenset(topic.label.split()): topic.documents for topic in index.topics(2)}
        assert set(members) == {frozenset(text.split()) for text in words}
        assert sorted(name for names in members.values() for name in names) == sorted(index.ids())
        assert "d1" in members[frozenset(words[0].split())]


def test_a_document_has_the_topic_of_most_of_its_passages_and_labels_differ():
    documents = np.array([3, 3, 3, 7, 7, 9, 12, 12, 12])
    of_passages = np.array([0, 1, 1, 2, 0, 1, 0, 0, 2])
    np.testing.assert_array_equal(exploring.topics_of_documents(documents, of_passages), [1, 2, 1, 0])
    words = [["a", "b", "c", "d"], ["a", "b", "c", "e"], ["a", "b", "c"], [], ["a"], []]
    assert exploring.labels_of(words) == ["a b c", "a b c e", "a b c 3", "topic 4", "a", "topic 6"]


def test_topics_of_texts_without_words_and_without_scikit_learn(index, monkeypatch):
    index.add(["1", "2", "3", "the"])
    assert [topic.words for topic in index.topics(2)] == [[], []]
    monkeypatch.setitem(sys.modules, "sklearn.feature_extraction.text", None)
    assert "topics need scikit-learn: pip install scikit-learn" in error(index.topics, 3)


def test_a_low_threshold_costs_no_more_than_a_high_one(index, monkeypatch):
    index.add(TEXTS)
    every = expected_pairs(TEXTS, -1)
    looked_at = []

    def counted(*arguments):
        for pair in near_pairs(*arguments):
            looked_at.append(pair)
            yield pair

    near_pairs = exploring.near_pairs
    monkeypatch.setattr(exploring, "near_pairs", counted)
    monkeypatch.setattr(exploring, "ROWS_AT_ONCE", 32)
    best = index.duplicates(-1, 10)
    assert [pair.score for pair in best] == pytest.approx(sorted(every.values(), reverse=True)[:10], abs=1e-6)
    assert len(looked_at) < 200 < len(every)
    assert len(index.duplicates(-1, 10**6)) == len(every)


@pytest.fixture(scope="module")
def described(tmp_path_factory):
    metadata = [
        {"year": 2020, "lang": "en", "ok": True, "tags": ["a", "b", "a"]},
        {"year": 1999.5, "lang": "en", "ok": False, "gone": None, "tags": ["b", 7]},
        {"year": 2020, "lang": "fr", "ok": True, "more": {"deep": 1}},
        {"year": "unknown", "lang": "en"},
        {},
    ]
    with SearchIndex.create(tmp_path_factory.mktemp("fields") / "i") as index:
        index.add(["one film", "two films", "a cat", "prices rise", "nothing"], metadata=metadata)
        yield index


def test_fields_have_types_ranges_and_values(described):
    assert described.fields() == [
        Field("lang", "string", 4, "en", "fr", [("en", 3), ("fr", 1)]),
        Field("year", "number", 4, 1999.5, 2020, [(2020, 2), (1999.5, 1)]),
        Field("ok", "boolean", 3, None, None, [(True, 2), (False, 1)]),
        Field("tags", "list", 2, None, None, [("b", 2), ("a", 1)]),
        Field("more", "object", 1, None, None, []),
    ]
    assert described.fields(most=1)[0].values == [("en", 3)]


def test_a_similarity_is_explained_from_both_sides(described):
    found = described.explain("film", "two films")
    (hit,) = [hit for hit in described.search("film") if hit.text == "two films"]
    assert found.score == pytest.approx(hit.score, abs=1e-6)
    assert found.query.cosine == pytest.approx(hit.score, abs=2e-5)
    assert found.document.cosine == pytest.approx(hit.score, abs=2e-5)
    weights = {token.text: token.weight for token in found.document.tokens}
    assert max(weights, key=weights.get) == "films"
    assert "the text must be a string, got None" in error(described.explain, "film", None)
