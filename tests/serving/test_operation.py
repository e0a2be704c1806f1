"""What those who run the server rely on: probes, metrics, log, keys, limits, workers; and what strangers send."""

import asyncio
import gc
import inspect
import json
import random
import re
import resource
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing, suppress
from itertools import count, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import httpx
import numpy as np
import pytest
from starlette.testclient import TestClient

import ctx_embed
from ctx_embed import SearchIndex
from ctx_embed.deadlines import require_time
from ctx_embed.errors import LateError
from ctx_embed.serving import app
from ctx_embed.serving.gate import Gate, Sender
from ctx_embed.serving.indexes import ServedIndex
from ctx_embed.serving.observing import metrics
from ctx_embed.serving.service import Service, TextModel
from ctx_embed.serving.settings import Settings, read_keys
from tests.helpers.cli import Command
from tests.helpers.errors import error
from tests.index.support.child import environment
from tests.serving.server import JSON, answering, get, head, make_index, post, serving, serving_settings, wait_until

NAME = "/v1/indexes/notes.index"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server whose index, metrics and log are of this file's requests alone; none of them is a fault of its own."""
    with serving(make_index(tmp_path_factory.mktemp("operated") / "notes.index")) as running:
        yield running
        # Too busy, or past a deadline that a test has set.
        assert {line.get("status", 0) for line in running.lines} & {*range(500, 600)} <= {503, 504}
        assert "Traceback" not in running.log.read_text()


def test_probes_metrics_and_log(server):
    assert get(f"{server.url}/healthz").json() == {"status": "ok"}
    assert get(f"{server.url}/readyz").json() == {"status": "ready"}
    assert get(f"{server.url}/nowhere").status_code == 404
    assert post(f"{server.url}{NAME}/count", content="where").status_code == 415
    typed = {"Content-Type": "Application/JSON ; charset=UTF-8"}
    assert post(f"{server.url}{NAME}/count", content="{}", headers=typed).json() == {"count": 6}
    for path in ("/", "/healthz", "/readyz"):
        answer = httpx.head(server.url + path)
        assert (answer.status_code, answer.content) == (200, b"")
    metrics = get(f"{server.url}/metrics").text
    for line in (
        'requests_total{method="GET",route="/readyz",status="200"} 1.0',
        'requests_total{method="GET",route="other",status="404"} 1.0',
        'requests_total{method="POST",route="/v1/indexes/{name}/count",status="415"} 1.0',
        'index_documents{index="notes.index"} 6.0',
        'index_generation{index="notes.index"} 1.0',
    ):
        assert f"ctx_embed_{line}\n" in metrics
    assert float(re.search(r'ctx_embed_index_bytes{index="notes.index"} (\S+)', metrics)[1]) > 10_000
    ready = next(line for line in server.lines if line.get("path") == "/readyz")
    assert (ready["method"], ready["status"], ready["client"], ready["bytes"]) == ("GET", 200, "127.0.0.1", 18)
    assert ready["milliseconds"] > 0


def test_the_routes_are_documented_without_the_network(server):
    described = get(f"{server.url}/openapi.json").json()
    body = described["components"]["schemas"]["EmbeddingsBody"]
    assert set(body["properties"]) == {"input", "model", "encoding_format", "dimensions", "user"}
    assert "securitySchemes" not in described["components"]
    assert described["info"].items() >= {"title": "ctx-embed", "version": ctx_embed.__version__}.items()
    # What a route says of its effects is what the library says.
    for name in ("add", "upsert", "update_metadata", "delete", "ids", "count", "topics"):
        said = described["paths"][f"/v1/indexes/{{name}}/{name}"]["post"]["description"].replace("`", "")
        documented = inspect.getdoc(getattr(SearchIndex, name)).replace(":meth:", "").replace("`", "")
        assert documented.startswith(said)
        assert documented[len(said) :].lstrip()[:5] in ("", "Args:")
    assert "https://" not in get(f"{server.url}/docs").text
    assert get(f"{server.url}/static/docs/swagger-ui-bundle.js").status_code == 200


