from __future__ import annotations

import json
import re

import pytest
from click.testing import CliRunner

from ctx_embed import loading
from ctx_embed.cli.main import main
from ctx_embed.fingerprint import fingerprint

REMEDY = "name a folder that holds it with --data or CTX_EMBED_DATA"


@pytest.fixture(autouse=True)
def _default_model(tiny_model, monkeypatch):
    """The tiny model takes the place of the one that ships; no data but those a test names."""
    load = loading.load
    monkeypatch.setattr(loading, "load", lambda path=None: tiny_model if path is None else load(path))
    monkeypatch.delenv("CTX_EMBED_DATA", raising=False)


@pytest.fixture
def reviews(tmp_path):
    path = tmp_path / "reviews.tsv"
    path.write_text(
        "".join(
            f"{label}\t{text} {i}\n"
            for i in range(15)
            for label, text in (("joy", "a good film"), ("grief", "rain fell"))
        )
    )
    return path


def run(*arguments):
    return CliRunner().invoke(main, ["eval", "run", *map(str, arguments)])


def fails(message: str, *arguments) -> None:
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.splitlines()[-1] == f"Error: {message}"


def test_one_table_for_all_encoders_and_a_json_file(reviews, tiny_model, tiny_model_path, tmp_path):
    out = tmp_path / "out.json"
    result = run(
        "--task", reviews, "--encoder", "default", "--encoder", tiny_model_path, "--encoder", "default", "--json", out
    )
    assert result.exit_code == 0, result.output
    rows = [re.split(r"\s*│\s*", line)[1:-1] for line in result.stdout.splitlines() if line.startswith("│")]
    assert rows == [["default", "100.0 ± 0.0"], [str(tiny_model_path), "100.0 ± 0.0"], ["majority class", "50.0"]]
    assert result.stdout.splitlines()[-1] == "protocol standard, seed 0"
    report = json.loads(out.read_text())
    assert [encoder["fingerprint"] for encoder in report["encoders"]] == [fingerprint(tiny_model)] * 2
    assert [task["rows"] for task in report["tasks"]] == [30]
    assert len(report["results"][0]["folds"]) == 10


def test_the_seed_repeats(reviews, tmp_path):
    reports = []
    for seed in (1, 1, 2):
        assert run("--task", reviews, "--seed", seed, "--json", tmp_path / "out.json").exit_code == 0
        reports.append((tmp_path / "out.json").read_text())
    assert reports[0] == reports[1] != reports[2]


def test_an_absent_task_costs_a_line_and_the_exit_code(reviews, tmp_path):
    result = run("--task", "MR", "--task", reviews, "--data", tmp_path, "--json", tmp_path / "out.json")
    assert result.exit_code == 1
    assert "100.0 ± 0.0" in result.stdout
    missing = f"MR: {tmp_path / 'senteval' / 'MR.tsv'} is missing; {REMEDY}"
    assert result.stderr.splitlines() == [missing, "Error: 1 of 2 scores are missing, see the lines above"]
    assert json.loads((tmp_path / "out.json").read_text())["failures"] == [missing]


def test_nothing_to_show_for_it(tmp_path):
    fails("4 of 4 scores are missing, see the lines above", "--data", tmp_path, "--json", tmp_path / "out.json")
    assert list(tmp_path.iterdir()) == []


def test_an_unreachable_hub():
    result = run("--task", "MR")
    assert result.exit_code == 1
    told, _ = result.stderr.splitlines()
    assert told.startswith("MR: cornell-movie-review-data/rotten_tomatoes could not be had from the hub (")
    assert told.endswith(f"; {REMEDY}")


def test_mistakes_are_found_before_the_work(tmp_path, reviews):
    fails("nowhere: no such data folder, --data or CTX_EMBED_DATA names it", "--data", "nowhere")
    absent = tmp_path / "absent" / "out.json"
    fails(f"cannot write {absent}: the folder {absent.parent} does not exist, create it first", "--json", absent)
    fails(f"cannot write {tmp_path}: it is a folder, a file is needed", "--json", tmp_path)
    fails("nowhere.tsv: no such file", "--task", "nowhere.tsv")
    fails(
        "unknown encoder 'defalt': did you mean 'default'? known are default, or the folder of a SentenceTransformer",
        "--encoder",
        "defalt",
    )
    fails(
        "unknown task 'MRR': did you mean 'MR'? known are CR, MPQA, MR, STS12, STS13, STS14, STS15, STSB, STSB-dev, "
        "SUBJ, or the path of a label<TAB>text file",
        "--task",
        "MRR",
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no rows, lines of label<TAB>text are needed"),
        (b"joy\tgood\n" * 20, "all 20 rows are of the class 'joy', a probe needs two classes or more"),
        (
            b"joy\tgood\n" * 20 + b"grief\tbad\n" * 3,
            "the class 'grief' has 3 rows, 10-fold cross-validation needs 10 or more of each class",
        ),
    ],
)
def test_unusable_files(content, message, tmp_path):
    path = tmp_path / "mine.tsv"
    path.write_bytes(content)
    result = run("--task", path)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.splitlines()[-2:] == [
        f"{path}: {message}",
        "Error: 1 of 1 scores are missing, see the lines above",
    ]


def test_usage():
    assert run("--seed", "-1").exit_code == 2
    for arguments in (["eval", "--help"], ["eval", "run", "--help"]):
        assert "Example: ctx-embed eval run" in CliRunner().invoke(main, arguments).stdout
