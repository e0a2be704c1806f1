"""A view that takes over what an earlier one knew is equal to one that is made from nothing."""

import random

import numpy as np
import pytest

from ctx_embed import SearchIndex
from ctx_embed.index.storage import faiss_file
from ctx_embed.index.storage.database import ranges_of, rows_of
from ctx_embed.index.storage.folder import IndexFolder, View
from tests.index.support.hash_model import HashModel

FILTER = "n >= 5"


def compare(folder: IndexFolder) -> None:
    def compared(view: View) -> None:
        fresh = View(folder)
        for name in ("rows", "live", "readable", "rest", "rest_vectors", "count"):
            np.testing.assert_array_equal(getattr(view, name), getattr(fresh, name), name)
        np.testing.assert_array_equal(view.allowed(FILTER), fresh.allowed(FILTER))
        assert (view.faiss is None) == (fresh.faiss is None)
        assert view.faiss is None or view.faiss.token == fresh.faiss.token
        assert view.bm25.best("text", 5, None) == fresh.bm25.best("text", 5, None)

    folder.read(compared)


@pytest.mark.parametrize("factory", ["Flat", "HNSW8"])
def test_random_changes(tmp_path, monkeypatch, factory):
    monkeypatch.setattr(faiss_file, "STALE_FLAT", 3)
    generator = random.Random(0)

    class Unreadable(HashModel):
        def encode_document(self, texts, **options):
            found = super().encode_document(texts, **options)
            return found * np.array([["zero" not in text] for text in texts])

    with SearchIndex.create(tmp_path / "index", Unreadable(), factory, chunk="sentences") as index:
        folder = IndexFolder(index.path)
        for number in range(60):
            kind = generator.choice(["add", "add", "upsert", "delete", "set", "compact", "look"])
            ids = index.ids()
            some = generator.sample(ids, min(len(ids), generator.randint(1, 4)))
            if kind == "add":
                texts = [f"Text {number} {place}. More{' zero' * (place % 3 == 1)}." for place in range(3)]
                index.add(texts, metadata=[{"n": generator.randint(0, 9)} for _ in texts])
            elif kind == "upsert" and some:
                index.upsert([f"New text {number}." for _ in some], some, [{"n": number % 10} for _ in some])
            elif kind == "delete":
                index.delete(some)
            elif kind == "set" and some:
                index.update_metadata(some, {"n": generator.randint(0, 9)})
            elif kind == "compact" and not number % 4:
                index.compact()
            if generator.random() < 0.7:
                compare(folder)
        compare(folder)
        folder.close()
        assert index.verify(embed=False) == []


@pytest.mark.parametrize("rows", [[], [0], [5], [0, 1, 2], [0, 2, 3, 9], [7, 8, 100, 102, 103]])
def test_rows_are_those_of_their_ranges(rows):
    assert rows_of(ranges_of(np.array(rows, np.int64))).tolist() == rows


@pytest.mark.parametrize("pairs", [[[3, 1]], [[-1, 4]], [[0, 4], [2, 6]], [[5, 6], [0, 1]]])
def test_damaged_ranges_are_refused(pairs):
    with pytest.raises(ValueError, match="overlap"):
        rows_of(np.array(pairs, "<i8").tobytes())
    with pytest.raises(ValueError, match=r"."):
        rows_of(b"1234567")


def test_words_are_found_as_by_a_process_that_has_just_opened_the_index(tmp_path, monkeypatch):
    """Word lists, common words and corrections are taken over from commit to commit."""
    monkeypatch.setattr("ctx_embed.index.searching.by_words.LARGE", 20)
    generator = random.Random(0)
    stems = ["hospital", "harbour", "garden", "gardener", "mountain", "fountain", "bicycle", "icicles"]
    words = [*stems, *(f"{stem[:3]}{ending}" for stem in stems for ending in ("olar", "ement", "iton"))]
    typed = [*words, *(f"{word[:3]}{word[4]}{word[3]}{word[5:]}" for word in words), *(word[:-1] for word in words)]
    with (
        SearchIndex.create(tmp_path / "index", HashModel()) as index,
        SearchIndex.open(index.path, HashModel()) as known,
    ):
        index.add([" ".join(generator.choices(words[:12], k=4)) for _ in range(40)])
        for _ in range(15):
            if generator.random() < 0.7:
                index.add([" ".join(generator.choices(words, k=3)) for _ in range(generator.randint(1, 3))])
            else:
                index.delete(generator.sample(index.ids(), 2))
            queries = [" ".join(generator.choices(typed, k=generator.randint(1, 4))) for _ in range(4)]
            with SearchIndex.open(index.path, HashModel()) as fresh:
                for query in queries:
                    # The second search of an index computes scores from lists.
                    fresh.search("hospital", mode="words")
                    expected = fresh.search(query, mode="words")
                    found = known.search(query, mode="words")
                    assert [(hit.id, hit.corrected) for hit in found] == [(hit.id, hit.corrected) for hit in expected]