def test_answers_are_for_pages_of_this_host_have_an_id_and_are_compressed_on_demand(server):
    wrong = get(f"{server.url}/v1/indexes", headers={"Host": "evil.example:8080"})
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (403, "wrong_host")
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    sent = {"X-Request-ID": "of-the-proxy-1", "traceparent": f"00-{trace}-00f067aa0ba902b7-01"}
    answer = get(f"{server.url}/v1/models", headers={**sent, "Origin": "http://x"}).headers
    assert (answer["X-Request-ID"], answer.get("access-control-allow-origin")) == ("of-the-proxy-1", None)
    made = get(f"{server.url}/v1/models", headers={"X-Request-ID": 'no id: "'}).headers["X-Request-ID"]
    assert len(made) == 32
    # A request is logged once it has been answered.
    wait_until(lambda: made in server.log.read_text())
    lines = {line.get("request"): line for line in server.lines}
    assert (lines["of-the-proxy-1"]["trace"], "trace" in lines[made]) == (trace, False)
    body = {"model": "default", "input": ["x"] * 20}
    plain, packed = (
        post(f"{server.url}/v1/embeddings", json=body, headers={"Accept-Encoding": encoding})
        for encoding in ("identity", "gzip")
    )
    assert (plain.headers.get("Content-Encoding"), packed.headers["Content-Encoding"]) == (None, "gzip")
    assert packed.json() == plain.json()
    assert int(packed.headers["Content-Length"]) < len(plain.content) / 2


def test_options_come_from_the_environment_a_proxy_serves_it_under_a_path_and_ctrl_c_ends_it(tmp_path):
    path = make_index(tmp_path / "notes.index")
    variables = {"INDEXES": str(path), "ROOT_PATH": "/find", "MAX_TEXTS": "2", "ALIAS": "text-embedding-3-small other"}
    with serving(**{f"CTX_EMBED_SERVE_{name}": value for name, value in variables.items()}) as server:
        # Whether the proxy strips the path or not.
        for base in (server.url, f"{server.url}/find"):
            assert post(f"{base}{NAME}/count", json={}).json() == {"count": 6}
        assert get(f"{server.url}/v1/server").json()["limits"]["texts"] == 2
        assert "/find/openapi.json" in get(f"{server.url}/docs").text
        names = ["default", "text-embedding-3-small", "other"]
        found = [post(f"{server.url}/v1/embeddings", json={"input": "x", "model": name}).json() for name in names]
        assert [answer["model"] for answer in found] == names
        assert found[0]["data"] == found[2]["data"]
        assert server.said == f"ctx-embed serves notes.index at {server.url} (Ctrl-C stops it)\n"
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(20) == 0
        assert "Traceback" not in server.log.read_text()


