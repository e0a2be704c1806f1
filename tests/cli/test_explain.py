from __future__ import annotations

import json

import pytest

import ctx_embed
from tests.helpers.cli import Command

pytestmark = pytest.mark.usefixtures("default_model")
COMMAND = Command("explain")
run, fails = COMMAND.run, COMMAND.fails


def test_texts_in_the_terminal(tiny_model):
    result = run("the cat", "", "a dog")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0].rstrip() == "the cat"
    tokens = ctx_embed.explain(tiny_model, "the cat").tokens
    assert [word for word in lines[1].split() if not word.lstrip("-").isdigit()] == ["step", *tokens]
    assert sum(line.startswith("step 2 ") for line in lines) == 2
    assert "(empty text)\nthe model knows too few words of this text: nothing to explain\n" in result.stdout
    assert sum(line.startswith("step k") for line in lines) == 0
    assert run("the cat", "", "a dog", "--contexts").stdout.count("\nstep k") == 2


def test_json_of_a_file_of_standard_input_and_of_texts(tiny_model, tiny_model_path, tmp_path):
    expected = [ctx_embed.explain(tiny_model, text).to_dict() for text in ("the cat", "a � dog")]
    source = tmp_path / "texts.jsonl"
    source.write_text('{"body": "the cat"}\n{"body": "a \\ud800 dog"}\n')
    given = source.read_bytes()
    for arguments, stdin in (
        (("--input", source, "--field", "body"), None),
        (("--input", "-", "--field", "body"), given),
        (("-", "--field", "body", "--model", tiny_model_path), given),
        (("the cat", "a � dog"), None),
    ):
        result = run(*arguments, "--json", input=stdin)
        assert result.exit_code == 0, result.output
        assert json.loads(result.stdout) == expected


def test_files(tmp_path):
    out = tmp_path / "out.html"
    result = run("the cat", "<b>", "-o", out)
    assert (result.exit_code, result.stdout) == (0, f"2 texts explained in {out}\n"), result.output
    assert out.read_bytes().startswith(b"<!doctype html>")
    assert b"step k" not in out.read_bytes()
    assert "1 text explained" in run("the cat", "-o", out, "--overwrite", "--contexts").stdout
    assert b"step k" in out.read_bytes()


def test_a_system_by_name():
    result = run("the cat", "--model", "san", "--json")
    assert json.loads(result.stdout)[0]["axes"] == ["head", "token"]
    assert json.loads(result.stdout)[0]["path"] is None
    assert result.stderr.startswith("Warning: san is not trained: it has random weights over the default model's token")


def test_mistakes(tmp_path):
    out = tmp_path / "out.html"
    assert fails("--input", tmp_path / "absent", "-o", out) == f"{tmp_path}/absent: no such file"
    (tmp_path / "empty.txt").write_text("\n")
    assert fails("--input", tmp_path / "empty.txt") == f"{tmp_path}/empty.txt: no texts to explain"
    assert fails("-", input="") == "standard input: no texts to explain"
    result = run("cat", "--model", f"model2vec:{tmp_path}", "-o", out)
    assert (result.exit_code, f"model2vec:{tmp_path}: no model2vec model there" in result.stderr) == (1, True)
    assert fails("cat", "--model", "dan", "-o", out) == "DeepAveraging has no attention weights to show"
    assert fails("cat", "--model", "./absent") == "./absent: no such model folder"
    # The output is looked at first.
    assert (
        fails("cat", "-o", tmp_path / "out.png")
        == f"{tmp_path}/out.png: explanations are written as a page, got the ending '.png'; name FILE.html"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["empty.txt"]


def test_long_texts_are_refused_before_the_model_is_loaded(tmp_path):
    needed = "must have at most 20,000 characters to be explained, got 20,001; explain a part"
    assert fails("x" * 20_001, "--model", "./absent") == f"the text {needed}"
    (tmp_path / "texts.txt").write_text("short\n" + "x" * 20_001)
    assert fails("--input", tmp_path / "texts.txt", "--model", "./absent") == f"text 2 {needed}"


def test_usage(tmp_path):
    assert fails(code=2) == "give either TEXT or --input FILE"
    assert fails("cat", "--input", "-", code=2) == "give either TEXT or --input FILE"
    assert fails("cat", "--json", "-o", tmp_path / "out.html", code=2) == "--json and -o cannot be combined"
    assert "Example: ctx-embed explain" in run("--help").stdout
