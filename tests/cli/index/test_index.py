import json
import shlex
from pathlib import Path

import pytest

from tests.conftest import make_model
from tests.helpers.cli import Command

pytestmark = pytest.mark.usefixtures("default_model")
COMMAND = Command("index")
succeeds = COMMAND.succeeds


def fails(*arguments, **options) -> str:
    """Return the error of a run, with paths in the current folder."""
    return COMMAND.fails(*arguments, **options).replace(f"{Path.cwd()}/", "")


@pytest.fixture
def texts(here, sentences):
    Path("notes.txt").write_text("\n\n  \n".join(sentences) + "\n")
    return "notes.txt"


@pytest.fixture
def rows(here, sentences):
    lines = [json.dumps({"id": f"s{n}", "text": text, "n": n}) + "\n" for n, text in enumerate(sentences)]
    Path("notes.jsonl").write_text("".join(lines))
    return "notes.jsonl"


def info(index: str) -> dict:
    return json.loads(succeeds("info", index, "--json"))


def test_build_query_info(texts, sentences, tiny_model_path):
    options = ["--model", tiny_model_path, "--factory", "HNSW8", "--field", "review"]
    succeeds("build", "-", "a.index", *options, input='{"review": "the cat"}\n')
    assert (info("a.index")["model"], info("a.index")["factory"]) == (str(tiny_model_path), "HNSW8")
    assert succeeds("build", texts, "notes.index") == "8 documents indexed in notes.index\n"
    hits = json.loads(succeeds("query", "notes.index", sentences[3], "-k", 2, "--json"))
    assert set(hits[0]) == {"id", "score", "text", "start", "stop", "metadata", "fused", "relevance", "snippet"}
    assert (hits[0]["text"], hits[0]["id"], hits[0]["metadata"]) == (sentences[3], 3, {})
    assert hits[0]["score"] == pytest.approx(1, abs=1e-6)
    lines = succeeds("query", "notes.index", sentences[3], "-k", 2, "--mode", "dense").splitlines()
    assert lines[:2] == ["1.0000  relevance 0.94  3", "    a dull film without one good idea"]
    assert len(lines) == 4
    assert (info("notes.index")["documents"], info("notes.index")["model"]) == (8, "default")
    assert f"{'documents':<18} 8\n" in succeeds("info", "notes.index")
    assert [entry.name for entry in Path("notes.index").iterdir()] == ["index.sqlite"]


def test_an_index_that_exists_needs_a_flag(texts, rows):
    succeeds("build", texts, "old")
    before = Path("old/index.sqlite").read_bytes()
    Path("broken.jsonl").write_text('{"text": "the cat", "id": "new"}\n{"text": \n')
    for arguments, message in (
        ((rows, "old"), "old: already exists; add to it with --append or --upsert, or replace it with --overwrite"),
        (("broken.jsonl", "old", "--overwrite"), "broken.jsonl, line 2: not JSON (Expecting value: line 1 column 10"),
    ):
        assert fails("build", *arguments, input="\n").startswith(message)
        assert Path("old/index.sqlite").read_bytes() == before
    succeeds("build", rows, "old", "--append")
    assert info("old")["documents"] == 16
    assert succeeds("build", rows, "old", "--upsert", "--resume") == "8 documents added to old\n"
    assert succeeds("build", rows, "old", "--upsert", "--resume").startswith("nothing to do: 8 documents were indexed")
    for flag, said in (("--append", "indexed in"), ("--upsert", "added to"), ("--overwrite", "indexed in")):
        # Each of them makes an index if there is none.
        assert succeeds("build", rows, "new", flag) == f"8 documents {said} new\n"
        assert info("new")["documents"] == 8


@pytest.mark.parametrize("flags", [[], ["--overwrite"]])
def test_places_where_no_index_can_be_built(texts, flags):
    Path("other").mkdir()
    Path("other/precious.txt").write_text("keep me")
    message = "other: has files that do not belong to an index; choose another folder"
    assert fails("build", texts, "other", *flags) == message
    assert fails("build", texts, texts, *flags) == f"{texts}: is a file; choose a new or empty folder for the index"
    assert Path("other/precious.txt").read_text() == "keep me"


def test_overwriting_needs_no_whole_index(texts):
    succeeds("build", texts, "notes.index")
    Path("notes.index/index.sqlite").write_text("nothing")
    assert "cannot be read (file is not a database)" in fails("query", "notes.index", "x")
    succeeds("build", texts, "notes.index", "--overwrite")
    assert info("notes.index")["documents"] == 8


def test_an_index_of_another_model(texts, tiny_model_path, tokenizer):
    make_model(tokenizer, steps=1, rank=2).save_pretrained("other")
    succeeds("build", texts, "a.index")
    for arguments in (["query", "a.index", "x"], ["build", texts, "a.index", "--append"]):
        line = fails(*arguments, "--model", "./other")
        assert line.startswith("a.index: built with the model 'default', fingerprint ")
        assert "open it with the model it was built with, or embed its documents again: ctx-embed index reembed" in line
    succeeds("query", "a.index", "x", "--model", tiny_model_path)
    command = line.partition("again: ctx-embed index ")[2]
    assert succeeds(*shlex.split(command)).startswith("a.index: 8 documents embedded again with the model ")
    assert succeeds(*shlex.split(command)) == "a.index: nothing to do, it has the vectors of this model\n"
    succeeds("query", "a.index", "x")
    assert succeeds("verify", "a.index") == "a.index: whole, 8 documents\n"