def test_keys_read_and_write(tmp_path):
    # Nothing of an index of this name is taken for a route.
    path, keys = make_index(tmp_path / "add"), tmp_path / "keys"
    keys.write_text("# of the team\nread looking analyst\n\nread both\nwrite both  # carefully\nread a#b #c\n")
    found = [(key.secret, key.writes, key.name) for key in read_keys(keys)]
    assert found[1:] == [(b"both", False, "key 4"), (b"both", True, "key 5"), (b"a#b", False, "key 6")]

    def contents() -> dict[str, bytes]:
        # SQLite's log is empty or gone, and its shared memory is no content.
        files = {each.name: each.read_bytes() for each in path.iterdir()}
        return {name: content for name, content in files.items() if content and not name.endswith("-shm")}

    before = contents()
    with serving(path, "--api-key-file", keys, "--cors", "https://app.example") as server:
        name = f"{server.url}/v1/indexes/add"
        headers = {"Authorization": "Bearer looking"}

        def statuses(route: str, **body: object) -> list[int]:
            senders = [{}, *({"Authorization": f"Bearer {key}"} for key in ("both#", "looking", "both"))]
            return [post(f"{name}/{route}", json=body, headers=sender).status_code for sender in senders]

        search = {"query": "x", "mode": "hybrid", "snippets": ["<", ">"]}
        for route, body in (
            *(("search", search), ("topics", {"count": 2}), ("explain", {"query": "cat", "id": "cat"})),
            *(("documents", {}), ("facets", {"field": "year"}), ("get", {"ids": ["cat"]})),
        ):
            assert statuses(route, **body) == [401, 401, 200, 200]
        assert post(f"{name}/search", json={**search, "cache": True}, headers=headers).status_code == 400
        assert get(f"{name}/fields", headers=headers).status_code == 200
        body = {"texts": ["x"], "ids": ["x"], "changes": {}}
        for route, ending in product(
            ("add", "upsert", "update_metadata", "delete"), ("", "%0A", "/", "%2F", "?x", ";x")
        ):
            answer = post(f"{name}/{route}{ending}", json=body, headers=headers)
            assert answer.status_code in (403, 404, 405), (route, ending, answer.text)
        assert get(name, headers=headers).json()["documents"] == 6
        assert contents() == before
        assert "analyst" in {line.get("key") for line in server.lines}
        assert statuses("add", texts=["x"]) == [401, 401, 403, 200]
        assert get(f"{server.url}/v1/server").json()["keys"] is True
        assert get(f"{server.url}/v1/access", headers=headers).json() == {"read": True, "write": False}
        described = get(f"{server.url}/openapi.json").json()
        ((scheme, facts),) = described["components"]["securitySchemes"].items()
        secured = described["paths"]["/v1/embeddings"]["post"]["security"]
        assert (facts["type"], facts["scheme"], secured) == ("http", "bearer", [{scheme: []}])
        # Probes, the page and what it asks first need no key.
        free = {"/", "/static/main.js", "/docs", "/openapi.json", "/healthz", "/readyz", "/v1/server", "/v1/access"}
        routes = {path: next(iter(methods)) for path, methods in described["paths"].items()}
        asked = {path: httpx.request(method, f"{server.url}{path}", timeout=60) for path, method in routes.items()}
        asked |= {path: get(f"{server.url}{path}") for path in free - routes.keys()}
        assert {path for path, answer in asked.items() if answer.status_code != 401} == free
        assert {asked[path].status_code for path in free} == {200}
        assert post(f"{name}/search", json=search).json()["error"]["message"].startswith("an API key is needed")
        headers = {"Origin": "https://app.example", "Access-Control-Request-Method": "POST"}
        preflight = httpx.options(f"{name}/search", headers=headers)
        assert preflight.headers["access-control-allow-origin"] == "https://app.example"


@pytest.mark.parametrize("stuck", ["embedding a text", "searching the index 'notes.index'"])
def test_the_server_is_not_ready_while_embedding_or_searching_is_stuck(index_path, monkeypatch, stuck):
    monkeypatch.setattr(app, "READY_SECONDS", 0.3)
    served, freed = app.create_app(Settings([index_path])), threading.Event()
    service = served.state.service
    batcher = service.model._short if stuck.startswith("embedding") else service.indexes["notes.index"]._searches
    with TestClient(served, base_url="http://localhost") as client:
        assert client.get("/readyz").status_code == 200
        work = batcher._work
        monkeypatch.setattr(batcher, "_work", lambda *given: freed.wait(30) and work(*given))
        answer = client.get("/readyz")
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "not_ready")
        assert answer.json()["error"]["message"].startswith(stuck)
        freed.set()
        monkeypatch.setattr(batcher, "_work", work)
        assert client.get("/readyz").status_code == 200


@pytest.mark.parametrize("mode", ["dense", "words", "hybrid"])
def test_a_long_query_ends_at_the_deadline_that_a_request_asks_for(server, mode):
    # Each of these characters is read as 18 letters, so that the tokenizer has the most to do.
    body = json.dumps({"query": "\ufdfa" * 55_000, "mode": mode, "deadline": 0.03}, ensure_ascii=False).encode()
    begin = time.monotonic()
    answer = post(f"{server.url}{NAME}/search", content=body, headers=JSON)
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "timeout")
    assert time.monotonic() - begin < 5


