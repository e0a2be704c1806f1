"""Models on a server: the one that embeds, as clients of OpenAI's API ask it, classifiers and rerankers."""

import base64
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest

from ctx_embed import SearchIndex
from ctx_embed.serving.service import Service
from ctx_embed.serving.settings import Settings
from tests.helpers.errors import error
from tests.index.support.cross_encoder import save_cross_encoder
from tests.serving.server import asking, get, post, serving

TEXTS = ["great food", "lovely staff", "cold soup", "rude waiter"]
LABELS = ["good", "good", "bad", "bad"]


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    from ctx_embed import TextClassifier

    folder = tmp_path_factory.mktemp("models") / "reviews"
    fitted = TextClassifier().fit(TEXTS, LABELS)
    fitted.save(folder)
    return folder, fitted


def test_a_classifier_is_served_by_the_name_of_its_folder(classifier):
    folder, fitted = classifier
    asked = ["friendly service", "a cold, rude place"]
    with serving("--model", "default", "--model", folder) as server:
        found = post(f"{server.url}/v1/classify", json={"model": "reviews", "input": asked}).json()
        assert found["model"] == "reviews"
        assert [row["prediction"] for row in found["data"]] == ["good", "bad"]
        for row, expected in zip(found["data"], fitted.predict_proba(asked), strict=True):
            assert [prediction["label"] for prediction in row["predictions"]] == ["bad", "good"]
            assert [prediction["score"] for prediction in row["predictions"]] == pytest.approx(list(expected), abs=1e-5)
            assert row["score"] == max(prediction["score"] for prediction in row["predictions"])
        models = {model["id"]: model for model in get(f"{server.url}/v1/models").json()["data"]}
        assert set(models) == {"default", "ctx-embed/default", "reviews"}
        assert models["reviews"]["labels"] == ["bad", "good"]
        for body, status in (({"model": "views"}, 404), ({"model": 5}, 400), ({"model": "reviews", "input": []}, 400)):
            answer = post(f"{server.url}/v1/classify", json={"input": "x", **body})
            assert (answer.status_code, answer.json()["error"]["type"]) == (status, "invalid_request_error")


@pytest.fixture(scope="module")
def cross_encoder(tmp_path_factory, tokenizer):
    """A CrossEncoder with random weights, and its folder."""
    from sentence_transformers import CrossEncoder

    folder = save_cross_encoder(tmp_path_factory.mktemp("rerankers") / "cross", tokenizer)
    return CrossEncoder(str(folder)), folder


@pytest.fixture(scope="module")
def reranking(cross_encoder, tiny_model_path, index_path):
    """A server with the cross-encoder and the tiny model."""
    with serving(index_path, "--reranker", cross_encoder[1], "--reranker", tiny_model_path) as server:
        yield server


def test_a_cross_encoder_reranks(cross_encoder, reranking, index_path):
    model, folder = cross_encoder
    texts, query = ["the cat sat on the mat", "prices rise faster than wages", "a dull film"], "inflation"
    scores = model.predict([(query, text) for text in texts], show_progress_bar=False)
    search = asking(reranking, "notes.index")
    body = {"query": query, "documents": texts, "model": "cross", "return_documents": True}
    found = post(f"{reranking.url}/v1/rerank", json=body).json()
    order = np.argsort(-scores, kind="stable").tolist()
    assert [result["index"] for result in found["results"]] == order
    expected = pytest.approx([float(scores[place]) for place in order], abs=1e-5)
    assert [result["relevance_score"] for result in found["results"]] == expected
    assert found["results"][0]["document"] == {"text": texts[order[0]]}
    with SearchIndex.open(index_path) as index:
        expected = index.search(query, 3, rerank=model)
    hits = search("search", query=query, k=3, rerank="cross")["hits"]
    assert [hit["id"] for hit in hits] == [hit.id for hit in expected]
    assert [hit["reranked"] for hit in hits] == pytest.approx([hit.reranked for hit in expected], abs=1e-5)
    several = search("search", query=[query, "pets"], k=3, rerank="cross")["hits"]
    assert [hit["id"] for hit in several[0]] == [hit["id"] for hit in hits]
    assert search("search", query=query, k=3, rerank="cross", fuse=True)["hits"][0]["id"] == hits[0]["id"]
    assert search("search", query=query, k=3)["hits"][0]["reranked"] is None
    # A path in a request would load whatever is there.
    said = search("search", query=query, rerank=str(folder))["error"]["message"]
    assert re.match(r"unknown reranker '.*': known are cross, tiny", said)
    assert post(f"{reranking.url}/v1/rerank", json={**body, "model": "crass"}).status_code == 404
    listed = get(f"{reranking.url}/v1/models").json()["data"]
    assert "cross" in [facts["id"] for facts in listed if facts.get("reranks")]


