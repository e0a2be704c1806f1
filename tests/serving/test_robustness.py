"""What strangers send: wrong sizes, types, encodings, depths, slow and half-open clients. And kills during writes."""

import contextlib
import json
import random
import socket
import threading
import time

import httpx
import numpy as np
import pytest

from ctx_embed import SearchIndex
from tests.serving.server import get, make_index, post, serving, serving_settings

JSON = {"Content-Type": "application/json"}
NAME = "/v1/indexes/notes.index"
OF_INDEXES = ("search", "get", "ids", "count", "add", "upsert", "delete", "topics", "explain")
ROUTES = ["/v1/embeddings", "/v1/rerank", "/v1/classify", *(f"{NAME}/{route}" for route in OF_INDEXES)]
DEEP = b"[" * 50_000 + b"]" * 50_000
BODIES = {
    "nothing": b"",
    "no JSON": b"{",
    "no UTF-8": b'{"query": "\xff\xfe", "input": "\xff"}',
    "UTF-16": '{"query": "x"}'.encode("utf-16"),
    "surrogate": b'{"query": "x", "input": "x", "model": "default", "ids": ["\\ud800"], "id": "\\ud800"}',
    "surrogate and no JSON": b'{"query": "\\ud800"',
    "surrogate and NaN": b'{"query": "\\ud800", "input": "\\ud800", "metadata": [{"n": NaN}]}',
    "surrogate and deep": b'{"query": "\\ud800", "input": ' + DEEP + b"}",
    "deep": b'{"query": ' + DEEP + b', "input": ' + DEEP + b"}",
    "list": b"[1, 2]",
    "number": b"1e999",
    "null": b"null",
    "NaN": b'{"threshold": NaN, "query": "x", "input": NaN}',
    "types": b'{"query": {"a": 1}, "texts": 5, "ids": {}, "where": 7, "input": 3.5, "threshold": "x", "count": "x",'
    b' "documents": 4}',
    "unknown": b'{"query": "x", "texts": [], "ids": [], "input": "x", "model": "default", "surprise": 1}',
    "values": b'{"query": "x", "k": -1, "mode": "?", "texts": ["x"], "ids": [99999999999999999999], "input": [""],'
    b' "model": 5, "threshold": 7, "most": 0, "count": 0}',
}


@pytest.mark.parametrize("kind", BODIES)
def test_a_wrong_body_is_the_client_s_error(server, kind):
    with httpx.Client(base_url=server.url, timeout=60) as http:
        for route in ROUTES:
            answer = http.post(route, content=BODIES[kind], headers=JSON)
            assert 400 <= answer.status_code < 500, (route, answer.text)
            error = answer.json()["error"]
            assert error["message"]
            assert "\n" not in error["message"]
            assert "Traceback" not in error["message"]


RAW = {
    "no HTTP": b"hello\r\n\r\n",
    "no path": b"GET\r\n\r\n",
    "TLS": bytes.fromhex("1603010200010001fc0303") + bytes(200),
    "length": b"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n",
    "negative length": b"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
    "chunks": b"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    "large head": b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 200_000,
}


@pytest.mark.parametrize("kind", RAW)
def test_what_is_no_request_ends_the_connection(server, kind):
    with socket.create_connection(server.address, timeout=30) as connection:
        answer = b""
        # The server may have ended it already.
        with contextlib.suppress(OSError):
            connection.sendall(RAW[kind])
            connection.shutdown(socket.SHUT_WR)
            answer = connection.recv(1000)
        assert answer == b"" or answer.startswith(b"HTTP/1.1 4")
    assert get(f"{server.url}/healthz").status_code == 200


def test_clients_that_leave_or_stay_silent_cost_nothing(index_path):
    body = json.dumps({"input": ["a film " * 1000] * 50, "model": "default"}).encode()
    head = b"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with serving_settings(index_path, head_seconds=5) as server:
        silent = [socket.create_connection(server.address, timeout=30) for _ in range(20)]
        for place in range(20):
            with socket.create_connection(server.address, timeout=30) as connection:
                connection.sendall(
                    head + f"Content-Length: {len(body)}\r\n\r\n".encode() + body[: len(body) // (1 + place % 3)]
                )
        for connection in silent[::2]:
            connection.sendall(b"GET /healthz HT")
        begin = time.monotonic()
        assert get(f"{server.url}/v1/models").status_code == 200
        assert time.monotonic() - begin < 5
        for connection in silent:
            assert connection.recv(100) == b""
            connection.close()
        while "ctx_embed_requests_at_work 1.0" not in get(f"{server.url}/metrics").text:
            assert time.monotonic() - begin < 90
            time.sleep(0.1)


def test_nothing_of_all_this_was_a_fault_of_the_server(server):
    statuses = [json.loads(line).get("status") for line in server.log.read_text().splitlines()]
    assert sum(400 <= status < 500 for status in statuses if status) >= 100
    assert not [status for status in statuses if status and status >= 500 and status != 503]
    assert "Traceback" not in server.log.read_text()
    found = post(f"{server.url}{NAME}/search", json={"query": "inflation", "k": 1}).json()["hits"]
    assert found[0]["id"] == 1


@pytest.mark.slow
def test_50_kills_during_writes_lose_nothing(tmp_path):
    path = make_index(tmp_path / "notes.index")
    generator = random.Random(0)
    acknowledged = 6
    vectors = np.eye(1, 320).tolist() * 3
    for _ in range(50):
        with serving(path) as server:
            first = threading.Event()

            def write(url: str = server.url, first: threading.Event = first) -> None:
                nonlocal acknowledged
                with httpx.Client(timeout=30) as http:
                    while True:
                        texts = [f"note {acknowledged + place}" for place in range(3)]
                        body = {"texts": texts, "ids": [f"n{acknowledged + place}" for place in range(3)]}
                        try:
                            answer = http.post(f"{url}{NAME}/upsert", json={**body, "embeddings": vectors})
                        except httpx.HTTPError:
                            return
                        assert answer.status_code == 200, answer.text
                        acknowledged += 3
                        first.set()

            writing = threading.Thread(target=write)
            writing.start()
            assert first.wait(60)
            time.sleep(generator.random() * 0.3)
            server.process.kill()
            writing.join()
        with SearchIndex.open(path) as index:
            assert len(index) in (acknowledged, acknowledged + 3)
            acknowledged = len(index)
            assert f"n{acknowledged - 1}" in index
            assert index.verify(embed=False) == []
