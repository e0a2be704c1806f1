"""The embeddings route, as curl and clients of OpenAI's API call it; tests/clients has the clients themselves."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess

import httpx
import numpy as np
import pytest

from ctx_embed.numpy_model import Embedder
from tests.serving.server import get, post

TEXTS = ["The cat sat on the mat.", "", "ünïcode 猫", "prices rise " * 500]


@pytest.fixture(scope="module")
def vectors():
    return Embedder.load().encode(TEXTS)


def test_a_client_of_openai_gets_what_it_expects(server, vectors):
    def created(**body: object) -> dict:
        return post(f"{server.url}/v1/embeddings", json={"model": "default", **body}).json()

    found = created(input=TEXTS)
    assert np.allclose([row["embedding"] for row in found["data"]], vectors, atol=1e-6)
    assert [row["index"] for row in found["data"]] == [0, 1, 2, 3]
    assert (found["object"], found["model"]) == ("list", "default")
    assert found["usage"]["prompt_tokens"] == found["usage"]["total_tokens"] > 1000
    (row,) = created(input=TEXTS[0], model="ctx-embed/default", dimensions=64)["data"]
    assert np.allclose(row["embedding"], vectors[0, :64] / np.linalg.norm(vectors[0, :64]), atol=1e-6)
    models = get(f"{server.url}/v1/models").json()
    assert (models["object"], [model["id"] for model in models["data"]]) == ("list", ["default", "ctx-embed/default"])
    assert get(f"{server.url}/v1/models/ctx-embed/default").json()["owned_by"] == "ctx-embed"


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"input": "x", "model": "gpt-4"}, 404, "unknown model 'gpt-4': known are ctx-embed/default, default"),
        ({"input": "x"}, 400, "model must be the name of a model: default, ctx-embed/default"),
        ({"model": "default"}, 400, "input must be a string or a list of strings, got None"),
        ({"input": [], "model": "default"}, 400, "input must have at least one text, got an empty list"),
        ({"input": [[1, 2]], "model": "default"}, 400, "check_embedding_ctx_length=False"),
        ({"input": [1, 2], "model": "default"}, 400, "input must be texts, got token ids"),
        ({"input": ["x", None], "model": "default"}, 400, "input[1] must be a string, got None"),
        ({"input": "x", "model": "default", "dimensions": 321}, 400, "dimensions must be an integer from 1 to 320"),
        ({"input": "x", "model": "default", "encoding_format": "hex"}, 400, "must be float or base64, got 'hex'"),
        ({"input": "x", "model": "default", "inputs": 1}, 400, "unknown field 'inputs'"),
    ],
)
def test_mistakes_are_told_as_openai_tells_them(server, body, status, said):
    answer = post(f"{server.url}/v1/embeddings", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["type"]) == (status, "invalid_request_error")
    assert said in error["message"]
    assert set(error) == {"message", "type", "param", "code"}


def test_a_text_has_one_vector_alone_and_among_many_connections(server):
    from concurrent.futures import ThreadPoolExecutor

    texts = [f"{word} and {other}" for word in ["cats", "dogs", "films", "prices"] for other in ["mats", "rain", "joy"]]
    expected = Embedder.load().encode(texts)
    with httpx.Client(base_url=server.url, timeout=60) as http, ThreadPoolExecutor(12) as pool:

        def embedded(text: str) -> list[float]:
            body = {"input": text, "model": "default"}
            return http.post("/v1/embeddings", json=body).json()["data"][0]["embedding"]

        for _ in range(3):
            assert np.allclose(list(pool.map(embedded, texts)), expected, atol=1e-6)


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl(server, vectors):
    body = json.dumps({"input": TEXTS, "model": "default", "encoding_format": "base64"})
    command = ["curl", "-sf", f"{server.url}/v1/embeddings", "-H", "Content-Type: application/json", "-d", body]
    found = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)["data"]
    rows = [np.frombuffer(base64.b64decode(row["embedding"]), "<f4") for row in found]
    assert np.allclose(rows, vectors, atol=1e-6)


def test_fields_of_cohere_s_and_jina_s_clients_are_ignored(server):
    body = {"query": "x", "documents": ["a", {"text": "b", "title": "c"}], "model": "default"}
    more = {"max_tokens_per_doc": 4096, "rank_fields": ["text"], "truncation": True, "max_chunks_per_doc": 10}
    assert post(f"{server.url}/v1/rerank", json={**body, **more}).status_code == 200
    more = {"task": "text-matching", "normalized": True, "late_chunking": False, "truncate": True}
    assert post(f"{server.url}/v1/embeddings", json={"input": "x", "model": "default", **more}).status_code == 200


def test_documents_are_reranked(server):
    texts = ["the cat sat on the mat", "prices rise faster than wages", "a dull film"]
    body = {"query": "inflation", "documents": [texts[0], {"text": texts[1]}, texts[2]], "top_n": 2}
    found = post(f"{server.url}/v1/rerank", json={**body, "model": "default", "return_documents": True}).json()
    assert found["results"][0]["index"] == 1
    assert found["results"][0]["document"] == {"text": texts[1]}
    assert len(found["results"]) == 2
    scores = Embedder.load().encode(texts) @ Embedder.load().encode("inflation")
    assert found["results"][0]["relevance_score"] == pytest.approx(float(scores[1]), abs=1e-6)
