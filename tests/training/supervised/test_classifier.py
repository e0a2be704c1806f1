from __future__ import annotations

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from ctx_embed import load
from ctx_embed.training.supervised import classifier as classifier_module
from ctx_embed.training.supervised.classifier import Labelled, TextClassifier
from ctx_embed.training.supervised.train import SupervisedOptions, train_classifier
from tests.conftest import make_model
from tests.training.toy import OPTIONS, error, forty_texts, same, small_encoders, state


@pytest.fixture
def data() -> Labelled:
    return forty_texts()


@pytest.fixture
def encoder(data):
    return small_encoders(data)


# The split


def test_a_split_holds_each_label_in_proportion(data):
    train, valid = data.split(0.1, seed=0)
    assert sorted(valid.labels) == ["+", "+", "-", "-"]
    assert sorted(train.labels) == ["+"] * 18 + ["-"] * 18
    assert sorted([*train.texts, *valid.texts]) == sorted(data.texts)
    labels = dict(zip(data.texts, data.labels, strict=True))
    assert all(
        labels[text] == label for part in (train, valid) for label, text in zip(*vars(part).values(), strict=True)
    )
    assert data.split(0.1, seed=0) == (train, valid)
    assert data.split(0.1, seed=1)[1] != valid


@pytest.mark.parametrize("labels", ["ab", "aab", "abcabc", "aaaaaaaaab", ""])
def test_too_few_rows_to_split(labels):
    rows = Labelled(list(labels), ["text"] * len(labels))
    assert error(rows.split, 0.1, 0) == (
        f"{len(labels)} texts with {len(set(labels))} labels are too few to hold out 10% in which each label occurs; "
        "give more texts, or --valid FILE"
    )


def test_the_head_reads_the_embedding_before_it_is_normalised(tiny_model, sentences):
    classifier = TextClassifier(tiny_model, ["a", "b"])
    bare = SentenceTransformer(modules=[tiny_model[0]], device="cpu")
    embeddings = bare.encode(sentences, convert_to_tensor=True)
    assert not torch.allclose(embeddings.norm(dim=1), torch.ones(len(sentences)))
    with torch.no_grad():
        assert torch.allclose(classifier(sentences), classifier.head(embeddings), atol=1e-6)


def test_a_truncated_encoder_is_trained_whole(tokenizer, data):
    model = make_model(tokenizer)
    model.truncate_dim = 4
    classifier, _ = train_classifier(model, data, data, SupervisedOptions(epochs=1), progress=False)
    assert classifier.head.in_features == 16


def test_save_and_load(encoder, data, tmp_path):
    classifier, _ = train_classifier(encoder(), data, data, OPTIONS, progress=False)
    classifier.save(tmp_path / "model")
    loaded = TextClassifier.load(tmp_path / "model", "cpu")
    assert loaded.labels == ["+", "-"]
    assert not loaded.training
    assert same(state(loaded), state(classifier))
    assert loaded.predict(data.texts) == classifier.predict(data.texts)
    assert np.array_equal(load(tmp_path / "model").encode(["so good"]), classifier.encoder.encode(["so good"]))


def test_prediction_does_not_depend_on_the_batch(encoder, data, monkeypatch):
    classifier, _ = train_classifier(encoder(), data, data, OPTIONS, progress=False)
    predicted = classifier.predict(data.texts)
    monkeypatch.setattr(classifier_module, "PREDICTION_BATCH", 3)
    assert classifier.predict(data.texts) == predicted


def test_a_folder_without_a_head(tiny_model_path):
    message = f"{tiny_model_path}: no classifier.safetensors, this model was not trained from labels"
    assert error(TextClassifier.load, tiny_model_path) == message


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("classifier.json", "{", "JSONDecodeError: Expecting property name enclosed in double quotes"),
        ("classifier.json", "{}", "KeyError: 'labels'"),
        ("classifier.json", '{"labels": ["a", "b", "c"]}', "RuntimeError: Error(s) in loading state_dict for Linear:"),
        ("classifier.safetensors", "garbage", "SafetensorError: "),
    ],
)
def test_a_damaged_head(tiny_model, tmp_path, name, content, message):
    TextClassifier(tiny_model, ["a", "b"]).save(tmp_path / "model")
    (tmp_path / "model" / name).write_text(content)
    line = error(TextClassifier.load, tmp_path / "model")
    assert line.startswith(f"{tmp_path / 'model'}: the head cannot be loaded ({message}")
    assert "\n" not in line


def test_a_head_without_its_labels(tiny_model, tmp_path):
    TextClassifier(tiny_model, ["a", "b"]).save(tmp_path / "model")
    (tmp_path / "model" / "classifier.json").unlink()
    assert "the head cannot be loaded (FileNotFoundError: " in error(TextClassifier.load, tmp_path / "model")


# The encoder


@pytest.mark.parametrize("classes", [2, 3])
def test_the_fitted_head_is_logistic_regression_on_standardised_embeddings(tiny_model, sentences, classes):
    texts = [f"{sentence} {number}" for number in range(6) for sentence in sentences]
    data = Labelled([f"class {sentences.index(text.rsplit(' ', 1)[0]) % classes}" for text in texts], texts)
    classifier = TextClassifier(tiny_model, sorted(set(data.labels)))
    classifier.fit_head(data)
    bare = SentenceTransformer(modules=[tiny_model[0]], device="cpu")
    X = StandardScaler().fit_transform(bare.encode(texts).astype(np.float64))
    expected = LogisticRegression(C=classifier_module.PROBE_C, max_iter=1000).fit(X, data.labels).predict_proba(X)
    with torch.no_grad():
        assert classifier(texts).softmax(1).numpy() == pytest.approx(expected, abs=1e-3)
