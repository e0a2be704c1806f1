"""The routes of search indexes, on a real server with the shipped model."""

from __future__ import annotations

import json

import httpx
import pytest

from ctx_embed import Client, SearchIndex
from tests.serving.server import serving


@pytest.fixture(scope="module")
def client(server):
    with httpx.Client(base_url=f"{server.url}/v1", timeout=30) as client:
        yield client


def test_a_search_finds_by_meaning(client):
    found = client.post("/indexes/notes.index/search", json={"query": "inflation", "k": 2}).json()["hits"]
    assert [hit["id"] for hit in found] == [1, 2]
    assert found[0]["text"] == "prices rise faster than wages"
    assert found[0]["metadata"] == {"year": 2020, "lang": "en", "topic": "economy"}
    assert "document" not in found[0]
    assert found[0]["location"] is None
    assert 0.4 < found[0]["score"] < 0.6


def test_several_queries_have_a_list_each(client):
    body = {"query": ["pets", "cinema"], "k": 1, "where": "year >= 2020", "mode": "hybrid"}
    found = client.post("/indexes/notes.index/search", json=body).json()["hits"]
    assert [[hit["id"] for hit in hits] for hits in found] == [["dog"], [3]]


def test_a_snippet_marks_the_words_of_the_query(client):
    body = {"query": "the cat", "mode": "words", "k": 1, "snippets": ["<", ">"]}
    (hit,) = client.post("/indexes/notes.index/search", json=body).json()["hits"]
    assert hit["snippet"] == "the <cat> sat on the mat"


def test_hits_name_the_line_or_page_of_the_passage_and_have_the_document_on_request(tmp_path):
    texts = {
        "notes.md": "# Cats\n\nThe cat sat on the mat.\n\n```\n# no heading\n```\n\nIt slept until noon.",
        "report.pdf": "Prices rise.\fWages fall in the north.",
    }
    with SearchIndex.create(tmp_path / "cut", chunk="sentences") as index:
        index.add(
            list(texts.values()), list(texts), [{"source": "notes.md", "line": 1}, {"source": "report.pdf", "page": 1}]
        )
    with serving(tmp_path / "cut") as server, httpx.Client(base_url=f"{server.url}/v1/indexes/cut") as client:

        def hit(query: str, **options: object) -> dict:
            (found,) = client.post("/search", json={"query": query, "k": 1, "mode": "words", **options}).json()["hits"]
            return found

        cat, wages = hit("slept noon"), hit("wages")
        assert cat["location"] == {"source": "notes.md", "line": 9, "page": None, "heading": "Cats"}
        assert wages["location"] == {"source": "report.pdf", "line": None, "page": 2, "heading": None}
        assert (cat["whole"], "document" in cat) == (False, False)
        assert hit("slept noon", document=True)["document"] == texts["notes.md"]


def test_a_query_of_unknown_words_is_said_to_be_one(client, server):
    for body in ({"query": "日本語"}, {"query": ["cat", "日本語"]}, {"query": "日本語", "k": 5000}):
        answer = client.post("/indexes/notes.index/search", json={**body, "mode": "dense"}).json()
        assert answer["warnings"] == ["The model knows no word of a query: it finds nothing by meaning."]
    assert "warnings" not in client.post("/indexes/notes.index/search", json={"query": "cat"}).json()
    with Client(server.url) as index, pytest.warns(UserWarning, match="knows no word"):
        index.search("日本語", mode="dense")
    assert all(json.loads(line) for line in server.log.read_text().splitlines())


def test_a_filter_on_an_unknown_field_is_said_to_be_one(client, server):
    said = ["no document has a field 'yaer' (fields: lang, tame, topic, year)"]
    search = {"query": "cat", "where": "yaer = 1"}
    for route, body, key, nothing in (
        ("search", search, "hits", []),
        ("search", {**search, "query": ["cat", "dog"]}, "hits", [[], []]),
        ("count", {"where": "yaer = 1"}, "count", 0),
    ):
        answer = client.post(f"/indexes/notes.index/{route}", json=body).json()
        assert answer == {key: nothing, "warnings": said}
        assert "warnings" not in client.post(f"/indexes/notes.index/{route}", json={**body, "where": None}).json()
        # The field is known, but no document has this value.
        answer = client.post(f"/indexes/notes.index/{route}", json={**body, "where": "year = -1"}).json()
        assert answer == {key: nothing}
    with Client(server.url) as index:
        with pytest.warns(UserWarning, match="no document has a field 'yaer'"):
            assert index.search("cat", where="yaer = 1") == []
        with pytest.warns(UserWarning, match="no document has a field 'yaer'"):
            assert index.count("yaer = 1") == 0


