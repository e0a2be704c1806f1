"""However a text is cut, its embedding is that of the whole."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from ctx_embed.cli.demo import standard_library_docstrings
from ctx_embed.errors import InputError
from ctx_embed.numpy_model import DocumentState, Embedder
from tests.conftest import SENTENCES
from tests.numpy_model.test_embedder import ODD, saved

NEAR = 2e-5
TEXT = st.lists(
    st.sampled_from(
        ["i", " don't", " know", "of", " of the", " the", " ", "\n", "\x85", "é", "\u0301", "日本", ".", "'s", "xx"]
    )
).map("".join)


@pytest.fixture(scope="module")
def embedder():
    return Embedder.load()


def near(state: DocumentState, embedder: Embedder, text: str) -> bool:
    return bool(np.abs(state.embedding() - embedder.encode(text)).max() <= NEAR)


@settings(max_examples=100, deadline=None)
@given(pieces=st.lists(TEXT, min_size=1, max_size=6), data=st.data())
def test_any_cut_and_any_order_of_joining(embedder, pieces, data):
    text = "".join(pieces)
    whole = embedder.state()
    states = []
    for piece in pieces:
        whole.add(piece)
        states.append(embedder.state())
        states[-1].add(piece)
    while len(states) > 1:
        place = data.draw(st.integers(0, len(states) - 2))
        states[place].merge(states.pop(place + 1))
    expected = embedder.state()
    expected.add(text)
    for state in (whole, states[0], expected):
        assert near(state, embedder, text)
        # To the bit: what a text becomes depends on nothing but the text.
        assert (state.embedding() == expected.embedding()).all()


def test_a_text_letter_by_letter_and_its_two_halves(embedder):
    text = " ".join([*SENTENCES, *ODD, "i don't know one of the men of the house"])
    state = embedder.state()
    for letter in text:
        state.add(letter)
    assert near(state, embedder, text)
    expected = state.embedding()
    for cut in range(0, len(text), 11):
        left, right = embedder.state(), embedder.state()
        left.add(text[:cut])
        right.add(text[cut:])
        left.merge(right)
        assert (left.embedding() == expected).all()


def test_a_long_text_in_constant_memory(embedder):
    docstrings = sorted(standard_library_docstrings().values())[:1000]
    state = embedder.state()
    sizes = []
    for docstring in docstrings * 2:
        state.add(docstring)
        sizes.append(len(state.to_bytes()) if len(sizes) % 500 == 0 else 0)
    assert near(state, embedder, "".join(docstrings * 2))
    assert sizes[1500] < 1.1 * sizes[1000] < 100_000


def test_bytes_and_back(embedder):
    state = embedder.state()
    state.add("the first half of a lone \ud800 te")
    again = embedder.state(state.to_bytes())
    for each in (state, again):
        each.add("xt, and more of it")
    assert (again.embedding() == state.embedding()).all()
    assert embedder.state(embedder.state().to_bytes()).embedding().shape == (embedder.dimension,)


def test_a_state_joined_to_itself(embedder):
    for text in ("of the", "the cat sat on the mat, and then some more "):
        state = embedder.state()
        state.add(text)
        state.merge(state)
        assert near(state, embedder, text * 2)


def test_an_empty_text(embedder):
    assert np.abs(embedder.state().embedding() - embedder.encode("")).max() <= NEAR


def test_options_of_the_embedding(embedder):
    state = embedder.state()
    state.add("a text of words")
    for options in ({"normalize": False}, {"truncate_dim": 7, "normalize": True}, {"precision": "ubinary"}):
        expected = embedder.encode("a text of words", **options)
        np.testing.assert_allclose(state.embedding(**options), expected, rtol=1e-4, atol=NEAR)


@pytest.mark.parametrize("scale", ["mean", "sum"])
@pytest.mark.parametrize("positions", ["none", "absolute"])
@pytest.mark.parametrize("initial_context", ["ones", "learned"])
def test_other_options(tokenizer, tmp_path, positions, scale, initial_context):
    saved(tokenizer, tmp_path, positions=positions, scale=scale, initial_context=initial_context)
    embedder = Embedder.load(tmp_path)
    for text in ("", "a cat", " ".join(SENTENCES), " ".join(SENTENCES * 90)):
        left, right = embedder.state(), embedder.state()
        left.add(text[: len(text) // 3])
        for start in range(len(text) // 3, len(text), 501):
            right.add(text[start : start + 501])
        left.merge(right)
        assert near(left, embedder, text)
        assert near(embedder.state(left.to_bytes()), embedder, text)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"positions": "relative"}, 'positions="relative"'),
        ({"initial_context": "uniform"}, 'initial_context="uniform"'),
        ({"max_seq_length": 9}, "max_seq_length=9"),
    ],
)
def test_models_whose_embeddings_cannot_grow(tokenizer, tmp_path, options, reason):
    saved(tokenizer, tmp_path, **options)
    with pytest.raises(InputError, match=f"cannot grow: it has {reason}; embed the whole text at once"):
        Embedder.load(tmp_path).state()


def test_a_tokenizer_that_joins_words(tokenizer, tmp_path):
    from tokenizers import Tokenizer

    other = Tokenizer.from_str(tokenizer.to_str())
    other.pre_tokenizer = pre_tokenizers.Metaspace()
    saved(other, tmp_path)
    with pytest.raises(InputError, match="a tokenizer that joins words"):
        Embedder.load(tmp_path).state()


def test_what_is_no_state_is_refused(embedder, tiny_model_path):
    state = embedder.state()
    state.add("a text")
    stored = state.to_bytes()
    for wrong in (b"", b"state", stored[:-9], stored[:30] + b"x" + stored[31:]):
        with pytest.raises(InputError, match="stored must be the bytes of a DocumentState"):
            embedder.state(wrong)
    other = Embedder.load(tiny_model_path)
    with pytest.raises(InputError, match="made by the model"):
        other.state(stored)
    with pytest.raises(InputError, match="of the same model"):
        other.state().merge(state)
    with pytest.raises(InputError, match="text must be a string, got int"):
        state.add(3)
