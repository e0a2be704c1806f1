from dataclasses import replace

import numpy as np
import pytest
import torch

from ctx_embed.encoders import Encoder, embed
from ctx_embed.eval.encoders import EmbeddingCache, load_encoder
from tests.helpers.errors import error

NEEDED = "must return a row of numbers for each text, all of one length"
TEXTS = ["a longer text", "", "short", "the longest text of them all", "short", "\ud800 alone"]


def test_rows_in_the_order_of_the_texts_whatever_the_batches(drawn):
    expected = drawn.encode([text.replace("\ud800", "�") for text in TEXTS]).astype(np.float32)
    for batch_size in (1, 2, 256):
        embeddings = embed(drawn, TEXTS, batch_size)
        assert embeddings.dtype == np.float32
        np.testing.assert_array_equal(embeddings, expected)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (np.zeros((1, 4)), f"{NEEDED}, got an array (1, 4) of float64 for 2 texts"),
        (np.array([[0.0, 1.0], [0.0, np.nan]]), "returned NaN or infinity for the text 'b'"),
        (np.array([[1.0], [1e300]]), "returned NaN or infinity for the text 'b'"),
        (None, f"{NEEDED}, got an array () of object for 2 texts"),
        (np.array([["1"], ["2"]]), f"{NEEDED}, got an array (2, 1) of <U1 for 2 texts"),
        (np.zeros((2, 0)), f"{NEEDED}, got an array (2, 0) of float64 for 2 texts"),
        ([[1.0], [1.0, 2.0]], f"{NEEDED}, got rows of different lengths for 2 texts"),
    ],
)
def test_unusable_embeddings_name_the_encoder(rows, message):
    assert error(embed, Encoder("odd", lambda texts: rows), ["a", "b"]) == f"encoder 'odd' {message}"


def test_what_cannot_be_embedded(drawn):
    odd = Encoder("odd", lambda texts: np.ones((len(texts), len(texts[0]))))
    message = f"encoder 'odd' {NEEDED}, got an array (1, 2) of float64 for 1 texts"
    assert error(embed, odd, ["a", "bb"], 1) == message
    assert error(embed, drawn, []) == "no texts to embed"
    message = "encoder 'tfidf' is fitted on the texts of a task and has no embeddings without one"
    assert error(embed, load_encoder("tfidf"), ["a"]) == message


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_tensor_serves_as_well(dtype):
    encoder = Encoder("torch", lambda texts: torch.ones(len(texts), 2, dtype=dtype, requires_grad=True))
    np.testing.assert_array_equal(embed(encoder, ["a"]), np.ones((1, 2), np.float32))


def test_the_cache_encodes_each_text_once(drawn):
    seen: list[str] = []

    def encode(texts):
        seen.extend(texts)
        return drawn.encode(texts)

    cache = EmbeddingCache(Encoder("counted", encode))
    first, second = cache(["a", "b", "a"]), cache(["b", "c"])
    assert sorted(seen) == ["a", "b", "c"]
    np.testing.assert_array_equal(first[0], first[2])
    np.testing.assert_array_equal(first[1], second[0])


def test_embeddings_are_kept_by_encoder_and_texts(drawn, tmp_path):
    def fail(texts):
        raise AssertionError("not to be called")

    first = EmbeddingCache(drawn, tmp_path)(TEXTS[:5])
    kept = replace(drawn, encode=fail)
    np.testing.assert_array_equal(EmbeddingCache(kept, tmp_path)(TEXTS[:5]), first)
    for other, texts in ((kept, TEXTS[1:5]), (replace(kept, key="another"), TEXTS[:5])):
        with pytest.raises(AssertionError):
            EmbeddingCache(other, tmp_path)(texts)
    # Texts are told apart by their borders, and without a key nothing is kept.
    for encoder, texts in ((replace(drawn, key=None), ["a"]), (drawn, ["a", "b c"]), (drawn, ["a b", "c"])):
        EmbeddingCache(encoder, tmp_path)(texts)
    assert len(list(tmp_path.rglob("*.npz"))) == 3


def test_a_damaged_file_is_made_anew(drawn, tmp_path):
    first = EmbeddingCache(drawn, tmp_path)(["a", "b"])
    (path,) = tmp_path.rglob("*.npz")
    whole = path.read_bytes()
    # A byte of the name, one of the head of the array, one of the numbers.
    changed = [whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :] for place in (32, 100, 300)]
    for damage in (b"", b"not numpy", whole[:-4], *changed):
        path.write_bytes(damage)
        np.testing.assert_array_equal(EmbeddingCache(drawn, tmp_path)(["a", "b"]), first)
        assert path.read_bytes() == whole
    np.testing.assert_array_equal(np.load(path)["embeddings"], first)