def test_the_indexes_are_listed_and_described(client):
    (facts,) = client.get("/indexes").json()["indexes"]
    assert facts == client.get("/indexes/notes.index").json()
    assert facts["name"] == "notes.index"
    assert facts["documents"] == 6
    assert facts["dimension"] == 320
    assert "path" not in facts


def test_changes_are_made_and_seen(client):
    added = client.post("/indexes/notes.index/add", json={"texts": ["rain fell all night"], "ids": ["rain"]})
    assert added.json() == {"ids": ["rain"]}
    body = {"texts": ["snow fell all night"], "ids": ["rain"], "metadata": [{"season": "winter"}]}
    assert client.post("/indexes/notes.index/upsert", json=body).json() == {"ids": ["rain"]}
    documents = client.post("/indexes/notes.index/get", json={"ids": ["rain", 7]}).json()["documents"]
    assert documents == [{"text": "snow fell all night", "id": "rain", "metadata": {"season": "winter"}}, None]
    assert client.post("/indexes/notes.index/search", json={"query": "snow", "k": 1}).json()["hits"][0]["id"] == "rain"
    assert client.post("/indexes/notes.index/delete", json={"where": 'season = "winter"'}).json() == {"deleted": 1}
    assert client.post("/indexes/notes.index/ids", json={}).json() == {"ids": [1, 2, "cat", "dog", 3, 4]}
    assert client.post("/indexes/notes.index/count", json={"where": "year > 2020"}).json() == {"count": 3}


def test_near_duplicates_and_topics(client):
    pairs = client.post("/indexes/notes.index/duplicates", json={"threshold": 0.2, "most": 1}).json()["pairs"]
    assert [(pair["left"], pair["right"]) for pair in pairs] == [("cat", "dog")]
    topics = client.post("/indexes/notes.index/topics", json={"count": 3}).json()["topics"]
    assert sum(topic["size"] for topic in topics) == 6
    assert {"film", "cat"} <= {word for topic in topics for word in topic["words"]}


def test_fields_for_filters(client):
    fields = {field.pop("name"): field for field in client.get("/indexes/notes.index/fields").json()["fields"]}
    assert fields["year"]["lowest"], fields["year"]["highest"] == (2018, 2022)
    assert fields["topic"]["values"] == [{"value": "economy", "documents": 2}, {"value": "film", "documents": 2}]
    assert fields["tame"]["type"] == "boolean"


def test_a_hit_is_explained(client):
    body = {"query": "inflation", "id": 1}
    found = client.post("/indexes/notes.index/explain", json=body).json()
    (hit,) = client.post("/indexes/notes.index/search", json={"query": "inflation", "k": 1}).json()["hits"]
    assert found["score"] == pytest.approx(hit["score"], abs=1e-6)
    side = found["document"]
    assert side["rest"] + sum(token["weight"] for token in side["tokens"]) == pytest.approx(hit["score"], abs=2e-5)
    weights = {token["text"]: token["weight"] for token in side["tokens"]}
    assert min(weights["prices"], weights["wages"]) > weights["faster than"]
    assert client.post("/indexes/notes.index/explain", json={**body, "id": 99}).status_code == 404
    assert client.post("/indexes/notes.index/explain", json={"query": "x"}).status_code == 400


@pytest.mark.parametrize(
    ("route", "body", "status"),
    [
        ("search", {"query": "x", "k": 10_001}, 400),
        ("search", {"query": "x", "mmr": 0.5, "candidates": 10**9}, 400),
        ("duplicates", {"most": 10**12}, 400),
        ("documents", {"limit": 10**6}, 400),
        ("topics", {"count": 10**7}, 400),
        ("topics", {"count": -1}, 400),
        ("topics", {"count": 0}, 400),
        ("topics", {"count": 2, "seed": 2**40}, 200),
    ],
)
def test_large_numbers_cost_nothing(client, route, body, status):
    answer = client.post(f"/indexes/notes.index/{route}", json=body)
    assert answer.status_code == status, answer.text
