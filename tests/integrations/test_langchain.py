import pickle
import runpy
from pathlib import Path

import numpy as np
import pytest

from ctx_embed import SearchIndex, load

pytest.importorskip("langchain_core", reason="the extra langchain is not installed")

from langchain_core.documents import Document
from langchain_core.embeddings import FakeEmbeddings
from langchain_core.vectorstores import InMemoryVectorStore

from ctx_embed.integrations.langchain import CtxEmbeddings, CtxVectorStore
from tests.helpers.errors import error

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
TEXTS = ["The cat sat on the mat.", "Prices rise faster than wages.", "The film was a joy."]


def test_embeddings_are_the_models(tiny_model_path):
    model, embeddings = load(), CtxEmbeddings()
    np.testing.assert_allclose(embeddings.embed_documents(TEXTS), model.encode(TEXTS), atol=1e-6)
    np.testing.assert_allclose(embeddings.embed_query(TEXTS[0]), model.encode(TEXTS[0]), atol=1e-6)
    assert embeddings.embed_documents([]) == []
    store = InMemoryVectorStore.from_texts(TEXTS, embeddings)
    assert [found.page_content for found in store.similarity_search("inflation", k=1)] == TEXTS[1:2]
    # They hold a name.
    assert embeddings.model_dump() == {"model": "default", "batch_size": 512}
    assert len(pickle.dumps(embeddings)) < 2000
    assert len(CtxEmbeddings(model=str(tiny_model_path)).embed_query("a cat")) == 16


def test_prompts_of_queries_and_documents(tokenizer, tmp_path):
    from tests.conftest import make_model

    model = make_model(tokenizer)
    model.prompts = {"query": "the city ", "document": "the train "}
    model.save_pretrained(str(tmp_path / "prompts"))
    embeddings = CtxEmbeddings(model=str(tmp_path / "prompts"))
    expected = model.encode(["the city rain", "the train rain"])
    np.testing.assert_allclose(
        [embeddings.embed_query("rain"), *embeddings.embed_documents(["rain"])], expected, atol=1e-6
    )


@pytest.fixture
def store(tmp_path):
    metadatas = [{"n": number} for number in range(3)]
    store = CtxVectorStore.from_texts(TEXTS, CtxEmbeddings(), metadatas, ids=["a", "b", "c"], path=tmp_path / "index")
    yield store
    store.index.close()


def test_an_index_is_a_vector_store(store):
    assert store.similarity_search("inflation", k=1) == [Document(TEXTS[1], id="b", metadata={"n": 1})]
    for kind in ("similarity", "mmr"):
        retriever = store.as_retriever(search_type=kind, search_kwargs={"k": 3, "where": "n != 1"})
        assert {found.id for found in retriever.invoke("inflation")} == {"a", "c"}
    vector = CtxEmbeddings().embed_query(TEXTS[2])
    assert store.similarity_search_by_vector(vector, k=1)[0].id == "c"
    assert len(store.max_marginal_relevance_search_by_vector(vector, k=2)) == 2
    [(found, score)] = store.similarity_search_with_relevance_scores(TEXTS[0], k=1)
    assert (found.id, score) == ("a", pytest.approx(1, abs=1e-5))
    assert all(0 <= score <= 1 for _, score in store.similarity_search_with_relevance_scores("xylophone", k=3))


def test_documents_are_added_replaced_and_deleted(store):
    added = store.add_documents([Document("A dog barks.", id="d"), Document("Rain falls.")])
    assert added[0] == "d"
    assert [found.page_content for found in store.get_by_ids([added[1], "z"])] == ["Rain falls."]
    assert store.add_documents([Document("A dog howls.", id="d")]) == ["d"]
    assert [found.page_content for found in store.get_by_ids(["d"])] == ["A dog howls."]
    assert len(store.index) == 5
    store.delete(["d", "z"])
    assert store.get_by_ids(["d"]) == []
    store.delete()
    assert len(store.index) == 0


def test_a_stored_index_is_opened_with_its_model_and_its_numbers(store, tmp_path):
    assert store.index.add(["Snow melts."]) == [0]
    store.index.close()
    again = CtxVectorStore.from_texts(["More."], path=tmp_path / "index")
    with again.index as index:
        assert len(index) == 5
        assert again.get_by_ids(["0", "00"]) == [Document("Snow melts.", id="0", metadata={})]
        again.delete(["0"])
        assert len(index) == 4
    said = error(CtxVectorStore.from_texts, ["More."], FakeEmbeddings(size=3), path=tmp_path / "index")
    assert said.startswith("embedding must be CtxEmbeddings or None, got a FakeEmbeddings")
    said = error(SearchIndex.create, tmp_path / "index", chunk="sentences", exist_ok=True)
    assert said.endswith("chunk must be that of the index, 'none', got 'sentences'")


def test_the_example_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["example", str(tmp_path / "example.index")])
    runpy.run_path(str(EXAMPLES / "langchain_search.py"), run_name="__main__")
    first, _ = capsys.readouterr().out.splitlines()
    assert first == "a 1 the cat sat on the mat"
