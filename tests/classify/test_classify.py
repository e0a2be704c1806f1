import json
import os
import re
import tracemalloc
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
from scipy import special
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import classification_report, confusion_matrix
from sklearn.preprocessing import MultiLabelBinarizer

from ctx_embed import TextClassifier
from ctx_embed.classify import fitting, predictor as prediction
from ctx_embed.classify.fitting import INTERCEPT, Regression, fitted_head
from ctx_embed.classify.head import Head, Vocabulary, Words, class_weights
from ctx_embed.classify.labelled import Classes, Labelled, as_text, label_accuracy, report, require_labels
from ctx_embed.classify.predictor import Predictor, fitted_predictor
from ctx_embed.vectors import unit_rows
from tests.helpers.errors import error
from tests.training.toy import forty_texts

RNG = np.random.default_rng(0)
X = (RNG.normal(size=(200, 8)) * np.array([3, 3, 3, 3, 3, 3, 3, 0.001])).astype(np.float32)
NO_WORDS = [""] * 200


def accuracy(head: Head, X, data: Labelled) -> float:
    found = head.chosen(head.logits(X, data.texts))
    return float(np.mean([a == b for a, b in zip(found, data.labels, strict=True)]))


@pytest.mark.parametrize("size", [1, 200])
def test_losses_are_scipys_however_large_the_logits(size):
    logits, targets = (size * RNG.normal(size=(9, 3))).astype(np.float32), np.eye(3)[RNG.integers(3, size=9)]
    for loss_of, log_p, p, other in (
        (fitting.softmax_loss, special.log_softmax(logits, 1), special.softmax(logits, 1), 0),
        (fitting.sigmoid_loss, special.log_expit(logits), special.expit(logits), special.log_expit(-logits)),
    ):
        loss, residual = loss_of(logits, targets)
        assert loss == pytest.approx(-(targets * log_p + (1 - targets) * other).sum() / 9, rel=1e-5)
        assert residual == pytest.approx(p - targets, abs=1e-6)


@pytest.mark.parametrize("separately", [False, True])
@pytest.mark.parametrize("weights", [None, np.array([1.0, 3.0, 0.5])])
@pytest.mark.parametrize(("classes", "several"), [(2, False), (3, False), (3, True)])
def test_the_regression_is_scikit_learns(classes, several, weights, separately):
    wide = 1000 * X.astype(np.float64)
    noisy = X[:, :3] + np.random.default_rng(0).normal(size=(200, 3))
    y = (noisy > [0, 1, 2]).astype(np.float32) if several else np.digitize(noisy[:, 0], [0, 2][: classes - 1])
    weights = None if weights is None else weights[:classes]
    fit = Regression(wide, None, y, classes, weights, separately=separately)
    weight, of_words, bias = fit.weights(fit.coefficients(np.arange(200), 0.3, 0.0, effort=(1e-15, 1000)))
    assert of_words.shape == (0, classes)
    head = Head(weight.astype(np.float64), bias, [*range(classes)], several)
    found = head.probabilities(head.logits(wide, NO_WORDS))
    centred = wide - wide.mean(0)
    scaled = centred / (centred.std(0) if separately else np.sqrt(centred.var(0).mean()))
    # Scikit-learn's intercept gets the same prior by a feature whose weight is as free as ours.
    free = np.column_stack([scaled, np.full(200, INTERCEPT / 0.3)])
    of_class = None if weights is None else dict(enumerate(weights))
    for label, targets in enumerate(y.T if several else [y]):
        of_label = {1: of_class[label]} if several and of_class else of_class
        model = LogisticRegression(C=0.09, class_weight=of_label, fit_intercept=False, tol=1e-10, max_iter=10_000)
        expected = model.fit(free, targets).predict_proba(free)
        shares, expected = (found[:, label], expected[:, 1]) if several else (found, expected)
        assert shares == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_a_report_is_scikit_learns(several, seed):
    chosen, names, sides = np.random.default_rng(seed), [*"abcdef"], []
    for count in chosen.integers(2, 7, 2):
        # Some classes do not occur, and others are never predicted.
        drawn = chosen.integers(count, size=(12, 3 if several else 1))
        sides.append([tuple({names[n] for n in row}) if several else names[row[0]] for row in drawn])
    truth, found = sides
    met = [name for name in names if any(name in row for row in truth + found)]
    made = report(found, Labelled(truth, ["x"] * 12), names)
    given = map(MultiLabelBinarizer(classes=met).fit_transform, sides) if several else sides
    of_met = {"target_names": met} if several else {"labels": met}
    expected = classification_report(*given, output_dict=True, zero_division=0, **of_met)
    keys = {"precision": "precision", "recall": "recall", "f1": "f1-score", "texts": "support"}
    for row, name in zip(made["classes"], names, strict=True):
        of_class = expected.get(name, dict.fromkeys(keys.values(), 0))
        assert row == pytest.approx({"label": name, **{key: of_class[keys[key]] for key in keys}})
    for key in ("precision", "recall", "f1"):
        assert made[f"macro_{key}"] == pytest.approx(expected["macro avg"][keys[key]])
    if several:
        assert made["exact"] == np.mean([set(a) == set(b) for a, b in zip(truth, found, strict=True)])
    else:
        assert made["accuracy"] == pytest.approx(expected["accuracy"])
        assert made["confusion"] == confusion_matrix(truth, found, labels=names).tolist()


