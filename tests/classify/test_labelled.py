import numpy as np
import pytest

from ctx_embed.classify.labelled import Classes, Labelled, label_accuracy, require_labels
from tests.helpers.errors import error
from tests.training.toy import forty_texts


@pytest.fixture
def data() -> Labelled:
    return forty_texts()


def test_a_split_holds_each_label_in_proportion(data):
    train, valid = data.split(0.1, seed=0)
    assert sorted(valid.labels) == ["+", "+", "-", "-"]
    assert sorted(train.labels) == ["+"] * 18 + ["-"] * 18
    assert sorted([*train.texts, *valid.texts]) == sorted(data.texts)
    labels = dict(zip(data.texts, data.labels, strict=True))
    assert all(
        labels[text] == label for part in (train, valid) for label, text in zip(part.labels, part.texts, strict=True)
    )
    assert data.split(0.1, seed=0) == (train, valid)
    assert data.split(0.1, seed=1)[1] != valid


@pytest.mark.parametrize("labels", ["ab", "abcabc", "abbbbbbbbb", ""])
def test_too_few_rows_to_split(labels):
    rows = Labelled(list(labels), [f"text {number}" for number in range(len(labels))])
    hint = "the label 'a' occurs once, on the first line; " if labels.startswith("abb") else "give more texts or valid"
    said = f"{len(labels)} texts with {len(set(labels))} labels are too few to hold out 10% with every label; {hint}"
    assert error(rows.split, 0.1, 0).startswith(said)


def test_a_text_that_alone_has_its_label_is_trained_on():
    rows = Labelled(["a"] * 20 + ["b"] * 20 + ["rare"], [f"text {number}" for number in range(41)])
    train, valid = rows.split(0.1, seed=0)
    assert sorted(valid.labels) == ["a", "a", "b", "b"]
    assert train.labels.count("rare") == 1
    assert len(train.labels) == 37


def test_equal_texts_are_on_one_side():
    labels = np.random.default_rng(0).integers(0, 2, 400).tolist()
    rows = Labelled(labels * 2, [f"text {number}" for number in range(400)] * 2)
    train, valid = rows.split(0.1, seed=0)
    assert not set(train.texts) & set(valid.texts)
    assert (len(train.texts), len(valid.texts)) == (720, 80)


def test_labels_of_another_type_are_matched():
    rows = Labelled(["1", "0", "x"], ["a", "b", "c"]).matched([0, 1])
    assert rows.labels == [1, 0, "x"]
    assert rows.unknown([0, 1]) == "'x'"
    assert Labelled([("0", "2"), ()], ["a", "b"]).matched([0, 1, 2]).labels == [(0, 2), ()]


def test_columns_that_were_swapped_are_doubted():
    rows = Labelled(["a text", "another", "a third"], ["+", "-", "+"])
    assert rows.doubt() == "the label must come first (label<TAB>text); the columns may be swapped"
    assert Labelled(rows.texts, rows.labels).doubt() == ""


def test_several_labels():
    rows = Labelled([("b", "a"), (), ("b",)], ["x", "y", "z"])
    assert rows.multi_label
    assert rows.classes() == ["a", "b"]
    assert rows.targets(["a", "b"]).tolist() == [[1, 1], [0, 0], [0, 1]]
    train, valid = rows.split(0.4, seed=0)
    assert sorted([*train.texts, *valid.texts]) == ["x", "y", "z"]
    assert label_accuracy([("a",), (), ("a", "b")], rows) == pytest.approx((1 / 2 + 1 + 1 / 2) / 3)
    assert error(Labelled([(), ()], ["x", "y"]).classes) == "the training texts must have at least one label, got none"
    single = Labelled(["a", "b"], ["x", "y"])
    said = "the test texts and the training texts must both have one label each, or both several"
    assert error(single.require_labels_of, rows, "test") == said


def test_a_file(tmp_path):
    path = tmp_path / "rows.tsv"
    path.write_text("b,a\tx\n\ty\n b , b\tz\n")
    assert Labelled.read(path, several=True) == Labelled([("b", "a"), (), ("b",)], ["x", "y", "z"])
    path = tmp_path / "rows.jsonl"
    path.write_text('{"label": ["b", "a"], "text": "x"}\n{"label": [], "text": "y"}\n{"label": "b", "text": "z"}\n')
    assert Labelled.read(path, several=True) == Labelled([("b", "a"), (), ("b",)], ["x", "y", "z"])
    assert error(Labelled.read, path) == f"{path}, line 1: the label 'label' must be a string or a number, got a list"
    path.write_text('{"label": [0, 1], "text": "x"}\n{"label": [1, 0, 0], "text": "y"}\n')
    assert error(Labelled.read, path, several=True) == (
        f"{path}, line 2: 'label' must list the labels of the text, got 0 and 1 for each class; list those with a 1"
    )
    path.write_text('{"label": 1, "text": "x"}\n{"label": true, "text": "y"}\n')
    assert error(Labelled.read, path) == "labels must be of one type, got bool, int"


@pytest.mark.parametrize(
    ("classes", "label", "meant"),
    [
        ([0, 1], "1.0", 1),
        ([0, 1], 1.0, 1),
        ([0, 1], "01", None),
        ([0.0, 1.5], "1.5", 1.5),
        ([0.0, 1.5], 0, 0.0),
        ([False, True], "true", True),
        ([False, True], "1", True),
        (["0", "1"], 1.0, "1"),
        (["01", "1"], "01", "01"),
        (["1", "1.0"], 1.0, "1.0"),
        (["True", "False"], True, "True"),
        (["a", "b"], "c", None),
        ([1e300, 2.0], "1e+300", 1e300),
    ],
)
def test_a_label_means_the_class_that_is_spelled_alike(classes, label, meant):
    found = Classes(classes).meant(label)
    assert found == meant
    assert type(found) is type(meant)


def test_labels_are_of_one_type():
    for labels in (["a", "01"], [1, 2.5], [True, False], []):
        require_labels(labels)
    assert error(require_labels, [True, 1]) == "labels must be of one type, got bool, int"
    for label in (None, float("nan"), float("inf"), b"a", ("a",)):
        said = f"labels must be strings, finite numbers or booleans, got {label!r}"
        assert error(require_labels, ["a", label]) == said
