"""Servers as users start them: `ctx-embed serve` in a process of its own, on a free port."""

import json
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from ctx_embed import SearchIndex
from tests.index.support.child import environment

# Servers of a busy machine take their time; each call has a connection of its own.
get, post = partial(httpx.get, timeout=60), partial(httpx.post, timeout=60)
JSON = {"Content-Type": "application/json"}

DOCUMENTS = {
    1: ("prices rise faster than wages", {"year": 2020, "lang": "en", "topic": "economy"}),
    2: ("unemployment fell again in spring", {"year": 2021, "lang": "en", "topic": "economy"}),
    "cat": ("the cat sat on the mat", {"year": 2019, "lang": "en", "tame": True}),
    "dog": ("a dog barked at the cat in the garden", {"year": 2022, "lang": "en", "tame": False}),
    3: ("the film was a joy from the first scene to the last", {"year": 2022, "topic": "film"}),
    4: ("a dull film without one good idea", {"year": 2018, "topic": "film"}),
}


@dataclass
class Server:
    """A server process, what it has written to standard error, and what it said as it started."""

    url: str  # without a slash at the end
    process: subprocess.Popen
    log: Path
    said: str

    @property
    def address(self) -> tuple[str, int]:
        host, port = self.url.removeprefix("http://").split(":")
        return host, int(port)

    @property
    def lines(self) -> list[dict[str, Any]]:
        """The lines of its log."""
        return list(map(json.loads, self.log.read_text().splitlines()))

    def connected(self, *sent: bytes) -> socket.socket:
        """Return a connection of its own that has sent these bytes."""
        connection = socket.create_connection(self.address, timeout=30)
        connection.sendall(b"".join(sent))
        return connection

    def stop(self) -> int:
        """Stop the server as a service manager does and return its exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(40)


def asking(server: Server, name: str) -> Callable[..., dict[str, Any]]:
    """Return a function that sends a body to a route of an index and returns the JSON of the answer."""
    return lambda route, **body: post(f"{server.url}/v1/indexes/{name}/{route}", json=body).json()


def head(path: str, length: int) -> bytes:
    """Return the head of a request with a body."""
    lines = f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json", f"Content-Length: {length}"
    return "\r\n".join((*lines, "", "")).encode()


def wait_until(met: Callable[[], object], seconds: float = 60) -> None:
    """Wait until a condition is met."""
    deadline = time.monotonic() + seconds
    while not met():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def serving(*arguments: object, **variables: str) -> AbstractContextManager[Server]:
    """Run `ctx-embed serve` with these arguments and environment variables on a free port."""
    return _running(["-m", "ctx_embed", "serve", "--port", "0", *map(str, arguments)], variables)


def serving_settings(index: Path, **settings: float) -> AbstractContextManager[Server]:
    """Run a server of an index with settings that the command does not have, on a free port."""
    script = (
        "import json, pathlib, sys\n"
        "from ctx_embed.serving.running import run\n"
        "from ctx_embed.serving.settings import Settings\n"
        "run(Settings([pathlib.Path(sys.argv[1])], **json.loads(sys.argv[2])), 0, 1)\n"
    )
    return _running(["-c", script, str(index), json.dumps(settings)], {})


@contextmanager
def answering(index: Path, **settings: Any) -> Iterator[httpx.Client]:
    """Answer requests in this process, with settings, which takes a tenth of the time of a server's start."""
    # Some tests that start servers run where none is installed, and skip.
    from starlette.testclient import TestClient

    from ctx_embed.serving.app import create_app
    from ctx_embed.serving.settings import Settings

    with TestClient(create_app(Settings([index], **settings)), base_url="http://localhost") as client:
        yield client


@contextmanager
def _running(arguments: list[str], variables: dict[str, str]) -> Iterator[Server]:
    with tempfile.TemporaryDirectory() as folder:
        log, said = Path(folder) / "log", Path(folder) / "said"
        with log.open("wb") as errors, said.open("wb") as output:
            command = [sys.executable, *arguments]
            process = subprocess.Popen(command, stdout=output, stderr=errors, env=environment() | variables)
        try:
            wait_until(lambda: process.poll() is not None or "http://" in said.read_text(), 120)
            assert process.poll() is None, log.read_text()
            yield Server(re.search(r"http://\S+", said.read_text())[0], process, log, said.read_text())
        finally:
            process.kill()
            process.wait()


def make_index(path: Path) -> Path:
    """Create an index of the documents above with the shipped model."""
    with SearchIndex.create(path) as index:
        texts, metadata = zip(*DOCUMENTS.values(), strict=True)
        index.add(texts, list(DOCUMENTS), metadata)
    return path
