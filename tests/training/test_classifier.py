import inspect
import json
import pickle
import shutil
from enum import Enum, IntEnum
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from scipy.sparse import csr_array
from sentence_transformers import SentenceTransformer
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_score

from ctx_embed import TextClassifier, load, path
from ctx_embed.classify.head import Head
from ctx_embed.runtime import Embedder
from ctx_embed.systems import untrained
from ctx_embed.training.options import SupervisedOptions
from ctx_embed.training.supervised.job import train
from tests.conftest import make_model
from tests.helpers.errors import error

# Good and bad reviews in turn, as many as words need to be read.
ROWS = [line.split("\t") for line in Path("docs/samples/reviews.tsv").read_text(encoding="utf-8").splitlines()[:40]]
LABELS, TEXTS = map(list, zip(*ROWS, strict=True))
NEW = ["delicious and friendly", "dirty and rude", "a lovely story", "a boring waste of time"]
TRUE = ["good", "bad", "good", "bad"]


@pytest.fixture(scope="module")
def classifier() -> TextClassifier:
    return TextClassifier().fit(TEXTS, LABELS)


def test_twenty_texts_a_class(classifier):
    assert classifier.predict(NEW).tolist() == TRUE
    assert classifier.score(NEW, TRUE) == 1
    assert classifier.score(NEW, ["good"] * 4, [3, 1, 3, 1]) == 0.75
    probabilities = classifier.predict_proba(NEW)
    assert probabilities.sum(1) == pytest.approx(np.ones(4))
    assert classifier.classes_[probabilities.argmax(1)].tolist() == TRUE
    decision = classifier.decision_function(NEW)
    assert probabilities[:, 1] == pytest.approx(1 / (1 + np.exp(-decision)), abs=1e-6)
    # A single text gets a single label.
    assert classifier.predict(NEW[1]) == "bad"
    assert classifier.predict_proba(NEW[1]) == pytest.approx(probabilities[1], abs=1e-6)
    assert classifier.decision_function(NEW[1]) == pytest.approx(decision[1], abs=1e-5)
    assert classifier.predict_proba([]).shape == (0, 2)
    assert set(classifier.predict(["", " ", "\ud800"])) <= {"good", "bad"}


@pytest.mark.filterwarnings("ignore::ctx_embed.errors.UnknownTextsWarning")
@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize("options", [{}, {"epochs": 1, "runs": 2}])
def test_a_text_that_cannot_be_read_gets_the_shares_of_the_classes(tokenizer, tmp_path, options, normalized):
    model = make_model(tokenizer)
    if not normalized:
        model = type(model)(modules=[model[0]], device="cpu")
    texts = ["the cat sat", "a dog ran", "the dog sat", "a cat ran"] * 10
    fitted = TextClassifier(model, **options).fit(texts, ["no", "yes", "no", "no"] * 10)
    fitted.save(tmp_path / "saved")
    for classifier in (fitted, *(TextClassifier.load(tmp_path / "saved", device) for device in (None, "cpu"))):
        found = classifier.predict_proba(["東京", ""])
        ((why,),) = classifier.explain("東京")
        assert found == pytest.approx(np.array([[0.75, 0.25]] * 2), abs=0.01)
        assert (why.label, why.meaning, why.logit) == ("no", 0, why.bias)


@pytest.mark.parametrize("weight", [None, "balanced"])
@pytest.mark.parametrize(("good", "bad"), [(2, 2), (1, 1), (1, 3), (4, 4)])
def test_few_texts_are_never_sure_with_any_weights(weight, good, bad):
    """Whatever is sure of a text with so few of them is wrong too often: they are 60 % right."""
    chosen = [*TEXTS[: 2 * good : 2], *TEXTS[1 : 2 * bad : 2]]
    found = TextClassifier(class_weight=weight).fit(chosen, ["good"] * good + ["bad"] * bad).predict_proba(TEXTS)
    assert found.max() < 0.95
    assert found.max(1).mean() < 0.8


