"""Listing, counting, describing and exploring documents, changing their metadata alone; data sets and files of them."""

import itertools
import json
import re
import sys
import tracemalloc

import numpy as np
import pytest
from datasets import Dataset

from ctx_embed import SearchIndex
from ctx_embed.index import database as storage, exploring
from ctx_embed.index.build import build_index
from ctx_embed.index.exploring import Field
from ctx_embed.texts import Document
from ctx_embed.vectors import unit_rows
from tests.helpers.errors import error
from tests.index.support.hash_model import HashModel, hash_vectors

NOTES = [
    Document("The cat sat on the mat.", "cat", {"lang": "en", "tags": ["animal", "home"], "n": 1, "ok": True}),
    Document("Der Hund schlief.", "dog", {"lang": "de", "tags": ["animal"], "n": 1.5, "ok": False}),
    Document("Prices rise.", 3, {"lang": "en", "tags": [], "by": {"name": "Ann"}}),
    Document("Wages fall.", 4, {"lang": None, "by": {"name": "Ann"}, "tags": ["home", "home", {"x": 1}]}),
]


@pytest.fixture(scope="module")
def notes(tmp_path_factory):
    """An index that no test changes."""
    with SearchIndex.create(tmp_path_factory.mktemp("notes") / "notes.index", HashModel()) as index:
        index.add_documents(NOTES)
        yield index


def test_documents_come_in_pages_of_bounded_size(notes, monkeypatch):
    monkeypatch.setattr(storage, "ROWS_AT_ONCE", 2)
    assert list(notes) == list(notes.documents()) == NOTES
    assert notes["dog"] == NOTES[1]
    with pytest.raises(KeyError):
        notes["c"]
    assert list(notes.documents('lang = "en"')) == [NOTES[0], NOTES[2]]
    for offset, limit in itertools.product([*range(6), 10**30], [0, 1, 2, 3, 9, 10**30, None]):
        stop = None if limit is None else offset + limit
        assert list(notes.documents(offset=offset, limit=limit)) == NOTES[offset:stop]
    assert list(notes.documents("not lang = 'de'", offset=1, limit=1)) == [NOTES[2]]


def test_changes_while_documents_are_read_do_not_affect_them(index, monkeypatch):
    monkeypatch.setattr(storage, "ROWS_AT_ONCE", 2)
    index.add([f"text {number}" for number in range(7)])
    seen = []
    for document in index.documents():
        seen.append(document.id)
        index.delete(document.id)
        index.add(["new"])
        index.compact()
    assert seen == list(range(7))
    assert index.count() == 7


def test_facets_count_documents_and_mistakes_are_found_at_once(notes):
    assert notes.facets("lang") == [("en", 2), ("de", 1)]
    assert notes.facets("tags") == [("animal", 2), ("home", 2)]
    assert notes.facets("by.name") == [("Ann", 2)]
    assert notes.facets("by") == []
    assert notes.facets("n", limit=10**30) == [(1, 1), (1.5, 1)]
    assert repr(sorted(notes.facets("ok"))) == "[(False, 1), (True, 1)]"
    assert notes.facets("tags", 'lang = "de"') == [("animal", 1)]
    assert notes.facets("lang", limit=1) == [("en", 2)]
    assert notes.count('tags contains "home"') == 2
    for work, arguments, message in (
        (notes.documents, {"where": "x >"}, "filter 'x >'"),
        (notes.documents, {"offset": -1}, "offset must be an integer of at least 0, got -1"),
        (notes.documents, {"limit": 1.5}, "limit must be an integer of at least 0, got 1.5"),
        (notes.facets, {"field": "a b"}, "field 'a b': expected the end at character 3, got 'b'"),
        (notes.facets, {"field": 5}, "the field must be a string, e.g. 'year', got an int"),
        (notes.facets, {"field": "lang", "limit": 0}, "limit must be an integer of at least 1, got 0"),
        (notes.ids, {"where": f"n = {'9' * 30}"}, "does not fit into 64 bits"),
    ):
        assert message in error(work, **arguments)


