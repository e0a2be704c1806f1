"""Search indexes and models on a real server, over HTTP as clients of OpenAI's API ask it, and over MCP."""

import base64
import json
import logging
import re
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import anyio
import httpx
import numpy as np
import pytest
from sentence_transformers import CrossEncoder

from ctx_embed import SearchIndex, TextClassifier
from ctx_embed.deadlines import require_time
from ctx_embed.index.database import Database
from ctx_embed.index.hits import Hits
from ctx_embed.index.search import Reranker
from ctx_embed.model import Model
from ctx_embed.serving.indexes import opened
from ctx_embed.serving.service import ServedReranker
from tests.helpers.errors import error
from tests.index.support.child import environment
from tests.index.support.cross_encoder import save_cross_encoder
from tests.index.support.hash_model import HashModel
from tests.serving.server import JSON, answering, asking, get, post, serving

VECTOR = [float(place == 3) for place in range(320)]


@pytest.fixture(scope="module")
def ask(server):
    """Send a body to a route of the index, and return the JSON of the answer."""
    return asking(server, "notes.index")


def test_hits_are_those_of_the_index_in_its_folder(ask, index_path):
    for options in (
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
        {"query": "a good idea for a film", "late": True},
        {"query": "a good idea for a film", "late": False},
        {"query": ["how do volcanoes erupt?", "unemployment in spring"], "k": 2},
    ):
        answer = ask("search", **options)
        with SearchIndex.open(index_path) as index:
            expected = index.search(**options)
        if isinstance(expected, Hits):
            answer, expected = {name: [value] for name, value in answer.items()}, [expected]
        assert answer["answered"] == [hits.answered for hits in expected]
        for found, hits in zip(answer["hits"], expected, strict=True):
            for got, hit in zip(found, hits, strict=True):
                assert (got["id"], got["text"], got["metadata"]) == (hit.id, hit.text, hit.metadata)
                assert (got["corrected"], got["highlight"]) == (hit.corrected, hit.highlight and list(hit.highlight))
                for name in ("score", "relevance", "fused", "late"):
                    assert got[name] == pytest.approx(getattr(hit, name), abs=1e-5)


def test_mistakes_are_those_of_the_index_in_its_folder(server, index_path):
    for route, body in (
        ("search", {"query": "x", "k": 0}),
        ("search", {"query": "x", "where": "year >"}),
        ("delete", {"where": 'year > "01.06.2024"'}),
        ("search", {"query": 5}),
        ("search", {"query": [1.0, 2.0]}),
        ("search", {"query": "x", "like": 1}),
        ("add", {"texts": ["x"], "ids": ["cat"]}),
        ("delete", {}),
        ("topics", {"count": 10**7}),
        ("update_metadata", {"ids": ["no"], "changes": {"a": 1}}),
    ):
        answer = post(f"{server.url}/v1/indexes/notes.index/{route}", json=body)
        with SearchIndex.open(index_path) as index:
            said = error(getattr(index, route), **body)
        assert (answer.status_code, answer.json()["error"]["message"]) == (400, said)


def test_hits_name_the_line_or_page_of_the_passage_and_have_the_document_on_request(tmp_path):
    notes = "# Cats\n\nThe cat sat on the mat.\n\n```\n# no heading\n```\n\nIt slept until noon."
    places = [{"source": "notes.md", "line": 1}, {"source": "report.pdf", "page": 1}]
    with SearchIndex.create(tmp_path / "cut", chunk="sentences") as index:
        index.add([notes, "Prices rise.\fWages fall in the north."], ["notes.md", "report.pdf"], places)
    with answering(tmp_path / "cut") as client:

        def hit(query: str, **options: object) -> dict:
            body = {"query": query, "k": 1, "mode": "words", **options}
            return client.post("/v1/indexes/cut/search", json=body).json()["hits"][0]

        cat = hit("slept noon")
        assert cat["location"] == {"source": "notes.md", "line": 9, "page": None, "heading": "Cats"}
        assert hit("wages")["location"] == {"source": "report.pdf", "line": None, "page": 2, "heading": None}
        assert (cat["whole"], "document" in cat) == (False, False)
        assert "<slept> until <noon>" in hit("slept noon", snippets=["<", ">"])["snippet"]
        assert hit("slept noon", document=True)["document"] == notes


