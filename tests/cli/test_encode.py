from __future__ import annotations

import csv
import gzip
import json
import subprocess
import sys

import numpy as np
import pytest
from pyarrow import parquet

from ctx_embed.numpy_model import Embedder
from tests.helpers.cli import Command

pytestmark = pytest.mark.usefixtures("default_model")
COMMAND = Command("encode")
run, fails = COMMAND.run, COMMAND.fails


def test_text_in_order(tiny_model, sentences, tmp_path):
    source, out = tmp_path / "texts.txt", tmp_path / "embeddings.npy"
    source.write_text("\n\n".join(sentences))
    result = run(source, "-o", out, "--batch-size", 3)
    assert (result.exit_code, result.stdout) == (0, f"8 embeddings of dimension 16 in {out}\n")
    embeddings = np.load(out)
    assert embeddings.dtype == np.float32
    np.testing.assert_allclose(embeddings, tiny_model.encode(sentences), atol=1e-6)
    assert sorted(tmp_path.iterdir()) == [out, source]


def test_jsonl_gzip_and_standard_input_with_a_model_of_ones_own(tiny_model, tiny_model_path, tmp_path):
    texts = ["the cat", "", "lone \ud800 surrogate", "NUL \x00 byte"]
    lines = "".join(json.dumps({"body": text}) + "\n" for text in texts).encode()
    (tmp_path / "texts.jsonl.gz").write_bytes(gzip.compress(lines))
    out = tmp_path / "out.npy"
    expected = tiny_model.encode([text.replace("\ud800", "�") for text in texts])
    for source, given in ((tmp_path / "texts.jsonl.gz", None), ("-", lines)):
        result = run(source, "-o", out, "--field", "body", "--model", tiny_model_path, input=given)
        assert result.exit_code == 0, result.output
        np.testing.assert_allclose(np.load(out), expected, atol=1e-6)
        out.unlink()


NEWS = 'id,headline,year\n7,"oil, again",2003\nb,,2004\n'


def read_back(path):
    if path.suffix == ".csv":
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
        return [
            {
                "id": int(row["id"]) if row["id"].isdigit() else row["id"],
                "text": row["text"],
                "metadata": json.loads(row["metadata"]),
                "embedding": [float(row[f"embedding_{place}"]) for place in range(16)],
            }
            for row in rows
        ]
    if path.suffix == ".parquet":
        rows = parquet.read_table(path).to_pylist()
        return [{**row, "metadata": json.loads(row["metadata"])} for row in rows]
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_suffix_names_the_format(tiny_model_path, tmp_path):
    (tmp_path / "news.csv").write_text(NEWS.replace("b,", "8,"))
    vectors = Embedder.load(tiny_model_path).encode(["oil, again", ""])
    shown = run(tmp_path / "news.csv", "--field", "headline", "-o", "-")
    (tmp_path / "stdout").write_text(shown.stdout)
    for name in ("a.jsonl", "a.CSV", "a.parquet", "stdout"):
        out = tmp_path / name
        if name != "stdout":
            assert run(tmp_path / "news.csv", "--field", "headline", "-o", out).exit_code == 0
        rows = read_back(out.rename(tmp_path / name.lower()))
        assert [(row["id"], row["text"], row["metadata"]) for row in rows] == [
            (7, "oil, again", {"year": 2003}),
            (8, "", {"year": 2004}),
        ]
        # To the bit: 9 digits decide a float32.
        assert np.array_equal(np.array([row["embedding"] for row in rows], np.float32), vectors)
    assert json.loads(run("-", "-o", "-", input="only text\n").stdout).keys() == {"text", "embedding"}


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_what_was_encoded_can_be_indexed(tmp_path, name, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "news.csv").write_text(NEWS)
    assert run("news.csv", "--field", "headline", "-o", name).exit_code == 0
    index = Command("index")
    index.succeeds("build", name, "news.index", "--embedding-field", "embedding")
    assert json.loads(index.succeeds("get", "news.index", "b")) == {"text": "", "id": "b", "metadata": {"year": 2004}}