@pytest.mark.parametrize(
    ("texts", "labels", "message"),
    [
        (["a", 3], ["x", "y"], "text 1 must be a string, got an int"),
        (["a", "b"], "ab", "y must be a list of labels, got a str"),
        (["a", "b"], ["x"], "X and y must be of equal length, got 2 texts and 1 labels"),
        (["a", "b"], ["x", ["y"]], "y must hold one label for each text, or a list of labels for each, got both"),
        (["a", "b"], np.array([[1, 2], [0, 1]]), "y of shape (texts, classes) must hold 0 and 1 only"),
        (TEXTS, [[1, 0, 0], [0, 1, 1]] * 20, "y of 0 and 1 for each class must be an array, got [1, 0, 0]; give numpy"),
    ],
)
def test_texts_and_labels_that_cannot_be_used(texts, labels, message):
    assert error(TextClassifier().fit, texts, labels).startswith(message)


def test_calls_that_cannot_be(classifier):
    assert error(classifier.predict, [None]) == "text 0 must be a string, got None"
    assert "or a SentenceTransformer, got an int" in error(TextClassifier(5).fit, TEXTS, LABELS)
    said = error(TextClassifier(frozen=True, epochs=2).fit, ["a", "b"], ["x", "y"])
    assert said.startswith("epochs cannot be given with frozen=True, which does not train the encoder")
    for frozen in (None, True):
        said = error(TextClassifier(frozen=frozen).fit, TEXTS, LABELS, valid=42)
        assert said == "valid chooses the epoch of a trained encoder; leave it out, or give frozen=False"
    said = error(TextClassifier(frozen=False).fit, TEXTS, LABELS, valid=(["a nice place"], ["no such label"]))
    assert said == "the validation texts have labels that the training texts lack: 'no such label'"
    assert error(classifier.score, NEW, np.eye(4)) == "y must hold one label for each text, as in fit"
    assert error(classifier.score, NEW, TRUE, [1, 2]).startswith("sample_weight must hold a number for each of 4 texts")
    assert error(classifier.score, [], []) == "score needs at least one text"
    unfitted = TextClassifier()
    for ask in (unfitted.predict, unfitted.explain, lambda texts: unfitted.score(texts, ["x"]), unfitted.save):
        with pytest.raises(NotFittedError, match="is not fitted yet"):
            ask(["a"])


def test_parameters_and_clones(tiny_model):
    other = TextClassifier(class_weight="balanced", random_state=3)
    assert clone(other.set_params(epochs=2)).get_params() == other.get_params()
    assert repr(other) == "TextClassifier(class_weight='balanced', epochs=2, random_state=3)"
    # Help names types.
    for method in (TextClassifier.fit, TextClassifier.predict, TextClassifier.score):
        assert "Any" not in str(inspect.signature(method)).replace("NDArray[Any]", "")
    # A given model is neither changed nor copied by a clone.
    before = tiny_model.encode(["a good film"])
    given = TextClassifier(tiny_model, frozen=False, epochs=1)
    assert clone(given).model is tiny_model
    given.fit(TEXTS, LABELS)
    assert np.array_equal(tiny_model.encode(["a good film"]), before)
    assert not np.array_equal(given.predictor_.encoder.backend.encode(["a good film"]), before)


@pytest.mark.filterwarnings("ignore::ctx_embed.errors.UnknownTextsWarning")
def test_several_labels():
    food = {"soup", "bread", "pizza"}
    labels = [[label] + ["food"] * bool(food & set(text.split())) for text, label in zip(TEXTS, LABELS, strict=True)]
    classifier = TextClassifier().fit(TEXTS, labels)
    assert classifier.multi_label_
    assert classifier.classes_.tolist() == ["bad", "food", "good"]
    assert [set(found) for found in classifier.predict(TEXTS)] == [set(of_text) for of_text in labels]
    assert classifier.score(TEXTS, labels) == 1
    assert classifier.decision_function(NEW).shape == classifier.predict_proba(NEW).shape == (4, 3)
    assert isinstance(classifier.predict("delicious soup"), tuple)
    assert error(classifier.score, TEXTS, LABELS) == "y must hold lists of labels, as in fit"
    # A text that cannot be read has the share of each label.
    shares = [0.5, sum("food" in of_text for of_text in labels) / 40, 0.5]
    assert classifier.predict_proba("東京") == pytest.approx(shares, abs=0.02)
    balanced = TextClassifier(class_weight="balanced").fit(TEXTS, labels).predict_proba("東京")
    assert balanced == pytest.approx([0.5] * 3)


