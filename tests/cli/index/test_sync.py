"""`index sync` and `index build` of a folder as commands: the last line, options, --watch and Ctrl-C."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from tests.documents.samples import pdf
from tests.helpers.cli import Command


@pytest.fixture
def folder(here):
    """A folder of three notes, in the current one."""
    folder = here / "notes"
    folder.mkdir()
    for name in ("a.md", "b.md", "c.md"):
        (folder / name).write_text(f"A note, {name}.")
    return folder


run = Command("index").succeeds


def test_a_dry_run_says_what_would_change_and_changes_nothing(folder):
    run("build", "notes", "n.index")
    before = run("get", "n.index")
    (folder / "a.md").unlink()
    (folder / "b.md").write_text("Another note.")
    (folder / "d.md").write_text("A new note.")
    (folder / ".hidden.md").touch()
    os.mkdir(os.fsencode(folder) + b"/\xff")
    (folder / "\udcff" / "e.md").write_text("A note under a name that is no text.")
    counted = json.loads(run("sync", "notes", "n.index", "--dry-run", "--json"))
    assert run("get", "n.index") == before
    assert [counted[name] for name in ("added", "changed", "removed", "unchanged", "documents")] == [1, 1, 1, 1, 0]
    assert counted["skipped"] == {"hidden": 1}
    assert list(counted["failed"].values()) == ["its name is not UTF-8"]
    shutil.rmtree(os.fsencode(folder) + b"/\xff")
    for words, options in (("would be ", ["--dry-run"]), ("", [])):
        said = run("sync", "notes", "n.index", *options)
        assert said.startswith(f"n.index: 1 file {words}added, 1 changed, 1 removed, 1 unchanged")


def test_the_last_line_says_what_was_read_and_what_was_not(folder):
    (folder / "b.md").write_bytes("Un café crème, très bon.".encode("latin-1"))
    (folder / "c.md").rename(folder / "c.txt")
    (folder / "broken.pdf").write_text("%PDF-1.4")
    said = "; could not read broken.pdf (not PDF, or "
    assert run("build", "notes", "n.index").startswith(f"n.index: 3 files added (3 documents, 3 passages){said}")
    assert run("build", "notes", "n.index").startswith(f"n.index: nothing changed in 3 files{said}")
    pdf(folder / "broken.pdf")
    assert run("sync", "notes", "n.index") == "n.index: 1 file added, 3 unchanged (1 document, 2 passages)\n"
    (folder / "link.md").symlink_to(folder.parent)
    assert run("sync", "notes", "n.index", "--include", "*.md") == (
        "n.index: 2 files removed, 2 unchanged; skipped 2 not included, 1 link out of the folder\n"
    )
    assert run("get", "n.index", "b.md").startswith('{"text": "Un café')


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_watch_follows_changes_and_ends_with_ctrl_c(folder):
    run("build", "notes", "n.index", "--include", "a*")
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "ctx_embed", "index", "sync", "notes", "n.index", "--watch"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stdout.readline() == "n.index: nothing changed in 1 file; skipped 2 not included\n"
        assert process.stderr.readline() == "Watching notes; Ctrl-C ends.\n"
        # The watcher may need a moment to start: changes go on until one is seen.
        line, number, end = "", 0, time.monotonic() + 60
        os.set_blocking(process.stdout.fileno(), False)
        while not line and time.monotonic() < end:
            number += 1
            (folder / "a new.txt").write_text(f"Changed {number} times.")
            time.sleep(1)
            line = process.stdout.readline()
        assert "1 file added, 1 unchanged (1 document, 1 passage)" in line
        process.send_signal(signal.SIGINT)
        process.wait(timeout=60)
        assert "Traceback" not in process.stderr.read()
    finally:
        process.kill()
        process.communicate()
