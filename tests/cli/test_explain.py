import json
from pathlib import Path

import pytest

import ctx_embed
from tests.helpers.cli import Command

pytestmark = pytest.mark.usefixtures("default_model")
COMMAND = Command("explain", only_error=False)
run, fails = COMMAND.run, COMMAND.fails


def test_json_of_a_file_of_standard_input_and_of_texts(tiny_model, tiny_model_path):
    expected = [ctx_embed.explain(tiny_model, text).to_dict() for text in ("the cat", "a � dog")]
    given = b'{"body": "the cat"}\n{"body": "a \\ud800 dog"}\n'
    Path("texts.jsonl").write_bytes(given)
    for arguments in (
        ("--input", "texts.jsonl", "--field", "body"),
        ("--input", "-", "--field", "body"),
        ("-", "--field", "body", "--model", tiny_model_path),
        ("the cat", "a � dog"),
    ):
        assert json.loads(COMMAND.succeeds(*arguments, "--json", input=given)) == expected
    result = run("the cat", "--model", "san", "--json")
    assert (json.loads(result.stdout)[0]["axes"], json.loads(result.stdout)[0]["path"]) == (["head", "token"], None)
    assert result.stderr.startswith("Warning: san is not trained: it has random weights over the default model's token")


def test_files_and_the_terminal():
    shown = COMMAND.succeeds("", "a dog")
    assert "(empty text)\nthe model knows too few words of this text: nothing to explain\n" in shown
    out = Path("out.html")
    assert COMMAND.succeeds("the cat", "<b>", "-o", out) == f"2 texts explained in {out}\n"
    assert out.read_bytes().startswith(b"<!doctype html>")
    assert b"step k" not in out.read_bytes()
    assert "1 text explained" in COMMAND.succeeds("the cat", "-o", out, "--overwrite", "--contexts")
    assert b"step k" in out.read_bytes()


def test_mistakes():
    out = "out.html"
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
