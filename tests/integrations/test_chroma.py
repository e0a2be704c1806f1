from __future__ import annotations

import subprocess
import sys

import pytest

from ctx_embed import load

chromadb = pytest.importorskip("chromadb", reason="the extra chroma is not installed")

from ctx_embed.integrations.chroma import CtxEmbeddingFunction  # noqa: E402

TEXTS = ["The cat sat on the mat.", "Prices rise faster than wages.", "The film was a joy."]

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # its own


def test_a_collection_stores_the_name_and_opens_in_another_process(tmp_path):
    client = chromadb.PersistentClient(tmp_path / "db", chromadb.Settings(anonymized_telemetry=False))
    collection = client.create_collection("notes", embedding_function=CtxEmbeddingFunction())
    collection.add(ids=["a", "b", "c"], documents=TEXTS)
    found = collection.query(query_texts=["inflation"], n_results=3)
    assert found["ids"][0][0] == "b"
    model = load()
    cosine = float(model.similarity(model.encode("inflation"), model.encode(TEXTS[1])))
    assert found["distances"][0][0] == pytest.approx(1 - cosine, abs=1e-5)
    stored = collection.configuration_json["embedding_function"]
    assert (stored["name"], stored["config"]) == ("ctx-embed", {"model": "default", "batch_size": 512})
    script = (
        "import sys, chromadb, ctx_embed.integrations.chroma\n"
        "client = chromadb.PersistentClient(sys.argv[1], chromadb.Settings(anonymized_telemetry=False))\n"
        "print(client.get_collection('notes').query(query_texts=['inflation'], n_results=1)['ids'])"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "db")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "[['b']]\n"


def test_another_model_is_refused():
    function = CtxEmbeddingFunction()
    with pytest.raises(ValueError, match="the collection's model is 'default', got 'minilm'; make a new collection"):
        function.validate_config_update(function.get_config(), CtxEmbeddingFunction("minilm").get_config())
