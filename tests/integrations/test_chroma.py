import pytest

chromadb = pytest.importorskip("chromadb", reason="the extra chroma is not installed")

from ctx_embed.integrations.chroma import CtxEmbeddingFunction  # noqa: E402

TEXTS = ["The cat sat on the mat.", "Prices rise faster than wages.", "The film was a joy."]

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # its own


def test_a_collection_stores_the_name_and_is_opened_by_it(tmp_path, shipped_model):
    client = chromadb.PersistentClient(tmp_path / "db", chromadb.Settings(anonymized_telemetry=False))
    collection = client.create_collection("notes", embedding_function=CtxEmbeddingFunction())
    collection.add(ids=["a", "b", "c"], documents=TEXTS)
    found = collection.query(query_texts=["inflation"], n_results=3)
    assert found["ids"][0][0] == "b"
    cosine = float(shipped_model.encode("inflation") @ shipped_model.encode(TEXTS[1]))
    assert found["distances"][0][0] == pytest.approx(1 - cosine, abs=1e-5)
    stored = collection.configuration_json["embedding_function"]
    assert (stored["name"], stored["config"]) == ("ctx-embed", {"model": "default", "batch_size": 512})
    # A client that was not given the function finds it by its name.
    again = chromadb.PersistentClient(tmp_path / "db", chromadb.Settings(anonymized_telemetry=False))
    assert again.get_collection("notes").query(query_texts=["inflation"], n_results=1)["ids"] == [["b"]]


def test_another_model_is_refused():
    function = CtxEmbeddingFunction()
    with pytest.raises(ValueError, match="the collection's model is 'default', got 'minilm'; make a new collection"):
        function.validate_config_update(function.get_config(), CtxEmbeddingFunction("minilm").get_config())
