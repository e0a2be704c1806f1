"""A store of each kind; those whose extra is not installed are skipped."""

import itertools
from collections.abc import Callable

import pytest

from ctx_embed import stores
from ctx_embed.index.model import IndexModel

KINDS = ("parquet", "lancedb", "postgresql", "qdrant")
numbers = itertools.count()


@pytest.fixture(params=KINDS, scope="module")
def new_address(request, tmp_path_factory) -> Callable[[], str]:
    """What gives the address of a new store of the kind."""
    return made(request.param, request, tmp_path_factory)


@pytest.fixture
def new_store(new_address, embedder):
    """A new store of each kind, for vectors of the shipped model."""
    with stores.open(new_address()) as store:
        store.ensure(stores.Collection.of(embedder))
        yield store


@pytest.fixture(params=[kind for kind in KINDS if kind != "parquet"], scope="module")
def searchable(request, tmp_path_factory) -> Callable[[], str]:
    """Return what gives the address of a new store of a kind that can be searched."""
    return made(request.param, request, tmp_path_factory)


def made(kind, request, tmp_path_factory) -> Callable[[], str]:
    if kind == "postgresql":
        server = request.getfixturevalue("postgresql")
    elif kind == "lancedb":
        pytest.importorskip("lancedb", reason="the extra lancedb is not installed")
    elif kind == "qdrant":
        pytest.importorskip("qdrant_client", reason="the extra qdrant is not installed")

    def address() -> str:
        number = next(numbers)
        if kind == "postgresql":
            return f"{server}#table {number}"
        folder = tmp_path_factory.mktemp(kind)
        return str(folder / "embeddings") if kind == "parquet" else f"{kind}:{folder}#things"

    address.kind = kind
    return address


@pytest.fixture(scope="session")
def embedder():
    """The shipped model."""
    return IndexModel.of(None)


@pytest.fixture(scope="session")
def rows(embedder) -> Callable[..., stores.Batch]:
    """What gives rows with the vectors of their texts."""

    def make(texts, ids=None, metadata=None) -> stores.Batch:
        ids = [f"d{number}" for number in range(len(texts))] if ids is None else ids
        return stores.Batch(ids, texts, metadata or [{}] * len(texts), embedder.documents(texts))

    return make