def test_of_many_classes_the_most_frequent_mistakes_are_shown():
    names = [f"class {number:02}" for number in range(30)]
    # Class n is taken for the class before it n times, and found once.
    rows = [(name, names[n - 1]) for n, name in enumerate(names) for _ in range(n)] + [(name, name) for name in names]
    truth, found = zip(*rows, strict=True)
    *_, mistakes = as_text(report(found, Labelled(truth, ["x"] * len(rows)), names)).split("\n\n")
    expected = [[f"class {n:02}", f"class {n - 1:02}", str(n)] for n in range(29, 9, -1)]
    assert [re.split(" {2,}", line) for line in mistakes.split("\n")[1:]] == expected


@pytest.mark.parametrize("several", [False, True])
def test_a_report_of_many_classes_takes_no_square_of_memory_and_a_fit_refuses_too_many(several):
    names = [f"class {number}" for number in range(5000)]
    truth, found = ([(name,) for name in of] if several else of for of in (names, names[::-1]))
    tracemalloc.start()
    as_text(report(found, Labelled(truth, names), names[:3]))
    assert tracemalloc.get_traced_memory()[1] < 20e6
    tracemalloc.stop()
    names = [f"class {number}" for number in range(10_001)]
    wrong = error(fitted_predictor, None, Labelled(names, names), None, True)
    assert wrong.startswith("texts times labels must be at most 100,000,000, got 100,020,001")


def test_words_with_a_larger_log_ratio_may_weigh_more():
    texts = [("good" if row % 2 else "bad") + (" the" if row % 3 else " it") + f" {row}" for row in range(200)]
    data = Labelled(["+" if row % 2 else "-" for row in range(200)], texts)
    head = fitted_head(X, data, ["+", "-"])
    weights = {head.words.vocabulary.name(feature): of[0] for feature, of in enumerate(head.words.weight)}
    assert weights["good"] > 0.2 > abs(weights.get("the", 0))
    assert weights["bad"] < -0.2
    assert accuracy(head, X, data) == 1
    alone = fitted_head(X, data, ["+", "-"], words=False)
    assert alone.words is None
    assert accuracy(alone, X, data) < 0.7
    # Words that say nothing are not read.
    data = Labelled([str(value) for value in X[:, 0] > 0], [f"word {row % 7} of many" for row in range(200)])
    assert fitted_head(X, data, ["False", "True"]).words is None
    # The faint feature is found where it is the one that tells.
    faint = Labelled([str(value) for value in unit_rows(X)[:, 7] > 0], NO_WORDS)
    texts = [str(row) for row in range(200)]
    assert accuracy(fitted_head(X, Labelled(faint.labels, texts), ["False", "True"]), X, faint) > 0.8