@pytest.mark.filterwarnings("ignore::ctx_embed.errors.UnknownTextsWarning")
def test_indicators(tmp_path):
    y = np.array([[0, label == "good", len(text) > 25] for text, label in zip(TEXTS, LABELS, strict=True)]).astype(int)
    classifier = TextClassifier(words=False).fit(TEXTS, y)
    assert classifier.predict(NEW)[:, 1].tolist() == [1, 0, 1, 0]
    assert classifier.predict_proba("東京") == pytest.approx(y.mean(0), abs=0.02)
    assert error(classifier.score, TEXTS, y[:, :1].repeat(4, 1)) == "y must have 3 columns, as in fit, got 4"
    sparse = clone(classifier).fit(TEXTS, csr_array(y))
    assert sparse.score(TEXTS, csr_array(y)) == classifier.score(TEXTS, y)
    assert cross_val_score(classifier, TEXTS, y, cv=2).shape == (2,)
    classifier.save(tmp_path / "model")
    assert np.array_equal(TextClassifier.load(tmp_path / "model").predict(NEW), classifier.predict(NEW))


@pytest.mark.parametrize(
    "params",
    [
        {"words": False, "class_weight": "balanced", "random_state": 7},
        {"class_weight": {"good": 2.0, "bad": np.float32(0.5)}, "valid_share": 0.25, "verbose": True, "frozen": True},
    ],
)
def test_save_and_load(tmp_path, params):
    made = TextClassifier(**params).fit(TEXTS, LABELS)
    made.save(tmp_path / "model")
    # The encoder sums in another order once it has seen many words, so the last bit may differ.
    expected = pytest.approx(made.predict_proba(NEW), abs=1e-6)
    loaded = TextClassifier.load(tmp_path / "model")
    assert loaded.predict_proba(NEW) == expected
    assert loaded.classes_.tolist() == made.classes_.tolist()
    assert loaded.get_params() == clone(loaded).get_params() == made.get_params()
    assert load(tmp_path / "model").encode(NEW) == pytest.approx(load().encode(NEW), abs=1e-6)
    made.save(tmp_path / "model")  # a model is replaced
    (tmp_path / "other" / "file").mkdir(parents=True)
    assert str(tmp_path / "other") in error(made.save, tmp_path / "other")
    # A pickle holds no more than it must: the shipped model by its name.
    content = pickle.dumps(made)
    assert len(content) < 20_000
    assert pickle.loads(content).predict_proba(NEW) == expected
    stored = sum(path.stat().st_size for path in (tmp_path / "model").rglob("*") if path.is_file())
    content = pickle.dumps(loaded)
    assert len(content) < 1.01 * stored
    shutil.rmtree(tmp_path / "model")
    assert pickle.loads(content).predict_proba(NEW) == expected
    assert loaded.fit(TEXTS, LABELS).predict_proba(NEW) == expected


