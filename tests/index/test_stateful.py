"""Random operations: an index agrees with a plain dictionary, and a view of it with one made from nothing."""

import random
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from ctx_embed import InputError, SearchIndex
from ctx_embed.index import faiss_file
from ctx_embed.index.database import ranges_of, rows_of
from ctx_embed.index.filters import parse_filter
from ctx_embed.index.folder import IndexFolder, View
from ctx_embed.texts import Document
from tests.index.support.hash_model import HashEmbedder, HashModel, hash_vectors
from tests.index.support.stored import stored

texts = st.one_of(st.sampled_from(["cat", "dog", "the cat", "house", ""]), st.text(max_size=8))
ids = st.one_of(st.none(), st.integers(-3, 30), st.sampled_from(["a", "b", "1", "2", "-3", "02", ""]))
years = st.one_of(st.none(), st.integers(2018, 2023))
batches = st.lists(st.tuples(texts, ids, years), max_size=5)


# A filter may compare a field before any document has it.
pytestmark = pytest.mark.filterwarnings("ignore::ctx_embed.errors.UnknownFieldsWarning")


class Operations(RuleBasedStateMachine):
    """An index next to a dictionary of (id, text, year) by the text of the id."""

    @initialize(factory=st.sampled_from(["auto", "HNSW8", "IVF2,Flat", "SQ8"]))
    def create(self, factory: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="ctx-embed-test-"))
        self.path = self.folder / "index"
        self.index = SearchIndex.create(self.path, HashModel(), factory)
        self.model: dict = {}
        self.gone: set = set()

    def arguments(self, batch) -> tuple:
        metadata = [None if year is None else {"year": year} for *_, year in batch]
        return [text for text, *_ in batch], [identifier for _, identifier, _ in batch], metadata

    def keep(self, batch, returned) -> None:
        for (text, given, year), got in zip(batch, returned, strict=True):
            name = str(got)
            # An automatic id was never in use before.
            assert str(given) == name if given is not None else name not in self.model and name not in self.gone
            # An id stays as it was first given, and its document becomes the last one.
            first = self.model.pop(name)[0] if name in self.model else got if given is None else given
            self.model[name] = (first, text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"), year)
            assert (type(got), got) == (type(first), first)

    @rule(batch=batches)
    def add(self, batch) -> None:
        given = [str(identifier) for _, identifier, _ in batch if identifier is not None]
        if len(set(given)) < len(given) or set(given) & set(self.model):
            with pytest.raises(InputError, match="ids must be unique"):
                self.index.add(*self.arguments(batch))
        else:
            self.keep(batch, self.index.add(*self.arguments(batch)))

    @rule(batch=batches)
    def upsert(self, batch) -> None:
        self.keep(batch, self.index.upsert(*self.arguments(batch)))

    @rule(chosen=st.lists(ids.filter(lambda identifier: identifier is not None), max_size=4))
    def delete(self, chosen) -> None:
        there = {str(identifier) for identifier in chosen if str(identifier) in self.model}
        assert self.index.delete(chosen) == len(there)
        self.gone |= there
        for identifier in there:
            del self.model[identifier]

    @rule(identifier=ids.filter(lambda identifier: identifier is not None))
    def get(self, identifier) -> None:
        expected = None
        if str(identifier) in self.model:
            first, text, year = self.model[str(identifier)]
            expected = Document(text, first, {} if year is None else {"year": year})
        assert self.index.get(identifier) == expected

    @rule()
    def compact(self) -> None:
        self.index.compact()
        assert self.index.describe()["vectors_of_deleted"] == 0

    @rule()
    def reopen(self) -> None:
        self.index.close()
        self.index = SearchIndex(IndexFolder(self.path), HashEmbedder())

    @rule(query=texts, k=st.integers(1, 40), least=st.integers(2018, 2023))
    def search_with_a_filter(self, query, k, least) -> None:
        hits = self.index.search(query, k, where=f"year >= {least}", mode="dense")
        there = {first for first, _, year in self.model.values() if year is not None and year >= least}
        assert len(hits) == min(k, len(there))
        assert {hit.id for hit in hits} <= there

    @rule(query=st.sampled_from(["cat", "dogs", "houses cats", "zebra"]))
    def search_words(self, query) -> None:
        stems = {word.removesuffix("s") for word in query.split()}
        hits = self.index.search(query, 1000, mode="words")
        there = {first for first, text, _ in self.model.values() if stems & set(text.split())}
        assert {hit.id for hit in hits} >= there
        assert {str(hit.id) for hit in hits} <= set(self.model)

    @invariant()
    def all_is_found(self) -> None:
        assert self.index.count() == len(self.model)
        hits = self.index.search("query", 1000, mode="dense")
        assert {hit.id: hit.text for hit in hits} == {first: text for first, text, _ in self.model.values()}
        vectors = hash_vectors([text for _, text, _ in self.model.values()])
        expected = np.sort(vectors @ hash_vectors(["query"])[0])[::-1]
        np.testing.assert_allclose([hit.score for hit in hits], expected, atol=1e-6)

    def teardown(self) -> None:
        if hasattr(self, "index"):
            self.index.close()
            assert list(stored(self.path).items()) == [(first, text) for first, text, _ in self.model.values()]
            shutil.rmtree(self.folder)


CHECKS = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]


