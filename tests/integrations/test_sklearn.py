import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.base import clone, is_classifier
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer
from sklearn.exceptions import NotFittedError
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_predict, cross_val_score
from sklearn.pipeline import FeatureUnion, make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

from ctx_embed import TextClassifier, load
from ctx_embed.integrations.shared import shared_model
from ctx_embed.integrations.sklearn import EmbeddingTransformer
from ctx_embed.vectors import unit_rows
from tests.conftest import SENTENCES
from tests.helpers.errors import error

ROWS = [line.split("\t") for line in Path("docs/samples/reviews.tsv").read_text(encoding="utf-8").splitlines()[:40]]
LABELS, TEXTS = (list(column) for column in zip(*ROWS, strict=True))
FRAME = pd.DataFrame({"title": TEXTS, "body": TEXTS[::-1], "stars": range(40)}, index=range(40, 0, -1))
MISSING = [*TEXTS[1:], None]


def columns(transformer, **options) -> ColumnTransformer:
    """Return a transformer of two columns of texts, each by a copy of its own, and one of numbers."""
    texts = ("one", transformer, "title"), ("two", clone(transformer), "body")
    return ColumnTransformer([*texts, ("number", StandardScaler(), ["stars"])], sparse_threshold=0, **options)


def after_parameters(model, X):
    """Fit a copy of a fitted model that has got its own parameters again."""
    return clone(model.fit(X, LABELS)).set_params(**model.get_params(deep=False)).fit(X, LABELS).predict(X)


# What users do with a classifier of texts, as they do it with scikit-learn's.
OF_CLASSIFIERS = {
    "labels": lambda model, X: model.fit(X, LABELS).predict(X),
    "probabilities": lambda model, X: model.fit(X, LABELS).predict_proba(X),
    "log probabilities": lambda model, X: model.fit(X, LABELS).predict_log_proba(X),
    "decisions": lambda model, X: model.fit(X, LABELS).decision_function(X),
    "score": lambda model, X: model.fit(X, LABELS).score(X, LABELS),
    "classes": lambda model, X: model.fit(X, LABELS).classes_,
    "labels of numbers": lambda model, X: model.fit(X, [label == "good" for label in LABELS]).predict(X),
    "categorical labels": lambda model, X: model.fit(X, pd.Categorical(LABELS)).predict(X),
    "clone": lambda model, X: hasattr(clone(model.fit(X, LABELS)), "classes_"),
    "parameters": after_parameters,
    "pickle": lambda model, X: pickle.loads(pickle.dumps(model.fit(X, LABELS))).predict(X),
    "pickle before fit": lambda model, X: pickle.loads(pickle.dumps(model)).fit(X, LABELS).predict(X),
    "cross_val_predict": lambda model, X: cross_val_predict(model, X, LABELS, cv=2, method="predict_proba"),
    "cross_val_score": lambda model, X: cross_val_score(model, X, LABELS, cv=2, scoring="roc_auc") > 0.7,
    "CalibratedClassifierCV": lambda model, X: CalibratedClassifierCV(model, cv=2).fit(X, LABELS).predict_proba(X),
    "is_classifier": lambda model, X: is_classifier(model),
    "before fit": lambda model, X: model.predict(X),
    "a missing text": lambda model, X: model.fit(MISSING, LABELS),
    "a missing text later": lambda model, X: model.fit(X, LABELS).predict(MISSING),
    "too few labels": lambda model, X: model.fit(X, LABELS[1:]),
    "one class": lambda model, X: model.fit(X, ["good"] * 40),
    "no labels": lambda model, X: model.fit(X, None),
    "an unknown parameter": lambda model, X: model.set_params(alpha=1),
}
# And with a transformer; X is a frame.
OF_TRANSFORMERS = {
    "a column": lambda model, X: model.fit(X["title"]).transform(X["title"]),
    "a generator": lambda model, X: model.fit_transform(text for text in X["title"]),
    "columns": lambda model, X: columns(model).fit_transform(X),
    "columns in another order": lambda model, X: columns(model).fit(X).transform(X[["stars", "body", "title"]]),
    "names": lambda model, X: columns(model).fit(X).get_feature_names_out(),
    "names by themselves": lambda model, X: model.fit(X["title"]).get_feature_names_out(),
    "in a classifier": lambda model, X: make_pipeline(columns(model), LinearSVC()).fit(X, LABELS).predict(X),
    "FeatureUnion": lambda model, X: FeatureUnion([("a", model), ("b", clone(model))]).fit_transform(X["title"]),
    "clone": lambda model, X: clone(model.fit(X["title"])).get_params() == model.get_params(),
    "a missing column": lambda model, X: columns(model).fit(X).transform(X[["stars", "title"]]),
    "an unknown parameter": lambda model, X: model.set_params(alpha=1),
}


def outcome(call, model, *arguments):
    """Return what a call comes to: its kind and shape, its value where all models agree, or that it failed."""
    try:
        found = call(model, *arguments)
    except NotFittedError:
        return "not fitted"
    except (ValueError, AttributeError):
        return "error"
    if isinstance(found, bool):
        return found
    array = found.toarray() if hasattr(found, "toarray") else np.asarray(found)
    # scikit-learn's features are words: how many there are is its own affair.
    shape = [size if size in (2, 40) else "many" for size in array.shape]
    return "number" if array.dtype.kind == "f" else "text" if array.dtype.kind in "OU" else array.dtype.kind, shape