@pytest.mark.parametrize("device", [None, "cpu"])
def test_a_loaded_classifier_is_whole_when_another_is_in_its_folder(tiny_model_path, tmp_path, device):
    classifier = TextClassifier(tiny_model_path).fit(TEXTS, LABELS)
    classifier.save(tmp_path / "model")
    loaded = TextClassifier.load(tmp_path / "model", device)
    known = loaded.predictor_.encoder.fingerprint
    shutil.rmtree(tmp_path / "model")
    shutil.copytree(path(), tmp_path / "model")
    loaded.save(tmp_path / "copy")
    load(tmp_path / "copy")
    for one in (loaded, pickle.loads(pickle.dumps(loaded)), TextClassifier.load(tmp_path / "copy")):
        assert one.predict_proba(NEW) == pytest.approx(classifier.predict_proba(NEW), abs=1e-5)
        assert one.predictor_.encoder.fingerprint == known == classifier.predictor_.encoder.fingerprint
        assert [each["module"] for each in one.predictor_.encoder.modules()] == ["Contextualizer", "Normalize"]


def test_a_trained_encoder(tiny_model_path, tmp_path):
    options = {"frozen": False, "epochs": 2, "runs": 2, "batch_size": 8}
    classifier = TextClassifier(tiny_model_path, **options).fit(TEXTS, LABELS, valid=(NEW, TRUE))
    assert [(entry["run"], entry["epoch"]) for entry in classifier.history_] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    classifier.save(tmp_path / "model")
    assert "\n# model\n" in (tmp_path / "model" / "README.md").read_text()
    loaded = TextClassifier.load(tmp_path / "model")
    assert isinstance(loaded.predictor_.encoder.backend, Embedder)
    on_torch = TextClassifier.load(tmp_path / "model", device="cpu")
    assert isinstance(on_torch.predictor_.encoder.backend, SentenceTransformer)
    for other in (loaded, on_torch, pickle.loads(pickle.dumps(classifier))):
        assert other.predict_proba(NEW) == pytest.approx(classifier.predict_proba(NEW), abs=1e-4)
    again = TextClassifier(tiny_model_path, **options).fit(TEXTS, LABELS, valid=(NEW, TRUE))
    assert np.array_equal(again.predict_proba(NEW), classifier.predict_proba(NEW))


# Only the first of the encoders is read without torch.
@pytest.mark.parametrize(("name", "backend"), [("contextualizer", Embedder), ("mean", SentenceTransformer)])
def test_a_truncated_model_with_prompts_is_read_whole_and_without_them(tokenizer, tmp_path, name, backend):
    model = untrained(name, tokenizer, 16)
    model.prompts, model.default_prompt_name, model.truncate_dim = {"q": "the garden "}, "q", 4
    classifier = TextClassifier(model, frozen=True).fit(TEXTS, LABELS)
    assert classifier.predictor_.head.weight.shape == (2, 16)
    classifier.save(tmp_path / "model")
    loaded = TextClassifier.load(tmp_path / "model")
    assert isinstance(loaded.predictor_.encoder.backend, backend)
    for one in (loaded, pickle.loads(pickle.dumps(loaded))):
        assert one.predict_proba(TEXTS) == pytest.approx(classifier.predict_proba(TEXTS), abs=1e-5)


def test_a_folder_without_a_head(tiny_model_path, tmp_path):
    message = f"{tiny_model_path}: not a classifier (no classifier.safetensors); make one with ctx-embed train"
    assert error(TextClassifier.load, tiny_model_path) == message
    TextClassifier(tiny_model_path).fit(TEXTS, LABELS).save(tmp_path / "model")
    Head(np.ones((2, 7)), np.ones(2), ["a", "b"]).save(tmp_path / "model")
    message = f"{tmp_path / 'model'}: the head reads 7 dimensions, but the encoder has 16; make the classifier again"
    assert error(TextClassifier.load, tmp_path / "model").startswith(message)


@pytest.mark.parametrize("kind", [np.array, pl.Series, pa.array, iter, lambda rows: pd.Series(rows, index=rows[::-1])])
def test_texts_and_labels_of_any_library(classifier, kind):
    other = TextClassifier().fit(kind(TEXTS), kind(LABELS))
    assert other.classes_.tolist() == ["bad", "good"]
    assert other.predict(kind(NEW)).tolist() == classifier.predict(NEW).tolist()
    assert other.score(kind(NEW), kind(TRUE)) == classifier.score(NEW, TRUE)