def test_a_search_that_takes_too_long_is_given_up(index_path):
    with answering(index_path, search_timeout=1e-6) as client:
        for body in ({"query": "cat"}, {"query": "cat", "fuse": True}, {"like": "cat"}):
            answer = client.post(f"{NAME}/search", json=body)
            assert (answer.status_code, answer.json()["error"]["code"]) == (504, "timeout")
        assert client.get("/v1/server").json()["limits"]["search_seconds"] == 1e-6


def test_metrics_are_read_while_a_worker_starts_and_another_one_has_died(tmp_path, monkeypatch):
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    files = [tmp_path / name for name in ("counter_1.db", "gauge_livesum_1.db", f"gauge_livesum_{2**22 + 1}.db")]
    for path in files:
        path.touch()
    facts = {"name": "a", "documents": 1, "generation": 2, "bytes": 3}
    assert b'ctx_embed_index_bytes{index="a"} 3.0' in metrics([facts])
    assert [path.exists() for path in files] == [True, True, False]


def test_the_time_of_a_search_runs_while_it_waits_for_another_one(index_path):
    served = ServedIndex(index_path, {}, Settings([index_path], search_timeout=0.2))
    options = {"marks": None, "document": False}

    async def asked() -> list[object]:
        return await asyncio.gather(*(served.search("cat", True, **options) for _ in "ab"), return_exceptions=True)

    assert [len(found) for found in asyncio.run(asked())] == [1, 1]
    served._long.submit(time.sleep, 0.5)
    begin = time.monotonic()
    assert [type(error) for error in asyncio.run(asked())] == [LateError, LateError]
    assert time.monotonic() - begin < 0.7
    served.close()


def test_what_a_request_took_is_counted_and_free_again(index_path):
    """All bodies together, and all answers, are far more than those of one moment may be."""

    def counted(name: str) -> float:
        return float(re.search(rf"^ctx_embed_{name}_total (\S+)$", client.get("/metrics").text, re.MULTILINE)[1])

    with answering(index_path, max_body=1, max_answer=1) as client:
        headers = {**JSON, "Accept-Encoding": "identity"}
        short, many = {"model": "default", "input": "x"}, {"model": "default", "input": ["a cat"] * 200}
        texts, tokens = counted("texts"), counted("tokens")
        for _ in range(12):
            padded = json.dumps(short).encode() + b" " * 900_000
            assert client.post("/v1/embeddings", content=padded, headers=headers).status_code == 200
            answer = client.post("/v1/embeddings", json=many, headers=headers)
            assert (answer.status_code, len(answer.content) > 700_000) == (200, True)
        used = client.post("/v1/embeddings", json=short).json()["usage"]["total_tokens"]
        assert counted("texts") - texts == 12 * 201 + 1
        assert counted("tokens") - tokens == 12 * answer.json()["usage"]["total_tokens"] + 13 * used
    assert gc.isenabled()