@pytest.mark.parametrize("rows", [200, 2500])
def test_every_fit_has_the_weights_of_the_classes_and_texts_in_any_order(monkeypatch, rows):
    """Texts that are sorted by label are as good as others, also where only some of them choose the deviations."""
    weights = np.array([1.0, 3.0])
    monkeypatch.setattr(fitting, "Regression", made := Mock(wraps=Regression))
    labels = [row < 0.84 * rows for row in range(rows)]
    data = Labelled(labels, [f"{'good' if label else 'bad'} {row}" for row, label in enumerate(labels)])
    X = np.random.default_rng(0).normal(size=(rows, 4)).astype(np.float32)
    head = fitted_head(X, data, [False, True], weights)
    assert [name in head.words.vocabulary.words for name in ("good", "bad")] == [True, True]
    assert made.call_count >= 3
    assert all(np.array_equal(call.args[4], weights) for call in made.call_args_list)
    assert head.neutral == pytest.approx(np.log((np.bincount(labels) * weights + 0.5) / (rows + 0.5)))


def test_probabilities_are_calibrated():
    rng = np.random.default_rng(1)
    Y = rng.normal(size=(6000, 8)).astype(np.float32)
    truth = rng.random(6000) < 1 / (1 + np.exp(-3 * unit_rows(Y)[:, 0]))
    texts = [str(row) for row in range(6000)]
    head = fitted_head(Y[:1000], Labelled(truth[:1000].tolist(), texts[:1000]), [False, True])
    found = head.probabilities(head.logits(Y[1000:], texts[1000:]))[:, 1]
    for low in (0.1, 0.3, 0.5, 0.7):
        inside = (found >= low) & (found < low + 0.2)
        assert truth[1000:][inside].mean() == pytest.approx(found[inside].mean(), abs=0.06)


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("several", [False, True])
def test_few_texts_are_never_sure(classes, several):
    """All held-out texts are right, which of ten texts a class says that about one in twelve is wrong."""
    # One text a class is enough.
    data = Labelled([*range(20 * classes)], [f"text {row}" for row in range(20 * classes)])
    rows = np.eye(20 * classes, dtype=np.float32)
    assert accuracy(fitted_head(rows, data, data.labels), rows, data) == 1
    rng = np.random.default_rng(2)
    y = np.arange(10 * classes) % classes
    rows = (np.eye(classes, 20)[y] + 0.05 * rng.normal(size=(len(y), 20))).astype(np.float32)
    texts = [str(row) for row in range(len(y))]
    labels = [(row,) if several else row for row in y.tolist()]
    head = fitted_head(rows, Labelled(labels, texts), list(range(classes)))
    found = head.probabilities(head.logits(rows, texts))
    assert (found.argmax(1) == y).all()
    assert 0.8 < found.max(1).mean() < 0.96


def test_few_texts_do_not_choose_a_small_weight_of_the_meaning():
    """Eight held-out texts may all be wrong by chance, which must not make the classifier say nothing."""
    rng = np.random.default_rng(0)
    y = np.arange(8) % 2
    for _ in range(6):
        rows = (rng.normal(size=(8, 30)) + np.outer(2 * y - 1, np.eye(30)[0])).astype(np.float32)
        head = fitted_head(rows, Labelled(y.tolist(), [*"abcdefgh"]), [0, 1])
        assert np.ptp(head.logits(rows, [*"abcdefgh"])[:, 1]) > 0.2


def test_equal_texts_do_not_choose_the_strength():
    """Four copies of texts with random labels: what memorises them must not look good on held-out texts."""
    labels = RNG.integers(0, 2, 100).tolist() * 4
    texts = [f"word{row} and word{row}x" for row in range(100)] * 4
    rows = np.tile(RNG.normal(size=(100, 30)).astype(np.float32), (4, 1))
    head = fitted_head(rows, Labelled(labels, texts), [0, 1])
    assert head.probabilities(head.logits(rows, texts)).max(1).mean() < 0.8


