import asyncio
import runpy
from pathlib import Path

import numpy as np
import pytest

from ctx_embed import load

pytest.importorskip("llama_index.core", reason="the extra llama-index is not installed")


from ctx_embed.integrations.llama_index import CtxEmbedding

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
TEXTS = ["The cat sat on the mat.", "Prices rise faster than wages.", "The film was a joy."]

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # its own


def test_embeddings_are_the_models():
    expected, embedding = load().encode(TEXTS), CtxEmbedding()
    np.testing.assert_allclose(embedding.get_text_embedding_batch(TEXTS), expected, atol=1e-6)
    asked = asyncio.run(embedding.aget_query_embedding(TEXTS[0]))
    for found in (embedding.get_text_embedding(TEXTS[0]), asked):
        np.testing.assert_allclose(found, expected[0], atol=1e-6)
    # Whole documents are read.
    text = "the cat sat on the mat " * 200
    assert embedding.get_text_embedding(text + "prices rise") != embedding.get_text_embedding(text + "a dog barks")
    stored = embedding.to_dict()
    assert stored["model_name"] == "default"
    assert CtxEmbedding.from_dict(stored).get_query_embedding("a cat") == embedding.get_query_embedding("a cat")


def test_the_example_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["example", str(tmp_path / "example.index")])
    runpy.run_path(str(EXAMPLES / "llama_index_search.py"), run_name="__main__")
    first, _ = capsys.readouterr().out.splitlines()
    assert first == "pets 1.000 The cat sat on the mat."