def test_what_has_begun_is_finished_and_the_work_of_a_batch_ends_at_the_deadline():
    sent = []

    async def slow(scope: object, receive: object, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await anyio.sleep(0.3)
        await send({"type": "http.response.body", "body": b"late"})

    async def send(message: dict) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": "/v1/models", "headers": [], "state": {}}
    anyio.run(Gate(slow, SimpleNamespace(keys=[], settings=Settings(timeout=0.1))), scope, None, send)
    assert sent[-1]["body"] == b"late"

    def read(texts: list[str]) -> tuple[np.ndarray, ...]:
        time.sleep(0.1)
        require_time()
        return (np.zeros(len(texts)),)

    model = TextModel("embed", read, 0.05)
    with pytest.raises(LateError):
        anyio.run(model, ["a cat"])
    model.close()


@pytest.mark.parametrize("longest", [0.05, 0.5])
def test_an_answer_in_pieces_ends_in_time_and_without_a_gap_for_a_slow_reader(longest):
    read, numbers = [], count()

    async def pieces(scope: object, receive: object, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for number in range(20):
            await send({"type": "http.response.body", "body": b"%d" % number, "more_body": True})

    async def slow(message: dict) -> None:
        await anyio.sleep(longest if next(numbers) == 3 else 0.05)
        read.append(message.get("body"))

    anyio.run(Sender(pieces, Settings(timeout=0.3)), {"type": "http"}, None, slow)
    assert read == [None, *(b"%d" % number for number in range(len(read) - 1))]
    assert len(read) < 10


def test_each_limit_has_its_status(tmp_path):
    options = ("--max-body", 1, "--max-texts", 3, "--max-characters", 100, "--timeout", 1.5, "--max-requests", 2)
    with serving(make_index(tmp_path / "notes.index"), *options) as server:
        url = f"{server.url}/v1/embeddings"
        for given, status, said in (
            ("x" * 2**20, 413, "the body must be at most 1,048,576 bytes"),
            (["x"] * 4, 422, "input must be at most 3 texts, got 4; send several requests"),
            (["x", "y" * 101], 400, "input[1] must be at most 100 characters, got 101; cut it"),
        ):
            answer = post(url, json={"input": given, "model": "default"})
            assert (answer.status_code, answer.json()["error"]["message"]) == (status, said)
        chunks = (b'"' + b"x" * 100_000 for _ in range(12))
        assert post(url, content=chunks, headers=JSON).status_code == 413
        # Bodies that never end take no place of requests that have arrived, and are ended in time.
        waiting = [server.connected(head("/v1/embeddings", 10), b"{") for _ in range(2)]
        time.sleep(0.3)
        assert get(f"{server.url}/v1/models").status_code == 200
        for connection in waiting:
            assert b" 408 " in connection.recv(100)
            connection.close()


def test_changes_and_new_models_by_other_processes_are_seen_by_all_workers(tmp_path, tiny_model_path):
    path = make_index(tmp_path / "notes.index")
    with serving(path, "--workers", 2) as server, SearchIndex.open(path) as index:
        index.add(["the moon landing of Apollo 11"], ids=["moon"])

        def found(**options: object) -> list[dict[str, Any]]:
            # A connection of its own each time, so that both workers are asked.
            return post(f"{server.url}{NAME}/search", json={"query": "Apollo moon landing", **options}).json()["hits"]

        def best() -> set[object]:
            return {found(k=1)[0]["id"] for _ in range(8)}

        assert best() == {"moon"}
        assert post(f"{server.url}{NAME}/delete", json={"ids": ["moon"]}).json() == {"deleted": 1}
        assert len(index) == 6
        assert "moon" not in best()
        index.reembed(tiny_model_path)
        expected = {hit.id: hit.score for hit in index.search("Apollo moon landing", mode="dense")}
        for _ in range(8):
            assert {hit["id"]: hit["score"] for hit in found(mode="dense")} == pytest.approx(expected, abs=1e-5)
        # Another index takes the folder.
        index.close()
        path.rename(tmp_path / "old")
        with SearchIndex.create(path) as other:
            other.add(["Apollo 11"], ids=["new"])
        assert best() == {"new"}
        metrics = get(f"{server.url}/metrics").text
        assert 'ctx_embed_requests_total{method="POST",route="/v1/indexes/{name}/search",status="200"} 32.0' in metrics
        # Workers end with their parent, however it ends.
        server.process.kill()
        with suppress(httpx.HTTPError):
            wait_until(lambda: get(f"{server.url}/healthz").status_code != 200)


def test_what_cannot_be_served_is_one_line(tmp_path, tiny_model_path, monkeypatch):
    monkeypatch.chdir(tiny_model_path.parent)
    for settings, said in (
        ({"reranker": ("nowhere/at/all",)}, "nowhere/at/all: no such model folder"),
        ({"reranker": ("default", "default")}, "two models have the name 'default'; rename"),
        ({"model": ("nowhere",)}, "nowhere: no such folder"),
        ({"model": ("default", "tiny")}, "tiny: not a classifier (no classifier.safetensors)"),
        ({"api_key_file": Path("nowhere")}, "nowhere: cannot be read"),
    ):
        assert error(Service, Settings(**settings)).startswith(said)
    said = Command("serve", only_error=False).fails("--host", "0.0.0.0")
    assert said.startswith("--host 0.0.0.0 lets other machines in: give --api-key-file FILE")
    assert "nowhere.index" in Command("serve").fails("nowhere.index")
    command = [sys.executable, "-m", "ctx_embed", "serve", "--port", "0", "--host", "203.0.113.7", "--no-keys"]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True)
    (line,) = done.stderr.splitlines()
    assert (done.returncode, "cannot listen on 203.0.113.7, port 0" in line) == (1, True)
    for text in ("", "look abc\n", "read\n", "read a b c\n"):
        (tmp_path / "keys").write_text(text)
        assert "keys: " in error(read_keys, tmp_path / "keys")
    cors = "cors must be * or an origin such as https://app.example, got"
    any_site = "--cors * lets the pages of any site read and write: give --api-key-file FILE, or --no-keys"
    for origins, said in (
        *((origins, any_site) for origins in ("*", "https://a.example *")),
        *((one, f"{cors} {one!r}") for one in ("https://*.example", "https://a.example/", "a.example")),
    ):
        options = [part for origin in origins.split() for part in ("--cors", origin)]
        assert Command("serve").fails(*options).startswith(said)
        assert Command("serve").fails(env={"CTX_EMBED_SERVE_CORS": origins}).startswith(said)


def test_a_full_disk_and_a_damaged_index_are_no_faults_of_the_client(tmp_path):
    path = make_index(tmp_path / "notes.index")
    documents = {"texts": ["rain fell"] * 1000, "embeddings": np.eye(1, 320).repeat(1000, 0).tolist()}
    with serving(path) as server:
        name = f"{server.url}{NAME}"
        # A server that may write no large file finds its disk full.
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
        for _ in range(2):
            answer = post(f"{name}/add", json=documents)
            assert (answer.status_code, "cannot be written" in answer.text) == (507, True)
        assert post(f"{name}/count", json={}).json() == {"count": 6}
        assert post(f"{name}/search", json={"query": "inflation", "k": 1}).json()["hits"][0]["id"] == 1
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        assert len(post(f"{name}/add", json=documents).json()["ids"]) == 1000
        assert post(f"{name}/count", json={}).json() == {"count": 1006}
        assert "Traceback" not in server.log.read_text()
        with SearchIndex.open(path) as opened:
            assert opened.verify(embed=False) == []

        def damage(statement: str) -> None:
            with closing(sqlite3.connect(path / "index.sqlite")) as database, database:
                database.execute(statement)

        damage("UPDATE vectors_1 SET checksum = checksum + 1")
        answer = post(f"{name}/search", json={"query": "x"})
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["type"]) == (500, "damaged", "server_error")
        damage("DELETE FROM words_data")
        assert get(f"{server.url}/readyz").status_code == 500
        assert get(f"{server.url}/healthz").status_code == 200


