"""The routes of search indexes, on a real server with the shipped model."""

import json

import pytest

from ctx_embed import SearchIndex
from tests.helpers.errors import error
from tests.serving.server import asking, get, post, serving

VECTOR = [float(place == 3) for place in range(320)]


@pytest.fixture(scope="module")
def ask(server):
    """Send a body to a route of the index, and return the JSON of the answer."""
    return asking(server, "notes.index")


@pytest.mark.parametrize(
    "options",
    [
        {"query": "inflation", "k": 2},
        {"query": ["cinema", "pets"], "k": 3, "mode": "hybrid", "where": "year >= 2019"},
        {"query": "inflatoin of wagges", "mode": "words"},
        {"query": ["opening scene", "prices and wages"], "k": 1, "highlight": True},
        {"query": []},
        {"query": [VECTOR, [-value for value in VECTOR]], "k": 1},
        {"like": "cat", "k": 1},
        {"query": ["cinema", "pets"], "k": 2, "fuse": True},
        {"query": "film", "group": "topic", "where": 'topic = "film"'},
        {"query": "film", "k": 3, "mmr": 0.5, "candidates": 6},
    ],
    ids=str,
)
def test_hits_are_those_of_the_index_in_its_folder(ask, index_path, options):
    found = ask("search", **options)["hits"]
    with SearchIndex.open(index_path) as index:
        expected = index.search(**options)
    lists = zip(found, expected, strict=True) if found and isinstance(found[0], list) else [(found, expected)]
    for answered, hits in lists:
        for got, hit in zip(answered, hits, strict=True):
            assert got["score"] == pytest.approx(hit.score, abs=1e-5)
            assert (got["id"], got["text"], got["metadata"]) == (hit.id, hit.text, hit.metadata)
            assert (got["corrected"], got["highlight"]) == (hit.corrected, hit.highlight and list(hit.highlight))
            for name in ("relevance", "fused"):
                assert got[name] == pytest.approx(getattr(hit, name), abs=1e-5)


@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("search", {"query": "x", "k": 0}),
        ("search", {"query": "x", "where": "year >"}),
        ("search", {"query": 5}),
        ("search", {"query": [1.0, 2.0]}),
        ("search", {"query": "x", "like": 1}),
        ("add", {"texts": ["x"], "ids": ["cat"]}),
        ("delete", {}),
        ("topics", {"count": 10**7}),
        ("topics", {"count": 0}),
        ("update_metadata", {"ids": ["no"], "changes": {"a": 1}}),
    ],
)
def test_mistakes_are_those_of_the_index_in_its_folder(server, index_path, route, body):
    answer = post(f"{server.url}/v1/indexes/notes.index/{route}", json=body)
    with SearchIndex.open(index_path) as index:
        said = error(getattr(index, route), **body)
    assert (answer.status_code, answer.json()["error"]["message"]) == (400, said)


def test_hits_name_the_line_or_page_of_the_passage_and_have_the_document_on_request(tmp_path):
    notes = "# Cats\n\nThe cat sat on the mat.\n\n```\n# no heading\n```\n\nIt slept until noon."
    places = [{"source": "notes.md", "line": 1}, {"source": "report.pdf", "page": 1}]
    with SearchIndex.create(tmp_path / "cut", chunk="sentences") as index:
        index.add([notes, "Prices rise.\fWages fall in the north."], ["notes.md", "report.pdf"], places)
    with serving(tmp_path / "cut") as server:

        def hit(query: str, **options: object) -> dict:
            (found,) = asking(server, "cut")("search", query=query, k=1, mode="words", **options)["hits"]
            return found

        cat = hit("slept noon")
        assert cat["location"] == {"source": "notes.md", "line": 9, "page": None, "heading": "Cats"}
        assert hit("wages")["location"] == {"source": "report.pdf", "line": None, "page": 2, "heading": None}
        assert (cat["whole"], "document" in cat) == (False, False)
        assert "<slept> until <noon>" in hit("slept noon", snippets=["<", ">"])["snippet"]
        assert hit("slept noon", document=True)["document"] == notes


def test_a_query_of_unknown_words_and_a_filter_on_an_unknown_field_are_said_to_be_so(ask, server):
    said = ["The model knows no word of a query: it finds nothing by meaning."]
    for body in ({"query": "日本語"}, {"query": ["cat", "日本語"]}, {"query": "日本語", "k": 5000}):
        assert ask("search", **body, mode="dense")["warnings"] == said
    assert "warnings" not in ask("search", query="cat")
    said = ["no document has a field 'yaer' (fields: lang, tame, topic, year)"]
    for route, body, key, nothing in (
        ("search", {"query": "cat"}, "hits", []),
        ("search", {"query": ["cat", "dog"]}, "hits", [[], []]),
        ("count", {}, "count", 0),
    ):
        assert ask(route, **body, where="yaer = 1") == {key: nothing, "warnings": said}
        assert "warnings" not in ask(route, **body, where=None)
        # The field is known, but no document has this value.
        assert ask(route, **body, where="year = -1") == {key: nothing}
    assert all(json.loads(line) for line in server.log.read_text().splitlines())


