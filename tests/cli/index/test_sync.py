"""`index sync` and `index build` of a folder as commands: the last line, options, --watch and Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.documents.samples import pdf

COMMAND = [sys.executable, "-m", "ctx_embed", "index"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sync") / "notes"
    folder.mkdir()
    (folder / "ferry.md").write_text("# Ferry\n\nThe boat was late.\n")
    (folder / "latin.txt").write_bytes("Un café crème, très bon.".encode("latin-1"))
    (folder / "broken.pdf").write_text("%PDF-1.4")
    return folder


def run(folder, *arguments: str) -> str:
    done = subprocess.run([*COMMAND, *arguments], cwd=folder.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_last_line_says_what_was_read_and_what_was_not(folder):
    first = run(folder, "build", "notes", "notes.index")
    assert first.startswith(
        "notes.index: 2 files added (2 documents, 2 passages); could not read broken.pdf (not PDF, or "
    )
    again = run(folder, "build", "notes", "notes.index")
    assert again.startswith("notes.index: nothing changed in 2 files; could not read broken.pdf (not PDF, or ")
    pdf(folder / "broken.pdf")
    assert run(folder, "sync", "notes", "notes.index") == (
        "notes.index: 1 file added, 2 unchanged (1 document, 2 passages)\n"
    )
    assert run(folder, "sync", "notes", "notes.index", "--include", "*.md") == (
        "notes.index: 2 files removed, 1 unchanged; skipped 2 not included\n"
    )
    assert run(folder, "get", "notes.index", "ferry.md").startswith('{"text": "# Ferry')


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_watch_follows_changes_and_ends_with_ctrl_c(folder):
    run(folder, "build", "notes", "watched.index", "--overwrite", "--include", "*.txt")
    process = subprocess.Popen(
        [*COMMAND, "sync", "notes", "watched.index", "--watch"],
        cwd=folder.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        assert process.stdout.readline() == "watched.index: nothing changed in 1 file; skipped 2 not included\n"
        assert process.stderr.readline() == "Watching notes; Ctrl-C ends.\n"
        # The watcher may need a moment to start: changes go on until one is seen.
        line, end = "", time.monotonic() + 60
        os.set_blocking(process.stdout.fileno(), False)
        number = 0
        while not line and time.monotonic() < end:
            number += 1
            (folder / "new.txt").write_text(f"Changed {number} times.")
            time.sleep(1)
            line = process.stdout.readline()
        assert "1 file added, 1 unchanged (1 document, 1 passage)" in line
        process.send_signal(signal.SIGINT)
        process.wait(timeout=30)
        assert "Traceback" not in process.stderr.read()
    finally:
        process.kill()
        process.communicate()