OF_INDEXES = ("search", "get", "ids", "count", "add", "upsert", "delete", "topics", "explain")
ROUTES = ["/v1/embeddings", "/v1/rerank", "/v1/classify", *(f"{NAME}/{route}" for route in OF_INDEXES)]
DEEP = b"[" * 50_000 + b"]" * 50_000
BODIES = [
    *(b"", b"{", b'{"query": "\xff\xfe", "input": "\xff"}', '{"query": "x"}'.encode("utf-16")),
    b'{"query": "x", "input": "x", "model": "default", "ids": ["\\ud800"], "id": "\\ud800"}',
    b'{"query": "\\ud800"',
    b'{"query": "\\ud800", "input": "\\ud800", "metadata": [{"n": NaN}]}',
    b'{"query": "\\ud800", "input": ' + DEEP + b"}",
    b'{"query": ' + DEEP + b', "input": ' + DEEP + b"}",
    *(b"[1, 2]", b"1e999", b"null", b'{"threshold": NaN, "query": "x", "input": NaN}'),
    b'{"query": {"a": 1}, "texts": 5, "ids": {}, "where": 7, "input": 3.5, "threshold": "x", "count": "x",'
    b' "documents": 4}',
    b'{"query": "x", "texts": [], "ids": [], "input": "x", "model": "default", "surprise": 1}',
    b'{"query": "x", "k": -1, "mode": "?", "texts": ["x"], "ids": [99999999999999999999], "input": [""],'
    b' "model": 5, "threshold": 7, "most": 0, "count": 0}',
]


