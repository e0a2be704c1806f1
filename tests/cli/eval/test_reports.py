from __future__ import annotations

import json
import re

import pytest
from click.testing import CliRunner

from ctx_embed.cli.main import main
from ctx_embed.errors import installation

TASKS = {"MR": "probe", "STSB": "similarity"}


def result(encoder: str, shift: int) -> list[dict]:
    right = "1" * (30 + shift) + "0" * (20 - shift)
    cosines = [i / 10 if i % 7 else shift / 40 for i in range(1, 30)]
    return [
        {
            "encoder": encoder,
            "task": "MR",
            "mean": 2.0 * (30 + shift),
            "std": 1.0,
            "interval": [1.0, 2.0],
            "score": {"folds": [1.0, 2.0], "Cs": [1.0, 1.0], "floor": 50.0, "right": right, "seeds": 1},
        },
        {
            "encoder": encoder,
            "task": "STSB",
            "mean": 70.0 + shift,
            "interval": [1.0, 2.0],
            "score": {"subsets": {"STSB_test": 70.0}, "cosines": {"STSB_test": cosines}},
        },
    ]


@pytest.fixture
def folders(tmp_path):
    """Two folders of results; the second is better by 10 of 50 rows."""
    for name, encoders in (("before", {"old": 0, "older": -5}), ("after", {"new": 10})):
        tasks = [
            {
                "name": task,
                "kind": kind,
                "metric": "",
                "source": "data",
                "rows": 50,
                "rows_by_subset": {"x": 50},
                "sha256": "ab" * 32,
                "published": {},
                "gold": {"STSB_test": list(range(1, 30))} if kind == "similarity" else {},
                "without": None,
            }
            for task, kind in TASKS.items()
        ]
        report = {
            "format_version": 2,
            "protocol": "standard",
            "protocol_title": "ten folds",
            "seeds": [0],
            "folds": None,
            "versions": {"python": "3"},
            "encoders": [{"name": encoder, "fingerprint": None, "cost": None} for encoder in encoders],
            "tasks": tasks,
            "published_sources": {},
            "results": [row for encoder, shift in encoders.items() for row in result(encoder, shift)],
            "curves": [],
            "failures": [],
        }
        (tmp_path / name).mkdir()
        (tmp_path / name / "results.json").write_text(json.dumps(report))
    return tmp_path / "before", tmp_path / "after"


def call(*arguments):
    return CliRunner().invoke(main, ["eval", *map(str, arguments)])


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


def test_compare_without_results(tmp_path):
    found = call("compare", tmp_path / "a.json", tmp_path / "b.json")
    assert found.exit_code == 1
    assert found.stderr.startswith(f"Error: {tmp_path / 'a.json'}: cannot be read (No such file or directory)")


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("results", 0, "score"), None),
        (("results", 0, "score", "right"), "10"),
        (("results", 0, "task"), "unknown"),
        (("results", 1, "mean"), "high"),
        (("results", 1, "score", "cosines"), {}),
        (("tasks",), 3),
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
    found = [call("compare", before, after), call("report", before)]
    assert any(result.exit_code for result in found)
    for result in found:
        assert result.exception is None or isinstance(result.exception, SystemExit)
        assert result.stderr.count("\n") == result.exit_code
    assert call("compare", after, after).exit_code == 0


def test_half_a_character_is_written_as_a_question_mark(folders):
    before, _ = folders
    file = before / "results.json"
    file.write_text(file.read_text().replace('"ten folds"', '"\\ud800 folds"'))
    assert call("report", before).exit_code == 0
    assert "? folds" in (before / "report.html").read_text()


def test_results_of_deep_json_are_one_line(folders):
    before, after = folders
    (before / "results.json").write_text('{"format_version": ' + "[" * 100_000)
    found = call("compare", before, after)
    assert (found.exit_code, found.stderr.count("\n")) == (1, 1)
    assert "results.json: not JSON (" in found.stderr


def test_report_builds_one_page(folders, tmp_path):
    pytest.importorskip("matplotlib")
    before, _ = folders
    assert call("report", before).stdout == f"{before / 'report.html'}\n"
    page = (before / "report.html").read_text()
    assert page.startswith("<!DOCTYPE html>")
    assert "<td>older</td>" in page
    assert "<svg" in page
    found = call("report", before, "-o", tmp_path / "page.html")
    assert found.exit_code == 0
    assert (tmp_path / "page.html").read_text() == page


def test_report_without_results(tmp_path):
    found = call("report", tmp_path)
    assert found.exit_code == 1
    assert "eval run -o DIR writes such a file" in found.stderr
    assert list(tmp_path.iterdir()) == []


def test_report_without_the_extra_for_plots(folders, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    found = call("report", folders[0])
    assert found.exit_code == 0
    assert found.stderr == f"a plot needs the extra plots: {installation('plots')}\n"
    assert "<svg" not in (folders[0] / "report.html").read_text()


def test_usage():
    for command in ("compare", "report"):
        assert f"Example: ctx-embed eval {command}" in call(command, "--help").stdout
