"""Processes of train and distill that are interrupted or killed, and resumed."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.cli import Command

WORDS = {"pos": ["joy", "good", "fine", "glad"], "neg": ["dull", "bad", "sad", "poor"]}
DISTILL = ["--dimension", "8", "--steps", "1", "--rank", "2", "--vocabulary-size", "120", "--batch-size", "8"]
COMMANDS = {
    "distill": ["distill", "texts.txt", "--teacher", "teacher", *DISTILL, "--epochs", "20"],
    "train": ["train", "labelled.tsv", "--from", "teacher", "--runs", "2", "--epochs", "8"],
}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch, tiny_model):
    """Work in a folder with a teacher, texts and labelled texts."""
    monkeypatch.chdir(tmp_path)
    tiny_model.save_pretrained("teacher")
    rows = [f"{label}\t{word} film number {n}" for label in WORDS for word in WORDS[label] for n in range(12)]
    Path("labelled.tsv").write_text("\n".join(rows))
    Path("texts.txt").write_text("\n".join(row.partition("\t")[2] for row in rows))
    return tmp_path


def start(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "ctx_embed", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for(happened: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 120
    while not happened():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.01)


def weights(folder: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path(folder).glob("*.safetensors")}


def finish(arguments: list[str], output: str) -> None:
    assert Command(arguments[0]).run(*arguments[1:], "-o", output).exit_code == 0


@pytest.mark.parametrize(("name", "signal_number"), [("distill", signal.SIGKILL), ("train", signal.SIGINT)])
def test_a_run_that_is_cut_off_resumes_to_the_same_weights(name, signal_number):
    arguments = COMMANDS[name]
    process = start(*arguments, "-o", "model")
    wait_for(Path("model.partial/checkpoint.pt").exists, process)
    process.send_signal(signal_number)
    out, err = process.communicate(timeout=30)
    if signal_number == signal.SIGINT:
        assert (process.returncode, out) == (130, "")
        assert "Interrupted; repeat the command to continue" in err
    assert not Path("model").exists()
    finish(arguments, "model")
    finish(arguments, "whole")
    assert weights("model") == weights("whole")
    assert not Path("model.partial").exists()