def test_a_wrong_body_is_the_client_s_error(server):
    with httpx.Client(base_url=server.url, timeout=60) as http:
        for body, route in product(BODIES, ROUTES):
            answer = http.post(route, content=body, headers=JSON)
            assert 400 <= answer.status_code < 500, (body[:80], route, answer.text)
            assert re.fullmatch(r"(?!.*Traceback).+", answer.json()["error"]["message"])
        assert http.post(f"{NAME}/search", json={"query": "inflation", "k": 1}).json()["hits"][0]["id"] == 1


def test_what_is_no_request_ends_the_connection(server):
    chunked = head("/v1/embeddings", 0).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    for sent in (
        *(b"hello\r\n\r\n", b"GET\r\n\r\n", bytes.fromhex("1603010200010001fc0303") + bytes(200)),  # TLS
        *(head("/v1/embeddings", 0).replace(b": 0", length) for length in (b": x", b": -1")),
        *(chunked + b"zz\r\n", b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 200_000),
    ):
        answer = b""
        # The server may have ended it already.
        with suppress(OSError), server.connected(sent) as connection:
            connection.shutdown(socket.SHUT_WR)
            answer = connection.recv(1000)
        assert answer == b"" or answer.startswith(b"HTTP/1.1 4")
        assert get(f"{server.url}/healthz").status_code == 200
    with server.connected(chunked, b"2\r\n{}\r\n0\r\n") as connection, pytest.raises(OSError, match=r"reset|pipe"):
        connection.sendall((b"x: " + b"y" * 50_000 + b"\r\n") * 1000)


def test_clients_that_leave_or_stay_silent_cost_nothing(index_path):
    body = json.dumps({"input": ["a film " * 1000] * 50, "model": "default"}).encode()
    with serving_settings(index_path, head_seconds=5) as server:
        silent = [server.connected() for _ in range(20)]
        for place in range(20):
            server.connected(head("/v1/embeddings", len(body)), body[: len(body) // (1 + place % 3)]).close()
        for connection in silent[::2]:
            connection.sendall(b"GET /healthz HT")
        begin = time.monotonic()
        assert get(f"{server.url}/v1/models").status_code == 200
        assert time.monotonic() - begin < 5
        for connection in silent:
            assert connection.recv(100) == b""
            connection.close()
        wait_until(lambda: "ctx_embed_requests_at_work 1.0" in get(f"{server.url}/metrics").text, 90)


@pytest.mark.slow
def test_50_kills_during_writes_lose_nothing(tmp_path):
    path, generator, acknowledged = make_index(tmp_path / "notes.index"), random.Random(0), 6
    for _ in range(50):
        with serving(path) as server, httpx.Client(base_url=server.url, timeout=30) as http, suppress(httpx.HTTPError):
            killer = threading.Timer(generator.random() * 0.3, server.process.kill)
            while True:
                numbers = range(acknowledged, acknowledged + 3)
                body = {"texts": [f"note {n}" for n in numbers], "ids": [f"n{n}" for n in numbers]}
                answer = http.post(f"{NAME}/upsert", json={**body, "embeddings": np.eye(1, 320).tolist() * 3})
                assert answer.status_code == 200, answer.text
                acknowledged += 3
                if killer.ident is None:
                    killer.start()
        with SearchIndex.open(path) as index:
            assert len(index) in (acknowledged, acknowledged + 3)
            acknowledged = len(index)
            assert f"n{acknowledged - 1}" in index
            assert index.verify(embed=False) == []