@pytest.mark.parametrize(("examples", "steps"), [(6, 25), pytest.param(125, 80, marks=pytest.mark.slow)])
def test_random_operations_against_a_dictionary(examples, steps):
    options = settings(max_examples=examples, stateful_step_count=steps, suppress_health_check=CHECKS)
    run_state_machine_as_test(Operations, settings=options)


def compare(folder: IndexFolder) -> None:
    def compared(view: View) -> None:
        fresh = View(folder)
        np.testing.assert_array_equal(view.nearest.rest, fresh.nearest.rest)
        for name in ("rows", "live", "readable", "count"):
            np.testing.assert_array_equal(getattr(view, name), getattr(fresh, name), name)
        for each in (view, fresh):
            each.nearest.compared(np.ones((1, each.settings.dimension), np.float32), 1, each.nearest.rest)
        np.testing.assert_array_equal(view.nearest.cached[1], fresh.nearest.cached[1])
        np.testing.assert_array_equal(view.allowed(parse_filter("n >= 5")), fresh.allowed(parse_filter("n >= 5")))
        assert (view.nearest.faiss is None) == (fresh.nearest.faiss is None)
        assert view.nearest.faiss is None or view.nearest.faiss.token == fresh.nearest.faiss.token
        assert view.words.best("text", 5, None) == fresh.words.best("text", 5, None)

    folder.read(compared)


# Words, some of them in common use, and as they may be typed.
STEMS = ["hospital", "harbour", "garden", "gardener", "mountain", "fountain", "bicycle", "icicles"]
WORDS = [*STEMS * 3, *(f"{stem[:3]}{ending}" for stem in STEMS for ending in ("olar", "ement", "iton"))]
TYPED = [*WORDS, *(f"{word[:3]}{word[4]}{word[3]}{word[5:]}" for word in WORDS), *(word[:-1] for word in WORDS)]


def compare_words(known: SearchIndex, queries: list[str]) -> None:
    """Compare what is found by words with what a process finds that has just opened the index."""
    with SearchIndex.open(known.path, Unreadable()) as fresh:
        for query in queries:
            # The second search of an index computes scores from lists.
            fresh.search("hospital", mode="words")
            expected, found = (each.search(query, mode="words") for each in (fresh, known))
            assert [(hit.id, hit.corrected) for hit in found] == [(hit.id, hit.corrected) for hit in expected]


class Unreadable(HashModel):
    def encode_document(self, texts, **options):
        return super().encode_document(texts, **options) * np.array([["zero" not in text] for text in texts])


@pytest.mark.parametrize("factory", ["Flat", "HNSW8"])
def test_a_view_that_takes_over_what_an_earlier_one_knew_is_a_new_one(tmp_path, monkeypatch, factory):
    monkeypatch.setattr(faiss_file, "STALE_FLAT", 3)
    monkeypatch.setattr("ctx_embed.index.words.LARGE", 20)
    generator = random.Random(0)

    def words(count: int, of: list[str] = WORDS) -> str:
        return " ".join(generator.choices(of, k=count))

    with SearchIndex.create(tmp_path / "index", Unreadable(), factory, chunk="sentences") as index:
        folder = IndexFolder(index.path)
        for number in range(60):
            kind = generator.choice(["add", "add", "upsert", "delete", "set", "compact", "look"])
            ids = index.ids()
            some = generator.sample(ids, min(len(ids), generator.randint(1, 4)))
            if kind == "add":
                texts = [f"Text {words(3)} {number}. More{' zero' * (place % 3 == 1)}." for place in range(3)]
                index.add(texts, metadata=[{"n": generator.randint(0, 9)} for _ in texts])
            elif kind == "upsert" and some:
                index.upsert([f"New text {words(2)}." for _ in some], some, [{"n": number % 10} for _ in some])
            elif kind == "delete":
                index.delete(some)
            elif kind == "set" and some:
                index.update_metadata(some, {"n": generator.randint(0, 9)})
            elif kind == "compact" and not number % 4:
                index.compact()
            if generator.random() < 0.7:
                compare(folder)
            if number % 3 == 0:
                compare_words(index, [words(generator.randint(1, 4), TYPED) for _ in range(4)])
        compare(folder)
        folder.close()
        assert index.verify(embed=False) == []


def test_rows_are_those_of_their_ranges_and_damaged_ranges_are_refused():
    for rows in ([], [0], [5], [0, 1, 2], [0, 2, 3, 9], [7, 8, 100, 102, 103]):
        assert rows_of(ranges_of(np.array(rows, np.int64))).tolist() == rows
    pairs = [[[3, 1]], [[-1, 4]], [[0, 4], [2, 6]], [[5, 6], [0, 1]]]
    for damaged in (*(np.array(each, "<i8").tobytes() for each in pairs), b"1234567"):
        with pytest.raises(ValueError, match=r"overlap|buffer size"):
            rows_of(damaged)
