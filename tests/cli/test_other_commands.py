"""`demo`, `explain`, `systems` and `vocab`."""

import gzip
import json
import os
import sys
import tempfile
import warnings
from pathlib import Path

import pytest
from tokenizers import Tokenizer

import ctx_embed
from ctx_embed import loading
from ctx_embed.cli import demo
from ctx_embed.systems import DESCRIPTIONS, SYSTEMS
from tests.helpers.cli import Command

DEMO = Command("demo")
EXPLAIN = Command("explain", only_error=False)
VOCAB = Command("vocab")

DOCSTRINGS = {
    "garden.cat": "A dog barked at the cat\nin the garden.\n\nMore of it.",
    "city.train": "The train to the city was late again.",
    "film": "A dull film without one good idea. " * 9,
    "city.prices": "Prices in the city rise faster than wages.",
}


@pytest.fixture
def small(monkeypatch, tiny_model_path, tmp_path):
    """A few docstrings, the tiny model in place of the one that ships, and an own folder for temporary files."""
    monkeypatch.setattr(sys.modules["ctx_embed.cli.demo"], "standard_library_docstrings", lambda: dict(DOCSTRINGS))
    monkeypatch.setattr(loading, "DEFAULT_MODEL", tiny_model_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_queries_are_answered(small, monkeypatch):
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
    assert list(small.iterdir()) == []
    # The sample queries, and a line for each hit.
    lines = DEMO.run("-k", "9").stdout.splitlines()
    assert len(lines) == 1 + len(demo.QUERIES) * (2 + len(DOCSTRINGS))
    assert set(demo.QUERIES) <= set(lines)
    assert any(line.endswith("  garden.cat: A dog barked at the cat in the garden.") for line in lines)
    monkeypatch.setattr(demo, "standard_library_docstrings", dict)
    assert DEMO.fails().startswith("this Python has no source files of its standard library; ")


def test_docstrings_of_a_library(tmp_path, monkeypatch):
    package = '"""Package."""\nclass C:\n    """Class C."""\n    async def m(self):\n        """Method m."""\n'
    package += '    def _p(self):\n        """Private."""\n'
    files = {
        "_private.py": '"""Private."""\n',
        "one.py": '"""Module one."""\nraise SystemExit("never run")\n\ndef f():\n    """Function f."""\n',
        "two.py": 'def g():\n    """Function g."""\n    def h(): "Not seen."\n',
        "pack/__init__.py": package,
        "pack/copy.py": 'def again():\n    """Function f."""\ndef none(): pass\n',
        "pack/tests/test_x.py": '"""A test."""\n',
        "site-packages/other.py": '"""Not of the standard library."""\n',
        "broken.py": '"""Broken."""\ndef (\n',
    }
    for name, source in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    (tmp_path / "folder.py").mkdir()
    (tmp_path / "dead.py").symlink_to(tmp_path / "nowhere.py")
    monkeypatch.setattr("sysconfig.get_paths", lambda: {"stdlib": str(tmp_path)})
    assert demo.standard_library_docstrings() == {
        "one": "Module one.",
        "one.f": "Function f.",
        "two.g": "Function g.",
        "pack": "Package.",
        "pack.C": "Class C.",
        "pack.C.m": "Method m.",
    }


@pytest.mark.slow
def test_the_whole_demo():
    with warnings.catch_warnings():
        warnings.simplefilter("default", SyntaxWarning)
        result = DEMO.run()
    assert result.exit_code == 0, result.output
    count, *answers = result.stdout.split("\n\n")
    assert int(count.split()[0]) > 4000
    first = [answer.splitlines()[1].split()[1] for answer in answers]
    best = ["csv", "threading.Thread.join", "shutil.copytree", "random.Random.choice", "webbrowser.open", "timeit"]
    assert all(found.startswith(name) for found, name in zip(first, best, strict=True)), first


def test_json_of_a_file_of_standard_input_and_of_texts(tiny_model, default_model):
    expected = [ctx_embed.explain(tiny_model, text).to_dict() for text in ("the cat", "a � dog")]
    given = b'{"body": "the cat"}\n{"body": "a \\ud800 dog"}\n'
    Path("texts.jsonl").write_bytes(given)
    for arguments in (
        ("--input", "texts.jsonl", "--field", "body"),
        ("--input", "-", "--field", "body"),
        ("-", "--field", "body", "--model", default_model),
        ("the cat", "a � dog"),
    ):
        assert json.loads(EXPLAIN.succeeds(*arguments, "--json", input=given)) == expected
    result = EXPLAIN.run("the cat", "--model", "san", "--json")
    assert (json.loads(result.stdout)[0]["axes"], json.loads(result.stdout)[0]["path"]) == (["head", "token"], None)
    assert result.stderr.startswith("Warning: san is not trained: it has random weights over the default model's token")


def test_files_and_the_terminal(default_model):
    shown = EXPLAIN.succeeds("", "a dog")
    assert "(empty text)\nthe model knows too few words of this text: nothing to explain\n" in shown
    out = Path("out.html")
    assert EXPLAIN.succeeds("the cat", "<b>", "-o", out) == f"2 texts explained in {out}\n"
    assert out.read_bytes().startswith(b"<!doctype html>")
    assert b"step k" not in out.read_bytes()
    assert "1 text explained" in EXPLAIN.succeeds("the cat", "-o", out, "--overwrite", "--contexts")
    assert b"step k" in out.read_bytes()


def test_mistakes_of_explain(default_model):
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
        assert EXPLAIN.fails(*arguments, input="").startswith(message)
    assert EXPLAIN.fails("cat", "--input", "-", code=2) == "give either TEXT or --input FILE"
    assert EXPLAIN.fails("cat", "--json", "-o", out, code=2) == "--json and -o cannot be combined"


def test_systems_and_baselines():
    assert "\nlama   " in Command("systems").succeeds()
    rows = {row["name"]: row for row in json.loads(Command("systems").succeeds("--json", "--dimension", "8"))}
    facts = {"kind": "system", "parameter_count": 2 * 30 * 8, **DESCRIPTIONS["lama"]._asdict()}
    assert facts.items() <= rows["lama"].items()
    assert rows["lama"]["options"].items() >= {"heads": 30, "context": "mean"}.items()
    assert {name for name, row in rows.items() if row["kind"] == "system"} == set(SYSTEMS)
    assert rows.keys() == {*SYSTEMS, "tfidf", "majority"}


def test_a_vocabulary_from_files_is_replaced_when_the_new_one_is_complete(here, sentences):
    out = "out/tokenizer.json"
    # In the output's folder a failure leaves nothing.
    Path("out").mkdir()
    Path("a.txt").write_text("\n\n".join(sentences) + "\n")
    Path("b.gz").write_bytes(gzip.compress(b"zebra zebra\nzebra\n"))
    Path("c.jsonl").write_text('{"text": "quokka quokka quokka quokka"}\n')
    result = VOCAB.run("a.txt", "b.gz", "c.jsonl", "-o", out, "--vocabulary-size", 80)
    assert (result.exit_code, result.stdout, result.stderr) == (0, f"{out}: 80 entries\n", "")
    assert VOCAB.fails("a.txt", "missing", "-o", out, "--overwrite") == "missing: no such file"
    # Found out before any text is read.
    assert VOCAB.fails("missing", "-o", "out") == "cannot write out: the output must be a file, got a folder"
    assert os.listdir("out") == ["tokenizer.json"]
    learned = Tokenizer.from_file(out)
    assert learned.get_vocab_size() == 80
    assert learned.encode("Zebra quokka").tokens == ["zebra", "quokka"]
    assert VOCAB.run("-", "-o", out, "--overwrite", input="the cat\nthe cat\n").stdout == f"{out}: 15 entries\n"
