from __future__ import annotations

import copy
import re

import pytest

from ctx_embed.errors import InputError
from ctx_embed.eval.results import compare, difference
from ctx_embed.eval.scoring.probes import ProbeScore
from ctx_embed.eval.scoring.ranking import RetrievalScore, SimilarityScore


def test_the_second_less_the_first_of_every_shared_task(report):
    differences = compare(report, report, ("drawn", "a|b [v2]"))
    versus = {r["task"]: r["versus"] for r in report["results"] if "versus" in r}
    assert list(differences) == ["MR", "R8", "STS13", "adi"]
    for task, found in differences.items():
        assert (found.value, found.p, list(found.interval)) == (
            pytest.approx(versus[task]["value"]),
            versus[task]["p"],
            versus[task]["interval"],
        )
    assert [found.test for found in differences.values()] == ["McNemar", "McNemar", "permutation", "permutation"]
    same = compare(report, report)
    assert all((found.value, found.p) == (0.0, 1.0) for found in same.values())


def test_other_data_are_not_compared(report):
    other = copy.deepcopy(report)
    for task in other["tasks"][1:]:
        task["sha256"] = "0" * 64
    assert list(compare(report, other)) == ["MR"]
    other["tasks"][0]["sha256"] = "0" * 64
    message = "the two reports must share a task on the same data, got none; there is nothing to compare"
    with pytest.raises(InputError, match=f"^{message}$"):
        compare(report, other)


def test_other_protocols_seeds_or_folds_are_said(report):
    other = {**report, "protocol": "another", "seeds": [0, 1], "folds": 3}
    message = "measured differently (protocol quick and another; seeds [0] and [0, 1]; folds its own and 3)"
    with pytest.warns(UserWarning, match=re.escape(message)):
        compare(report, other)
    # Cosines know no protocol.
    of_cosines = [task for task in report["tasks"] if task["kind"] != "probe"]
    results = [result for result in report["results"] if result["task"] in {task["name"] for task in of_cosines}]
    compare(report, {**other, "tasks": of_cosines, "results": results})


def test_no_such_encoder(report):
    message = "the encoder must be one of the report's (drawn, a|b [v2]), got 'minilm'"
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        compare(report, report, ("minilm", None))


def test_several_seeds_are_compared_by_rows():
    first, second = (ProbeScore((50.0,), (1.0,), 50.0, right, 2) for right in ("2210", "1100"))
    found = difference(first, second, {})
    assert (found.value, found.test) == (pytest.approx(100 * (0.5 + 0.5 + 0.5 + 0) / 4), "permutation")


@pytest.mark.parametrize(
    ("score", "other"),
    [
        (ProbeScore((50.0,), (1.0,), 50.0, "11"), ProbeScore((50.0,), (1.0,), 50.0, "1")),
        (ProbeScore((50.0,), (1.0,), 50.0), ProbeScore((50.0,), (1.0,), 50.0)),
        (SimilarityScore({"a": 1.0}, {"a": (0.1,)}), SimilarityScore({"b": 1.0}, {"b": (0.1,)})),
        (RetrievalScore((1.0,), (1.0,), (1.0,)), SimilarityScore({"b": 1.0}, {"b": (0.1,)})),
    ],
)
def test_scores_of_other_rows(score, other):
    with pytest.raises(InputError, match=r"^the two scores must cover the same rows, got different ones$"):
        difference(score, other, {})