def test_tables_and_labels_of_other_types():
    table = pd.DataFrame({"text": TEXTS, "label": LABELS})
    classifier = TextClassifier(words=False)
    assert classifier.fit(table["text"], table[["label"]]).predict(NEW).tolist() == TRUE
    flags = classifier.fit(TEXTS, pa.array([label == "good" for label in LABELS]))
    assert flags.predict(NEW).tolist() == [True, False, True, False]
    assert classifier.fit(TEXTS, pd.get_dummies(table["label"])).predict(NEW).shape == (4, 2)


@pytest.mark.parametrize(
    "labels",
    [
        *(np.array([2**63 + 5, 2**63 + 6], np.uint64), [2**63, 17], [2**70, -1], [2**63, 2**63 + 1]),
        *(["x", "x\0"], ["", "\0"], np.array([True, False]), np.array([0.5, 2], np.float32)),
        pd.Series(["1", "01"], dtype="category"),
    ],
    ids=repr,
)
def test_labels_keep_their_type_and_value(tmp_path, tiny_model_path, labels):
    given = [label.item() if hasattr(label, "item") else label for label in labels]
    y = list(labels) * 4
    classifier = TextClassifier(tiny_model_path, words=False).fit(TEXTS[:8], y)
    classifier.save(tmp_path / "model")
    for one in (classifier, TextClassifier.load(tmp_path / "model")):
        found = one.classes_.tolist()
        assert sorted(given) == found
        assert {type(label) for label in found} == {type(label) for label in given}
        predicted = one.predict(TEXTS[:8])
        assert set(predicted.tolist()) <= set(given)
        assert one.score(TEXTS[:8], y) == np.mean([a == b for a, b in zip(predicted.tolist(), given * 4, strict=True)])


@pytest.mark.parametrize(
    ("label", "remedy"),
    [
        (Enum("Topic", {"FOOD": "food"}, type=str).FOOD, "; give its value, 'food'"),
        (IntEnum("Stars", "FIVE").FIVE, "; give its value, 1"),
        (type("Name", (str,), {})("food"), " of the class Name; give str(label)"),
        *((label, "") for label in (np.datetime64("2024-01-02", "ns"), pd.Timestamp("2024-01-02"))),
    ],
)
def test_labels_that_could_not_be_kept_are_refused(label, remedy):
    message = f"labels must be strings, finite numbers or booleans, got {label!r}{remedy}"
    assert error(TextClassifier().fit, ["a text", "another"], [label, label]) == message


def test_a_command_s_classifier_has_its_arguments_and_a_floor(tmp_path, tiny_model_path):
    pd.DataFrame({"text": TEXTS, "label": LABELS}).to_csv(tmp_path / "train.csv", index=False)
    train(tmp_path / "train.csv", tmp_path / "model", words=False, class_weight={"good": 3.0})
    params = TextClassifier.load(tmp_path / "model").get_params()
    assert params == TextClassifier(words=False, class_weight={"good": 3.0}).get_params()
    chosen = {"epochs": 1, "batch_size": 9, "learning_rate": 0.01, "token_dropout": 0.1, "runs": 1}
    options = SupervisedOptions(**chosen, seed=7, valid_share=0.3)
    valid, out = tmp_path / "valid.tsv", tmp_path / "tuned"
    valid.write_text("good\tred\nbad\tblue\nbad\tgreen\nbad\tgrey\n")
    train(tmp_path / "train.csv", out, options, start=str(tiny_model_path), valid=str(valid))
    expected = TextClassifier(str(tiny_model_path), frozen=False, **chosen, random_state=7, valid_share=0.3)
    assert TextClassifier.load(out).get_params() == expected.get_params()
    # The floor is that of the most frequent training label; of two, the first.
    result = json.loads((out / "training.json").read_text())["result"]
    assert result["valid_floor"] == 0.25
    row = f"| valid | 4 | {100 * result['valid_accuracy']:.1f} | 25.0 |"
    assert row in (out / "README.md").read_text()
