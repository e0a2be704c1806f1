"""`demo`, `eval`, `explain`, `systems` and `vocab`."""

import gzip
import json
import os
import re
import sys
import tempfile
import time
from pathlib import Path

import pytest
from tokenizers import Tokenizer

import ctx_embed
from ctx_embed import progress
from ctx_embed.cli import demo
from ctx_embed.explanations import nearest
from ctx_embed.fingerprint import fingerprint
from ctx_embed.systems import SYSTEMS
from tests.helpers.cli import Command, file

DEMO = Command("demo")
EXPLAIN = Command("explain", only_error=False)
VOCAB = Command("vocab")
EVAL = Command("eval run", only_error=False)

DOCSTRINGS = {
    "garden.cat": "A dog barked at the cat\nin the garden.\n\nMore of it.",
    "city.train": "The train to the city was late again.",
    "film": "A dull film without one good idea. " * 9,
    "city.prices": "Prices in the city rise faster than wages.",
}


def test_queries_are_answered(monkeypatch, default_model, tmp_path):
    monkeypatch.setattr(sys.modules["ctx_embed.cli.demo"], "standard_library_docstrings", lambda: dict(DOCSTRINGS))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    result = DEMO.run("--query", DOCSTRINGS["city.train"], "--query", "dull film", "-k", "2")
    assert (result.exit_code, result.stderr) == (0, "")
    count, *answers = result.stdout.split("\n\n")
    assert count.startswith("4 docstrings indexed in ")
    assert count.endswith(f" s; {demo.RANKED}")
    first, second = (answer.splitlines() for answer in answers)
    assert first[0] == DOCSTRINGS["city.train"]
    assert first[1].endswith("  city.train: The train to the city was late again.")
    assert second[0] == "dull film"
    assert len(first) == len(second) == 3
    assert list(tmp_path.iterdir()) == []
    # The sample queries, and a line for each hit.
    shown = DEMO.succeeds("-k", "9")
    assert shown.count("\n") == 1 + len(demo.QUERIES) * (2 + len(DOCSTRINGS))
    assert {*demo.QUERIES} <= {*shown.splitlines()}
    assert "  garden.cat: A dog barked at the cat in the garden.\n" in shown
    monkeypatch.setattr(demo, "standard_library_docstrings", dict)
    assert DEMO.fails().startswith("this Python has no source files of its standard library; ")


def test_docstrings_of_a_library(tmp_path, monkeypatch):
    for name, source in {
        "_private": "'Private.'",
        "one": "'Module one.'\nraise SystemExit('never run')\ndef f(): 'Function f.'",
        "two": "def g():\n  'Function g.'\n  def h(): 'Not seen.'",
        "pack/__init__": "'Package.'\nclass C:\n 'Class C.'\n async def m(self): 'Method m.'\n def _p(self): 'Own.'",
        "pack/copy": "def again(): 'Function f.'\ndef none(): pass",
        "pack/tests/test_x": "'A test.'",
        "site-packages/other": "'Not of the standard library.'",
        "broken": "'Broken.'\ndef (",
    }.items():
        path = tmp_path / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    (tmp_path / "folder.py").mkdir()
    (tmp_path / "dead.py").symlink_to(tmp_path / "nowhere.py")
    monkeypatch.setattr("sysconfig.get_paths", lambda: {"stdlib": str(tmp_path)})
    names = {"one": "Module one.", "one.f": "Function f.", "two.g": "Function g."}
    names |= {"pack": "Package.", "pack.C": "Class C.", "pack.C.m": "Method m."}
    assert demo.standard_library_docstrings() == names


@pytest.mark.slow
@pytest.mark.filterwarnings("default::SyntaxWarning")
def test_the_whole_demo():
    count, *answers = DEMO.succeeds().split("\n\n")
    assert int(count.split()[0]) > 4000
    first = [answer.splitlines()[1].split()[1] for answer in answers]
    best = ["csv", "threading.Thread.join", "shutil.copytree", "random.Random.choice", "webbrowser.open", "timeit"]
    assert all(found.startswith(name) for found, name in zip(first, best, strict=True)), first


def test_json_of_a_file_of_standard_input_and_of_texts(tiny_model, default_model):
    expected = [ctx_embed.explain(tiny_model, text).to_dict() for text in ("the cat", "a � dog")]
    given = file("texts.jsonl", '{"body": "the cat"}', '{"body": "a \\ud800 dog"}')
    for arguments in (
        ("--input", given, "--field", "body"),
        ("--input", "-", "--field", "body"),
        ("-", "--field", "body", "--model", default_model),
        ("the cat", "a � dog"),
    ):
        assert json.loads(EXPLAIN.succeeds(*arguments, "--json", input=Path(given).read_text())) == expected
    with pytest.warns(UserWarning, match="^san is not trained: it has random weights over the default model's token"):
        result = EXPLAIN.run("the cat", "--model", "san", "--json")
    assert (json.loads(result.stdout)[0]["axes"], json.loads(result.stdout)[0]["path"]) == (["head", "token"], None)


