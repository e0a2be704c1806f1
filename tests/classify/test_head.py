import json
import os

import numpy as np
import pytest

from ctx_embed.classify.head import Head, Vocabulary, Words, class_weights
from ctx_embed.classify.labelled import Labelled
from tests.helpers.errors import error

RNG = np.random.default_rng(0)
TEXTS = [str(number) for number in range(200)]


def test_outputs():
    head = Head(np.array([[1.0, 0], [0, 1], [-1, -1]]), np.array([0.0, 0, 0.5]), ["a", "b", "c"])
    logits = head.logits(np.array([[2.0, 1], [-3, 0]]), ["", ""])
    assert logits.tolist() == [[2, 1, -2.5], [-3, 0, 3.5]]
    assert head.chosen(logits) == ["a", "c"]
    odds = np.exp([2, 1, -2.5])
    assert head.probabilities(logits)[0] == pytest.approx(odds / odds.sum())
    assert head.probabilities(np.array([[1e4, -1e4, 0]])).tolist() == [[1, 0, 0]]
    several = Head(head.weight, head.bias, head.labels, multi_label=True)
    assert several.chosen(logits) == [("a", "b"), ("b", "c")]
    assert several.probabilities(logits)[0] == pytest.approx(1 / (1 + np.exp([-2, -1, 2.5])))
    assert error(head.logits, np.full((1, 2), np.nan), [""]).startswith("the classifier's outputs are not finite; ")
    # A head over embeddings of length one.
    head = Head(np.array([[1.0, 0], [0, 1]]), np.zeros(2), ["a", "b"], normalized=True)
    assert head.logits(np.array([[3.0, 4], [0, 0]]), ["", ""]).tolist() == [[0.6, 0.8], [0, 0]]


def test_words_are_added_to_the_meaning():
    vocabulary = Vocabulary(["good", "very"], np.array([[1, 0]]))
    words = Words(vocabulary, np.float32([[1, -1], [0, 0.5], [2, 0]]))
    head = Head(np.eye(2), np.zeros(2), ["a", "b"], words=words)
    # "very good": 1 + 0 + 2 and -1 + 0.5 + 0, over sqrt(2 words * 2); "Good, good" has three words.
    found = head.logits(np.zeros((3, 2)), ["very good", "Good, good", "unknown"])
    assert found == pytest.approx(np.array([[3 / 2, -0.5 / 2], [2 / 6**0.5, -2 / 6**0.5], [0, 0]]))


def test_class_weights():
    rows = Labelled(["a", "a", "a", "b"], TEXTS[:4])
    labels = ["a", "b"]
    assert class_weights(None, rows, labels) is None
    assert class_weights("balanced", rows, labels).tolist() == [4 / 6, 2]
    assert class_weights({"b": 3}, rows, labels).tolist() == [1, 3]
    several = Labelled([("a",), ("a",), ("a", "b"), ()], TEXTS[:4])
    assert class_weights("balanced", several, labels).tolist() == [1 / 3, 3]
    message = "class_weight must be 'balanced', a dict of label: weight or None, got {}"
    assert error(class_weights, "even", rows, labels) == message.format("'even'")
    assert error(class_weights, [1, 2], rows, labels) == message.format("[1, 2]")
    assert error(class_weights, {"c": 1}, rows, labels) == "class_weight names 'c', but no training text has that label"
    for value in (0, float("nan"), float("inf"), "2"):
        message = f"the class weight of 'a' must be a finite number above 0, got {value!r}"
        assert error(class_weights, {"a": value}, rows, labels) == message


@pytest.mark.parametrize("labels", [["a", "01"], [3, 5], [0.5, 1.0], [False, True]])
def test_files(tmp_path, labels):
    weight = RNG.normal(size=(2, 3)).astype(np.float32)
    vocabulary = Vocabulary(["ähnlich", "\u2028", "!"], np.array([[0, 2]]))
    words = Words(vocabulary, RNG.normal(size=(4, 2)).astype(np.float16).astype(np.float32))
    head = Head(weight, np.float32([0, 1]), labels, True, True, words=words)
    head.save(tmp_path)
    loaded = Head.load(tmp_path)
    texts, X = ["ähnlich!", "nothing"], np.ones((2, 3), np.float32)
    assert np.array_equal(loaded.logits(X, texts), head.logits(X, texts))
    assert [(type(label), label) for label in loaded.labels] == [(type(label), label) for label in labels]
    assert (loaded.multi_label, loaded.normalized, loaded.indicators) == (True, True, False)
    (tmp_path / "classifier.json").write_text(json.dumps({"labels": ["-", "+"]}))
    assert error(Head.load, tmp_path).startswith(f"{tmp_path}: made by another development version; make it again")


def test_damaged_words(tmp_path):
    vocabulary = Vocabulary(["a", "b"], np.array([[0, 1]]))
    head = Head(np.zeros((2, 3)), np.zeros(2), ["a", "b"], words=Words(vocabulary, np.ones((3, 2))))
    head.save(tmp_path)
    for content, message in (
        ("a", f"{tmp_path}: the head cannot be loaded (ValueError: pairs of shape (1, 2) for 1 words)"),
        ("a\na", "words and pairs must differ"),
        ("a\nb\nc", "4 words for weights of shape (3, 2)"),
    ):
        (tmp_path / "words.txt").write_text(content)
        assert message in error(Head.load, tmp_path)
    (tmp_path / "words.txt").unlink()
    assert error(Head.load, tmp_path).startswith(f"{tmp_path}: the head cannot be loaded (FileNotFoundError")


