"""A model that needs no torch, whose vectors are pseudo-random and seeded by the text's hash; an empty index of it."""

import re
from collections.abc import Iterator

import pytest

from ctx_embed import SearchIndex
from ctx_embed.index.database import Database
from tests.index.support.hash_model import HashModel

CHANGE = re.compile(r"\s*(INSERT|UPDATE|DELETE|REPLACE|DROP|ALTER|CREATE)\b(?!.*\btemp\.)", re.DOTALL)


@pytest.fixture(autouse=True)
def changes_are_in_transactions(monkeypatch):
    """Whatever changes an index begins a transaction first, so that all of a change is on disk, or nothing."""

    def checked(run):
        def in_transaction(self, statement, *values):
            assert not CHANGE.match(statement) or self.connection.in_transaction, statement
            return run(self, statement, *values)

        return in_transaction

    for run in (Database.run, Database.run_many):
        monkeypatch.setattr(Database, run.__name__, checked(run))


@pytest.fixture
def hash_model() -> HashModel:
    return HashModel()


@pytest.fixture
def index(tmp_path, hash_model) -> Iterator[SearchIndex]:
    with SearchIndex.create(tmp_path / "index", hash_model) as index:
        yield index
