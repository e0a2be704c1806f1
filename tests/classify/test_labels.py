from __future__ import annotations

import pytest

from ctx_embed.classify.labels import Classes, first_labels, require_labels
from tests.helpers.errors import error


@pytest.mark.parametrize(
    ("classes", "label", "meant"),
    [
        ([0, 1], "1", 1),
        ([0, 1], "1.0", 1),
        ([0, 1], 1.0, 1),
        ([0, 1], True, 1),
        ([0, 1], "01", None),
        ([0.0, 1.5], "1.5", 1.5),
        ([0.0, 1.5], 0, 0.0),
        ([False, True], "true", True),
        ([False, True], "False", False),
        ([False, True], "1", True),
        ([False, True], 0, False),
        (["0", "1"], 1, "1"),
        (["0", "1"], 1.0, "1"),
        (["01", "1"], "01", "01"),
        (["1", "1.0"], 1.0, "1.0"),
        (["True", "False"], True, "True"),
        (["true", "false"], True, "true"),
        (["a", "b"], "c", None),
        ([1e300, 2.0], "1e+300", 1e300),
    ],
)
def test_a_label_means_the_class_that_is_spelled_alike(classes, label, meant):
    found = Classes(classes).meant(label)
    assert found == meant
    assert type(found) is type(meant)


def test_the_first_labels():
    assert first_labels([]) == ""
    assert first_labels(["a", "b"]) == "'a', 'b'"
    assert first_labels([1, 2, 3, 4, 5]) == "1, 2, 3, 4, 5"
    assert first_labels([1, 2, 3, 4, 5, 6]) == "1, 2, 3, 4, 5, ..."


def test_labels_are_of_one_type():
    for labels in (["a", "01"], [1, 2.5], [True, False], []):
        require_labels(labels)
    assert error(require_labels, [True, 1]) == "labels must be of one type, got bool, int"
    assert error(require_labels, ["1", 1]) == "labels must be of one type, got int, str"
    for label in (None, float("nan"), float("inf"), b"a", ("a",)):
        assert error(require_labels, ["a", label]) == (
            f"labels must be strings, finite numbers or booleans, got {label!r}"
        )
