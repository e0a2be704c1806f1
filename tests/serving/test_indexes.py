"""The routes of search indexes, on a real server with the shipped model."""

from __future__ import annotations

import json

import httpx
import pytest

from ctx_embed import InputError, SearchIndex
from tests.serving.server import asking, post, serving

VECTOR = [float(place == 3) for place in range(320)]


@pytest.mark.parametrize(
    "options",
    [
        {"query": "inflation", "k": 2},
        {"query": ["cinema", "pets"], "k": 3, "mode": "hybrid", "where": "year >= 2019"},
        {"query": "inflatoin of wagges", "mode": "words"},
        {"query": ["opening scene", "prices and wages"], "k": 1, "highlight": True},
        {"query": []},
        {"query": VECTOR, "k": 2},
        {"query": [VECTOR, [-value for value in VECTOR]], "k": 1},
        {"like": "cat", "k": 1},
        {"query": ["cinema", "pets"], "k": 2, "fuse": True},
        {"query": "film", "group": "topic", "where": 'topic = "film"'},
        {"query": "film", "k": 3, "mmr": 0.5, "candidates": 6},
    ],
    ids=str,
)
def test_hits_are_those_of_the_index_in_its_folder(server, index_path, options):
    found = asking(server, "notes.index")("search", **options)["hits"]
    with SearchIndex.open(index_path) as index:
        expected = index.search(**options)
    lists = zip(found, expected, strict=True) if found and isinstance(found[0], list) else [(found, expected)]
    for answered, hits in lists:
        assert len(answered) == len(hits)
        for got, hit in zip(answered, hits, strict=True):
            assert got["score"] == pytest.approx(hit.score, abs=1e-5)
            assert (got["id"], got["text"], got["metadata"]) == (hit.id, hit.text, hit.metadata)
            assert (got["corrected"], got["highlight"]) == (hit.corrected, hit.highlight and list(hit.highlight))
            for name in ("relevance", "fused"):
                assert got[name] == pytest.approx(getattr(hit, name), abs=1e-5)


@pytest.mark.parametrize(
    ("route", "body", "call"),
    [
        ("search", {"query": "x", "k": 0}, lambda index: index.search("x", k=0)),
        ("search", {"query": "x", "where": "year >"}, lambda index: index.search("x", where="year >")),
        ("search", {"query": 5}, lambda index: index.search(5)),
        ("search", {"query": [1.0, 2.0]}, lambda index: index.search([1.0, 2.0])),
        ("search", {"query": "x", "like": 1}, lambda index: index.search("x", like=1)),
        ("add", {"texts": ["x"], "ids": ["cat"]}, lambda index: index.add(["x"], ids=["cat"])),
        ("delete", {}, lambda index: index.delete()),
        ("topics", {"count": 100}, lambda index: index.topics(100)),
        ("update_metadata", {"ids": ["no"], "changes": {"a": 1}}, lambda index: index.update_metadata("no", {"a": 1})),
    ],
)
def test_mistakes_are_those_of_the_index_in_its_folder(server, index_path, route, body, call):
    answer = post(f"{server.url}/v1/indexes/notes.index/{route}", json=body)
    with SearchIndex.open(index_path) as index, pytest.raises(InputError) as raised:
        call(index)
    assert (answer.status_code, answer.json()["error"]["message"]) == (400, str(raised.value))


@pytest.fixture(scope="module")
def client(server):
    with httpx.Client(base_url=f"{server.url}/v1", timeout=30) as client:
        yield client


def test_a_snippet_marks_the_words_of_the_query(client):
    body = {"query": "the cat", "mode": "words", "k": 1, "snippets": ["<", ">"]}
    (hit,) = client.post("/indexes/notes.index/search", json=body).json()["hits"]
    assert hit["snippet"] == "the <cat> sat on the mat"
    body["snippets"] = ["<" * 101, ">"]
    refused = client.post("/indexes/notes.index/search", json=body)
    assert refused.status_code == 400
    assert refused.json()["error"]["message"] == "snippets.0: string should have at most 100 characters"


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
    assert all(json.loads(line) for line in server.log.read_text().splitlines())