def test_files_and_the_terminal(default_model):
    assert "(empty text)\nnothing to explain\n" in EXPLAIN.succeeds("", "a dog")
    out = Path("out.html")
    assert EXPLAIN.succeeds("the cat", "<b>", "-o", out) == f"2 texts explained in {out}\n"
    assert out.read_bytes().startswith(b"<!doctype html>")
    assert b"step k" not in out.read_bytes()
    assert "1 text explained" in EXPLAIN.succeeds("the cat", "-o", out, "--overwrite", "--contexts")
    assert b"step k" in out.read_bytes()


def test_what_a_query_finds_in_a_passage(default_model, tiny_model):
    given = "the cat", "--passage", "a dog on the mat"
    found = nearest(tiny_model, given[0], given[2])
    assert json.loads(EXPLAIN.succeeds(*given, "--json")) == list(map(vars, found))
    shown = [line.split() for line in EXPLAIN.succeeds(*given).splitlines()]
    assert [(words[0], words[-1]) for words in shown] == [(each.token, each.found) for each in found]
    assert EXPLAIN.fails("b", *given, code=2).startswith("--passage needs one TEXT")


@pytest.mark.filterwarnings("ignore:dan is not trained")
def test_mistakes_of_explain(default_model):
    out = "out.html"
    file("long.txt", "short", "x" * 20_001)
    needed = "must have at most 20,000 characters to be explained, got 20,001; explain a part"
    for arguments, message in (
        (("-",), "standard input: no texts to explain"),
        (("cat", "--model", "dan", "-o", out), "DeepAveraging has no attention weights to show"),
        # The output and the texts are looked at before the model.
        (("cat", "--model", "./absent", "-o", "out.png"), "out.png: explanations are written as a page, got the"),
        (("--input", "long.txt", "--model", "./absent"), f"text 2 {needed}"),
    ):
        assert EXPLAIN.fails(*arguments, input="").startswith(message)
    assert EXPLAIN.fails("cat", "--input", "-", code=2) == "give either TEXT or --input FILE"
    assert EXPLAIN.fails("cat", "--json", "-o", out, code=2) == "--json and -o cannot be combined"


def test_systems():
    assert "\nlama   " in Command("systems").succeeds()
    rows = {row["name"]: row for row in json.loads(Command("systems").succeeds("--json", "--dimension", "8"))}
    assert {**SYSTEMS["lama"]._asdict(), "parameter_count": 2 * 30 * 8}.items() <= rows["lama"].items()
    assert rows["lama"]["options"].items() >= {"heads": 30, "context": "mean"}.items()
    assert rows.keys() == set(SYSTEMS)


def test_a_vocabulary_from_files_is_replaced_when_the_new_one_is_complete(here, sentences, monkeypatch):
    out = "out/tokenizer.json"
    # In the output's folder a failure leaves nothing.
    Path("out").mkdir()
    Path("b.gz").write_bytes(gzip.compress(b"zebra zebra\nzebra\n"))
    texts = [file("a.txt", *sentences, ""), "b.gz", file("c.jsonl", '{"text": "quokka quokka quokka quokka"}')]
    # The ten seconds until a line of progress begin with the command, not with an earlier one of this process.
    monkeypatch.setattr(progress, "last_line", time.monotonic() - progress.INTERVAL + 1e-3)
    result = VOCAB.run(*texts, "-o", out, "--vocabulary-size", 80)
    assert (result.exit_code, result.stdout, result.stderr) == (0, f"{out}: 80 entries\n", "")
    assert VOCAB.fails("a.txt", "missing", "-o", out, "--overwrite") == "missing: no such file"
    # Found out before any text is read.
    assert VOCAB.fails("missing", "-o", "out") == "cannot write out: the output must be a file, got a folder"
    assert os.listdir("out") == ["tokenizer.json"]
    learned = Tokenizer.from_file(out)
    assert learned.get_vocab_size() == 80
    assert learned.encode("Zebra quokka").tokens == ["zebra", "quokka"]
    assert VOCAB.run("-", "-o", out, "--overwrite", input="the cat\nthe cat\n").stdout == f"{out}: 15 entries\n"


@pytest.fixture
def reviews(here, default_model):
    return file("reviews.tsv", *(f"joy\ta good film {i}\ngrief\train fell {i}" for i in range(15)))