@pytest.mark.parametrize(("number", "name"), list(enumerate(OF_CLASSIFIERS)))
def test_a_classifier_is_used_as_scikit_learns(number, name):
    kind = [list, np.array, lambda texts: pd.Series(texts, index=range(40, 0, -1)), pl.Series][number % 4]
    theirs, ours = make_pipeline(TfidfVectorizer(), LogisticRegression()), TextClassifier()
    expected = outcome(OF_CLASSIFIERS[name], theirs, kind(TEXTS))
    assert outcome(OF_CLASSIFIERS[name], ours, kind(TEXTS)) == expected
    embedding = make_pipeline(EmbeddingTransformer(), LogisticRegression())
    assert outcome(OF_CLASSIFIERS[name], embedding, kind(TEXTS)) == expected


@pytest.mark.parametrize("name", OF_TRANSFORMERS)
@pytest.mark.parametrize("frame", [FRAME, pl.DataFrame(FRAME)], ids=["pandas", "polars"])
def test_a_transformer_is_used_as_scikit_learns(name, frame):
    call = OF_TRANSFORMERS[name]
    assert outcome(call, EmbeddingTransformer(), frame) == outcome(call, TfidfVectorizer(), frame)


def test_a_frame_of_embeddings_keeps_its_rows():
    """TfidfVectorizer has no set_output, so the same numbers without it are compared."""
    plain = columns(EmbeddingTransformer()).fit_transform(FRAME)
    for library, frame in (("pandas", FRAME), ("polars", pl.DataFrame(FRAME))):
        found = columns(EmbeddingTransformer()).set_output(transform=library).fit_transform(frame)
        assert type(found) is type(frame)
        np.testing.assert_array_equal(found.to_numpy(), plain)
        assert list(found.columns)[::320] == ["one__embedding0", "two__embedding0", "number__stars"]
    assert columns(EmbeddingTransformer()).set_output(transform="pandas").fit_transform(FRAME).index.equals(FRAME.index)


def test_texts_of_any_kind_columns_and_the_first_features():
    expected = load().encode(SENTENCES)
    for make in (list, tuple, np.array, pd.Series, lambda texts: pd.Series(texts, index=range(5, 13))):
        embeddings = EmbeddingTransformer().fit_transform(make(SENTENCES))
        assert embeddings.dtype == np.float32
        np.testing.assert_allclose(embeddings, expected, rtol=0, atol=1e-6)
    frame, both = pd.DataFrame({"title": SENTENCES, "body": SENTENCES[::-1]}), EmbeddingTransformer()
    columns = ColumnTransformer([("one", EmbeddingTransformer(), "title"), ("two", EmbeddingTransformer(), ["body"])])
    for found in (columns.fit_transform(frame), both.fit_transform(frame), both.fit_transform(frame.to_numpy())):
        np.testing.assert_allclose(found, np.hstack([expected, expected[::-1]]), rtol=0, atol=1e-6)
    assert both.fit_transform([]).shape == (0, 320)
    short = EmbeddingTransformer(truncate_dim=2)
    assert list(short.get_feature_names_out(["a", "b"])) == [f"{a}_embedding{n}" for a in "ab" for n in range(2)]
    frame = short.set_output(transform="pandas").fit_transform(pd.Series(SENTENCES))
    assert list(frame.columns) == ["embedding0", "embedding1"]
    # Of unit length.
    np.testing.assert_allclose(frame, unit_rows(expected[:, :2]), atol=1e-6)


def test_neither_a_clone_nor_a_pickle_holds_the_model():
    transformer = EmbeddingTransformer().fit(SENTENCES)
    before = transformer.transform(SENTENCES)
    assert len(pickle.dumps(transformer)) < 1000
    assert clone(transformer).get_params() == {"model": "default", "truncate_dim": None, "batch_size": 512}
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(transformer)).transform(SENTENCES), before)


def test_what_is_refused():
    for options, texts, message in (
        ({}, "a text", "X must be a sequence of texts, got one string; put it into a list"),
        ({}, pd.Series(["a", None], dtype=object), "row 1 of X must be a string, got NoneType; fill missing values"),
        ({}, pd.DataFrame({"a": ["b"], "c": [1]}), "row 0 of X must be a string, got int"),
        ({"truncate_dim": 999}, ["a"], "truncate_dim must be at most 320, the model's features, got 999"),
        ({"model": "./nowhere"}, ["a"], "./nowhere: no such model folder"),
    ):
        assert error(EmbeddingTransformer(**options).fit_transform, texts).startswith(message)


def test_one_model_for_all_who_name_it(tiny_model_path):
    with ThreadPoolExecutor(4) as threads:
        (model,) = set(threads.map(shared_model, [str(tiny_model_path)] * 8))
    said = "model must be a name or a path, such as 'default', got SentenceTransformer"
    assert error(shared_model, model) == said