def test_an_index_is_described_with_its_topics_and_fields(server, ask):
    (facts,) = get(f"{server.url}/v1/indexes").json()["indexes"]
    assert facts == get(f"{server.url}/v1/indexes/notes.index").json()
    assert facts.items() >= {"name": "notes.index", "documents": 6, "dimension": 320}.items()
    assert "path" not in facts
    topics = ask("topics", count=3, seed=2**40)["topics"]
    assert sum(topic["size"] for topic in topics) == 6
    assert {"film", "cat"} <= {word for topic in topics for word in topic["words"]}
    found = get(f"{server.url}/v1/indexes/notes.index/fields").json()["fields"]
    fields = {field.pop("name"): field for field in found}
    assert (fields["year"]["lowest"], fields["year"]["highest"]) == (2018, 2022)
    assert fields["topic"]["values"] == [{"value": "economy", "documents": 2}, {"value": "film", "documents": 2}]
    assert fields["tame"]["type"] == "boolean"


def test_changes_are_made_and_seen(ask):
    assert ask("add", texts=["rain fell all night"], ids=["rain"]) == {"ids": ["rain"]}
    changed = {"texts": ["snow fell all night"], "ids": ["rain"], "metadata": [{"season": "winter"}]}
    assert ask("upsert", **changed) == {"ids": ["rain"]}
    documents = ask("get", ids=["rain", 7])["documents"]
    assert documents == [{"text": "snow fell all night", "id": "rain", "metadata": {"season": "winter"}}, None]
    assert ask("search", query="snow", k=1)["hits"][0]["id"] == "rain"
    assert ask("delete", where='season = "winter"') == {"deleted": 1}
    assert ask("ids") == {"ids": [1, 2, "cat", "dog", 3, 4]}
    assert ask("count", where="year > 2020") == {"count": 3}
    assert ask("update_metadata", ids=[3], changes={"topic": "cinema", "rated": True}) == {"updated": 1}
    (document,) = ask("get", ids=[3])["documents"]
    assert document["metadata"] == {"year": 2022, "topic": "cinema", "rated": True}
    assert ask("update_metadata", ids=[3], changes={"topic": "film", "rated": None}) == {"updated": 1}
    assert ask("add", texts=["its own vector"], ids=["v"], embeddings=[VECTOR]) == {"ids": ["v"]}
    assert ask("search", query=VECTOR, k=1)["hits"][0]["id"] == "v"
    assert ask("delete", ids=["v", "gone"]) == {"deleted": 1}
    assert [document["id"] for document in ask("documents", offset=1, limit=2)["documents"]] == [2, "cat"]
    assert len(ask("documents", where='topic = "film"')["documents"]) == 2
    assert ask("facets", field="topic")["values"][0] == {"value": "economy", "documents": 2}
    assert ask("facets", field="year", where="year >= 2021", limit=1)["values"] == [{"value": 2022, "documents": 2}]


def test_half_an_emoji_costs_no_other_text(server):
    def answer(route: str, body: str) -> dict:
        return post(f"{server.url}/v1{route}", content=body, headers={"Content-Type": "application/json"}).json()

    half, whole, index = "\\ud83d", "\\ud83d\\ude00", "/indexes/notes.index"
    embedded = [
        [row["embedding"] for row in answer("/embeddings", f'{{"model": "default", "input": {texts}}}')["data"]]
        for texts in (f'["cut {half}", "a film", "\\\\ud83d"]', '["cut \ufffd", "a film", "\\\\ud83d"]')
    ]
    assert embedded[0] == embedded[1]
    metadata = f'[{{"n": "{half}"}}, null]'
    body = f'{{"texts": ["cut {half}", "whole {whole}"], "ids": ["e1", "{whole}"], "metadata": {metadata}}}'
    assert answer(f"{index}/upsert", body) == {"ids": ["e1", "\U0001f600"]}
    found = answer(f"{index}/get", f'{{"ids": ["e1", "{whole}"]}}')["documents"]
    assert [document["text"] for document in found] == ["cut \ufffd", "whole \U0001f600"]
    assert found[0]["metadata"] == {"n": "\ufffd"}
    assert "hits" in answer(f"{index}/search", f'{{"query": "cut {half}", "snippets": ["<", ">"]}}')
    # Two ids never become one.
    more = {"upsert": '"texts": ["x"], ', "update_metadata": '"changes": {}, '}
    for route in ("upsert", "get", "delete", "update_metadata"):
        error = answer(f"{index}/{route}", f'{{{more.get(route, "")}"ids": ["a{half}"]}}')["error"]
        assert error["message"] == "ids: 'a\\ud83d' has a lone surrogate; give it another id"
    assert answer(f"{index}/delete", f'{{"ids": ["e1", "{whole}"]}}') == {"deleted": 2}


def test_a_hit_is_explained(server, ask):
    body = {"query": "inflation", "id": 1}
    found = ask("explain", **body)
    (hit,) = ask("search", query="inflation", k=1)["hits"]
    assert found["score"] == pytest.approx(hit["score"], abs=1e-6)
    side = found["document"]
    assert side["rest"] + sum(token["weight"] for token in side["tokens"]) == pytest.approx(hit["score"], abs=2e-5)
    weights = {token["text"]: token["weight"] for token in side["tokens"]}
    assert max(weights["prices"], weights["wages"]) > weights["faster than"]
    for wrong, status in (({**body, "id": 99}, 404), ({"query": "x"}, 400)):
        assert post(f"{server.url}/v1/indexes/notes.index/explain", json=wrong).status_code == status
