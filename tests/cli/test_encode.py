from __future__ import annotations

import gzip
import json

import numpy as np
import pytest
from click.testing import CliRunner

from ctx_embed import loading
from ctx_embed.cli.main import main


@pytest.fixture(autouse=True)
def _default_model(tiny_model, monkeypatch):
    """The tiny model takes the place of the one that ships."""
    load = loading.load
    monkeypatch.setattr(loading, "load", lambda path=None: tiny_model if path is None else load(path))


def run(*arguments, **options):
    return CliRunner().invoke(main, ["encode", *map(str, arguments)], **options)


def fails(message: str, *arguments, **options) -> None:
    result = run(*arguments, **options)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.splitlines()[-1] == f"Error: {message}"


def test_text_in_order_to_exactly_the_name_given(tiny_model, sentences, tmp_path):
    source, out = tmp_path / "texts.txt", tmp_path / "embeddings"
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


def test_mistakes_leave_no_file(tmp_path):
    source, out = tmp_path / "texts.txt", tmp_path / "out.npy"
    fails(f"{source}: no such file", source, "-o", out)
    source.write_text(" \n\n")
    fails(f"{source}: no texts, there is nothing to embed", source, "-o", out)
    fails("standard input: no texts, there is nothing to embed", "-", "-o", out, input="")
    source.write_bytes(b"fine\n\xff\n")
    fails(f"{source}, line 2: not UTF-8 (byte 1 of the line), convert it first", source, "-o", out)
    source.write_text("a text\n")
    fails("./absent: no such model folder", source, "-o", out, "--model", "./absent")
    absent = tmp_path / "absent" / "out.npy"
    # The output is looked at first: the input does not matter then.
    fails(f"cannot write {absent}: the folder {absent.parent} does not exist, create it first", "nowhere", "-o", absent)
    fails(f"cannot write {tmp_path}: it is a folder, a file is needed", "nowhere", "-o", tmp_path)
    assert list(tmp_path.iterdir()) == [source]


def test_usage(tmp_path):
    assert run("texts.txt").exit_code == 2
    assert run("texts.txt", "-o", tmp_path / "out.npy", "--batch-size", 0).exit_code == 2
    assert "Example: ctx-embed encode" in run("--help").stdout
