from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from ctx_embed.classify.labelled import Labelled
from ctx_embed.systems import system
from ctx_embed.training.options import SupervisedOptions
from ctx_embed.training.supervised.train import PROBE_DEVIATION, ClassifierNetwork, compact_tables, train_classifier
from tests.conftest import make_model


def test_the_head_reads_the_embedding_before_it_is_normalised(tiny_model, sentences):
    classifier = ClassifierNetwork(tiny_model, ["a", "b"])
    bare = SentenceTransformer(modules=[copy.deepcopy(tiny_model[0])], device="cpu")
    embeddings = bare.encode(sentences, convert_to_tensor=True)
    assert not torch.allclose(embeddings.norm(dim=1), torch.ones(len(sentences)))
    with torch.no_grad():
        assert torch.allclose(classifier(sentences), classifier.head(embeddings), atol=1e-6)


def test_a_truncated_encoder_is_trained_whole(tokenizer, data):
    model = make_model(tokenizer)
    model.truncate_dim = 4
    classifier, _ = train_classifier(model, data, data, SupervisedOptions(epochs=1), progress=False)
    assert classifier.head.in_features == 16


@pytest.mark.parametrize("classes", [2, 3])
def test_the_fitted_head_is_logistic_regression_on_standardised_embeddings(tiny_model, sentences, classes):
    texts = [f"{sentence} {number}" for number in range(6) for sentence in sentences]
    data = Labelled([f"class {sentences.index(text.rsplit(' ', 1)[0]) % classes}" for text in texts], texts)
    classifier = ClassifierNetwork(tiny_model, sorted(set(data.labels)))
    classifier.fit_head(data)
    bare = SentenceTransformer(modules=[copy.deepcopy(tiny_model[0])], device="cpu")
    X = StandardScaler().fit_transform(bare.encode(texts).astype(np.float64))
    expected = LogisticRegression(C=PROBE_DEVIATION**2, max_iter=1000).fit(X, data.labels).predict_proba(X)
    with torch.no_grad():
        assert classifier(texts).softmax(1).numpy() == pytest.approx(expected, abs=1e-3)


def test_several_labels_are_learned(encoder, data):
    labels = [
        tuple(name for name, there in (("good", label == "+"), ("film", "film" in text)) if there)
        for label, text in zip(data.labels, data.texts, strict=True)
    ]
    assert () in labels
    rows = Labelled(labels, data.texts)
    classifier, history = train_classifier(encoder(), rows, rows, SupervisedOptions(20, 8, 0.02), progress=False)
    assert classifier.labels == ["film", "good"]
    assert history[-1]["valid_accuracy"] == classifier.accuracy(rows) == 1
    assert [set(found) for found in classifier.predict(rows.texts)] == [set(of_text) for of_text in labels]


def test_class_weights_are_those_of_the_loss(encoder, data):
    rare = Labelled(data.labels[:23], data.texts[:23])
    assert [rare.labels.count(label) for label in "+-"] == [20, 3]

    def found(class_weight):
        options = SupervisedOptions(epochs=3, batch_size=8, learning_rate=0.003)
        classifier, _ = train_classifier(encoder(), rare, rare, options, class_weight=class_weight, progress=False)
        return classifier.predict(rare.texts).count("-")

    assert found(None) == found({"+": 1.0, "-": 1.0}) <= 3
    assert found({"-": 1000.0}) > 10


def model(tokenizer, name, **options) -> SentenceTransformer:
    torch.manual_seed(0)
    return SentenceTransformer(modules=[system(name)(tokenizer, 8, **options), Normalize()], device="cpu")


@pytest.mark.parametrize("name", ["contextualizer", "mean"])
def test_the_table_is_cut_to_the_texts_and_put_back(tokenizer, sentences, name):
    encoder = model(tokenizer, name)
    before, embeddings = encoder[0].embedding.weight.clone(), encoder.encode(sentences)
    used = np.unique(encoder[0].text_tokenizer(sentences[:2])[0])
    with compact_tables(encoder, sentences[:2]):
        assert encoder[0].embedding.weight.shape == (len(used), 8)
        assert encoder.encode(sentences[:2]) == pytest.approx(embeddings[:2], abs=1e-6)
        with torch.no_grad():
            encoder[0].embedding.weight += 1
    changed = (encoder[0].embedding.weight != before).any(1).nonzero().flatten().tolist()
    assert changed == used.tolist()
    torch.testing.assert_close(encoder[0].embedding.weight[used], before[used] + 1)
    assert encoder[0].text_tokenizer(sentences)[0].max() > len(used)


@pytest.mark.parametrize(
    ("name", "options", "texts"), [("contextualizer", {"initial_context": "uniform"}, ["the cat"]), ("mean", {}, [""])]
)
def test_a_context_drawn_by_ids_and_texts_without_a_token_keep_the_table(tokenizer, name, options, texts):
    encoder = model(tokenizer, name, **options)
    with compact_tables(encoder, texts):
        assert len(encoder[0].embedding.weight) == tokenizer.get_vocab_size()


def test_the_table_is_put_back_after_an_error(tokenizer, sentences):
    encoder = model(tokenizer, "mean")
    with pytest.raises(KeyboardInterrupt), compact_tables(encoder, sentences[:1]):
        raise KeyboardInterrupt
    assert len(encoder[0].embedding.weight) == tokenizer.get_vocab_size()
