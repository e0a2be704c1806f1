from __future__ import annotations

import json
from pathlib import Path

import pytest

import ctx_embed
from tests.helpers.cli import Command

pytestmark = pytest.mark.usefixtures("default_model")
COMMAND = Command("explain", only_error=False)
run, fails = COMMAND.run, COMMAND.fails


def test_texts_in_the_terminal(tiny_model):
    shown = COMMAND.succeeds("the cat", "", "a dog")
    lines = shown.splitlines()
    assert lines[0].rstrip() == "the cat"
    tokens = ctx_embed.explain(tiny_model, "the cat").tokens
    assert [word for word in lines[1].split() if not word.lstrip("-").isdigit()] == ["step", *tokens]
    assert sum(line.startswith("step 2 ") for line in lines) == 2
    assert "(empty text)\nthe model knows too few words of this text: nothing to explain\n" in shown
    assert "\nstep k" not in shown
    assert COMMAND.succeeds("the cat", "", "a dog", "--contexts").count("\nstep k") == 2


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


def test_files():
    out = Path("out.html")
    assert COMMAND.succeeds("the cat", "<b>", "-o", out) == f"2 texts explained in {out}\n"
    assert out.read_bytes().startswith(b"<!doctype html>")
    assert b"step k" not in out.read_bytes()
    assert "1 text explained" in COMMAND.succeeds("the cat", "-o", out, "--overwrite", "--contexts")
    assert b"step k" in out.read_bytes()


def test_a_system_by_name():
    result = run("the cat", "--model", "san", "--json")
    assert json.loads(result.stdout)[0]["axes"] == ["head", "token"]
    assert json.loads(result.stdout)[0]["path"] is None
    assert result.stderr.startswith("Warning: san is not trained: it has random weights over the default model's token")


def test_mistakes(tmp_path):
    out = tmp_path / "out.html"
    Path("long.txt").write_text("short\n" + "x" * 20_001)
    needed = "must have at most 20,000 characters to be explained, got 20,001; explain a part"
    for arguments, message in (
        (("-",), "standard input: no texts to explain"),
        (("cat", "--model", "dan", "-o", out), "DeepAveraging has no attention weights to show"),
        # The output and the texts are looked at before the model.
        (("cat", "--model", "./absent", "-o", "out.png"), "out.png: explanations are written as a page, got the"),
        (("--input", "long.txt", "--model", "./absent"), f"text 2 {needed}"),
    ):
        assert fails(*arguments, input="").startswith(message)
    assert fails("cat", "--input", "-", code=2) == "give either TEXT or --input FILE"
    assert fails("cat", "--json", "-o", out, code=2) == "--json and -o cannot be combined"