def described(**changes) -> str:
    return json.dumps({"format": 1, "labels": ["a", "b"], **changes})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "JSONDecodeError: Expecting property name enclosed in double quotes"),
        ("[" * 100_000, "RecursionError: "),
        ("[]", "TypeError: "),
        (described(labels=["a", "b", "c"]), "ValueError: 3 labels for weights of shape (2, 3)"),
        (described(code="x"), "TypeError: "),
        (described(normalized="yes"), "ValueError: multi_label, normalized"),
        (described(labels="ab"), "ValueError: labels must be a list"),
        (described(labels=["a", "a"]), "ValueError: labels must differ"),
        (described(labels=["a", 1]), "labels must be of one type, got int, str"),
        (described(labels=[1, float("nan")]), "labels must be strings, finite numbers or booleans, got n"),
    ],
)
def test_a_damaged_description(tmp_path, content, message):
    Head(np.zeros((2, 3)), np.zeros(2), ["a", "b"]).save(tmp_path)
    (tmp_path / "classifier.json").write_text(content)
    line = error(Head.load, tmp_path)
    assert line.startswith(f"{tmp_path}: ")
    assert message in line
    assert "\n" not in line


def test_damaged_weights(tmp_path):
    for weight, bias, message in (
        (np.ones((3, 3)), np.ones(2), "2 labels for weights of shape (3, 3)"),
        (np.ones(2), np.ones(2), "2 labels for weights of shape (2,)"),
        (np.ones((2, 3)), np.full(2, np.nan), "weights must be finite"),
    ):
        Head(weight, bias, ["a", "b"]).save(tmp_path)
        assert error(Head.load, tmp_path).startswith(f"{tmp_path}: the head cannot be loaded (ValueError: {message}")


@pytest.mark.parametrize("name", ["classifier.json", "classifier.safetensors"])
def test_files_that_are_cut_pipes_or_not_there(tmp_path, name):
    Head(np.zeros((2, 3)), np.zeros(2), ["a", "b"]).save(tmp_path)
    os.truncate(tmp_path / name, 20)
    assert error(Head.load, tmp_path).startswith(f"{tmp_path}: the head cannot be loaded (")
    (tmp_path / name).unlink()
    assert error(Head.load, tmp_path).startswith(f"{tmp_path}: not a classifier (no {name}); make one with ")
    os.mkfifo(tmp_path / name)
    assert error(Head.load, tmp_path).startswith(f"{tmp_path}: not a classifier (no {name})")


FOODS = ["Very good!", "very good food", "good, not bad", "bad food", "bad food, very", "", "odd"]


def names(vocabulary: Vocabulary) -> list[str]:
    return [vocabulary.name(feature) for feature in range(len(vocabulary))]


def test_words_and_pairs_of_two_texts_by_frequency_and_first_occurrence():
    vocabulary = Vocabulary.learn(FOODS, 100)
    assert names(vocabulary) == ["very", "good", "food", "bad", ",", "very good", "bad food"]
    assert names(Vocabulary.learn(FOODS, 3)) == ["very", "good", "food"]
    # Pairs bring their words.
    part, features = vocabulary.part(np.array([6]))
    assert (names(part), features.tolist()) == (["food", "bad", "bad food"], [2, 3, 6])


@pytest.mark.parametrize("texts", [[], [""], ["a", "b"], ["a b"]])
def test_no_features(texts):
    vocabulary = Vocabulary.learn(texts, 100)
    assert len(vocabulary) == 0
    assert vocabulary.matrix(["a b c", ""]).shape == (2, 0)
    assert Words(vocabulary, np.zeros((0, 2))).logits(["a b c", ""]).tolist() == [[0, 0], [0, 0]]


def test_features_are_counted_once_for_each_occurrence():
    vocabulary = Vocabulary(["a", "b"], np.array([[0, 1], [1, 0]]))
    texts = ["a b a", "b", "a c b", "A\nB", "a" * 3]
    dense = vocabulary.matrix(texts).toarray()
    expected = [[2, 1, 1, 1], [0, 1, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [0, 0, 0, 0]]
    lengths = np.array([3, 1, 3, 2, 1])
    assert dense == pytest.approx(np.array(expected) / np.sqrt(2 * lengths)[:, None])
    weight = np.random.default_rng(0).normal(size=(4, 3))
    assert Words(vocabulary, weight).logits(texts) == pytest.approx(dense @ weight, abs=1e-6)


def test_a_text_has_the_same_sum_in_any_batch():
    vocabulary = Vocabulary.learn(FOODS, 100)
    weight = np.random.default_rng(0).normal(size=(len(vocabulary), 2))
    words = Words(vocabulary, weight)
    assert np.array_equal(words.logits(FOODS), np.concatenate([words.logits([text]) for text in FOODS]))
