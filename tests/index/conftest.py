"""A model that needs no torch: the vector of a text is pseudo-random, seeded by its hash."""

from __future__ import annotations

import pytest

from tests.index.support.hash_model import HashModel


@pytest.fixture
def hash_model() -> HashModel:
    return HashModel()
