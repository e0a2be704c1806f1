import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.compose import ColumnTransformer

from ctx_embed import load
from ctx_embed.integrations.shared import shared_model
from ctx_embed.integrations.sklearn import EmbeddingTransformer
from tests.conftest import SENTENCES
from tests.helpers.errors import error


@pytest.fixture(scope="module")
def expected():
    return load().encode(SENTENCES)


@pytest.mark.parametrize("make", [list, tuple, np.array, pd.Series, lambda texts: pd.Series(texts, index=range(5, 13))])
def test_texts_of_any_kind(make, expected):
    embeddings = EmbeddingTransformer().fit_transform(make(SENTENCES))
    assert embeddings.dtype == np.float32
    np.testing.assert_allclose(embeddings, expected, rtol=0, atol=1e-6)


def test_columns_of_a_frame(expected):
    frame = pd.DataFrame({"title": SENTENCES, "body": SENTENCES[::-1], "stars": range(8)})
    both = EmbeddingTransformer()
    columns = ColumnTransformer([("one", EmbeddingTransformer(), "title"), ("two", EmbeddingTransformer(), ["body"])])
    parts = frame[["title", "body"]]
    for found in (columns.fit_transform(frame), both.fit_transform(parts), both.fit_transform(parts.to_numpy())):
        np.testing.assert_allclose(found, np.hstack([expected, expected[::-1]]), rtol=0, atol=1e-6)


def test_names_of_features_and_truncated_embeddings(expected):
    assert EmbeddingTransformer().fit_transform([]).shape == (0, 320)
    short = EmbeddingTransformer(truncate_dim=2)
    assert list(short.get_feature_names_out(["a", "b"])) == [f"{a}_embedding{n}" for a in "ab" for n in range(2)]
    frame = short.set_output(transform="pandas").fit_transform(pd.Series(SENTENCES))
    assert list(frame.columns) == ["embedding0", "embedding1"]
    # Of unit length.
    of_unit_length = expected[:, :2] / np.linalg.norm(expected[:, :2], axis=1, keepdims=True)
    np.testing.assert_allclose(frame, of_unit_length, atol=1e-6)


def test_neither_a_clone_nor_a_pickle_holds_the_model():
    transformer = EmbeddingTransformer().fit(SENTENCES)
    before = transformer.transform(SENTENCES)
    assert len(pickle.dumps(transformer)) < 1000
    assert clone(transformer).get_params() == {"model": "default", "truncate_dim": None, "batch_size": 512}
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(transformer)).transform(SENTENCES), before)


@pytest.mark.parametrize(
    ("options", "texts", "message"),
    [
        ({}, "a text", "X must be a sequence of texts, got one string; put it into a list"),
        ({}, pd.Series(["a", None], dtype=object), "row 1 of X must be a string, got NoneType; fill missing values"),
        ({}, pd.DataFrame({"a": ["b"], "c": [1]}), "row 0 of X must be a string, got int; fill missing values first"),
        ({"truncate_dim": 0}, ["a"], "truncate_dim must be a positive integer, got 0"),
        ({"truncate_dim": 999}, ["a"], "truncate_dim must be at most 320, the model's features, got 999"),
        ({"model": "./nowhere"}, ["a"], "./nowhere: no such model folder"),
    ],
)
def test_what_is_refused(options, texts, message):
    assert error(EmbeddingTransformer(**options).fit_transform, texts).startswith(message)


def test_one_model_for_all_who_name_it(tiny_model_path):
    with ThreadPoolExecutor(4) as threads:
        (model,) = set(threads.map(shared_model, [str(tiny_model_path)] * 8))
    said = "model must be a name or a path, such as 'default', got SentenceTransformer"
    assert error(shared_model, model) == said
