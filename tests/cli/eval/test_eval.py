import json
import re
from pathlib import Path

import pytest

from ctx_embed.fingerprint import fingerprint
from tests.helpers.cli import Command

pytestmark = pytest.mark.usefixtures("default_model")
COMMAND = Command("eval run", only_error=False)
fails = COMMAND.fails

REMEDY = "name a folder that holds it with --data or CTX_EMBED_DATA"


@pytest.fixture
def reviews(here):
    path = here / "reviews.tsv"
    path.write_text("".join(f"joy\ta good film {i}\ngrief\train fell {i}\n" for i in range(15)))
    return path


def run(*arguments):
    return COMMAND.run(*arguments, "--no-cost")


def report() -> dict:
    return json.loads(Path("results/results.json").read_text())


def rows_of(stdout: str) -> list[list[str]]:
    return [re.split(r" {2,}", line) for line in stdout.splitlines() if re.match(r"\S.* {2,}\S", line)]


def test_one_table_for_all_encoders(reviews, tiny_model, tiny_model_path):
    result = run("--task", reviews, "--encoder", "default", "--encoder", tiny_model_path, "--encoder", "default")
    assert result.exit_code == 0, result.output
    assert rows_of(result.stdout) == [
        ["default", "100.0 ± 0.0"],
        [str(tiny_model_path), "100.0 ± 0.0"],
        ["majority class", "50.0"],
        [str(tiny_model_path), "+0.0 (p 1.000)"],
    ]
    assert result.stdout.splitlines()[-1].startswith("protocol standard (stratified 10-fold, ")
    assert [encoder["fingerprint"] for encoder in report()["encoders"]] == [fingerprint(tiny_model)] * 2
    assert [task["rows"] for task in report()["tasks"]] == [30]
    assert len(report()["results"][0]["score"]["folds"]) == 10


def test_compare(reviews):
    arguments = ("--task", reviews, "--encoder", "random", "--encoder", "default", "--protocol", "quick")
    assert run(*arguments).exit_code == 0
    compare = Command("eval compare")
    printed = compare.succeeds("results", "results/results.json", "--encoder", "random", "--encoder", "default")
    assert re.fullmatch(rf"{reviews}  \+\d+\.\d\d  \[\+\d+\.\d\d, \+\d+\.\d\d\]  p .*\(McNemar\)\n", printed)
    found = json.loads(compare.succeeds("results", "results", "--encoder", "default", "--json"))
    assert found[str(reviews)]["value"] == 0.0
    said = "the encoder must be one of the report's (random, default), got 'old'"
    assert compare.fails("results", "results", "--encoder", "old") == said
    assert compare.run("results", "results", *["--encoder", "random"] * 3).exit_code == 2


def test_a_system_says_that_it_is_not_trained_and_costs_stand_beside_the_scores(reviews):
    result = COMMAND.run(
        "--task", reviews, "--encoder", "random", "--encoder", "dan", "--protocol", "quick", "-o", "results"
    )
    assert result.exit_code == 0, result.output
    said = "dan is not trained: it has random weights over the default model's token table; train one with"
    assert [output.count(said) for output in (result.stdout, result.stderr)] == [1, 1]
    assert said in Path("results/results.md").read_text()
    assert [encoder["remark"][:18] for encoder in report()["encoders"]] == ["", "dan is not trained"]
    costs = [row for row in rows_of(result.stdout) if len(row) == 4]
    assert [(row[0], row[2] == "0") for row in costs] == [("random", True), ("dan", False)]
    assert report()["encoders"][0]["cost"]["texts"] == 30


def test_a_table_is_scored_as_the_same_lines_are(reviews, tmp_path):
    rows = [line.split("\t") for line in reviews.read_text().splitlines()]
    table = tmp_path / "reviews.csv"
    table.write_text("review,stars\n" + "".join(f'"{text}",{label}\n' for label, text in rows))
    fields = ["--field", "review", "--label-field", "stars"]
    (task,) = json.loads(run("--task", table, "--protocol", "quick", "--json", *fields).stdout)["tasks"]
    again = json.loads(run("--task", reviews, "--protocol", "quick", "--json").stdout)
    assert again["tasks"][0]["sha256"] == task["sha256"]


def test_an_absent_task_costs_a_line_and_the_exit_code(reviews, tmp_path):
    result = run("--task", "MR", "--task", reviews, "--data", tmp_path)
    assert result.exit_code == 1
    assert "100.0 ± 0.0" in result.stdout
    missing = f"MR: {tmp_path / 'senteval' / 'MR.tsv'} is missing; {REMEDY}"
    # A slow machine adds lines of progress.
    first, *_, last = result.stderr.splitlines()
    assert (first, last) == (missing, "Error: 1 of 2 scores are missing; see the lines above")
    assert f"{reviews}, default: 100.0\n" in result.stderr
    assert report()["failures"] == [missing]
    # An own file is named once.
    Path("broken.tsv").write_text("no label\n")
    assert run("--task", "broken.tsv").stderr.splitlines()[0].count("broken.tsv") == 1


def test_mistakes_are_found_before_the_work(tmp_path, reviews):
    for arguments, message in (
        (("-o", reviews), f"cannot write {reviews}: it must be a folder, got a file"),
        (("--protocol", "senteva"), "unknown protocol 'senteva': did you mean 'senteval'? known are paper, quick"),
        (("--data", tmp_path, "--json"), "4 of 4 scores are missing; see the lines above"),
    ):
        assert fails(*arguments).startswith(message)
    (tmp_path / "results" / "results.json").mkdir(parents=True)
    assert fails() == "cannot write results/results.json: the output must be a file, got a folder"


def test_a_suite_names_what_it_needs(tmp_path):
    result = run("--suite", "mteb", "--data", tmp_path)
    assert result.exit_code != 0
    assert re.search(rf"^MTEB-Banking77: .*{re.escape(REMEDY)}$", result.stderr, re.M)
    assert not re.search(r"^MR:", result.stderr, re.M)