@pytest.mark.parametrize("name", ["out", "out.txt", "out.npy.gz"])
def test_an_unknown_suffix(tmp_path, name):
    out = tmp_path / name
    message = f"cannot write {out}: its name must end in .npy, .csv, .jsonl, .parquet, or be - (standard output)"
    assert fails("nowhere.txt", "-o", out) == message


def test_mistakes_leave_no_file(tmp_path):
    source, out = tmp_path / "texts.txt", tmp_path / "out.npy"
    assert fails(source, "-o", out) == f"{source}: no such file"
    source.write_text(" \n\n")
    assert fails(source, "-o", out) == f"{source}: no texts to embed"
    assert fails("-", "-o", out, input="") == "standard input: no texts to embed"
    folder = tmp_path / "folder.npy"
    folder.mkdir()
    # The output is looked at first: the input does not matter then.
    assert fails("nowhere", "-o", folder) == f"cannot write {folder}: the output must be a file, got a folder"
    folder.rmdir()
    assert list(tmp_path.iterdir()) == [source]


def test_the_input_is_never_replaced(tmp_path):
    source = tmp_path / "news.csv"
    source.write_text(NEWS)
    assert (
        fails(source, "-o", source) == f"{source}: already exists; replace it with --overwrite, or choose another name"
    )
    assert (
        fails(source, "--field", "headline", "-o", source, "--overwrite")
        == f"cannot write {source}: it is the input; choose another name"
    )
    assert source.read_text() == NEWS


def test_several_inputs_into_a_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "news.jsonl").write_text(
        '{"title": "oil, again", "key": "a"}\n{"title": "wages", "key": "b"}\n{"key": 1}\n'
    )
    (tmp_path / "more.jsonl").write_text('{"title": "oil", "key": "c"}\n')
    arguments = ("news.jsonl", "more.jsonl", "--to", "out", "--field", "title", "--id", "key", "--workers", 1)
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (0, "3 rows encoded: 3 embeddings of dimension 16 in out\n")
    assert result.stderr.splitlines()[-2:] == [
        "left out: news.jsonl, line 3: no field 'title' (fields: 'key'); name the right one with --field",
        "1 row could not be embedded",
    ]
    assert COMMAND.succeeds(*arguments) == "nothing to do: 3 embeddings of dimension 16 in out already\n"
    table = parquet.read_table(tmp_path / "out", columns=["id", "text"]).to_pylist()
    assert sorted(row["id"] + row["text"] for row in table) == ["aoil, again", "bwages", "coil"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give either -o OUT (one file) or --to TARGET (a directory or a database)."),
        (["-o", "o.npy", "--to", "t"], "give either -o OUT (one file) or --to TARGET (a directory or a database)."),
        (["-o", "o.npy", "--workers", 2], "--workers needs --to TARGET."),
        (["-o", "o.npy", "--id", "key"], "--id needs --to TARGET."),
        (["more", "-o", "o.npy"], "-o takes one INPUT; give several with --to TARGET."),
        (["--to", "t", "--batch-size", 3], "--batch-size is for -o; --to has batches of its own."),
    ],
)
def test_options_of_the_other_output(arguments, message):
    assert COMMAND.fails("texts.txt", *arguments, code=2) == message


def test_a_pipe_is_embedded_line_by_line():
    """The embedding of the first line is there before the second line is written."""
    command = [sys.executable, "-m", "ctx_embed", "encode", "-", "-o", "-", "--encoding", "cp1252"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        for line in ("first", "zwölf"):
            process.stdin.write(f"{line}\n".encode("cp1252"))
            process.stdin.flush()
            found = json.loads(process.stdout.readline())
            assert (found["text"], len(found["embedding"])) == (line, 320)
        process.stdin.close()
        assert process.wait() == 0