def test_a_query_of_unknown_words_and_a_filter_on_an_unknown_field_are_said_to_be_so(ask, server):
    for query in ("", " \n", ["cat", "", "日本語"]):
        for mode in ("hybrid", "dense", "words"):
            assert ask("search", query=query, mode=mode)["warnings"] == ["A query is empty: it finds nothing."]
    for body in ({"query": "日本語"}, {"query": ["cat", "日本語"]}, {"query": "日本語", "k": 5000}):
        (said,) = ask("search", **body, mode="dense")["warnings"]
        assert said == "The model knows no word of a query: it finds nothing by meaning."
    assert "warnings" not in ask("search", query="cat")
    without = ask("search", query="x", rerank="minilm")["error"]["message"]
    assert without == "the server has no rerankers; start it with --reranker MODEL"
    said = ["no document has a field 'yaer' (fields: lang, tame, topic, year)"]
    for route, body, nothing in (
        ("search", {"query": "cat"}, {"hits": [], "answered": None}),
        ("search", {"query": ["cat", "dog"]}, {"hits": [[], []], "answered": [None, None]}),
        ("count", {}, {"count": 0}),
    ):
        assert ask(route, **body, where="yaer = 1") == {**nothing, "warnings": said}
        assert "warnings" not in ask(route, **body, where=None)
        # The field is known, but no document has this value.
        assert ask(route, **body, where="year = -1") == nothing
    assert all(server.lines)


def test_an_index_is_described_with_its_topics_and_fields_and_a_hit_is_explained(server, ask):
    facts = get(f"{server.url}/v1/indexes/notes.index").json()
    assert get(f"{server.url}/v1/indexes").json() == {"indexes": [facts]}
    assert facts.items() >= {"name": "notes.index", "documents": 6, "dimension": 320}.items()
    assert "path" not in facts
    topics = ask("topics", count=3, seed=2**40)["topics"]
    assert sum(topic["size"] for topic in topics) == 6
    assert {"film", "cat"} <= {word for topic in topics for word in topic["words"]}
    found = get(f"{server.url}/v1/indexes/notes.index/fields").json()["fields"]
    fields = {field["name"]: field for field in found}
    assert (fields["year"]["lowest"], fields["year"]["highest"], fields["tame"]["type"]) == (2018, 2022, "boolean")
    assert fields["topic"]["values"] == [{"value": "economy", "documents": 2}, {"value": "film", "documents": 2}]
    found = ask("explain", query="inflation", id=1)
    (hit,) = ask("search", query="inflation", k=1)["hits"]
    assert found["score"] == pytest.approx(hit["score"], abs=1e-6)
    weights = {token["text"]: token["weight"] for token in found["document"]["tokens"]}
    assert found["document"]["rest"] + sum(weights.values()) == pytest.approx(hit["score"], abs=2e-5)
    assert max(weights["prices"], weights["wages"]) > weights["faster than"]
    for wrong, status in (({"query": "x", "id": 99}, 404), ({"query": "x"}, 400)):
        assert post(f"{server.url}/v1/indexes/notes.index/explain", json=wrong).status_code == status


