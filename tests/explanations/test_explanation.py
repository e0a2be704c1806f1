from __future__ import annotations

import io
import json

import numpy as np
import pytest
import torch
from rich.console import Console
from sentence_transformers import SentenceTransformer

import ctx_embed
from ctx_embed import explanations
from ctx_embed.explanations import html, renderable
from ctx_embed.systems import SYSTEMS, system
from ctx_embed.text.tokenizer import Phrases
from tests.conftest import SENTENCES, make_model
from tests.helpers.errors import error

OPTIONS = [
    {},
    {"positions": "absolute", "scale": "sum", "initial_context": "learned"},
    {"positions": "relative", "initial_context": "uniform", "steps": 1},
]
TEXTS = [SENTENCES[0], "cat", " ".join(SENTENCES)]


def drawn(tokenizer, **options):
    model = make_model(tokenizer, **options)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.5)
    return model.eval()


def of_system(tokenizer, name, **options):
    torch.manual_seed(0)
    return SentenceTransformer(modules=[system(name)(tokenizer, 8, **options)], device="cpu")


@pytest.fixture(scope="module")
def shipped():
    return ctx_embed.load(device="cpu")


# Contributions


def sums_to_the_embedding(model, text) -> None:
    parts = explanations.contributions(model, text)
    np.testing.assert_allclose(parts.vectors.sum(0) + parts.bias, parts.corrections, atol=1e-5)
    # The forward pass, in float32 and by a form of its own, arrives at the same.
    embedding = model[0](model[0].preprocess([text]))["sentence_embedding"][0].detach().numpy()
    np.testing.assert_allclose(parts.first + parts.corrections.sum(0), embedding, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("text", TEXTS)
def test_contributions_sum_to_the_corrections(tokenizer, options, text):
    sums_to_the_embedding(drawn(tokenizer, **options), text)


@pytest.mark.parametrize("text", [*TEXTS, "A dull film without one good idea.", "word " * 3000])
def test_contributions_of_the_shipped_model_sum_to_its_corrections(shipped, text):
    sums_to_the_embedding(shipped, text)
    np.testing.assert_allclose(ctx_embed.explain(shipped, text).weights.sum(1), 1, atol=1e-5)


def test_shapes_and_the_weights_are_the_contributions_shares(tokenizer):
    model = drawn(tokenizer)
    parts = explanations.contributions(model, SENTENCES[0])
    found = ctx_embed.explain(model, SENTENCES[0])
    n = len(found.tokens)
    assert parts.tokens == found.tokens
    assert parts.vectors.shape == (n, 2, 16)
    assert parts.bias.shape == parts.corrections.shape == (2, 16)
    whole = parts.vectors.sum(0)
    shares = np.einsum("nkm,km->kn", parts.vectors, whole) / (whole**2).sum(1)[:, None]
    np.testing.assert_allclose(found.weights, shares, atol=1e-6)
    assert (found.weights < 0).any()
    # A token left out of the sum is missed.
    assert np.abs(parts.vectors[1:].sum(0) + parts.bias - parts.corrections).max() > 0.01


# The path


def test_the_path_is_that_of_the_contexts(tokenizer):
    model = drawn(tokenizer, steps=3, initial_context="learned")
    module = model[0]
    ids = module.preprocess([SENTENCES[0]])["input_ids"].flatten()
    contexts = module.attention(module.embedding(ids), ids, torch.tensor([0, len(ids)]))[:, 0].detach().numpy()
    path = ctx_embed.explain(model, SENTENCES[0]).path

    def cosine(a, b):
        return a @ b / np.linalg.norm(a) / np.linalg.norm(b)

    norms = np.linalg.norm
    np.testing.assert_allclose(path.context_norms, norms(contexts, axis=1), rtol=1e-5)
    np.testing.assert_allclose(path.correction_norms, norms(np.diff(contexts, axis=0), axis=1), rtol=1e-5)
    np.testing.assert_allclose(path.to_previous, list(map(cosine, contexts, contexts[1:])), atol=1e-5)
    np.testing.assert_allclose(path.to_last, [cosine(c, contexts[-1]) for c in contexts], atol=1e-5)


@pytest.mark.parametrize("text", ["", " \n"])
def test_a_text_without_tokens_has_no_explanation(tokenizer, text):
    found = ctx_embed.explain(make_model(tokenizer), text)
    assert (found.text, found.tokens, found.weights.shape, found.path) == (text, (), (2, 0), None)
    parts = explanations.contributions(make_model(tokenizer), text)
    assert parts.vectors.shape == (0, 2, 16)
    assert not parts.bias.any()
    assert not parts.corrections.any()
    assert (parts.first == 1).all()


def test_a_text_of_unknown_tokens_has_no_explanation(shipped):
    for text in ("日本語", "שלום עולם", "日本語 " * 50):
        found = ctx_embed.explain(shipped, text)
        assert (found.tokens, found.weights.shape, found.path) == ((), (3, 0), None)
        # A text is read if the model knows half of its words.
        assert "film" in ctx_embed.explain(shipped, text + " film" * len(text.split()) * 3).tokens


# Rows and parts


def test_rows_and_parts_by_name(tokenizer):
    found = ctx_embed.explain(of_system(tokenizer, "san", heads=3), SENTENCES[0])
    assert (found.path, found.between_tokens) == (None, False)
    assert [name for name, _ in found.rows()] == ["head 1", "head 2", "head 3"]
    np.testing.assert_array_equal([weights for _, weights in found.rows()], found.weights)
    # Between tokens, rows are what each token gets.
    found = ctx_embed.explain(of_system(tokenizer, "transformer", layers=2, heads=2), SENTENCES[0])
    assert found.between_tokens
    assert [name for name, _ in found.parts()] == [f"layer {i}, head {j}" for i in (1, 2) for j in (1, 2)]
    np.testing.assert_array_equal(found.parts()[2][1], found.weights[1, 0])
    np.testing.assert_allclose(found.rows()[2][1], found.weights[1, 0].mean(0))
    (attention,) = ctx_embed.explain(of_system(tokenizer, "self-attention"), SENTENCES[0]).parts()
    assert attention[0] == "attention"
    assert {len(row) for _, row in ctx_embed.explain(of_system(tokenizer, "transformer"), "").rows()} == {0}


# What max-pooled and recurrent systems are asked for is a share of the features; a head's weights sum to 1 as well.
@pytest.mark.parametrize("name", [name for name in SYSTEMS if name != "dan"])
@pytest.mark.parametrize("text", ["", "cat", SENTENCES[0]])
def test_every_system_that_weighs_tokens_is_explained(tokenizer, name, text):
    found = ctx_embed.explain(of_system(tokenizer, name), text)
    rows = found.rows()
    assert rows
    assert len(dict(rows)) == len(rows)
    for _, weights in rows:
        assert weights.shape == (len(found.tokens),)
        assert weights.sum() == pytest.approx(1 if found.tokens else 0, abs=1e-5)
    assert (found.path is None) == (name != "contextualizer" or not text)
    assert b"<html" in html([found])
    Console(file=io.StringIO()).print(renderable(found))


def test_json(tokenizer):
    found = json.loads(json.dumps(ctx_embed.explain(make_model(tokenizer), "cat").to_dict()))
    assert list(found) == ["text", "tokens", "axes", "weights", "path"]
    assert found["axes"] == ["step", "token"]
    assert np.array(found["weights"]).shape == (2, len(found["tokens"]))
    sizes = {"context_norms": 3, "correction_norms": 2, "to_previous": 2, "to_last": 3}
    assert {name: len(values) for name, values in found["path"].items()} == sizes


def test_phrases_are_shown_as_their_words(tokenizer):
    first, second, third = (tokenizer.token_to_id(token) for token in ("the", "cat", "on"))
    entries = tokenizer.get_vocab_size()
    model = make_model(tokenizer, phrases=[[first, second], [entries, third]])
    assert ctx_embed.explain(model, "the cat on the").tokens == ("the cat on", "the")
    assert isinstance(model[0].text_tokenizer.phrases, Phrases)


def test_mistakes(tokenizer):
    for explain in (ctx_embed.explain, explanations.contributions):
        # Before any work.
        assert error(explain, None, "word " * 160_000) == (
            "the text must have at most 20,000 characters to be explained, got 800,000; explain a part"
        )
    said = "the text must be a string, got a list; explain texts one at a time"
    assert error(ctx_embed.explain, make_model(tokenizer), ["cat"]) == said
    assert "DeepAveraging has no attention weights" in error(ctx_embed.explain, of_system(tokenizer, "dan"), "cat")
    said = "the model's first module must be a Contextualizer, got StructuredSelfAttention"
    assert error(explanations.contributions, of_system(tokenizer, "san"), "cat") == said
