from __future__ import annotations

import pickle

import numpy as np
import pytest

from ctx_embed import load

pytest.importorskip("langchain_core", reason="the extra langchain is not installed")

from langchain_core.vectorstores import InMemoryVectorStore

from ctx_embed.integrations.langchain import CtxEmbeddings

TEXTS = ["The cat sat on the mat.", "Prices rise faster than wages.", "The film was a joy."]


def test_the_default_model_in_a_vector_store():
    store = InMemoryVectorStore.from_texts(TEXTS, CtxEmbeddings())
    assert [found.page_content for found in store.similarity_search("inflation", k=1)] == TEXTS[1:2]


def test_embeddings_are_the_models():
    model, embeddings = load(), CtxEmbeddings()
    np.testing.assert_allclose(embeddings.embed_documents(TEXTS), model.encode(TEXTS), atol=1e-6)
    np.testing.assert_allclose(embeddings.embed_query(TEXTS[0]), model.encode(TEXTS[0]), atol=1e-6)
    assert embeddings.embed_documents([]) == []


def test_it_holds_a_name(tiny_model_path):
    embeddings = CtxEmbeddings()
    embeddings.embed_query("a cat")
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