def test_changes_are_made_and_seen(server, ask, index_path):
    texts, vectors = ["rain fell all night", "its own vector"], [[*VECTOR[1:], 0.0], VECTOR]
    assert ask("add", texts=texts, ids=["rain", "v"], embeddings=vectors) == {"ids": ["rain", "v"]}
    assert ask("search", query=VECTOR, k=1)["hits"][0]["id"] == "v"
    changed = {"texts": ["snow fell all night"], "ids": ["rain"], "metadata": [{"season": "winter"}]}
    assert ask("upsert", **changed) == {"ids": ["rain"]}
    assert ask("search", query="snow", k=1)["hits"][0]["id"] == "rain"
    documents = ask("get", ids=["rain", 7])["documents"]
    assert documents == [{"text": "snow fell all night", "id": "rain", "metadata": {"season": "winter"}}, None]
    assert ask("delete", where='season = "winter"') == ask("delete", ids=["v", "gone"]) == {"deleted": 1}
    assert ask("ids") == {"ids": [1, 2, "cat", "dog", 3, 4]}
    assert ask("count", where="year > 2020") == {"count": 3}
    assert ask("update_metadata", ids=["3"], changes={"topic": "cinema", "rated": True}) == {"updated": 1}
    assert ask("get", ids=[3])["documents"][0]["metadata"] == {"year": 2022, "topic": "cinema", "rated": True}
    assert ask("update_metadata", ids=[3], changes={"topic": "film", "rated": None}) == {"updated": 1}
    # A request does not wait for long.
    with closing(Database(index_path)) as store, store.writing():
        began = time.monotonic()
        answer = post(f"{server.url}/v1/indexes/notes.index/delete", json={"ids": ["gone"]})
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
        assert 1.5 < time.monotonic() - began < 20
    assert [document["id"] for document in ask("documents", offset=1, limit=2)["documents"]] == [2, "cat"]
    assert len(ask("documents", where='topic = "film"')["documents"]) == 2
    assert ask("facets", field="topic")["values"][0] == {"value": "economy", "documents": 2}
    assert ask("facets", field="year", where="year >= 2021", limit=1)["values"] == [{"value": 2022, "documents": 2}]


def test_half_an_emoji_costs_no_other_text(server):
    def answer(route: str, body: str) -> dict:
        return post(f"{server.url}/v1{route}", content=body, headers=JSON).json()

    half, whole, index = "\\ud83d", "\\ud83d\\ude00", "/indexes/notes.index"
    texts = '{"model": "default", "input": ["cut %s", "a film", "\\\\ud83d"]}'
    assert answer("/embeddings", texts % half)["data"] == answer("/embeddings", texts % "\ufffd")["data"]
    # Others would wait for a long body.
    long = f'{{"model": "default", "input": "{half * 700_000}"}}'
    assert "surrogate" in answer("/embeddings", long)["error"]["message"]
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


async def answer(client: Any, tool: str, **arguments: object) -> dict[str, Any]:
    """Return the JSON values that a tool answers."""
    return json.loads((await client.call_tool(tool, arguments)).content[0].text)


def test_an_assistant_searches_reads_and_describes(tmp_path):
    mcp = pytest.importorskip("mcp", reason="mcp is not installed")
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / "cat.txt").write_text("The cat sat on the mat.\n\nRain fell all night.\n")
    (folder / "museum.txt").write_text("The museum is old. It opens at nine. Tickets cost four pounds.\n")
    with SearchIndex.create(tmp_path / "notes.index") as index:
        index.sync(folder)
        index.add(["prices rise faster than wages"], [1], [{"year": 2020}])

    arguments = ["-m", "ctx_embed", "mcp", str(tmp_path / "notes.index")]
    parameters = mcp.StdioServerParameters(command=sys.executable, args=arguments, env=environment())

    async def ask() -> None:
        # Its default is the standard error of when it was imported, perhaps that of another test.
        async with mcp.Client(mcp.stdio_client(parameters, errlog=sys.__stderr__)) as client:
            tools = {tool.name: tool for tool in (await client.list_tools()).tools}
            assert set(tools) == {"search", "get", "describe"}
            for tool in tools.values():
                assert all(argument.get("description") for argument in tool.input_schema["properties"].values()), tool
            (hit,) = (await answer(client, "search", query="inflation", k=1, where="year >= 2020"))["hits"]
            assert hit["id"] == 1
            assert hit["relevance"] > 0.9
            first, *_ = (await answer(client, "search", query="entrance fee in pounds", mode="dense"))["hits"]
            assert (first["highlight"], first["source"]) == ("Tickets cost four pounds.", "museum.txt:1")
            assert (await answer(client, "search", query="how do volcanoes erupt?", min_relevance=0.9))["hits"] == []
            for query, answered in (("how do volcanoes erupt?", False), ("inflation", True)):
                assert (await answer(client, "search", query=query))["answered"] is answered
            for late in (False, True):
                options = {"query": "a night of rain at the museum", "late": late}
                with SearchIndex.open(tmp_path / "notes.index") as index:
                    wanted = [hit.id for hit in index.search(**options)]
                assert [hit["id"] for hit in (await answer(client, "search", **options))["hits"]] == wanted
            part = await answer(client, "get", id="cat.txt", start=4, length=3)
            assert (part["text"], part["characters"]) == ("cat", 46)
            described = await answer(client, "describe")
            assert described["documents"] == 3
            assert {"year", "source"} <= {field["name"] for field in described["fields"]}
            for query, said in (("日本語", "The model knows no word of the query."), (" ", "The query is empty")):
                assert (await answer(client, "search", query=query, mode="dense"))["warning"].startswith(said)
            assert (await client.call_tool("get", {"id": "cat.txt", "length": 10**9})).is_error
            for identifier in ("1", 1):
                assert (await answer(client, "get", id=identifier))["text"] == "prices rise faster than wages"
            for where, said in (
                ("year >", "filter"),
                ("yaer = 2020", "no document has a field 'yaer' (fields: "),
            ):
                wrong = await client.call_tool("search", {"query": "x", "where": where})
                assert wrong.is_error
                assert said in wrong.content[0].text
                assert "Traceback" not in wrong.content[0].text

    anyio.run(ask)