def test_metadata_change_without_embedding(index, hash_model):
    index.add(["a", "b", "c"], metadata=[{"x": 1, "y": [1]}, {"x": 2}, None])
    hash_model.seen.clear()
    assert index.search("a", where="x = 5") == []
    assert index.update_metadata(0, {"x": 5, "y": None, "z": {"deep": "ü"}}) == 1
    assert index.get(0).metadata == {"x": 5, "z": {"deep": "ü"}}
    assert index.update_metadata([1, 2, 1], {"x": 7}) == 2
    assert index.ids("x = 7") == [1, 2]
    assert [hit.id for hit in index.search("a", where="x = 5")] == [0]
    generation = index.describe()["generation"]
    assert index.update_metadata([0, 1], {}) == 2
    assert index.update_metadata([], {"x": 1}) == 0
    assert index.describe()["generation"] == generation
    assert hash_model.seen == []
    for ids, changes, message in [
        ([0, 9], {"x": 0}, "no document has the id 9"),
        (0, {"x": {"y": [10**309]}}, "the metadata field 'x' cannot be stored as JSON"),
        (0, [1], "the metadata must be a dictionary"),
        (0.5, {}, "ids must be an id or a list of ids, got a float"),
    ]:
        assert message in error(index.update_metadata, ids, changes)
    assert index.get(0).metadata["x"] == 5
    assert index.verify() == []


def test_metadata_of_numpy_and_pandas(index):
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"text": ["one", "two"], "stars": [4.5, None], "good": [True, False]})
    table["count"] = pandas.array([3, None], "Int64")
    table["on"] = pandas.to_datetime(["2024-01-31T10:00:00Z", None])
    index.add(table["text"], table.index, table.drop(columns="text").to_dict("records"))
    assert index[0].metadata == {"stars": 4.5, "count": 3, "on": "2024-01-31T10:00:00+00:00", "good": True}
    assert {name for name, value in index[1].metadata.items() if value is not None} == {"good"}
    assert index.ids('on = "2024-01-31"') == [0]
    day = {"n": np.int64(1), "at": np.datetime64("2024-01-31"), "list": [np.float32(0.5), float("nan")]}
    index.add((text for text in ["three"]), ["x"], [day])
    assert index["x"].metadata == {"n": 1, "at": "2024-01-31", "list": [0.5, None]}
    columns = "give one of its columns ('text', 'stars', 'good', 'count', 'on')"
    assert error(index.add, table) == f"texts must be a list of strings, got a DataFrame; {columns}"
    expected = index.search(["one", "two"])
    for queries in (table["text"], table["text"].to_numpy(), (text for text in ["one", "two"])):
        assert index.search(queries) == expected
    assert error(index.search, table).endswith(columns)
    assert index.search("one", offset=10**30) == []


@pytest.fixture
def three(index):
    index.add(["one", "two", "three"], ["a", "b", "c"], [{"n": 1}, {"n": 2}, {"n": 3}])
    return index


