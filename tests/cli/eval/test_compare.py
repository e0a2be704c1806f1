from __future__ import annotations

import json
import re

import pytest

from tests.helpers.cli import Command

call = Command("eval").run


def result(encoder: str, shift: int) -> list[dict]:
    right = "1" * (30 + shift) + "0" * (20 - shift)
    cosines = [i / 10 if i % 7 else shift / 40 for i in range(1, 30)]
    probe = {"folds": [1.0, 2.0], "Cs": [1.0, 1.0], "floor": 50.0, "right": right, "seeds": 1}
    similarity = {"subsets": {"STSB_test": 70.0}, "cosines": {"STSB_test": cosines}}
    common = {"encoder": encoder, "interval": [1.0, 2.0]}
    return [
        {**common, "task": "MR", "mean": 2.0 * (30 + shift), "std": 1.0, "score": probe},
        {**common, "task": "STSB", "mean": 70.0 + shift, "score": similarity},
    ]


@pytest.fixture
def folders(tmp_path):
    """Two folders of results; the second is better by 10 of 50 rows."""
    common = {"metric": "", "source": "data", "rows": 50, "rows_by_subset": {"x": 50}, "sha256": "ab" * 32}
    common |= {"published": {}, "without": None}
    gold = {"STSB_test": list(range(1, 30))}
    report = {
        "format_version": 1,
        "protocol": "standard",
        "protocol_title": "ten folds",
        "seeds": [0],
        "folds": None,
        "versions": {"python": "3"},
        "published_sources": {},
        "failures": [],
        "tasks": [
            {"name": "MR", "kind": "probe", "gold": {}, **common},
            {"name": "STSB", "kind": "similarity", "gold": gold, **common},
        ],
    }
    for name, encoders in (("before", {"old": 0, "older": -5}), ("after", {"new": 10})):
        report["encoders"] = [{"name": encoder, "fingerprint": None, "cost": None} for encoder in encoders]
        report["results"] = [row for encoder, shift in encoders.items() for row in result(encoder, shift)]
        (tmp_path / name).mkdir()
        (tmp_path / name / "results.json").write_text(json.dumps(report))
    return tmp_path / "before", tmp_path / "after"


def test_compare(folders):
    before, after = folders
    found = call("compare", before, after / "results.json")
    assert found.exit_code == 0, found.output
    first, second = found.stdout.splitlines()
    # Ten rows gained and none lost.
    assert first == "MR    +20.00  [+8.91, +31.09]  p 0.002 (McNemar)"
    assert re.fullmatch(r"STSB +[+-]\d+\.\d\d  \[[+-]\d+\.\d\d, [+-]\d+\.\d\d\]  p .*\(permutation\)", second)


def test_compare_names_encoders_and_prints_json(folders):
    before, after = folders
    found = call("compare", before, after, "--encoder", "older", "--encoder", "new", "--json")
    assert json.loads(found.stdout)["MR"]["value"] == pytest.approx(30.0)
    found = call("compare", before, before, "--encoder", "older", "--json")
    assert json.loads(found.stdout)["MR"]["value"] == 0.0
    found = call("compare", before, after, "--encoder", "old")
    assert found.stderr == "Error: the encoder must be one of the report's (new), got 'old'\n"
    assert call("compare", before, after, *["--encoder", "old"] * 3).exit_code == 2


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("results", 0, "score", "right"), "10"),
        (("results", 1, "score", "cosines"), {}),
        (("tasks", 0, "name"), ["MR"]),
        (("encoders",), [3]),
    ],
)
def test_damaged_results_are_one_line(folders, place, value):
    before, after = folders
    file = before / "results.json"
    report = json.loads(file.read_text())
    holder = report
    for key in place[:-1]:
        holder = holder[key]
    holder[place[-1]] = value
    file.write_text(json.dumps(report))
    found = call("compare", before, after)
    assert isinstance(found.exception, SystemExit)
    assert (found.exit_code, found.stderr.count("\n")) == (1, 1)
    assert call("compare", after, after).exit_code == 0