def test_a_tool_embeds_a_query_once_and_has_a_deadline(tmp_path, monkeypatch):
    pytest.importorskip("mcp", reason="mcp is not installed")
    from ctx_embed.serving import mcp

    asked, queries = [], Model.queries
    with SearchIndex.create(tmp_path / "notes.index") as index:
        index.add(["prices rise faster than wages"])
        monkeypatch.setattr(Model, "queries", lambda self, texts: asked.extend(texts) or queries(self, texts))
        server = mcp.create_server(index)
        anyio.run(server.call_tool, "search", {"query": "inflation"})
        assert asked == ["inflation"]
        for tool, wrong in (("search", {"query": "x", "k": 10**30}), ("get", {"id": 1.5}), ("search", {"query": 1})):
            with pytest.raises(mcp.ToolError, match=r"^(k|id|query): Input should be .*, got [\d.]+$"):
                anyio.run(server.call_tool, tool, wrong)
        monkeypatch.setattr(mcp, "SECONDS", 1e-9)
        monkeypatch.setattr(SearchIndex, "unknown_fields", lambda *_: require_time())
        for asks in ({"query": "inflation"}, {"query": "inflation", "where": "year = 1"}):
            with pytest.raises(mcp.ToolError, match="took longer than 1e-09 s"):
                anyio.run(server.call_tool, "search", asks)


def test_a_classifier_is_served_by_the_name_of_its_folder(tmp_path):
    texts, folder = ["great food", "lovely staff", "cold soup", "rude waiter"], tmp_path / "reviews"
    fitted = TextClassifier().fit(texts, ["good", "good", "bad", "bad"])
    fitted.save(folder)
    with serving("--model", "default", "--model", folder) as server:
        assert server.said == f"ctx-embed serves no indexes at {server.url} (Ctrl-C stops it)\n"
        assert get(f"{server.url}/v1/indexes").json() == {"indexes": []}
        asked = ["friendly service", "a cold, rude place"]
        found = post(f"{server.url}/v1/classify", json={"model": "reviews", "input": asked}).json()
        assert found["model"] == "reviews"
        assert [row["prediction"] for row in found["data"]] == ["good", "bad"]
        for row, expected in zip(found["data"], fitted.predict_proba(asked), strict=True):
            scores = {prediction["label"]: prediction["score"] for prediction in row["predictions"]}
            assert scores == pytest.approx({"bad": expected[0], "good": expected[1]}, abs=1e-5)
            assert row["score"] == max(scores.values())
        models = {model["id"]: model.get("labels") for model in get(f"{server.url}/v1/models").json()["data"]}
        assert models == {"default": None, "ctx-embed/default": None, "reviews": ["bad", "good"]}
        for body, status in (({"model": "views"}, 404), ({"model": 5}, 400), ({"model": "reviews", "input": []}, 400)):
            answer = post(f"{server.url}/v1/classify", json={"input": "x", **body})
            assert (answer.status_code, answer.json()["error"]["type"]) == (status, "invalid_request_error")


@pytest.fixture(scope="module")
def cross_encoder(tmp_path_factory, tokenizer):
    """A CrossEncoder with random weights, and its folder."""
    folder = save_cross_encoder(tmp_path_factory.mktemp("rerankers") / "cross", tokenizer)
    return CrossEncoder(str(folder)), folder


