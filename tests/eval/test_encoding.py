from __future__ import annotations

import re

import numpy as np
import pytest

from ctx_embed.errors import InputError
from ctx_embed.eval.encoders import Encoder
from ctx_embed.eval.encoding import EmbeddingCache, embed

TEXTS = ["a longer text", "", "short", "the longest text of them all", "short", "\ud800 alone"]


def test_rows_in_the_order_of_the_texts_whatever_the_batches(drawn):
    expected = drawn.encode([text.replace("\ud800", "�") for text in TEXTS]).astype(np.float32)
    for batch_size in (1, 2, 256):
        embeddings = embed(drawn, TEXTS, batch_size)
        assert embeddings.dtype == np.float32
        np.testing.assert_array_equal(embeddings, expected)


def test_half_precision_becomes_float32():
    encoder = Encoder("half", lambda texts: np.ones((len(texts), 3), np.float16))
    assert embed(encoder, ["a"]).dtype == np.float32


def test_no_texts(drawn):
    with pytest.raises(InputError, match=r"^no texts to embed$"):
        embed(drawn, [])


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (np.zeros((1, 4)), "gives an array of shape (1, 4) for 2 texts, one row for each is needed"),
        (np.zeros(2), "gives an array of shape (2,) for 2 texts, one row for each is needed"),
        (np.array([[0.0, 1.0], [0.0, np.nan]]), "gives NaN or infinity for the text 'b'"),
        (np.array([[-np.inf, 1.0], [0.0, 1.0]]), "gives NaN or infinity for the text 'a'"),
    ],
)
def test_unusable_embeddings_name_the_encoder(rows, message):
    with pytest.raises(InputError, match=f"^{re.escape(f'encoder {chr(39)}odd{chr(39)} {message}')}$"):
        embed(Encoder("odd", lambda texts: rows), ["a", "b"])


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
