"""LangChain, LlamaIndex and Chroma."""

import asyncio
import pickle
import runpy
from pathlib import Path

import numpy as np
import pytest

chromadb = pytest.importorskip("chromadb", reason="the extra chroma is not installed")
pytest.importorskip("langchain_core", reason="the extra langchain is not installed")
pytest.importorskip("llama_index.core", reason="the extra llama-index is not installed")

from langchain_core.documents import Document  # noqa: E402
from langchain_core.embeddings import FakeEmbeddings  # noqa: E402

from ctx_embed.integrations.chroma import CtxEmbeddingFunction  # noqa: E402
from ctx_embed.integrations.langchain import CtxEmbeddings, CtxVectorStore  # noqa: E402
from ctx_embed.integrations.llama_index import CtxEmbedding  # noqa: E402
from tests.conftest import make_model  # noqa: E402
from tests.helpers.errors import error  # noqa: E402

TEXTS = ["The cat sat on the mat.", "Prices rise faster than wages.", "The film was a joy."]
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # their own


def test_embeddings_of_langchain(shipped_model, tiny_model_path):
    expected, embeddings = shipped_model.encode(TEXTS), CtxEmbeddings()
    np.testing.assert_allclose(embeddings.embed_documents(TEXTS), expected, atol=1e-6)
    np.testing.assert_allclose(embeddings.embed_query(TEXTS[0]), expected[0], atol=1e-6)
    assert embeddings.embed_documents([]) == []
    # They hold a name.
    assert embeddings.model_dump() == {"model": "default", "batch_size": 512}
    assert len(pickle.dumps(embeddings)) < 2000
    assert len(CtxEmbeddings(model=str(tiny_model_path)).embed_query("a cat")) == 16


def test_prompts_of_queries_and_documents(tokenizer, tmp_path):
    model, path = make_model(tokenizer), str(tmp_path / "prompts")
    model.prompts = {"query": "the city ", "document": "the train "}
    model.save_pretrained(path)
    langchain, llama, chroma = CtxEmbeddings(model=path), CtxEmbedding(model_name=path), CtxEmbeddingFunction(path)
    expected = model.encode(["the city rain", "the train rain"])
    for query, document in (
        (langchain.embed_query("rain"), langchain.embed_documents(["rain"])[0]),
        (llama.get_query_embedding("rain"), llama.get_text_embedding("rain")),
        (chroma.embed_query(["rain"])[0], chroma(["rain"])[0]),
    ):
        np.testing.assert_allclose([query, document], expected, atol=1e-6)


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
    # The nearest, and the one least like it among those fetched.
    nearest, *_, farthest = (hit.id for hit in store.index.search(vector, 3) if hit.id != "c")
    for fetched, share, second in ((2, 0.0, nearest), (3, 0.0, farthest), (3, 1.0, nearest)):
        found = store.max_marginal_relevance_search_by_vector(vector, 2, fetched, share)
        assert [document.id for document in found] == ["c", second]
    assert store.max_marginal_relevance_search_by_vector(vector, 1, where="n != 2")[0].id == nearest
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
    store.delete([])
    assert len(store.index) == 4
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
    for options, said in (
        ({"embedding": FakeEmbeddings(size=3)}, "embedding must be CtxEmbeddings or None, got a FakeEmbeddings"),
        ({"chunk": "sentences"}, "chunk must be that of the index, 'none', got 'sentences'"),
    ):
        assert said in error(CtxVectorStore.from_texts, ["More."], path=tmp_path / "index", **options)


def test_embeddings_of_llama_index(shipped_model):
    expected, embedding = shipped_model.encode(TEXTS), CtxEmbedding(num_workers=2)
    np.testing.assert_allclose(embedding.get_text_embedding_batch(TEXTS), expected, atol=1e-6)
    asked = asyncio.run(embedding.aget_query_embedding(TEXTS[0]))
    np.testing.assert_allclose([embedding.get_text_embedding(TEXTS[0]), asked], expected[[0, 0]], atol=1e-6)
    # Whole documents are read.
    text = "the cat sat on the mat " * 200
    assert embedding.get_text_embedding(text + "prices rise") != embedding.get_text_embedding(text + "a dog barks")
    stored = embedding.to_dict()
    assert (stored["model_name"], stored["num_workers"]) == ("default", 2)
    assert CtxEmbedding.from_dict(stored).get_query_embedding("a cat") == embedding.get_query_embedding("a cat")


def test_a_collection_of_chroma_stores_the_name_and_is_opened_by_it(tmp_path, shipped_model):
    def client():
        return chromadb.PersistentClient(tmp_path / "db", chromadb.Settings(anonymized_telemetry=False))

    collection = client().create_collection("notes", embedding_function=CtxEmbeddingFunction())
    collection.add(ids=["a", "b", "c"], documents=TEXTS)
    stored = collection.configuration_json["embedding_function"]
    assert (stored["name"], stored["config"]) == ("ctx-embed", {"model": "default", "batch_size": 512})
    cosine = float(shipped_model.encode("inflation") @ shipped_model.encode(TEXTS[1]))
    # A client that was not given the function finds it by its name.
    for each in (collection, client().get_collection("notes")):
        found = each.query(query_texts=["inflation"], n_results=1)
        assert (found["ids"], found["distances"][0][0]) == ([["b"]], pytest.approx(1 - cosine, abs=1e-5))
    function, other = CtxEmbeddingFunction(), CtxEmbeddingFunction("minilm", 8).get_config()
    with pytest.raises(ValueError, match="the collection's model is 'default', got 'minilm'; make a new collection"):
        function.validate_config_update(function.get_config(), other)
    assert CtxEmbeddingFunction.build_from_config(other).get_config() == other


def test_the_examples_run(tmp_path, monkeypatch, capsys):
    for script, said in (
        ("langchain_search.py", "a 1 the cat sat on the mat"),
        ("llama_index_search.py", "pets 1.000 The cat sat on the mat."),
    ):
        monkeypatch.setattr("sys.argv", ["example", str(tmp_path / f"{script}.index")])
        runpy.run_path(str(Path(__file__).parents[2] / "docs" / "examples" / script), run_name="__main__")
        first, _ = capsys.readouterr().out.splitlines()
        assert first == said