@pytest.fixture(scope="module")
def reranking(cross_encoder, tiny_model_path, index_path):
    """A server with the cross-encoder and the tiny model."""
    with serving(index_path, "--reranker", cross_encoder[1], "--reranker", tiny_model_path) as server:
        yield server


def test_a_reranker_scores_for_one_thread_at_a_time(monkeypatch):
    inside = []

    def scores(*_) -> int:
        inside.append(None)
        time.sleep(0.02)
        found = len(inside)
        inside.pop()
        return found

    monkeypatch.setattr(Reranker, "__init__", lambda self, name: None)
    monkeypatch.setattr(Reranker, "scores", scores)
    with closing(ServedReranker("any")) as reranker, ThreadPoolExecutor(4) as pool:
        assert [*pool.map(reranker.scores, range(8), range(8))] == [1] * 8


def test_a_cross_encoder_and_an_encoder_rerank(cross_encoder, reranking, index_path, tiny_model):
    model, folder = cross_encoder
    texts, query = ["the cat sat on the mat", "prices rise faster than wages", "a dull film"], "inflation"
    scores = model.predict([(query, text) for text in texts], show_progress_bar=False)
    search = asking(reranking, "notes.index")
    body = {"query": query, "documents": texts, "model": "cross", "return_documents": True}
    found = post(f"{reranking.url}/v1/rerank", json=body).json()["results"]
    order = np.argsort(-scores, kind="stable").tolist()
    assert [result["index"] for result in found] == order
    assert [result["relevance_score"] for result in found] == pytest.approx(scores[order].tolist(), abs=1e-5)
    assert found[0]["document"] == {"text": texts[order[0]]}
    with SearchIndex.open(index_path) as index:
        expected = index.search(query, 3, rerank=model)
    hits = search("search", query=query, k=3, rerank="cross")["hits"]
    assert [hit["id"] for hit in hits] == [hit.id for hit in expected]
    assert [hit["reranked"] for hit in hits] == pytest.approx([hit.reranked for hit in expected], abs=1e-5)
    several, _ = search("search", query=[query, "pets"], k=3, rerank="cross")["hits"]
    assert [hit["id"] for hit in several] == [hit["id"] for hit in hits]
    assert search("search", query=query, k=3, rerank="cross", fuse=True)["hits"][0]["id"] == hits[0]["id"]
    assert search("search", query=query, k=3)["hits"][0]["reranked"] is None
    # A path in a request would load whatever is there.
    said = search("search", query=query, rerank=str(folder))["error"]["message"]
    assert re.match(r"unknown reranker '.*': known are cross, tiny", said)
    assert post(f"{reranking.url}/v1/rerank", json={**body, "model": "crass"}).status_code == 404
    listed = get(f"{reranking.url}/v1/models").json()["data"]
    assert "cross" in [facts["id"] for facts in listed if facts.get("reranks")]
    query = "a cat in the city"
    scores = (tiny_model.encode(texts) @ tiny_model.encode(query)).tolist()
    for result in post(f"{reranking.url}/v1/rerank", json={**body, "query": query, "model": "tiny"}).json()["results"]:
        assert result["relevance_score"] == pytest.approx(scores[result["index"]], abs=1e-5)
    hits = search("search", query=query, k=6, mode="dense", rerank="tiny")["hits"]
    assert {hit["text"]: hit["reranked"] for hit in hits}[texts[0]] == pytest.approx(scores[0], abs=1e-5)


# The shipped model

SENTENCES = ["The cat sat on the mat.", "", "ünïcode 猫", "prices rise " * 500]