def evaluated(*arguments):
    return EVAL.run(*arguments, "--no-cost")


def report() -> dict:
    return json.loads(Path("results/results.json").read_text())


def rows_of(stdout: str) -> list[list[str]]:
    return [re.split(r" {2,}", line) for line in stdout.splitlines() if re.match(r"\S.* {2,}\S", line)]


def test_one_table_for_all_encoders(reviews, tiny_model, tiny_model_path):
    result = evaluated("--task", reviews, "--encoder", "default", "--encoder", tiny_model_path, "--encoder", "default")
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


def test_two_encoders_are_compared(reviews):
    arguments = ("--task", reviews, "--encoder", "random", "--encoder", "default", "--protocol", "quick")
    assert evaluated(*arguments).exit_code == 0
    compare = Command("eval compare")
    printed = compare.succeeds("results", "results/results.json", "--encoder", "random", "--encoder", "default")
    assert re.fullmatch(rf"{reviews}  \+\d+\.\d\d  \[\+\d+\.\d\d, \+\d+\.\d\d\]  p .*\(McNemar\)\n", printed)
    found = json.loads(compare.succeeds("results", "results", "--encoder", "default", "--json"))
    assert found[reviews]["value"] == 0.0
    said = "the encoder must be one of the report's (random, default), got 'old'"
    assert compare.fails("results", "results", "--encoder", "old") == said
    assert compare.run("results", "results", *["--encoder", "random"] * 3).exit_code == 2


def test_costs_stand_beside_the_scores_and_a_system_says_that_it_is_not_trained(reviews):
    with pytest.warns(UserWarning, match="^dan is not trained"):
        shown = EVAL.succeeds("--task", reviews, "--encoder", "random", "--encoder", "dan", "--protocol", "quick")
    costs = [row for row in rows_of(shown) if len(row) == 4]
    assert [(row[0], row[2] == "0") for row in costs] == [("random", True), ("dan", False)]
    assert report()["encoders"][0]["cost"]["texts"] == 30
    said = "dan is not trained: it has random weights over the default model's token table; train one with"
    assert shown.count(said) == 1
    assert said in Path("results/results.md").read_text()
    assert [encoder["remark"][:18] for encoder in report()["encoders"]] == ["", "dan is not trained"]


def test_a_table_is_scored_as_the_same_lines_are(reviews):
    rows = [line.split("\t") for line in Path(reviews).read_text().splitlines()]
    table = file("reviews.csv", "review,stars", *(f'"{text}",{label}' for label, text in rows))
    (task, again) = (
        json.loads(evaluated("--task", *source, "--protocol", "quick", "--json").stdout)["tasks"][0]
        for source in ([table, "--field", "review", "--label-field", "stars"], [reviews])
    )
    assert again["sha256"] == task["sha256"]


def test_an_absent_task_costs_a_line_and_the_exit_code(reviews, tmp_path):
    result = evaluated("--task", "MR", "--task", reviews, "--data", tmp_path)
    assert result.exit_code == 1
    assert "100.0 ± 0.0" in result.stdout
    place = tmp_path / "senteval" / "MR.tsv"
    missing = f"MR: {place} is missing; name a folder that holds it with --data or CTX_EMBED_DATA"
    # A slow machine adds lines of progress.
    first, *_, last = result.stderr.splitlines()
    assert (first, last) == (missing, "Error: 1 of 2 scores are missing; see the lines above")
    assert f"{reviews}, default: 100.0\n" in result.stderr
    assert report()["failures"] == [missing]
    # An own file is named once.
    assert evaluated("--task", file("broken.tsv", "no label")).stderr.splitlines()[0].count("broken.tsv") == 1


def test_mistakes_of_eval_are_found_before_the_work(tmp_path, reviews):
    for arguments, message in (
        (("-o", reviews), f"cannot write {reviews}: it must be a folder, got a file"),
        (("--protocol", "senteva"), "unknown protocol 'senteva': did you mean 'senteval'? known are paper, quick"),
        (("--data", tmp_path, "--json"), "4 of 4 scores are missing; see the lines above"),
    ):
        assert EVAL.fails(*arguments).startswith(message)
    (tmp_path / "results" / "results.json").mkdir(parents=True)
    assert EVAL.fails() == "cannot write results/results.json: the output must be a file, got a folder"
    # A suite names what it needs, and nothing else.
    needs = evaluated("--suite", "mteb", "--data", tmp_path, "-o", "other").stderr
    assert re.search(r"^MTEB-Banking77: .* is missing; name a folder", needs, re.M)
    assert not re.search("^MR:", needs, re.M)
