from __future__ import annotations

import gzip
import json
import os
import shlex
import subprocess
import sys

import pytest

from tests.helpers.cli import Command

pytestmark = pytest.mark.usefixtures("default_model")
COMMAND = Command("index")
run, succeeds, fails = COMMAND.run, COMMAND.succeeds, COMMAND.fails

REMEDY = "restore it from a copy or build the index again"


@pytest.fixture
def texts(tmp_path, sentences):
    path = tmp_path / "notes.txt"
    path.write_text("\n\n  \n".join(sentences) + "\n")
    return path


@pytest.fixture
def rows(tmp_path, sentences):
    path = tmp_path / "notes.jsonl"
    path.write_text("".join(json.dumps({"id": f"s{n}", "text": s, "n": n}) + "\n" for n, s in enumerate(sentences)))
    return path


@pytest.fixture
def index(tmp_path):
    return tmp_path / "notes.index"


def state(folder) -> dict:
    """Return every file of a folder with its bytes, excluding the write-ahead log's files."""
    files = [path for path in folder.rglob("*") if path.is_file() and not path.name.endswith(("-shm", "-wal"))]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_build_query_info(texts, index, sentences):
    assert succeeds("build", texts, index) == f"8 documents indexed in {index}\n"
    hits = json.loads(succeeds("query", index, sentences[3], "-k", 2, "--json"))
    assert set(hits[0]) == {"id", "score", "text", "start", "stop", "metadata", "fused", "relevance", "snippet"}
    assert hits[0]["text"] == sentences[3]
    assert hits[0]["id"] == 3
    assert hits[0]["metadata"] == {}
    assert hits[0]["score"] == pytest.approx(1, abs=1e-6)
    lines = succeeds("query", index, sentences[3], "-k", 2, "--mode", "dense").splitlines()
    assert lines[:2] == ["1.0000  relevance 0.94  3", "    a dull film without one good idea"]
    assert len(lines) == 4
    facts = json.loads(succeeds("info", index, "--json"))
    assert facts["documents"] == 8
    assert facts["model"] == "default"
    assert f"{'documents':<18} 8\n" in succeeds("info", index)
    assert sorted(entry.name for entry in index.iterdir()) == ["index.sqlite"]
    assert sorted(entry.name for entry in index.parent.iterdir()) == ["notes.index", "notes.txt"]


def test_gzip_and_standard_input(texts, index, rows, tmp_path):
    packed = tmp_path / "notes.gz"
    packed.write_bytes(gzip.compress(texts.read_bytes()))
    assert succeeds("build", packed, index).startswith("8 documents")
    assert succeeds("build", "-", index, "--append", input=rows.read_text()) == f"8 documents added to {index}\n"
    assert json.loads(succeeds("info", index, "--json"))["documents"] == 16


def test_another_field_and_another_model(tmp_path, index, tiny_model_path):
    path = tmp_path / "a.ndjson"
    path.write_text('{"review": "the cat"}\n{"review": "the dog", "id": 7}\n')
    succeeds("build", path, index, "--field", "review", "--model", tiny_model_path, "--factory", "HNSW8")
    facts = json.loads(succeeds("info", index, "--json"))
    assert (facts["model"], facts["factory"]) == (str(tiny_model_path), "HNSW8")
    assert json.loads(succeeds("query", index, "the dog", "-k", 1, "--json"))[0]["id"] == 7


def test_an_index_that_exists_needs_a_flag(texts, rows, index):
    succeeds("build", texts, index)
    before = state(index)
    assert fails("build", rows, index) == (
        f"{index}: already exists; add to it with --append or --upsert, or replace it with --overwrite"
    )
    message = f"{index}: factory must be 'auto', got 'HNSW8'; leave --factory out"
    assert fails("build", rows, index, "--append", "--factory", "HNSW8") == message
    assert fails("build", "-", index, "--append", input="\n") == "-: no documents; give at least one line of text"
    assert state(index) == before
    succeeds("build", rows, index, "--append")
    assert json.loads(succeeds("info", index, "--json"))["documents"] == 16
    succeeds("build", rows, index, "--overwrite")
    assert json.loads(succeeds("info", index, "--json"))["documents"] == 8
    new = index.with_name("new")
    for flag, said in (("--append", "indexed in"), ("--upsert", "added to"), ("--overwrite", "indexed in")):
        # Each of them makes an index if there is none.
        assert succeeds("build", rows, new, flag) == f"8 documents {said} {new}\n"
        assert json.loads(succeeds("info", new, "--json"))["documents"] == 8


def broken(tmp_path, *lines: bytes, name: str = "broken.jsonl"):
    path = tmp_path / name
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return path


GOOD = b'{"text": "the cat", "id": "new"}'
BAD = [
    (b'{"text": ', "line 2: not JSON (Expecting value: line 1 column 10 (char 9))"),
    (GOOD, "document 2: the id 'new' is also that of document 1; ids must be unique"),
]


