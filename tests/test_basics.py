import re

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from ctx_embed import InputError
from ctx_embed.texts import BATCH_CHARACTERS, BATCH_TEXTS, as_texts, length_batches, well_formed
from ctx_embed.vectors import unit_rows


def test_well_formed():
    assert well_formed("a\ud800b\udfff") == "a\ufffdb\ufffd"
    assert well_formed("\ud83d\ude00") == "😀"
    text = "nothing to do 😀 \0"
    assert well_formed(text) is text


def test_batches_hold_every_text_once_within_their_bounds():
    texts = ["x" * length for length in [5, BATCH_CHARACTERS * 2, 0, *range(600), BATCH_CHARACTERS // 3]]
    found = list(length_batches(texts))
    assert sorted(place for batch in found for place in batch) == list(range(len(texts)))
    for batch in found:
        padded = len(batch) * max(len(texts[place]) for place in batch)
        assert len(batch) <= BATCH_TEXTS
        assert padded <= BATCH_CHARACTERS or len(batch) == 1
    assert list(length_batches([])) == []


@pytest.mark.parametrize(
    "make",
    [list, tuple, iter, pd.Series, pl.Series, np.array, pa.array, lambda texts: pa.chunked_array([texts])],
    ids=["list", "tuple", "iterator", "pandas", "polars", "numpy", "arrow", "arrow chunks"],
)
def test_texts_come_in_any_collection(make, tiny_model):
    texts = ["the cat", "a dog"]
    assert as_texts(make(texts)) == texts
    np.testing.assert_array_equal(tiny_model.encode(as_texts(make(texts))), tiny_model.encode(texts))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ("a", "texts must be a list of strings, got a str; give [text]"),
        (np.array("a"), "texts must be a list of strings, got a ndarray"),
        (None, "texts must be a list of strings, got None"),
        (pd.DataFrame({"text": ["a"]}), "got a DataFrame; give one of its columns ('text')"),
        (pl.DataFrame({"text": ["a"]}), "got a DataFrame; give one of its columns ('text')"),
        (pa.table({"text": ["a"]}), "got a Table; give one of its columns ('text')"),
        (pd.Series(["a", None]), "text 1 must be a string, got "),
    ],
)
def test_what_holds_no_texts_is_one_line(values, message):
    with pytest.raises(InputError, match=re.escape(message)):
        as_texts(values)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_have_length_1_and_zero_stays_zero(dtype):
    vectors = np.array([[3, 4], [0, 0], [1e-30, 0], [3e30, -4e30]], dtype)
    found = unit_rows(vectors)
    assert found.dtype == dtype
    np.testing.assert_allclose(found, [[0.6, 0.8], [0, 0], [1, 0], [0.6, -0.8]], rtol=1e-6)
    np.testing.assert_array_equal(unit_rows(vectors[0]), found[0])