def test_a_client_of_openai_gets_what_it_expects(server, embedder):
    vectors = embedder.encode(SENTENCES)

    def created(**body: object) -> dict:
        return post(f"{server.url}/v1/embeddings", json={"model": "default", **body}).json()

    found = created(input=SENTENCES)
    assert np.allclose([row["embedding"] for row in found["data"]], vectors, atol=1e-6)
    assert [row["index"] for row in found["data"]] == [0, 1, 2, 3]
    assert (found["object"], found["model"]) == ("list", "default")
    assert found["usage"]["prompt_tokens"] == found["usage"]["total_tokens"] > 1000
    (row,) = created(input=SENTENCES[0], model="ctx-embed/default", dimensions=64)["data"]
    assert np.allclose(row["embedding"], vectors[0, :64] / np.linalg.norm(vectors[0, :64]), atol=1e-6)
    models = get(f"{server.url}/v1/models").json()
    assert (models["object"], [model["id"] for model in models["data"]]) == ("list", ["default", "ctx-embed/default"])
    assert get(f"{server.url}/v1/models/ctx-embed/default").json()["owned_by"] == "ctx-embed"
    packed = created(input=SENTENCES, encoding_format="base64")["data"]
    rows = [np.frombuffer(base64.b64decode(row["embedding"]), "<f4") for row in packed]
    assert np.allclose(rows, vectors, atol=1e-6)
    # Fields of other clients are ignored.
    assert created(input="x", task="text-matching", normalized=True, late_chunking=False, truncate=True)["data"]


def test_mistakes_are_told_as_openai_tells_them(server):
    for body, status, said in (
        ({"model": "gpt-4"}, 404, "unknown model 'gpt-4': known are ctx-embed/default, default"),
        ({"input": None}, 400, "input: must be a string or a list of strings"),
        ({"input": []}, 400, "input: list should have at least 1 item"),
        ({"input": [[1, 2]]}, 400, "check_embedding_ctx_length=False"),
        ({"input": [1, 2]}, 400, "input: must be texts, got token ids"),
        ({"input": ["x", None]}, 400, "input.1: input should be a valid string"),
        ({"dimensions": 321}, 400, "dimensions must be at most 320, got 321"),
        ({"encoding_format": "hex"}, 400, "encoding_format: input should be 'float' or 'base64'"),
        ({"dimensions": 0}, 400, "dimensions: input should be greater than or equal to 1"),
        ({"inputs": 1}, 400, "inputs: extra inputs are not permitted"),
    ):
        answer = post(f"{server.url}/v1/embeddings", json={"input": "x", "model": "default", **body})
        error = answer.json()["error"]
        assert (answer.status_code, error["type"]) == (status, "invalid_request_error")
        assert said in error["message"]
        assert set(error) == {"message", "type", "param", "code"}


def test_a_text_has_one_vector_alone_and_among_many_connections(server, embedder):
    texts = [f"{word} and {other}" for word in ["cats", "dogs", "films", "prices"] for other in ["mats", "rain", "joy"]]
    expected = embedder.encode(texts)
    with httpx.Client(base_url=server.url, timeout=60) as http, ThreadPoolExecutor(12) as pool:
        for _ in range(3):
            bodies = [{"input": text, "model": "default"} for text in texts]
            answers = [
                answer.json() for answer in pool.map(lambda body: http.post("/v1/embeddings", json=body), bodies)
            ]
            assert np.allclose([answer["data"][0]["embedding"] for answer in answers], expected, atol=1e-6)


def test_documents_are_reranked(server, embedder):
    texts = ["the cat sat on the mat", "prices rise faster than wages", "a dull film"]
    body = {"query": "inflation", "documents": [texts[0], {"text": texts[1], "title": "x"}, texts[2]], "top_n": 2}
    # Fields of Cohere's and Jina's clients are ignored.
    body |= {"max_tokens_per_doc": 4096, "rank_fields": ["text"], "truncation": True, "max_chunks_per_doc": 10}
    first, _ = post(f"{server.url}/v1/rerank", json={**body, "return_documents": True}).json()["results"]
    scores = embedder.encode(texts) @ embedder.encode("inflation")
    assert first["relevance_score"] == pytest.approx(float(scores[1]), abs=1e-6)
    assert (first["index"], first["document"]) == (1, {"text": texts[1]})


def test_an_index_whose_model_is_not_there_searches_by_words_and_the_log_says_so(tmp_path, caplog):
    with SearchIndex.create(tmp_path / "notes.index", HashModel()) as index:
        index.add(["the cat sat on the mat"])
    with opened(tmp_path / "notes.index", {}) as index:
        assert len(index.search("cat", mode="words")) == 1
    ((_, level, said),) = caplog.record_tuples
    assert (level, "notes.index: built with a model of unknown origin" in said) == (logging.WARNING, True)
