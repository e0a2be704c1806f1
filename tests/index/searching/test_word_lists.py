"""BM25 in NumPy ranks as SQLite's own function does, whatever has happened to the index."""

from __future__ import annotations

import random
from contextlib import closing

import numpy as np
import pytest

from ctx_embed import SearchIndex
from ctx_embed.index.searching.bm25 import Bm25, WordLists, varints
from ctx_embed.index.storage.documents import DocumentStore
from ctx_embed.index.storage.manifest import DOCUMENTS
from tests.index.support.hash_model import HashModel

WORDS = ["run", "running", "runs", "café", "cafe", "x1", "ne'er", "data", "ßtraße", *(f"w{n}" for n in range(200))]


def texts(generator: random.Random, count: int) -> list[str]:
    weights = [1 / (place + 1) for place in range(len(WORDS))]
    return [" ".join(generator.choices(WORDS, weights, k=generator.choice([1, 3, 5, 5, 5, 150]))) for _ in range(count)]


@pytest.fixture
def index(tmp_path):
    with SearchIndex.create(tmp_path / "index", HashModel(), "Flat") as index:
        yield index


@pytest.fixture
def bm25(index):
    with closing(DocumentStore(index.path / DOCUMENTS)) as store:
        yield Bm25(store, large=0, common_part=1.1, lists=WordLists(store, kept_postings=500, lengths_at_once=100))


def both(index: SearchIndex, bm25: Bm25, query: str, k: int, allowed=None) -> tuple[dict[int, float], dict[int, float]]:
    """Return the rows and scores that FTS5 finds, and those of the word lists."""
    rows = index.describe()["vectors"]
    with bm25.database.reading():
        return Bm25(bm25.database, large=0, common_part=1.1).best(query, k, rows, allowed), bm25.best(
            query, k, rows, allowed
        )


def agree(index: SearchIndex, bm25: Bm25, generator: random.Random, count: int) -> None:
    rows = index.describe()["vectors"]
    found = 0
    for _ in range(count):
        query = " ".join(generator.choices([*WORDS, "unknown"], k=generator.randint(1, 8)))
        allowed = None if generator.random() < 0.5 else np.array([generator.random() < 0.3 for _ in range(rows)])
        slow, quick = both(index, bm25, query, generator.choice([1, 10, 100, 10_000]), allowed)
        assert list(quick) == list(slow), query
        assert list(quick.values()) == pytest.approx(list(slow.values()), rel=1e-12)
        found += len(quick)
    assert found


def test_the_order_is_that_of_sqlite_after_every_change(index, bm25):
    generator = random.Random(0)
    index.add(texts(generator, 1200), ids=list(range(1200)))
    agree(index, bm25, generator, 60)
    index.delete(generator.sample(range(1200), 300))
    agree(index, bm25, generator, 20)
    index.upsert(texts(generator, 100), generator.sample(range(1200), 100))
    agree(index, bm25, generator, 20)
    index.compact()
    agree(index, bm25, generator, 20)


def test_a_word_of_several_tokens_is_left_to_sqlite(index, bm25):
    # U+19B0 is a letter to Python, and the end of a word to SQLite, whose tables of Unicode are older.
    word = "a\u19b0b"
    index.add([f"{word} c", "b a c", "c"])
    with bm25.database.reading():
        assert bm25.lists.best([word], 3, None) is None
    assert [list(found) for found in both(index, bm25, word, 3)] == [[0], [0]]


def test_queries_without_hits_and_empty_indexes(index, bm25):
    assert both(index, bm25, "nothing", 3) == ({}, {})
    index.add(["a text", "another"])
    assert both(index, bm25, "nothing", 3) == ({}, {})
    assert both(index, bm25, "text", 3, np.array([False, True])) == ({}, {})
    assert both(index, bm25, "!?", 3) == ({}, {})
    index.delete([0, 1])
    assert both(index, bm25, "text", 3) == ({}, {})


def test_the_varints_of_sqlite_are_read():
    assert varints(b"\x05\x81\x00\x82\x80\x01\x7f").tolist() == [5, 128, 2 * 128 * 128 + 1, 127]
    assert varints(b"").tolist() == []