def test_outputs():
    head = Head(np.array([[1.0, 0], [0, 1], [-1, -1]]), np.array([0.0, 0, 0.5]), ["a", "b", "c"])
    logits = head.logits(np.array([[2.0, 1], [-3, 0]]), ["", ""])
    assert (logits.tolist(), head.chosen(logits)) == ([[2, 1, -2.5], [-3, 0, 3.5]], ["a", "c"])
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


def test_class_weights():
    rows, labels = Labelled(["a", "a", "a", "b"], [*"wxyz"]), ["a", "b"]
    assert class_weights(None, rows, labels) is None
    assert class_weights("balanced", rows, labels).tolist() == [4 / 6, 2]
    assert class_weights({"b": 3}, rows, labels).tolist() == [1, 3]
    several = Labelled([("a",), ("a",), ("a", "b"), ()], [*"wxyz"])
    assert class_weights("balanced", several, labels).tolist() == [1 / 3, 3]
    message = "class_weight must be 'balanced', a dict of label: weight or None, got [1, 2]"
    assert error(class_weights, [1, 2], rows, labels) == message
    assert error(class_weights, {"c": 1}, rows, labels) == "class_weight names 'c', but no training text has that label"
    for value in (0, float("nan"), float("inf"), "2"):
        message = f"the class weight of 'a' must be a finite number above 0, got {value!r}"
        assert error(class_weights, {"a": value}, rows, labels) == message


@pytest.mark.parametrize("labels", [["a", "01"], [3, 5], [0.5, 1.0], [False, True]])
def test_files(tmp_path, labels):
    weight = RNG.normal(size=(2, 3)).astype(np.float32)
    vocabulary = Vocabulary(["ähnlich", "\u2028", "!"], np.array([[0, 2]]))
    words = Words(vocabulary, RNG.normal(size=(4, 2)).astype(np.float16).astype(np.float32))
    head = Head(weight, np.float32([0, 1]), labels, True, True, words=words, neutral=np.float32([2, 3]))
    head.save(tmp_path)
    loaded = Head.load(tmp_path)
    texts, X = ["ähnlich!", "nothing"], np.float32([[1, 1, 1], [0, 0, 0]])
    assert head.logits(X, texts)[1].tolist() == [2, 3]
    assert np.array_equal(loaded.logits(X, texts), head.logits(X, texts))
    assert [(type(label), label) for label in loaded.labels] == [(type(label), label) for label in labels]
    assert (loaded.multi_label, loaded.normalized, loaded.indicators) == (True, True, False)
    of_columns = replace(head, labels=[1, 3]).for_indicators(4, 9)
    never = pytest.approx(np.log(0.5 / 9.5))
    assert ([*of_columns.bias], [*of_columns.neutral]) == ([never, 0, never, 1], [never, 2, never, 3])
    assert of_columns.logits(X, texts)[:, [1, 3]].tolist() == head.logits(X, texts).tolist()


