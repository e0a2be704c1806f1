"""BM25 in NumPy ranks as SQLite's own function does, whatever has happened to the index."""

from __future__ import annotations

import random

import numpy as np
import pytest

from ctx_embed import SearchIndex
from ctx_embed.index.searching import fulltext, postings
from ctx_embed.index.searching.fulltext import search_words
from tests.index.support.hash_model import HashModel

WORDS = ["run", "running", "runs", "café", "cafe", "x1", "ne'er", "data", "ßtraße", *(f"w{n}" for n in range(200))]


def texts(generator: random.Random, count: int) -> list[str]:
    weights = [1 / (place + 1) for place in range(len(WORDS))]
    return [" ".join(generator.choices(WORDS, weights, k=generator.choice([1, 3, 5, 5, 5, 150]))) for _ in range(count)]


@pytest.fixture
def index(tmp_path, monkeypatch):
    monkeypatch.setattr(fulltext, "LARGE", 0)
    monkeypatch.setattr(fulltext, "COMMON_PART", 1.1)
    with SearchIndex.create(tmp_path / "index", HashModel(), "Flat") as index:
        yield index


def both(index: SearchIndex, query: str, k: int, allowed=None) -> tuple[list[int], list[int]]:
    """Return the rows that FTS5 finds, and those of the word lists."""
    store = index._folder.documents

    def work(snapshot) -> tuple[list[int], list[int]]:
        store.word_searches = 0
        slow = search_words(store, query, k, snapshot.rows, allowed)
        quick = search_words(store, query, k, snapshot.rows, allowed)
        assert store.word_lists is not None or not slow
        return slow, quick

    return index._folder.read(work)


def agree(index: SearchIndex, generator: random.Random, count: int) -> None:
    rows = index.describe()["vectors"]
    found = 0
    for _ in range(count):
        query = " ".join(generator.choices([*WORDS, "unknown"], k=generator.randint(1, 8)))
        allowed = None if generator.random() < 0.5 else np.array([generator.random() < 0.3 for _ in range(rows)])
        slow, quick = both(index, query, generator.choice([1, 10, 100, 10_000]), allowed)
        assert quick == slow, query
        found += len(quick)
    assert found


def test_the_order_is_that_of_sqlite_after_every_change(index, monkeypatch):
    generator = random.Random(0)
    index.add(texts(generator, 1200), ids=list(range(1200)))
    agree(index, generator, 60)
    index.delete(generator.sample(range(1200), 300))
    agree(index, generator, 20)
    index.upsert(texts(generator, 100), generator.sample(range(1200), 100))
    agree(index, generator, 20)
    monkeypatch.setattr(postings, "KEPT_POSTINGS", 500)
    monkeypatch.setattr(postings, "LENGTHS_AT_ONCE", 100)
    index.compact()
    agree(index, generator, 20)
    assert index._folder.documents.word_lists._kept <= 1300


def test_a_word_of_several_tokens_is_left_to_sqlite(index, monkeypatch):
    index.add(["a b c", "b c a", "c"])
    monkeypatch.setattr(postings.WordLists, "_tokens_of", lambda self, words: [["a", "b"] for _ in words])
    assert both(index, "c", 3) == ([2, 0, 1], [2, 0, 1])


def test_queries_without_hits_and_empty_indexes(index):
    assert both(index, "nothing", 3) == ([], [])
    index.add(["a text", "another"])
    assert both(index, "nothing", 3) == ([], [])
    assert both(index, "text", 3, np.array([False, True])) == ([], [])
    assert both(index, "!?", 3) == ([], [])
    index.delete([0, 1])
    assert both(index, "text", 3) == ([], [])


def test_the_varints_of_sqlite_are_read():
    assert postings._varints(b"\x05\x81\x00\x82\x80\x01\x7f").tolist() == [5, 128, 2 * 128 * 128 + 1, 127]
    assert postings._varints(b"").tolist() == []
