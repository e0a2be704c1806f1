"""BM25 in NumPy ranks as SQLite's own function does, whatever has happened to the index."""

from __future__ import annotations

import random

import numpy as np
import pytest

from ctx_embed import SearchIndex
from ctx_embed.index.searching import by_words
from ctx_embed.index.searching.by_words import Bm25, varints
from ctx_embed.index.storage.folder import IndexFolder
from tests.index.support.hash_model import HashModel

WORDS = ["run", "running", "runs", "café", "cafe", "x1", "ne'er", "data", "ßtraße", *(f"w{n}" for n in range(200))]


def texts(generator: random.Random, count: int) -> list[str]:
    weights = [1 / (place + 1) for place in range(len(WORDS))]
    return [" ".join(generator.choices(WORDS, weights, k=generator.choice([1, 3, 5, 5, 5, 150]))) for _ in range(count)]


@pytest.fixture
def index(tmp_path, monkeypatch):
    for name, value in {"LARGE": 0, "COMMON_PART": 1.1, "KEPT_POSTINGS": 500, "LENGTHS_AT_ONCE": 100}.items():
        monkeypatch.setattr(by_words, name, value)
    with SearchIndex.create(tmp_path / "index", HashModel(), "Flat") as index:
        yield index


class Searches:
    """Searches by words in one generation after another, as an open index makes them."""

    def __init__(self, index: SearchIndex) -> None:
        self.folder = IndexFolder(index.path)
        self.before: Bm25 | None = None

    def read(self, work):
        """Return the result of work on a search by FTS5 and one by word lists, and on the view."""

        def found(view):
            self.before = Bm25(view, self.before)
            self.before._searched = True
            return work(Bm25(view), self.before, view)

        return self.folder.read(found)


@pytest.fixture
def searches(index):
    searches = Searches(index)
    yield searches
    searches.folder.close()


def both(searches, query: str, k: int, allowed=None) -> tuple[dict[int, float], dict[int, float]]:
    """Return the rows and scores that FTS5 finds, and those of the word lists."""
    return searches.read(lambda slow, quick, view: (slow.best(query, k, allowed), quick.best(query, k, allowed)))


def agree(searches, generator: random.Random, count: int) -> None:
    found = 0
    for _ in range(count):
        query = " ".join(generator.choices([*WORDS, "unknown"], k=generator.randint(1, 8)))
        positions = searches.read(lambda slow, quick, view: len(view.rows))
        allowed = None if generator.random() < 0.5 else np.array([generator.random() < 0.3 for _ in range(positions)])
        slow, quick = both(searches, query, generator.choice([1, 10, 100, 10_000]), allowed)
        assert list(quick) == list(slow), query
        assert list(quick.values()) == pytest.approx(list(slow.values()), rel=1e-12)
        found += len(quick)
    assert found


def test_the_order_is_that_of_sqlite_after_every_change(index, searches):
    generator = random.Random(0)
    index.add(texts(generator, 1200), ids=list(range(1200)))
    agree(searches, generator, 60)
    index.delete(generator.sample(range(1200), 300))
    agree(searches, generator, 20)
    index.upsert(texts(generator, 100), generator.sample(range(1200), 100))
    agree(searches, generator, 20)
    index.compact()
    agree(searches, generator, 20)


def test_a_word_of_several_tokens_is_left_to_sqlite(index, searches):
    # U+19B0 is a letter to Python, and the end of a word to SQLite, whose tables of Unicode are older.
    word = "a\u19b0b"
    index.add([f"{word} c", "b a c", "c"])
    assert searches.read(lambda slow, quick, view: quick._best_by_lists([word], 3, None)) is None
    assert [list(found) for found in both(searches, word, 3)] == [[0], [0]]


def test_queries_without_hits_and_empty_indexes(index, searches):
    assert both(searches, "nothing", 3) == ({}, {})
    index.add(["a text", "another"])
    assert both(searches, "nothing", 3) == ({}, {})
    assert both(searches, "text", 3, np.array([False, True])) == ({}, {})
    assert both(searches, "!?", 3) == ({}, {})
    index.delete([0, 1])
    assert both(searches, "text", 3) == ({}, {})


def test_the_varints_of_sqlite_are_read():
    assert varints(b"\x05\x81\x00\x82\x80\x01\x7f").tolist() == [5, 128, 2 * 128 * 128 + 1, 127]
    assert varints(b"").tolist() == []
