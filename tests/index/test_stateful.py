"""Random operations on an index and on a plain dictionary, which must agree after each."""

import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from ctx_embed import InputError, SearchIndex
from ctx_embed.index.storage.folder import IndexFolder
from tests.index.support.hash_model import HashEmbedder, HashModel, hash_vectors
from tests.index.support.stored import stored

texts = st.one_of(st.sampled_from(["cat", "dog", "the cat", "house", ""]), st.text(max_size=8))
ids = st.one_of(st.none(), st.integers(-3, 30), st.sampled_from(["a", "b", "1", "2", ""]))
years = st.one_of(st.none(), st.integers(2018, 2023))
batches = st.lists(st.tuples(texts, ids, years), max_size=5)


def repaired(text: str) -> str:
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


# A filter may compare a field before any document has it.
pytestmark = pytest.mark.filterwarnings("ignore::ctx_embed.errors.UnknownFieldsWarning")


class Operations(RuleBasedStateMachine):
    """An index next to a dictionary of (text, year) by id."""

    @initialize(factory=st.sampled_from(["auto", "HNSW8", "IVF2,Flat", "SQ8"]))
    def create(self, factory: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="ctx-embed-test-"))
        self.path = self.folder / "index"
        self.index = SearchIndex.create(self.path, HashModel(), factory)
        self.model: dict = {}
        self.gone: set = set()

    def arguments(self, batch) -> tuple:
        return (
            [text for text, _, _ in batch],
            [identifier for _, identifier, _ in batch],
            [None if year is None else {"year": year} for _, _, year in batch],
        )

    def keep(self, batch, returned) -> None:
        for (text, given, year), got in zip(batch, returned, strict=True):
            assert given is None or given == got
            # An automatic id was never in use before.
            assert given is not None or (got not in self.model and got not in self.gone)
            self.model[got] = (repaired(text), year)

    @rule(batch=batches)
    def add(self, batch) -> None:
        given = [identifier for _, identifier, _ in batch if identifier is not None]
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
        there = {identifier for identifier in chosen if identifier in self.model}
        assert self.index.delete(chosen) == len(there)
        self.gone |= there
        for identifier in there:
            del self.model[identifier]

    @rule(identifier=ids.filter(lambda identifier: identifier is not None))
    def get(self, identifier) -> None:
        document = self.index.get(identifier)
        if identifier not in self.model:
            assert document is None
        else:
            text, year = self.model[identifier]
            assert (document.text, document.metadata) == (text, {} if year is None else {"year": year})

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
        there = {identifier for identifier, (_, year) in self.model.items() if year is not None and year >= least}
        assert len(hits) == min(k, len(there))
        assert {hit.id for hit in hits} <= there

    @rule(query=st.sampled_from(["cat", "dogs", "houses cats", "zebra"]))
    def search_words(self, query) -> None:
        stems = {word.removesuffix("s") for word in query.split()}
        hits = self.index.search(query, 1000, mode="words")
        there = {identifier for identifier, (text, _) in self.model.items() if stems & set(text.split())}
        assert {hit.id for hit in hits} >= there
        assert {hit.id for hit in hits} <= set(self.model)

    @invariant()
    def all_is_found(self) -> None:
        if not hasattr(self, "model"):
            return
        assert self.index.count() == len(self.model)
        hits = self.index.search("query", 1000, mode="dense")
        assert {hit.id: hit.text for hit in hits} == {key: text for key, (text, _) in self.model.items()}
        expected = np.sort(hash_vectors([text for text, _ in self.model.values()]) @ hash_vectors(["query"])[0])[::-1]
        np.testing.assert_allclose([hit.score for hit in hits], expected, atol=1e-6)

    def teardown(self) -> None:
        if hasattr(self, "index"):
            self.index.close()
            assert stored(self.path) == {identifier: text for identifier, (text, _) in self.model.items()}
            shutil.rmtree(self.folder)


CHECKS = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]


@pytest.mark.parametrize(("examples", "steps"), [(6, 25), pytest.param(125, 80, marks=pytest.mark.slow)])
def test_random_operations_against_a_dictionary(examples, steps):
    options = settings(max_examples=examples, stateful_step_count=steps, suppress_health_check=CHECKS)
    run_state_machine_as_test(Operations, settings=options)