@pytest.mark.parametrize(("line", "message"), BAD)
def test_a_bad_line_leaves_everything_as_it_was(tmp_path, rows, index, line, message):
    path = broken(tmp_path, GOOD, line)
    if "document" not in message:
        message = f"{path}, {message}"
    assert fails("build", path, index).startswith(message)
    assert not index.exists()
    succeeds("build", rows, index)
    before = state(index)
    for flag in ("--append", "--overwrite"):
        assert fails("build", path, index, flag).startswith(message)
        assert state(index) == before
    assert sorted(entry.name for entry in tmp_path.iterdir()) == sorted([path.name, index.name, rows.name])


def test_places_where_no_index_can_be_built(tmp_path, texts):
    other = tmp_path / "other"
    other.mkdir()
    (other / "precious.txt").write_text("keep me")
    message = f"{other}: has files that do not belong to an index; choose another folder"
    for flags in ([], ["--overwrite"]):
        assert fails("build", texts, other, *flags) == message
        assert fails("build", texts, texts, *flags) == f"{texts}: is a file; choose a new or empty folder for the index"
    assert (other / "precious.txt").read_text() == "keep me"


def test_a_damaged_index_can_be_overwritten(texts, index):
    succeeds("build", texts, index)
    (index / "index.sqlite").write_text("nothing")
    assert "cannot be read (file is not a database)" in fails("query", index, "x")
    succeeds("build", texts, index, "--overwrite")
    assert json.loads(succeeds("info", index, "--json"))["documents"] == 8


def test_an_index_of_another_model(texts, index, tiny_model_path, tmp_path, tokenizer):
    import torch
    from sentence_transformers import SentenceTransformer

    from ctx_embed import Contextualizer

    torch.manual_seed(5)
    other = tmp_path / "other-model"
    SentenceTransformer(modules=[Contextualizer(tokenizer, 16, steps=1, rank=2)], device="cpu").save_pretrained(
        str(other)
    )
    succeeds("build", texts, index)
    for arguments in (["query", index, "x"], ["build", texts, index, "--append"]):
        line = fails(*arguments, "--model", other)
        assert line.startswith(f"{index}: built with the model 'default', fingerprint ")
        assert "open it with the model it was built with, or embed its documents again: ctx-embed index reembed" in line
    succeeds("query", index, "x", "--model", tiny_model_path)
    assert fails("query", index, "x", "--model", "./nowhere") == "./nowhere: no such model folder"
    command = line.partition("again: ctx-embed index ")[2]
    assert succeeds(*shlex.split(command)) == f"{index}: 8 documents embedded again with the model {other}\n"
    assert succeeds(*shlex.split(command)) == f"{index}: nothing to do, it has the vectors of this model\n"
    succeeds("query", index, "x")
    assert succeeds("verify", index) == f"{index}: whole, 8 documents\n"
    assert succeeds("reembed", index) == f"{index}: 8 documents embedded again with the model default\n"


def test_any_text_is_a_query(texts, index):
    succeeds("build", texts, index)
    for query in ("", "\0", "zzzz qqqq", "\ud800", "word " * 200_000):
        # The model cannot read the others.
        assert len(json.loads(succeeds("query", index, query, "--json"))) == (8 if query.startswith("word") else 0)


def test_odd_texts_keep_the_table_whole(tmp_path, index):
    path = broken(
        tmp_path,
        b'{"text": "two\\nlines \\u001b[31m and NUL \\u0000", "id": "a\\tb"}',
        b'{"text": "' + b"long " * 200_000 + b'"}',
        b'{"text": "lone \\ud800 surrogate"}',
        b'{"text": ""}',
    )
    succeeds("build", path, index)
    lines = succeeds("query", index, "the cat").splitlines()
    # A text without any token is no hit.
    assert len(lines) == 2 * 3
    assert max(map(len, lines)) <= 250
    assert any(line.endswith("  a b") for line in lines)
    assert "    two lines [31m and NUL" in lines
    assert any(line.endswith("…") for line in lines)
    found = {hit["id"]: hit["text"] for hit in json.loads(succeeds("query", index, "the cat", "--json"))}
    assert found["a\tb"] == "two\nlines \x1b[31m and NUL \0"
    assert found[1] == "lone � surrogate"


def test_overwriting_waits_for_no_writer(texts, index):
    from ctx_embed.index.storage.documents import DocumentStore

    succeeds("build", texts, index)
    store = DocumentStore(index / "index.sqlite")
    with store.writing():
        line = fails("build", texts, index, "--overwrite")
    store.close()
    assert line == f"{index}: another process is writing to this index; try again when it has finished"


def test_info_needs_no_model(texts, index):
    succeeds("build", texts, index)
    script = (
        "import sys; from ctx_embed.cli.main import main; main(standalone_mode=False); print('torch' in sys.modules)"
    )
    command = [sys.executable, "-c", script, "index", "info", str(index)]
    result = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ), check=False)
    assert result.returncode == 0, result.stderr
    assert f"{'documents':<18} 8\n" in result.stdout
    assert result.stdout.endswith("False\n")