def test_a_filter_on_an_unknown_field_is_said_to_be_one(client):
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


def test_metadata_and_vectors_are_changed_and_documents_listed(client):
    def answer(route: str, **body: object) -> dict:
        return client.post(f"/indexes/notes.index/{route}", json=body).json()

    assert answer("update_metadata", ids=[3], changes={"topic": "cinema", "rated": True}) == {"updated": 1}
    (document,) = answer("get", ids=[3])["documents"]
    assert document["metadata"] == {"year": 2022, "topic": "cinema", "rated": True}
    assert answer("update_metadata", ids=[3], changes={"topic": "film", "rated": None}) == {"updated": 1}
    assert answer("add", texts=["its own vector"], ids=["v"], embeddings=[VECTOR]) == {"ids": ["v"]}
    assert answer("search", query=VECTOR, k=1)["hits"][0]["id"] == "v"
    assert answer("delete", ids=["v", "gone"]) == {"deleted": 1}
    assert [document["id"] for document in answer("documents", offset=1, limit=2)["documents"]] == [2, "cat"]
    assert len(answer("documents", where='topic = "film"')["documents"]) == 2
    assert answer("facets", field="topic")["values"][0] == {"value": "economy", "documents": 2}
    assert answer("facets", field="year", where="year >= 2021", limit=1)["values"] == [{"value": 2022, "documents": 2}]


def test_half_an_emoji_costs_no_other_text(client):
    def answer(route: str, body: str) -> dict:
        sent = {"content": body, "headers": {"Content-Type": "application/json"}}
        return client.post(route, **sent).json()

    half, whole = "\\ud83d", "\\ud83d\\ude00"
    body = f'{{"model": "default", "input": ["cut {half}", "a film", "\\\\ud83d"]}}'
    embedded = [row["embedding"] for row in answer("/embeddings", body)["data"]]
    body = '{"model": "default", "input": ["cut \ufffd", "a film", "\\\\ud83d"]}'
    assert embedded == [row["embedding"] for row in answer("/embeddings", body)["data"]]
    index = "/indexes/notes.index"
    metadata = f'[{{"n": "{half}"}}, null]'
    body = f'{{"texts": ["cut {half}", "whole {whole}"], "ids": ["e1", "{whole}"], "metadata": {metadata}}}'
    assert answer(f"{index}/upsert", body) == {"ids": ["e1", "\U0001f600"]}
    found = answer(f"{index}/get", f'{{"ids": ["e1", "{whole}"]}}')["documents"]
    assert [document["text"] for document in found] == ["cut \ufffd", "whole \U0001f600"]
    assert found[0]["metadata"] == {"n": "\ufffd"}
    assert "hits" in answer(f"{index}/search", f'{{"query": "cut {half}", "snippets": ["<", ">"]}}')
    # Two ids never become one.
    for route, field in (("upsert", "ids"), ("get", "ids"), ("delete", "ids"), ("update_metadata", "ids")):
        more = {"upsert": '"texts": ["x"], ', "update_metadata": '"changes": {}, '}.get(route, "")
        error = answer(f"{index}/{route}", f'{{{more}"{field}": ["a{half}"]}}')["error"]
        assert error["message"] == "ids: 'a\\ud83d' has a lone surrogate; give it another id"
    assert answer(f"{index}/delete", f'{{"ids": ["e1", "{whole}"]}}') == {"deleted": 2}


def test_topics(client):
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
        ("documents", {"limit": 10**6}, 400),
        ("topics", {"count": 10**7}, 400),
        ("topics", {"count": 0}, 400),
        ("topics", {"count": 2, "seed": 2**40}, 200),
    ],
)
def test_large_numbers_cost_nothing(client, route, body, status):
    answer = client.post(f"/indexes/notes.index/{route}", json=body)
    assert answer.status_code == status, answer.text
