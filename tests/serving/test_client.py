"""One body of tests for an index in a folder and the same index on a server."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from ctx_embed import Client, SearchIndex, load
from ctx_embed.errors import InputError
from ctx_embed.index import Hit
from ctx_embed.texts import Document
from tests.serving.server import DOCUMENTS, make_index, serving


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make_index(tmp_path_factory.mktemp("made") / "notes.index")


@pytest.fixture(scope="module", params=["folder", "server"])
def index(request, made, tmp_path_factory):
    path = tmp_path_factory.mktemp(request.param) / "notes.index"
    shutil.copytree(made, path)
    if request.param == "folder":
        with SearchIndex.open(path) as opened:
            yield opened
    else:
        with serving(path) as server, Client(server.url, "notes.index") as client:
            yield client


def test_a_search_returns_hits(index):
    hits = index.search("inflation", k=2)
    assert hits.query == "inflation"
    assert [hit.id for hit in hits] == [1, 2]
    assert hits[0] == Hit(1, hits[0].score, *DOCUMENTS[1], fused=hits[0].fused, relevance=hits[0].relevance)
    assert hits[0].relevance > 0.95 > hits[1].relevance
    assert index.search("inflation", k=2, min_relevance=0.95) == hits[:1]
    with pytest.raises(InputError, match="min_relevance must be a number from 0 to 1, got 2"):
        index.search("inflation", min_relevance=2)
    query, passage = load().encode(["inflation", DOCUMENTS[1][0]])
    assert hits[0].score == pytest.approx(float(query @ passage), abs=1e-5)
    assert "wages" in hits._repr_html_()


def test_a_search_highlights_the_sentence_that_answers(index):
    text = "The museum is old. It opens at nine in the morning. Tickets cost four pounds."
    index.add([text], ids=["museum"])
    queries = ["entrance fee in pounds", "opening hours in the morning"]
    found = index.search(queries, k=1, highlight=True)
    assert [hits[0].highlight for hits in found] == [(52, 77), (19, 51)]
    assert [hits[0].highlight for hits in index.search(queries, k=1)] == [None, None]
    assert index.search(like="cat", highlight=True)[0].highlight is None
    index.delete(["museum"])


def test_a_corrected_word_is_told(index):
    hit = index.search("inflatoin of wagges", mode="words")[0]
    assert (hit.id, hit.corrected) == (1, {"wagges": "wages"})
    assert index.search("wages", mode="words")[0].corrected is None


def test_several_queries_modes_filters_and_thresholds(index):
    found = index.search(["cinema", "pets"], k=3, mode="hybrid", where="year >= 2019")
    assert [hits.query for hits in found] == ["cinema", "pets"]
    assert found[0][0].id == 3
    assert found[0][0].fused is not None
    assert [hit.id for hit in index.search("cat", mode="words")] == ["cat", "dog"]
    assert index.search("cat", threshold=0.999) == []
    assert index.search([]) == []
    assert index.search(()) == []


def test_vectors_examples_and_variety(index):
    vector = np.zeros(320, np.float32)
    vector[3] = 1
    assert len(index.search(vector, k=2)) == 2
    assert len(index.search(np.stack([vector, -vector]), k=1)) == 2
    assert [hit.id for hit in index.search(like="cat", k=1)] == ["dog"]
    assert "cat" not in [hit.id for hit in index.search("pets", exclude=["cat"])]
    fused = index.search(["cinema", "pets"], k=2, fuse=True)
    assert {hit.id for hit in fused} & {3, 4}
    assert fused[0].fused is not None
    hits = index.search("film", k=6)
    assert [hit.id for hit in index.search("film", k=2, offset=2)] == [hit.id for hit in hits[2:4]]
    assert len(index.search("film", group="topic", where='topic = "film"')) == 1
    assert len(index.search("film", k=3, mmr=0.5, candidates=6)) == 3


def test_documents_are_read(index):
    assert len(index) == index.count() == 6
    assert index.count("year >= 2020") == 4
    assert index.ids('topic = "film"') == [3, 4]
    document = index.get("cat")
    assert (document.text, document.id, document.metadata) == (DOCUMENTS["cat"][0], "cat", DOCUMENTS["cat"][1])
    assert index.get("nothing") is None
    assert "cat" in index
    assert 99 not in index
    assert index.describe()["documents"] == 6
    assert index


def test_documents_are_listed_counted_and_given_other_metadata(index):
    assert [document.id for document in index.documents(offset=1, limit=2)] == [2, "cat"]
    assert len(list(index.documents('topic = "film"'))) == 2
    assert index.facets("topic") == [("economy", 2), ("film", 2)]
    assert index.facets("year", "year >= 2021", limit=1) == [(2022, 2)]
    assert index.update_metadata(3, {"topic": "cinema", "rated": True}) == 1
    assert index.get(3).metadata == {"year": 2022, "topic": "cinema", "rated": True}
    assert index.update_metadata([3], {"topic": "film", "rated": None}) == 1
    assert index.get(3).metadata == DOCUMENTS[3][1]


def test_documents_are_changed(index):
    assert index.add(iter(["one", "two"]), ids=np.array([10, 11]), metadata=[{"n": 1}, None]) == [10, 11]
    assert index.upsert(["half \ud800"], ids=[10]) == [10]
    assert index.get(10).text == "half \ufffd"
    assert index.search("half", k=1)[0].id == 10
    vector = np.zeros((1, 320), np.float32)
    vector[0, 0] = 1
    assert index.add(["its own vector"], ids=["v"], embeddings=vector) == ["v"]
    assert index.delete(10) == 1
    assert index.delete([11, "v", "gone"]) == 2
    assert index.delete(where="year = 5") == 0
    assert len(index) == 6


def test_documents_are_added_from_a_stream(index):
    found = [Document("one\ntwo", None, {"source": "notes/a.md", "line": 4}), Document("three", "own")]
    numbered, own = index.add_documents(iter(found))
    assert own == "own"
    assert index.get(numbered).metadata == {"source": "notes/a.md", "line": 4}
    (hit,) = index.search("two", k=1, mode="words")
    assert index.source(hit)[::2] == index.source(numbered)[::2] == ("notes/a.md", 4)
    assert index.source("own") is index.source("gone") is None
    assert index.add_documents([Document("four", "own")], replacing=True) == ["own"]
    assert index.get("own").text == "four"
    with pytest.raises(InputError, match="the id 'own' is already in the index"):
        index.add_documents([Document("five"), Document("six", "own")])
    assert index.unknown_fields('sauce = "x" and year = 1')["sauce"] == index.unknown_fields("sauce = 1")["sauce"]
    assert index.unknown_fields("year = 1") == {}
    assert index.delete([numbered, "own"]) == 2


def test_a_data_frame_is_added_as_to_an_index(index):
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame(
        {"text": ["one more", "two more"], "stars": [4.5, None], "on": pandas.to_datetime(["2024-01-31", None])}
    )
    ids = index.add(table["text"], metadata=table.drop(columns="text").to_dict("records"))
    assert index.get(ids[0]).metadata == {"stars": 4.5, "on": "2024-01-31T00:00:00"}
    assert index.get(ids[1]).metadata == {}
    with pytest.raises(InputError, match=r"got a DataFrame; give one of its columns \('text'"):
        index.add(table)
    with pytest.raises(InputError, match="the metadata field 'x' cannot be stored as JSON"):
        index.add(["a"], metadata=[{"x": float("inf")}])
    index.delete(ids)


def test_the_whole_is_explored(index):
    assert {field.name for field in index.fields()} == {"year", "lang", "topic", "tame"}
    assert {len(field.values) for field in index.fields(1) if field.values} == {1}
    assert [(pair.left, pair.right) for pair in index.duplicates(0.2, 1)] == [("cat", "dog")]
    topics = index.topics(2, seed=2**40)
    assert sum(topic.size for topic in topics) == 6
    assert all(isinstance(example, tuple) for topic in topics for example in topic.examples)
    found = index.explain("inflation", DOCUMENTS[1][0])
    assert found.document.cosine == pytest.approx(found.score, abs=2e-5)
    assert max(found.query.tokens, key=lambda token: token.weight).text == "inflation"


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda index: index.search("x", k=0), "k must be an integer of at least 1, got 0"),
        (lambda index: index.search("x", where="year >"), "filter 'year >': expected a number"),
        (lambda index: index.search("x", mode="fuzzy"), "dense"),
        (lambda index: index.search(5), "the query must be a text, a vector or a list of texts or vectors"),
        (lambda index: index.search(["x", 5]), "query"),
        (lambda index: index.search([1.0, 2.0]), "320"),
        (lambda index: index.search(like="nothing"), "'nothing'"),
        (lambda index: index.search("x", like=1), "give search either a query or like, not both"),
        (lambda index: index.add(["x"], ids=["cat"]), "the id 'cat' is already in the index"),
        (lambda index: index.add("x"), "texts"),
        (lambda index: index.add(["x"], ids=[1, 2]), "ids"),
        (lambda index: index.add(["x"], metadata=[{"a": float("inf")}]), "JSON"),
        (lambda index: index.delete(), "give delete either ids or where"),
        (lambda index: index.topics(100), "100 topics"),
        (lambda index: index.update_metadata("gone", {"a": 1}), "'gone'"),
    ],
)
def test_mistakes_are_the_same_errors(index, call, said):
    with pytest.raises(InputError) as raised:
        call(index)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)
    assert len(index) == 6


def test_what_is_wrong_with_an_address_is_one_line():
    with pytest.raises(InputError, match="url must be the address of a server"):
        Client("notes.index")
    with pytest.raises(ConnectionError, match=r"http://127\.0\.0\.1:1: no answer"):
        Client("http://127.0.0.1:1")
