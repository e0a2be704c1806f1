"""A model that needs no torch, whose vectors are pseudo-random and seeded by the text's hash; an empty index of it."""

from collections.abc import Iterator

import pytest

from ctx_embed import SearchIndex
from tests.index.support.hash_model import HashModel


@pytest.fixture
def hash_model() -> HashModel:
    return HashModel()


@pytest.fixture
def index(tmp_path, hash_model) -> Iterator[SearchIndex]:
    with SearchIndex.create(tmp_path / "index", hash_model) as index:
        yield index