def test_an_encoder_reranks(tiny_model, reranking):
    texts, query = ["the cat sat on the mat", "prices rise faster than wages"], "a cat in the city"
    scores = tiny_model.encode(texts) @ tiny_model.encode(query)
    body = {"query": query, "documents": texts, "model": "tiny"}
    for result in post(f"{reranking.url}/v1/rerank", json=body).json()["results"]:
        assert result["relevance_score"] == pytest.approx(float(scores[result["index"]]), abs=1e-5)
    hits = asking(reranking, "notes.index")("search", query=query, k=6, mode="dense", rerank="tiny")["hits"]
    assert {hit["text"]: hit["reranked"] for hit in hits}[texts[0]] == pytest.approx(float(scores[0]), abs=1e-5)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"reranker": ("nowhere/at/all",)}, "nowhere/at/all: no such model folder"),
        ({"reranker": ("default", "default")}, "two models have the name 'default'; rename"),
        ({"model": ("nowhere",)}, "nowhere: no such folder"),
        ({"model": ("default", "tiny")}, "tiny: not a classifier (no classifier.safetensors)"),
        ({"api_key_file": Path("nowhere")}, "nowhere: cannot be read"),
    ],
)
def test_what_cannot_be_served_is_one_line(settings, said, tiny_model_path, monkeypatch):
    monkeypatch.chdir(tiny_model_path.parent)
    assert error(Service, Settings(**settings)).startswith(said)


def test_without_rerankers_a_search_says_how_to_have_one(server):
    said = "the server has no rerankers; start it with --reranker MODEL"
    assert asking(server, "notes.index")("search", query="x", rerank="minilm")["error"]["message"] == said


# The shipped model

SENTENCES = ["The cat sat on the mat.", "", "ünïcode 猫", "prices rise " * 500]


def test_a_client_of_openai_gets_what_it_expects(server, embedder):
    vectors = embedder.encode(SENTENCES)

    def created(**body: object) -> dict:
        answer = post(f"{server.url}/v1/embeddings", json={"model": "default", **body})
        assert answer.status_code == 200
        return answer.json()

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
    created(input="x", task="text-matching", normalized=True, late_chunking=False, truncate=True)


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"model": "gpt-4"}, 404, "unknown model 'gpt-4': known are ctx-embed/default, default"),
        ({"model": None}, 400, "model must be the name of a model: default, ctx-embed/default"),
        ({"input": None}, 400, "input must be a string or a list of strings, got None"),
        ({"input": []}, 400, "input must have at least one text, got an empty list"),
        ({"input": [[1, 2]]}, 400, "check_embedding_ctx_length=False"),
        ({"input": [1, 2]}, 400, "input must be texts, got token ids"),
        ({"input": ["x", None]}, 400, "input[1] must be a string, got None"),
        ({"dimensions": 321}, 400, "dimensions must be an integer from 1 to 320"),
        ({"encoding_format": "hex"}, 400, "must be float or base64, got 'hex'"),
        ({"inputs": 1}, 400, "unknown field 'inputs'"),
    ],
)
def test_mistakes_are_told_as_openai_tells_them(server, body, status, said):
    answer = post(f"{server.url}/v1/embeddings", json={"input": "x", "model": "default", **body})
    error = answer.json()["error"]
    assert (answer.status_code, error["type"]) == (status, "invalid_request_error")
    assert said in error["message"]
    assert set(error) == {"message", "type", "param", "code"}


def test_a_text_has_one_vector_alone_and_among_many_connections(server, embedder):
    texts = [f"{word} and {other}" for word in ["cats", "dogs", "films", "prices"] for other in ["mats", "rain", "joy"]]
    expected = embedder.encode(texts)
    with httpx.Client(base_url=server.url, timeout=60) as http, ThreadPoolExecutor(12) as pool:

        def embedded(text: str) -> list[float]:
            body = {"input": text, "model": "default"}
            return http.post("/v1/embeddings", json=body).json()["data"][0]["embedding"]

        for _ in range(3):
            assert np.allclose(list(pool.map(embedded, texts)), expected, atol=1e-6)


def test_documents_are_reranked(server, embedder):
    texts = ["the cat sat on the mat", "prices rise faster than wages", "a dull film"]
    documents = [texts[0], {"text": texts[1], "title": "x"}, texts[2]]
    body = {"query": "inflation", "documents": documents, "top_n": 2, "model": "default", "return_documents": True}
    # Fields of Cohere's and Jina's clients are ignored.
    others = {"max_tokens_per_doc": 4096, "rank_fields": ["text"], "truncation": True, "max_chunks_per_doc": 10}
    first, _ = post(f"{server.url}/v1/rerank", json={**body, **others}).json()["results"]
    scores = embedder.encode(texts) @ embedder.encode("inflation")
    assert first["relevance_score"] == pytest.approx(float(scores[1]), abs=1e-6)
    assert (first["index"], first["document"]) == (1, {"text": texts[1]})
