"""However a text is cut, its embedding is that of the whole."""

import io
import json
import time
import tracemalloc
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, pre_tokenizers

from ctx_embed.numpy_model import Embedder, document_state
from ctx_embed.numpy_model.document_state import DocumentState
from tests.conftest import SENTENCES, make_model
from tests.helpers.errors import error
from tests.numpy_model.test_embedder import ODD, saved

NEAR = 2e-5
NO_STATE = "stored must be the bytes of a DocumentState"
PARTS = ["i", " don't", " know", "of", " of the", " the", " ", "\n", "\x85", "é", "\u0301", "日本", ".", "'s", "xx"]
TEXT = st.lists(st.sampled_from(PARTS)).map("".join)


def near(state: DocumentState, embedder: Embedder, text: str) -> bool:
    return bool(np.abs(state.embedding() - embedder.encode(text)).max() <= NEAR)


@settings(max_examples=100)
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
    for cut in range(0, len(text), 23):
        left, right = embedder.state(), embedder.state()
        left.add(text[:cut])
        right.add(text[cut:])
        left.merge(right)
        assert (left.embedding() == expected).all()


def test_a_long_text_in_constant_memory(embedder, paragraphs):
    state, sizes = embedder.state(), []
    for _ in range(3):
        for paragraph in paragraphs:
            state.add(paragraph)
        sizes.append(len(state.to_bytes()))
    assert near(state, embedder, "".join(paragraphs * 3))
    assert sizes[2] < 1.1 * sizes[1] < 100_000


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


def test_options_of_the_embedding(embedder):
    state = embedder.state()
    state.add("a text of words")
    for options in ({"normalize": False}, {"truncate_dim": 7}, {"precision": "ubinary"}):
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
    said = f"cannot extend a text: it has {reason}; embed the whole text at once"
    assert said in error(Embedder.load(tmp_path).state)


def test_a_tokenizer_that_joins_words(tokenizer, tmp_path):
    other = Tokenizer.from_str(tokenizer.to_str())
    other.pre_tokenizer = pre_tokenizers.Metaspace()
    saved(other, tmp_path)
    assert "a tokenizer that joins words" in error(Embedder.load(tmp_path).state)


def test_what_is_no_state_is_refused(embedder, tiny_model_path):
    state = embedder.state()
    state.add("a text")
    stored = state.to_bytes()
    for wrong in (b"", b"state", stored[:-9], stored[:30] + b"x" + stored[31:]):
        assert error(embedder.state, wrong).startswith(NO_STATE)
    other = Embedder.load(tiny_model_path)
    assert "made by the model" in error(other.state, stored)
    assert "of the same model" in error(other.state().merge, state)
    assert "text must be a string, got an int" in error(state.add, 3)


def packed(ends: object, arrays: bytes) -> bytes:
    line = ends if isinstance(ends, str) else json.dumps(ends)
    return document_state.MAGIC + zlib.compress(line.encode() + b"\n" + arrays)


def arrays_of(*arrays: object, save=np.savez) -> bytes:
    stream = io.BytesIO()
    save(stream, *arrays)
    return stream.getvalue()


ENTRIES, COUNTS = np.array([5, 7], np.int32), np.array([1, 2])
HOSTILE_COUNTS = {
    "negative counts": (arrays_of(ENTRIES, -COUNTS), "counts must lie between 1 and"),
    "counts that are NaN": (arrays_of(ENTRIES, COUNTS * np.nan), "entries and counts do not fit"),
    "an entry twice": (arrays_of(ENTRIES[[0, 0]], COUNTS), "an entry occurs twice"),
    "an entry beyond": (arrays_of(ENTRIES + 10**6, COUNTS), "an entry is not in the vocabulary"),
    "one array": (arrays_of(ENTRIES), "not enough values"),
    "a table": (arrays_of(ENTRIES[None], COUNTS[None]), "entries and counts do not fit"),
    "compressed arrays": (arrays_of(COUNTS, COUNTS, save=np.savez_compressed), "its arrays are compressed"),
    "no arrays": (b"", "not a zip file"),
}


@pytest.mark.parametrize("name", HOSTILE_COUNTS)
def test_hostile_sums_are_one_line(embedder, name):
    arrays, message = HOSTILE_COUNTS[name]
    said = error(embedder.state, packed([embedder.fingerprint, True, "a", "b", [1, 0, 1, 1]], arrays))
    assert said.startswith(NO_STATE)
    assert message in said


HOSTILE_ENDS = {
    "deep": "[" * 100_000,
    "object": "{}",
    "short": '["a"]',
    "fingerprint": [1, True, "", "", [0] * 4],
    "cut": ["f", 1, "", "", [0] * 4],
    "head": ["f", True, None, "", [0] * 4],
    "three numbers": ["f", True, "", "", [0] * 3],
    "large": ["f", True, "", "", [0, 0, 0, 1 << 60]],
    "no numbers": ["f", True, "", "", [True] * 4],
    "of a development version": ["f", True, "a cat", " and a dog"],
}


@pytest.mark.parametrize("name", HOSTILE_ENDS)
def test_hostile_ends_are_one_line(embedder, name):
    said = error(embedder.state, packed(HOSTILE_ENDS[name], arrays_of(ENTRIES, COUNTS)))
    assert said.startswith(NO_STATE)
    if name == "of a development version":
        assert said.endswith("if a development version made it, read the text again)")


def test_a_bomb_takes_no_memory(embedder):
    bomb = document_state.MAGIC + zlib.compress(bytes(200_000_000), 1)
    tracemalloc.start()
    assert error(embedder.state, bomb).startswith(NO_STATE)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 60_000_000


def test_moments_that_are_no_numbers_are_one_line(tokenizer, tmp_path):
    make_model(tokenizer, positions="absolute").save_pretrained(str(tmp_path))
    embedder = Embedder.load(tmp_path)
    m = embedder.dimension
    for n, value in ((1, np.nan), (1, np.inf), (-1, 1.0)):
        arrays = arrays_of(np.array([n]), np.ones(m), np.ones(m), np.full(m, value), np.ones((m, m)))
        stored = packed([embedder.fingerprint, True, "a", "b", [1, 0, 1, 1]], arrays)
        assert error(embedder.state, stored).startswith(NO_STATE)


def test_text_without_cuts_is_added_in_linear_time(embedder):
    state = embedder.state()
    start = time.process_time()
    for _ in range(40_000):
        state.add("x")
    assert time.process_time() - start < 5
