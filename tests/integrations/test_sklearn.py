from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline

from ctx_embed import InputError, load
from ctx_embed.integrations.sklearn import EmbeddingTransformer

GOOD = ["a joy from the first scene", "great food and kind people", "the best film of the year", "I loved this book"]
BAD = ["dull and far too long", "cold food, rude people", "the worst film of the year", "I hated this book"]
TEXTS, LABELS = [*GOOD, *BAD], [1] * 4 + [0] * 4


@pytest.fixture(scope="module")
def expected():
    return load().encode(TEXTS)


@pytest.mark.parametrize("make", [list, tuple, np.array, pd.Series, lambda texts: pd.Series(texts, index=range(5, 13))])
def test_texts_of_any_kind(make, expected):
    embeddings = EmbeddingTransformer().fit_transform(make(TEXTS))
    assert embeddings.dtype == np.float32
    np.testing.assert_allclose(embeddings, expected, rtol=0, atol=1e-6)


def test_columns_of_a_frame(expected):
    frame = pd.DataFrame({"title": TEXTS, "body": TEXTS[::-1], "stars": LABELS})
    transformer = ColumnTransformer(
        [("one", EmbeddingTransformer(), "title"), ("two", EmbeddingTransformer(), ["body"])]
    )
    np.testing.assert_allclose(
        transformer.fit_transform(frame), np.hstack([expected, expected[::-1]]), rtol=0, atol=1e-6
    )
    both = EmbeddingTransformer().fit_transform(frame[["title", "body"]])
    np.testing.assert_allclose(both, np.hstack([expected, expected[::-1]]), rtol=0, atol=1e-6)
    again = EmbeddingTransformer().fit_transform(frame[["title", "body"]].to_numpy())
    np.testing.assert_allclose(again, both, rtol=0, atol=1e-6)


def test_names_of_features(expected):
    frame = EmbeddingTransformer(truncate_dim=2).set_output(transform="pandas").fit_transform(pd.Series(TEXTS))
    assert list(frame.columns) == ["embedding0", "embedding1"]
    names = EmbeddingTransformer(truncate_dim=2).get_feature_names_out(["a", "b"])
    assert list(names) == ["a_embedding0", "a_embedding1", "b_embedding0", "b_embedding1"]


def test_no_texts():
    assert EmbeddingTransformer().fit_transform([]).shape == (0, 320)


def test_truncated_embeddings_have_unit_length(expected):
    embeddings = EmbeddingTransformer(truncate_dim=8).fit_transform(TEXTS)
    np.testing.assert_allclose(
        embeddings, expected[:, :8] / np.linalg.norm(expected[:, :8], axis=1, keepdims=True), atol=1e-6
    )


def test_neither_a_clone_nor_a_pickle_holds_the_model():
    transformer = EmbeddingTransformer().fit(TEXTS)
    before = transformer.transform(TEXTS)
    assert len(pickle.dumps(transformer)) < 1000
    assert clone(transformer).get_params() == {"model": "default", "truncate_dim": None, "batch_size": 512}
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(transformer)).transform(TEXTS), before)


def test_a_grid_search_over_the_dimension():
    pipeline = make_pipeline(EmbeddingTransformer(), LogisticRegression())
    grid = GridSearchCV(pipeline, {"embeddingtransformer__truncate_dim": [2, 64, None]}, cv=2, error_score="raise")
    grid.fit(pd.Series(TEXTS), LABELS)
    assert set(grid.best_params_) == {"embeddingtransformer__truncate_dim"}
    assert grid.predict(["what a great film", "a dull, cold film"]).tolist() == [1, 0]


@pytest.mark.parametrize(
    ("options", "texts", "message"),
    [
        ({}, "a text", "X must be a sequence of texts, got one string; put it into a list"),
        (
            {},
            pd.Series(["a", None], dtype=object),
            "row 1 of X must be a string, got NoneType; fill missing values first",
        ),
        ({}, pd.DataFrame({"a": ["b"], "c": [1]}), "row 0 of X must be a string, got int; fill missing values first"),
        ({"truncate_dim": 0}, ["a"], "truncate_dim must be a positive integer, got 0"),
        ({"truncate_dim": 999}, ["a"], "truncate_dim must be at most the model's dimension 320, got 999"),
        ({"model": "./nowhere"}, ["a"], "./nowhere: no such model folder"),
    ],
)
def test_what_is_refused(options, texts, message):
    with pytest.raises(InputError) as caught:
        EmbeddingTransformer(**options).fit_transform(texts)
    assert str(caught.value) == message
