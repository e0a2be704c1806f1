from __future__ import annotations

import gzip
import os

import pytest
from tokenizers import Tokenizer

from tests.helpers.cli import Command

COMMAND = Command("vocab")
run, fails = COMMAND.run, COMMAND.fails


@pytest.fixture
def text(tmp_path, sentences):
    path = tmp_path / "a.txt"
    path.write_text("\n\n".join(sentences) + "\n")
    return path


@pytest.fixture
def output(tmp_path):
    return tmp_path / "out" / "tokenizer.json"


@pytest.fixture(autouse=True)
def folder(output):
    """The output's folder, in which a failure leaves nothing."""
    output.parent.mkdir()
    return output.parent


def test_a_vocabulary_from_files(text, tmp_path, output, folder):
    packed = tmp_path / "b.gz"
    packed.write_bytes(gzip.compress(b"zebra zebra\nzebra\n"))
    rows = tmp_path / "c.jsonl"
    rows.write_text('{"text": "quokka quokka quokka quokka"}\n')
    result = run(text, packed, rows, "-o", output, "--vocabulary-size", 80)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == f"{output}: 80 entries\n"
    tokenizer = Tokenizer.from_file(str(output))
    assert tokenizer.get_vocab_size() == 80
    assert tokenizer.encode("Zebra quokka").tokens == ["zebra", "quokka"]
    assert os.listdir(folder) == ["tokenizer.json"]


def test_standard_input(output):
    for content in (b"the cat\nthe cat\n", gzip.compress(b"the cat\nthe cat\n")):
        result = run("-", "-o", output, "--overwrite", input=content)
        assert result.stdout == f"{output}: 15 entries\n"
    assert Tokenizer.from_file(str(output)).encode("the cat").tokens == ["the", "cat"]


def test_one_word_and_odd_texts(tmp_path, output):
    path = tmp_path / "odd.jsonl"
    path.write_text('{"text": "cat"}\n{"text": "lone \\ud800 surrogate"}\n{"text": "nul \\u0000 byte"}\n{"text": ""}\n')
    assert run(path, "-o", output).exit_code == 0
    assert run("-", "-o", output, "--overwrite", input="cat\n").stdout == f"{output}: 7 entries\n"
    assert run("-", "-o", output, "--overwrite", input="[" * 100_000).exit_code == 0


def test_a_tokenizer_is_replaced_when_the_new_one_is_complete(text, tmp_path, output, folder):
    run(text, "-o", output, "--vocabulary-size", 80)
    before = output.read_bytes()
    assert fails(text, tmp_path / "missing", "-o", output, "--overwrite") == f"{tmp_path / 'missing'}: no such file"
    assert output.read_bytes() == before
    assert os.listdir(folder) == ["tokenizer.json"]
    assert run(text, "-o", output, "--overwrite", "--vocabulary-size", 70).exit_code == 0
    assert Tokenizer.from_file(str(output)).get_vocab_size() == 70


def test_outputs_that_cannot_be_written(text, tmp_path, folder):
    # Found out before any text is read.
    missing = tmp_path / "missing"
    assert fails(missing, "-o", folder) == f"cannot write {folder}: the output must be a file, got a folder"
    assert fails(text, "-o", folder / ("n" * 300)) == f"cannot write {folder / ('n' * 300)}: File name too long"
    assert os.listdir(folder) == []