def test_what_goes_out_comes_in_again(three, tmp_path, hash_model):
    assert "does not exist; create it first" in error(three.export, tmp_path / "no" / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["index"]
    three.delete("b")
    assert three.export(tmp_path / "out") == 2
    vectors = np.load(tmp_path / "out.npy")
    first = (tmp_path / "out.jsonl").read_text().splitlines()[0]
    assert json.loads(first) == {"id": "a", "text": "one", "metadata": {"n": 1}}
    np.testing.assert_allclose(vectors, hash_vectors(["one", "three"]), rtol=1e-6)
    assert vectors.dtype == np.float32
    rows = Dataset.from_json(str(tmp_path / "out.jsonl"), cache_dir=str(tmp_path / "cache"))
    rows = rows.add_column("embedding", vectors.tolist())
    rows.to_parquet(tmp_path / "out.parquet")
    for name, field in (("out.jsonl", None), ("out.parquet", "embedding")):
        hash_model.seen.clear()
        build_index(tmp_path / name, tmp_path / "other", mode="overwrite", model=hash_model, embedding_field=field)
        assert hash_model.seen == ([] if field else ["one", "three"])
        with SearchIndex.open(tmp_path / "other", hash_model) as other:
            assert list(other) == list(three)
            assert other.search("x", where="n >= 2", mode="dense") == three.search("x", where="n >= 2", mode="dense")
    # So do the columns of a data set.
    assert three.upsert(rows["text"], rows["id"], embeddings=rows["embedding"]) == ["a", "c"]
    assert hash_model.seen == []


def test_given_embeddings_are_stored_at_unit_length(three, hash_model):
    hash_model.seen.clear()
    three.add(["given"], ["g"], embeddings=3 * hash_vectors(["given"]))
    assert hash_model.seen == []
    assert three.search("given", 1, mode="dense")[0].score == pytest.approx(1, abs=1e-6)
    said = error(three.add, ["a", "b"], embeddings=[[1.0] * 8])
    assert said == "embeddings must have one entry for each of the 2 texts, got 1"
    for embedding, message in (
        ([1.0], "the embedding must have shape (8,), got (1,)"),
        *(([float(name)] * 8, f"the embedding must have a finite length, got {name}") for name in ("nan", "inf")),
        ([1e308] * 8, "the embedding must have a finite length, got inf"),
        *((value, "the embedding must be a list of numbers") for value in ("vector", ["1"] * 8, [None] * 8, [1j] * 8)),
        (None, "its embedding is None; give one for each text or for none"),
    ):
        assert error(three.add, ["text"], embeddings=[embedding]) == f"document 1: {message}"
    assert three.count() == 4


TEXTS = [f"text {number}" for number in range(200)]


def expected_pairs(threshold):
    cosines = hash_vectors(TEXTS).astype(np.float64) @ hash_vectors(TEXTS).astype(np.float64).T
    return {pair: cosines[pair] for pair in itertools.combinations(range(len(TEXTS)), 2) if cosines[pair] >= threshold}


@pytest.mark.parametrize("factory", ["auto", "HNSW32"])
def test_duplicates_are_all_pairs_above_the_threshold(tmp_path, hash_model, factory, monkeypatch):
    with SearchIndex.create(tmp_path / "index", hash_model, factory) as index:
        index.add(TEXTS)
        expected = expected_pairs(0.8)
        assert len(expected) > 50
        for at_once in (exploring.ROWS_AT_ONCE, 32):
            monkeypatch.setattr(exploring, "ROWS_AT_ONCE", at_once)
            pairs = index.duplicates(0.8, 10_000)
            assert {(pair.left, pair.right): pair.score for pair in pairs} == pytest.approx(expected, abs=1e-6)
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


def test_topics_are_clusters_with_their_words(index, monkeypatch):
    subjects = [["cat", "kitten", "purring"], ["stock", "market", "prices"], ["rain", "clouds", "storm"]]
    axes = np.repeat(range(3), [30, 40, 50])
    embeddings = np.eye(8)[axes] + 0.1 * np.random.default_rng(0).standard_normal((120, 8))
    # A word of all topics names none.
    pairs = [(subjects[axis][number % 3], subjects[axis][(number + 1) % 3]) for number, axis in enumerate(axes)]
    index.add([f"the weekly {one} and the {other}" for one, other in pairs], embeddings=embeddings)
    topics = index.topics(3)
    assert [topic.size for topic in topics] == [50, 40, 30]
    assert [set(topic.words) for topic in topics] == [*map(set, reversed(subjects))]
    assert all(1 <= len({text for _, text in topic.examples}) == len(topic.examples) <= 3 for topic in topics)
    vectors = unit_rows(embeddings)
    for topic in topics:
        # The first example is nearest to the topic's mean.
        nearness = vectors[topic.documents] @ vectors[topic.documents].mean(0)
        assert topic.examples[0][0] == topic.documents[nearness.argmax()]
    assert index.topics(3) == topics
    assert 2 <= len(index.topics()) <= 8
    assert "120 passages cannot make 121 topics; ask for fewer" in error(index.topics, 121)
    index.delete(index.ids())
    index.add(["1", "2", "3", "the"])
    assert [topic.words for topic in index.topics(2)] == [[], []]
    monkeypatch.setitem(sys.modules, "sklearn.feature_extraction.text", None)
    assert "topics need scikit-learn: pip install scikit-learn" in error(index.topics, 3)


def test_a_word_of_most_topics_names_the_one_that_is_full_of_it(index):
    subjects = [[f"{words} shared"] * 8 + [words] * 32 for words in ("market prices", "rain clouds")]
    for axis, of_topic in enumerate([["purring kitten shared shared"] * 8, *subjects]):
        index.add(of_topic, embeddings=[np.eye(8)[axis]] * len(of_topic))
    found = {topic.words[0]: topic.words for topic in index.topics(3)}
    assert set(found["shared"]) == {"shared", "purring", "kitten"}
    assert sorted(len(words) for words in found.values()) == [2, 2, 3]


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
    words, axes = ["cat kitten purring", "stock market prices"], np.eye(8)[:2]
    texts = [f"The {words[number % 2]}." for number in range(20)]
    with SearchIndex.create(tmp_path / "index", hash_model, chunk="sentences") as index:
        index.add(texts, ids=[f"d{number}" for number in range(20)], embeddings=[*axes] * 10)
        index.delete(["d0", "d3"])
        index.upsert(["The cat kitten purring. Here."], ["d1"], [{"year": 2020}], embeddings=[axes[0]])
        members = {frozenset(topic.label.split()): topic.documents for topic in index.topics(2)}
        assert set(members) == {frozenset(text.split()) for text in words}
        assert sorted(name for names in members.values() for name in names) == sorted(index.ids())
        assert "d1" in members[frozenset(words[0].split())]
    # A label is the first words, and labels differ.
    with SearchIndex.create(tmp_path / "many", hash_model) as index:
        many = ["garden spades wooden handles leather gloves", "coal steam engine boiler piston valve"]
        index.add(many * 10, embeddings=[*axes] * 10)
        for topic in index.topics(2):
            assert topic.label == " ".join(topic.words[: exploring.LABEL_WORDS])
            assert len(topic.words) == 6
    for text, labels in (("garden tools", ["garden tools", "garden tools 2"]), ("1 2", ["topic 1", "topic 2"])):
        with SearchIndex.create(tmp_path / text, hash_model) as index:
            index.add([text] * 20, embeddings=[*axes] * 10)
            assert [topic.label for topic in index.topics(2)] == labels

    # A document has the topic of most of its passages, or of the first of equally many.
    class Colours(HashModel):
        def encode_document(self, texts, **options):
            return np.eye(8)[[int("Red." in text) for text in texts]]

    with SearchIndex.create(tmp_path / "colours", Colours(), chunk="sentences") as index:
        index.add(["Red. Blue. Blue.", "Blue. Red.", "Red. Blue.", "Red. Blue. Red."])
        members = {topic.label: topic.documents for topic in index.topics(2)}
        assert members == {"blue": [0, 1], "red": [2, 3]}


def test_a_low_threshold_costs_no_more_than_a_high_one(index, monkeypatch):
    index.add(TEXTS)
    every = expected_pairs(-1)
    looked_at, near_pairs = [], exploring.near_pairs
    monkeypatch.setattr(
        exploring, "near_pairs", lambda *given: (looked_at.append(1) or each for each in near_pairs(*given))
    )
    monkeypatch.setattr(exploring, "ROWS_AT_ONCE", 32)
    best = index.duplicates(-1, 10)
    assert [pair.score for pair in best] == pytest.approx(sorted(every.values(), reverse=True)[:10], abs=1e-6)
    assert len(looked_at) < 200 < len(every)
    assert len(index.duplicates(-1, 10**6)) == len(every)
    # Nor does one text of many documents: the pairs of the first ones win.
    index.delete(index.ids())
    index.add(["Page not found."] * 400, list(range(400)))
    del looked_at[:]
    assert [(pair.left, pair.right) for pair in index.duplicates(0.9, 10)] == [(0, later) for later in range(1, 11)]
    assert len(looked_at) < 3000


def test_many_topics_take_no_more_memory_than_the_words_they_have(index):
    words = map("".join, itertools.product("abcdefghij", repeat=5))
    texts = [" ".join(itertools.islice(words, 20)) for _ in range(1000)]
    index.add(texts, embeddings=np.random.default_rng(0).standard_normal((len(texts), 8)))
    index.topics(2)
    tracemalloc.start()
    assert all(len(topic.words) == 8 for topic in index.topics(500))
    assert tracemalloc.get_traced_memory()[1] < 60e6
    tracemalloc.stop()


def test_fields_have_types_ranges_and_values_and_similarities_explanations(tmp_path):
    metadata = [
        {"year": 2020, "lang": "en", "ok": True, "tags": ["a", "b", "a"]},
        {"year": 1999.5, "lang": "en", "ok": False, "gone": None, "tags": ["b", 7]},
        {"year": 2020, "lang": "fr", "ok": True, "more": {"deep": 1}},
        {"year": "unknown", "lang": "en"},
        {},
    ]
    with SearchIndex.create(tmp_path / "index") as described:
        described.add(["one film", "two films", "a cat", "prices rise", "nothing"], metadata=metadata)
        assert described.fields() == [
            Field("lang", "string", 4, "en", "fr", [("en", 3), ("fr", 1)]),
            Field("year", "number", 4, 1999.5, 2020, [(2020, 2), (1999.5, 1)]),
            Field("ok", "boolean", 3, None, None, [(True, 2), (False, 1)]),
            Field("tags", "list", 2, None, None, [("b", 2), ("a", 1)]),
            Field("more", "object", 1, None, None, []),
        ]
        assert described.fields(most=1)[0].values == [("en", 3)]
        # A similarity is explained from both sides.
        found = described.explain("film", "two films")
        (hit,) = [hit for hit in described.search("film") if hit.text == "two films"]
        assert found.score == pytest.approx(hit.score, abs=1e-6)
        assert (found.query.cosine, found.document.cosine) == pytest.approx((hit.score, hit.score), abs=2e-5)
        weights = {token.text: token.weight for token in found.document.tokens}
        assert max(weights, key=weights.get) == "films"
        assert "the text must be a string, got None" in error(described.explain, "film", None)
