from __future__ import annotations

import json

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from ctx_embed.classify.head import PROBE_C, Head, class_weights, fitted_head, logistic
from ctx_embed.classify.labelled import Labelled
from ctx_embed.vectors import unit_rows
from tests.helpers.errors import error

RNG = np.random.default_rng(0)
X = RNG.normal(size=(200, 8)) * np.array([3, 3, 3, 3, 3, 3, 3, 0.001])
TEXTS = [str(number) for number in range(200)]


def test_outputs():
    head = Head(np.array([[1.0, 0], [0, 1], [-1, -1]]), np.array([0.0, 0, 0.5]), ["a", "b", "c"])
    logits = head.logits(np.array([[2.0, 1], [-3, 0]]))
    assert logits.tolist() == [[2, 1, -2.5], [-3, 0, 3.5]]
    assert head.chosen(logits) == ["a", "c"]
    odds = np.exp([2, 1, -2.5])
    assert head.probabilities(logits)[0] == pytest.approx(odds / odds.sum())
    assert head.probabilities(np.array([[1e4, -1e4, 0]])).tolist() == [[1, 0, 0]]
    several = Head(head.weight, head.bias, head.labels, multi_label=True)
    assert several.chosen(logits) == [("a", "b"), ("b", "c")]
    assert several.probabilities(logits)[0] == pytest.approx(1 / (1 + np.exp([-2, -1, 2.5])))
    assert error(head.logits, np.full((1, 2), np.nan)) == (
        "the classifier's outputs are not finite; train it with a lower learning rate"
    )


def test_a_head_over_embeddings_of_length_one():
    head = Head(np.array([[1.0, 0], [0, 1]]), np.zeros(2), ["a", "b"], normalized=True)
    assert head.logits(np.array([[3.0, 4], [0, 0]])).tolist() == [[0.6, 0.8], [0, 0]]


def test_the_faint_feature_is_found_where_it_is_the_one_that_tells():
    faint = Labelled([str(value) for value in unit_rows(X)[:, 7] > 0], TEXTS)
    head = fitted_head(X, faint, ["False", "True"])
    found = head.chosen(head.logits(X))
    assert np.mean([a == b for a, b in zip(found, faint.labels, strict=True)]) > 0.8
    # Not at the price of what the large features tell: these are scaled together.
    large = Labelled([str(value) for value in unit_rows(X)[:, 0] > 0], TEXTS)
    deviations = unit_rows(X).std(0)
    weight, bias = logistic(
        unit_rows(X), large.targets(["False", "True"]), np.full(8, np.sqrt((deviations**2).mean())), None
    )
    head = fitted_head(X, large, ["False", "True"])
    assert head.weight == pytest.approx(weight, abs=1e-5)
    assert head.bias == pytest.approx(bias, abs=1e-5)


@pytest.mark.parametrize("weights", [None, [1.0, 3.0]])
def test_the_logistic_regression_is_scikit_learns(weights):
    y = (X[:, 0] > 1).astype(np.int64)
    weight, bias = logistic(X, y, np.ones(8), None if weights is None else np.array(weights))
    Z = X - X.mean(0)
    expected = LogisticRegression(C=PROBE_C, class_weight=weights and dict(enumerate(weights)), max_iter=1000).fit(Z, y)
    logits = X @ weight.T + bias
    assert logits[:, 1] - logits[:, 0] == pytest.approx(expected.decision_function(Z), abs=1e-6)
    several = np.stack([y, np.ones(200, np.int64), np.zeros(200, np.int64)], 1)
    weight, bias = logistic(X, several, np.ones(8), None if weights is None else np.array([weights[1], 1, 1]))
    logits = X @ weight.T + bias
    assert logits[:, 0] == pytest.approx(expected.decision_function(Z), abs=1e-6)
    assert logits[:, 1] == pytest.approx(np.full(200, np.log(200.5 / 0.5)))
    assert logits[:, 2] == pytest.approx(np.full(200, np.log(0.5 / 200.5)))


def test_one_text_a_class_is_enough():
    head = fitted_head(X[:2], Labelled(["a", "b"], TEXTS[:2]), ["a", "b"])
    assert head.chosen(head.logits(X[:2])) == ["a", "b"]
    head = fitted_head(X[:1], Labelled([("a", "b")], TEXTS[:1]), ["a", "b"])
    assert head.chosen(head.logits(X[:1])) == [("a", "b")]


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


def test_files(tmp_path):
    head = Head(np.float32(RNG.normal(size=(2, 3))), np.float32([0, 1]), [3, 5], multi_label=True, normalized=True)
    head.save(tmp_path)
    loaded = Head.load(tmp_path)
    assert {name: np.asarray(value).tolist() for name, value in vars(loaded).items()} == {
        name: np.asarray(value).tolist() for name, value in vars(head).items()
    }
    # What was written before there were several labels.
    (tmp_path / "classifier.json").write_text(json.dumps({"labels": ["-", "+"]}))
    assert (Head.load(tmp_path).multi_label, Head.load(tmp_path).normalized) == (False, False)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("classifier.json", "{", "JSONDecodeError: Expecting property name enclosed in double quotes"),
        ("classifier.json", "{}", "TypeError: "),
        ("classifier.json", "[]", "TypeError: "),
        ("classifier.json", '{"labels": ["a", "b", "c"]}', "ValueError: 3 labels for weights of shape (2, 3)"),
        ("classifier.safetensors", "garbage", "SafetensorError: "),
    ],
)
def test_damaged_files(tmp_path, name, content, message):
    Head(np.zeros((2, 3)), np.zeros(2), ["a", "b"]).save(tmp_path)
    (tmp_path / name).write_text(content)
    line = error(Head.load, tmp_path)
    assert line.startswith(f"{tmp_path}: the head cannot be loaded ({message}")
    assert "\n" not in line
    (tmp_path / name).unlink()
    assert error(Head.load, tmp_path).startswith(f"{tmp_path}: ")
