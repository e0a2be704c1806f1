"""What each token adds to a cosine: the parts add up, and are those of the reference in torch."""

import numpy as np
import pytest

from ctx_embed.errors import InputError
from ctx_embed.explanations import contributions
from ctx_embed.numpy_model import Embedder
from tests.conftest import make_model

TEXT = "The  film was not   bad, a joy—from the first scene to the last. ünïcode 猫"


@pytest.mark.parametrize("text", [TEXT, "", "cat", "good film " * 3000])
def test_the_parts_add_up_to_the_cosine(embedder, text):
    query = embedder.encode("a dull film")
    found = embedder.explain(text, query)
    assert found.cosine == pytest.approx(float(embedder.encode(text) @ query), abs=2e-5)
    assert len(found.tokens) == len(embedder.tokens([text])[0])
    # The length of the other vector does not count.
    assert embedder.explain(text, 3 * query).cosine == pytest.approx(found.cosine, abs=1e-6)


def test_the_parts_are_those_of_torch(embedder, shipped_model):
    query = embedder.encode("a dull film").astype(np.float64)
    reference = contributions(shipped_model, TEXT)
    last = reference.first + reference.corrections.sum(0)
    parts = reference.vectors.sum(1) @ query / np.linalg.norm(last)
    found = embedder.explain(TEXT, query)
    assert np.allclose([token.weight for token in found.tokens], parts, atol=2e-6)


def test_spans_are_the_characters_of_the_tokens(embedder):
    tokens = embedder.explain(TEXT, embedder.encode("x")).tokens
    assert [token.text for token in tokens] == [TEXT[token.start : token.stop] for token in tokens]
    covered = "".join(token.text for token in tokens)
    assert covered.replace(" ", "") == TEXT.replace(" ", "")
    assert [token.start for token in tokens] == sorted(token.start for token in tokens)


def test_a_prompt_counts_as_the_rest_also_by_default(embedder):
    other = Embedder.load()
    other.prompts = {"query": "search: "}
    vector = embedder.encode("a dull film")
    named = other.explain("the film", vector, "query")
    other.default_prompt_name = "query"
    alone = [(token.text, token.start, token.stop) for token in embedder.explain("the film", vector).tokens]
    for found in (named, other.explain("the film", vector)):
        assert [(token.text, token.start, token.stop) for token in found.tokens] == alone
        assert found.cosine == pytest.approx(float(embedder.encode("search: the film") @ vector), abs=2e-5)


@pytest.mark.parametrize("options", [{"positions": "absolute"}, {"positions": "relative", "scale": "sum"}])
def test_positions_and_scales(options, tokenizer, tmp_path, sentences):
    make_model(tokenizer, **options).save_pretrained(str(tmp_path))
    embedder = Embedder.load(tmp_path)
    vector = embedder.encode(sentences[1])
    for text in (sentences[0], " ".join(sentences * 60)):
        assert embedder.explain(text, vector).cosine == pytest.approx(float(embedder.encode(text) @ vector), abs=2e-5)


def test_a_vector_of_another_size_is_refused(embedder):
    with pytest.raises(InputError, match=r"the vector must have shape \(320,\), got \(3,\)"):
        embedder.explain("text", [1, 2, 3])
