import csv
import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from pyarrow import parquet

from ctx_embed.numpy_model import Embedder
from tests.helpers.cli import Command

pytestmark = pytest.mark.usefixtures("default_model")
COMMAND = Command("encode")
run, fails = COMMAND.run, COMMAND.fails


def test_text_in_order_with_a_model_of_ones_own(tiny_model, tiny_model_path, sentences):
    texts = [*sentences, "lone \ud800 surrogate", "NUL \x00 byte"]
    lines = "".join(json.dumps({"body": text}) + "\n" for text in texts)
    Path("texts.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    arguments = ("texts.jsonl.gz", "-o", "o.npy", "--field", "body", "--model", tiny_model_path, "--batch-size", 3)
    assert COMMAND.succeeds(*arguments) == "10 embeddings of dimension 16 in o.npy\n"
    embeddings = np.load("o.npy")
    assert embeddings.dtype == np.float32
    expected = tiny_model.encode([text.replace("\ud800", "\ufffd") for text in texts])
    np.testing.assert_allclose(embeddings, expected, atol=1e-6)
    assert sorted(os.listdir()) == ["o.npy", "texts.jsonl.gz"]


NEWS = 'id,headline,year\n7,"oil, again",2003\n8,,2004\n'


def test_the_suffix_names_the_format_and_what_was_encoded_can_be_indexed(tiny_model_path):
    Path("news.csv").write_text(NEWS)
    vectors = Embedder.load(tiny_model_path).encode(["oil, again", ""])
    for name in ("a.jsonl", "a.CSV", "a.parquet", "-"):
        printed = COMMAND.succeeds("news.csv", "--field", "headline", "-o", name)
    assert printed == Path("a.jsonl").read_text()
    of_parquet = parquet.read_table("a.parquet").to_pylist()
    with open("a.CSV", newline="") as file:
        of_csv = list(csv.DictReader(file))
    for rows in ([*map(json.loads, printed.splitlines())], of_parquet, of_csv):
        metadata = [found if isinstance(found := row["metadata"], dict) else json.loads(found) for row in rows]
        assert metadata == [{"year": 2003}, {"year": 2004}]
        assert [(int(row["id"]), row["text"]) for row in rows] == [(7, "oil, again"), (8, "")]
        # To the bit: 9 digits decide a float32.
        places = [f"embedding_{place}" for place in range(16)]
        found = [row.get("embedding") or [float(row[place]) for place in places] for row in rows]
        assert np.array_equal(np.array(found, np.float32), vectors)
    index = Command("index")
    for name in ("a.jsonl", "a.parquet"):
        index.succeeds("build", name, "news.index", "--embedding-field", "embedding", "--overwrite")
        assert json.loads(index.succeeds("get", "news.index", "8")) == {"text": "", "id": 8, "metadata": {"year": 2004}}
    assert json.loads(run("-", "-o", "-", input="only text\n").stdout).keys() == {"text", "embedding"}


def test_mistakes_leave_no_file():
    Path("news.csv").write_text(NEWS)
    Path("folder.npy").mkdir()
    for line, message in (
        ("nowhere -o out.npy.gz", "cannot write out.npy.gz: its name must end in .npy, .csv, .jsonl, .parquet, or be"),
        ("- -o out.npy", "standard input: no texts to embed"),
        # The output is looked at first: the input does not matter then.
        ("nowhere -o folder.npy", "cannot write folder.npy: the output must be a file, got a folder"),
        ("news.csv -o news.csv", "news.csv: already exists; replace it with --overwrite, or choose another name"),
        ("news.csv -o news.csv --overwrite", "cannot write news.csv: it is the input; choose another name"),
    ):
        assert fails(*line.split(), "--field", "headline", input=" \n\n").startswith(message)
    assert Path("news.csv").read_text() == NEWS
    for line, message in (
        ("-o o.npy --to t", "give either -o OUT (one file) or --to TARGET"),
        ("-o o.npy --workers 2", "--workers needs --to TARGET."),
        ("more -o o.npy", "-o takes one INPUT; use --to TARGET for several."),
        ("--to t --batch-size 3", "--batch-size is for -o; --to has batches of its own."),
    ):
        assert fails("texts.txt", *line.split(), code=2).startswith(message)


def test_several_inputs_into_a_directory():
    Path("news.jsonl").write_text('{"title": "oil, again", "key": "a"}\n{"title": "wages", "key": "b"}\n{"key": 1}\n')
    Path("more.jsonl").write_text('{"title": "oil", "key": "c"}\n')
    arguments = ["news.jsonl", "more.jsonl", "--to", "out", "--field", "title", "--id-field", "key", "--workers", "1"]
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (0, "3 rows encoded: 3 embeddings of dimension 16 in out\n")
    assert result.stderr.splitlines()[-2:] == [
        "left out: news.jsonl, line 3: no field 'title' (fields: 'key'); name the right one with --field",
        "1 row could not be embedded",
    ]
    assert COMMAND.succeeds(*arguments) == "nothing to do: 3 embeddings of dimension 16 in out already\n"
    table = parquet.read_table("out", columns=["id", "text"]).to_pylist()
    assert sorted(row["id"] + row["text"] for row in table) == ["aoil, again", "bwages", "coil"]


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
