"""A small index and a server of it, for all tests that leave it as it was."""

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the extra server is not installed")

from tests.serving.server import Server, make_index, serving


@pytest.fixture(scope="session")
def index_path(tmp_path_factory) -> Path:
    """The folder of a small index."""
    return make_index(tmp_path_factory.mktemp("served") / "notes.index")


@pytest.fixture(scope="session")
def server(index_path) -> Iterator[Server]:
    """A server of that index."""
    with serving(index_path) as running:
        yield running