def test_damaged_files(tmp_path):
    words = Words(Vocabulary(["a", "b"], np.array([[0, 1]])), np.ones((3, 2)))
    head = Head(np.zeros((2, 3)), np.zeros(2), ["a", "b"], words=words)
    for changes, message in (
        ({"weight": np.ones((3, 3))}, "2 labels for weights of shape (3, 3)"),
        ({"weight": np.ones(2)}, "2 labels for weights of shape (2,)"),
        ({"bias": np.full(2, np.nan)}, "weights must be finite"),
        ({"labels": "ab"}, "labels must be a list"),
        ({"labels": ["a", "b", "c"]}, "3 labels for weights of shape (2, 3)"),
        ({"labels": ["a", "a"]}, "labels must differ"),
        ({"params": [1]}, "params must be an object"),
    ):
        replace(head, **changes).save(tmp_path)
        assert error(Head.load, tmp_path) == f"{tmp_path}: the head cannot be loaded (ValueError: {message})"
    described = {"format": 1, "labels": ["a", "b"]}
    for name, content, message in (
        ("words.txt", "a", "the head cannot be loaded (ValueError: pairs of shape (1, 2) for 1 words)"),
        ("words.txt", "a\na", "the head cannot be loaded (ValueError: words and pairs must differ"),
        ("words.txt", "a\nb\nc", "the head cannot be loaded (ValueError: 4 words for weights of shape (3, 2)"),
        ("words.txt", None, "the head cannot be loaded (FileNotFoundError"),
        ("classifier.json", "[" * 100_000, "the head cannot be loaded (RecursionError: "),
        ("classifier.json", "[]", "the head cannot be loaded (TypeError: "),
        ("classifier.json", "{\n", "the head cannot be loaded (JSONDecodeError: "),
        ("classifier.json", described | {"format": None}, "made by another development version; make it again"),
        ("classifier.json", described | {"normalized": "yes"}, "the head cannot be loaded (ValueError: multi_label, n"),
        ("classifier.json", described | {"labels": ["a", 1]}, "labels must be of one type, got int, str"),
        ("classifier.json", None, "not a classifier (no classifier.json); make one with "),
        ("classifier.safetensors", "cut", "the head cannot be loaded (SafetensorError: "),
        ("classifier.safetensors", None, "not a classifier (no classifier.safetensors); make one with "),
    ):
        head.save(tmp_path)
        (tmp_path / name).unlink()
        if content is not None:
            (tmp_path / name).write_text(content if isinstance(content, str) else json.dumps(content))
        said = error(Head.load, tmp_path)
        assert said.startswith(f"{tmp_path}: {message}")
        assert "\n" not in said
    os.mkfifo(tmp_path / name)
    assert error(Head.load, tmp_path).startswith(f"{tmp_path}: not a classifier (no {name})")


def test_words_and_pairs_of_two_texts_by_frequency_and_first_occurrence():
    def names(vocabulary):
        return [vocabulary.name(feature) for feature in range(len(vocabulary))]

    foods = ["Very good!", "very good food", "good, not bad", "bad food", "bad food, very", "", "odd"]
    vocabulary = Vocabulary.learn(foods, 100)
    assert names(vocabulary) == ["very", "good", "food", "bad", ",", "very good", "bad food"]
    assert names(Vocabulary.learn(foods, 3)) == ["very", "good", "food"]
    # Pairs bring their words.
    part, features = vocabulary.part(np.array([6]))
    assert (names(part), features.tolist()) == (["food", "bad", "bad food"], [2, 3, 6])
    for texts in ([], ["a", "b"], ["a b"]):
        vocabulary = Vocabulary.learn(texts, 100)
        assert (len(vocabulary), vocabulary.matrix(["a b c", ""]).shape) == (0, (2, 0))
        assert Words(vocabulary, np.zeros((0, 2))).logits(["a b c", ""]).tolist() == [[0, 0], [0, 0]]


def test_features_are_counted_once_for_each_occurrence():
    vocabulary = Vocabulary(["a", "b"], np.array([[0, 1], [1, 0]]))
    texts = ["a b a", "b", "a c b", "A\nB", "a" * 3]
    dense = vocabulary.matrix(texts).toarray()
    expected = [[2, 1, 1, 1], [0, 1, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [0, 0, 0, 0]]
    lengths = np.array([3, 1, 3, 2, 1])
    assert dense == pytest.approx(np.array(expected) / np.sqrt(2 * lengths)[:, None])
    weight = RNG.normal(size=(4, 3))
    words = Words(vocabulary, weight)
    assert words.logits(texts) == pytest.approx(dense @ weight, abs=1e-6)
    # A text has the same sum in any batch.
    assert np.array_equal(words.logits(texts), np.concatenate([words.logits([text]) for text in texts]))


@pytest.mark.parametrize("multi_label", [False, True])
def test_the_parts_add_up_to_the_logit(multi_label, monkeypatch):
    """Here the meaning is the number of characters and of spaces."""
    lengths = SimpleNamespace(raw=lambda texts: np.float32([[len(text), text.count(" ")] for text in texts]))
    words = Words(Vocabulary(["good", "film"], np.array([[0, 1]])), np.float32([[2, 0, 0], [0.5, 0, 0], [1, -1, 0]]))
    weight, bias = np.float32([[0.5, 0], [0, 0.25], [0, -9]]), np.float32([1, 0, 0])
    predictor = Predictor(lengths, Head(weight, bias, ["a", "b", "c"], multi_label, words=words))
    text = "good,good     FILM"
    found, *_ = predictor.explain(text)
    logits = predictor.logits([text])[0]
    assert found.label == "a"
    assert found.logit == pytest.approx(logits[0] - (0 if multi_label else logits.mean()), rel=1e-5)
    assert found.logit == pytest.approx(found.bias + found.meaning + sum(part for _, part in found.words), rel=1e-5)
    parts = dict(found.words)
    assert list(parts) == ["good", "good film", "film"]
    if multi_label:
        # Four words: 2 good, 1 film, and one pair, each over sqrt(2 * 4).
        assert (parts["good"], found.meaning) == (pytest.approx(4 / 8**0.5), 0.5 * len(text))
        # "good , good film" has 16 characters; a word goes wherever it is spelled alike, and its space, too.
        assert dict(found.of_meaning) == {"good": 5.0, "film": 2.5, ",": 1.0}
        # As many words are left out as are shown.
        monkeypatch.setattr(prediction, "MOST_WORDS", 3)
        found, *_ = predictor.explain("one two three four")
        assert [word for word, _ in found.of_meaning] == ["three", "one", "two"]


def test_without_words():
    texts = ["good food", "lovely staff", "cold soup", "rude waiter"]
    classifier = TextClassifier(words=False).fit(texts, ["good", "good", "bad", "bad"])
    ((found,),) = classifier.explain("rude staff, rude")
    assert found.words == []
    assert found.logit == pytest.approx(found.bias + found.meaning, abs=1e-6)
    assert {word for word, _ in found.of_meaning} <= {"rude", "staff", ","}
    ((nothing,),) = classifier.explain([""])
    assert (nothing.words, nothing.of_meaning) == ([], [])
    assert classifier.explain([]) == []


def test_a_split_holds_each_label_in_proportion_and_equal_texts_on_one_side():
    data = forty_texts()
    train, valid = data.split(0.1, seed=0)
    assert (sorted(valid.labels), sorted(train.labels)) == (["+", "+", "-", "-"], ["+"] * 18 + ["-"] * 18)
    found = zip(train.texts + valid.texts, train.labels + valid.labels, strict=True)
    assert sorted(found) == sorted(zip(data.texts, data.labels, strict=True))
    assert data.split(0.1, seed=0) == (train, valid)
    assert data.split(0.1, seed=1)[1] != valid
    # A text that alone has its label is trained on.
    texts = [f"text {number}" for number in range(400)]
    train, valid = Labelled(["a"] * 20 + ["b"] * 20 + ["rare"], texts[:41]).split(0.1, seed=0)
    assert (sorted(valid.labels), len(train.labels)) == (["a", "a", "b", "b"], 37)
    labels = np.random.default_rng(0).integers(0, 2, 400).tolist()
    train, valid = Labelled(labels * 2, texts * 2).split(0.1, seed=0)
    assert not set(train.texts) & set(valid.texts)
    assert (len(train.texts), len(valid.texts)) == (720, 80)
    hint, more = "the label 'a' occurs once, on the first line; ", "give more texts or valid"
    for labels, counts, said in (("abcabc", "6 texts with 3", more), ("abbbbbbbbb", "10 texts with 2", hint)):
        said = f"{counts} labels are too few to hold out 10% with every label; {said}"
        assert error(Labelled(labels, texts[: len(labels)]).split, 0.1, 0).startswith(said)


def test_labels_of_another_type_are_matched_and_swapped_columns_doubted():
    rows = Labelled(["1", "0", "x"], ["a", "b", "c"]).matched([0, 1])
    assert (rows.labels, rows.unknown([0, 1])) == ([1, 0, "x"], "'x'")
    assert Labelled([("0", "2"), ()], ["a", "b"]).matched([0, 1, 2]).labels == [(0, 2), ()]
    rows = Labelled(["a text", "another", "a third"], ["+", "-", "+"])
    assert rows.doubt() == "the label must come first (label<TAB>text); the columns may be swapped"
    assert Labelled(rows.texts, rows.labels).doubt() == ""
    for classes, label, meant in (
        *(([0, 1], "1.0", 1), ([0, 1], 1.0, 1), ([0, 1], "01", None), ([0.0, 1.5], "1.5", 1.5), ([0.0, 1.5], 0, 0.0)),
        *(([False, True], "true", True), ([False, True], "1", True), (["0", "1"], 1.0, "1"), (["01", "1"], "01", "01")),
        *((["1", "1.0"], 1.0, "1.0"), (["True", "False"], True, "True"), (["a", "b"], "c", None)),
        ([1e300, 2.0], "1e+300", 1e300),
    ):
        assert repr(Classes(classes).meant(label)) == repr(meant)


def test_several_labels_and_their_files(tmp_path):
    rows = Labelled([("b", "a"), (), ("b",)], ["x", "y", "z"])
    assert rows.multi_label
    assert (rows.classes(), rows.targets(["a", "b"]).tolist()) == (["a", "b"], [[1, 1], [0, 0], [0, 1]])
    train, valid = rows.split(0.4, seed=0)
    assert sorted([*train.texts, *valid.texts]) == ["x", "y", "z"]
    assert label_accuracy([("a",), (), ("a", "b")], rows) == pytest.approx((1 / 2 + 1 + 1 / 2) / 3)
    assert error(Labelled([(), ()], ["x", "y"]).classes) == "the training texts must have at least one label, got none"
    single = Labelled(["a", "b"], ["x", "y"])
    said = "the test texts and the training texts must both have one label each, or both several"
    assert error(single.require_labels_of, rows, "test") == said
    lines = '{"label": ["b", "a"], "text": "x"}\n{"label": [], "text": "y"}\n{"label": "b", "text": "z"}\n'
    for name, content in (("rows.tsv", "b,a\tx\n\ty\n b , b\tz\n"), ("rows.jsonl", lines)):
        path = tmp_path / name
        path.write_text(content)
        assert Labelled.read(path, several=True) == Labelled([("b", "a"), (), ("b",)], ["x", "y", "z"])
    assert error(Labelled.read, path) == f"{path}, line 1: the label 'label' must be a string or a number, got a list"
    path.write_text('{"label": [0, 1], "text": "x"}\n{"label": [1, 0, 0], "text": "y"}\n')
    assert error(Labelled.read, path, several=True) == (
        f"{path}, line 2: 'label' must list the labels of the text, got 0 and 1 for each class; list those with a 1"
    )
    path.write_text('{"label": 1, "text": "x"}\n{"label": true, "text": "y"}\n')
    assert error(Labelled.read, path) == "labels must be of one type, got bool, int"


def test_labels_are_of_one_type_that_files_keep():
    for labels in (["a", "01"], [1, 2.5], [True, False], [], ["a" * 1000]):
        require_labels(labels)
    assert "at most 1,000 characters" in error(require_labels, ["b", "a" * 1001])
    for label in (None, float("nan"), float("inf"), b"a", ("a",)):
        said = f"labels must be strings, finite numbers or booleans, got {label!r}"
        assert error(require_labels, ["a", label]) == said
