"""`index sync` and `index build` of a folder as commands: the last line, options, --watch and Ctrl-C."""

from __future__ import annotations

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
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder.parent)
        return Command("index").succeeds(*arguments)


def test_links_out_of_a_folder_are_left_out_unless_they_are_asked_for(tmp_path):
    folder, secret = tmp_path / "notes", tmp_path / "secret.txt"
    (folder / "sub").mkdir(parents=True)
    secret.write_text("the secret of the harbour")
    (folder / "boat.md").write_text("The boat was late.")
    (folder / "inside.md").symlink_to("boat.md")
    (folder / "outside.txt").symlink_to(secret)
    (folder / "sub" / "again.txt").symlink_to(folder / "outside.txt")
    assert run(folder, "build", "notes", "n.index") == (
        "n.index: 2 files added (2 documents, 2 passages); skipped 2 links out of the folder\n"
    )
    assert "secret" not in run(folder, "get", "n.index")
    assert run(folder, "sync", "notes", "n.index", "--follow-links").startswith("n.index: 2 files added")
    assert run(folder, "get", "n.index").count("the secret of the harbour") == 2
    # The option is stored with the folder.
    assert run(folder, "build", "notes", "n.index") == "n.index: nothing changed in 4 files\n"
    assert run(folder, "sync", "notes", "n.index", "--no-follow-links").startswith("n.index: 2 files removed")
    assert "secret" not in run(folder, "get", "n.index")
    run(folder, "build", "notes", "new.index", "--follow-links")
    assert "secret" in run(folder, "get", "new.index")


def test_a_dry_run_says_what_would_change_and_changes_nothing(tmp_path):
    folder = tmp_path / "notes"
    folder.mkdir()
    for name in ("a.md", "b.md", "c.md"):
        (folder / name).write_text(f"A note, {name}.")
    run(folder, "build", "notes", "n.index")
    before = run(folder, "get", "n.index")
    (folder / "a.md").unlink()
    (folder / "b.md").write_text("Another note.")
    (folder / "d.md").write_text("A new note.")
    expected = "n.index: 1 file {}added, 1 changed, 1 removed, 1 unchanged"
    assert run(folder, "sync", "notes", "n.index", "--dry-run") == f"{expected.format('would be ')}\n"
    assert run(folder, "get", "n.index") == before
    counted = json.loads(run(folder, "sync", "notes", "n.index", "--dry-run", "--json"))
    assert [counted[name] for name in ("added", "changed", "removed", "unchanged", "documents")] == [1, 1, 1, 1, 0]
    (folder / ".hidden.md").touch()
    os.mkdir(os.fsencode(folder) + b"/\xff")
    (folder / "\udcff" / "e.md").write_text("A note under a name that is no text.")
    counted = json.loads(run(folder, "sync", "notes", "n.index", "--dry-run", "--json"))
    assert counted["skipped"] == {"hidden": 1}
    assert list(counted["failed"].values()) == ["its name is not UTF-8"]
    (folder / ".hidden.md").unlink()
    shutil.rmtree(os.fsencode(folder) + b"/\xff")
    assert run(folder, "sync", "notes", "n.index").startswith(expected.format(""))
    said = run(folder, "sync", "notes", "n.index", "--dry-run", "--documents", "lines", "--exclude", "d.md")
    assert said == "n.index: 2 files would be changed, 1 removed; skipped 1 excluded\n"
    assert run(folder, "sync", "notes", "n.index", "--dry-run") == "n.index: nothing changed in 3 files\n"


def test_files_that_block_or_never_end_and_odd_dates_and_rules_end_no_build(tmp_path):
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / ".gitignore").write_text(f"{'*a' * 12}c\n")
    (folder / ("a" * 60)).write_text("A name of many letters.")
    for name, seconds in (("late.md", 2**33 + 2**32), ("early.md", -(2**31)), ("now.md", 1_700_000_000)):
        (folder / name).write_text(f"A note, {name}.")
        os.utime(folder / name, (seconds, seconds))
    os.mkfifo(folder / "pipe.txt")
    (folder / "blocks.txt").symlink_to("/proc/kmsg")
    (folder / "endless.csv").symlink_to("/dev/zero")
    (folder / "header.csv").write_text(",".join(f"column {number}" for number in range(20_000)) + "\n1\n")
    began = time.monotonic()
    said = run(folder, "build", "notes", "n.index", "--follow-links")
    assert time.monotonic() - began < 30
    assert said.startswith("n.index: 5 files added")
    notes = {row["id"]: row for row in map(json.loads, run(folder, "get", "n.index").splitlines())}
    assert notes["late.md"]["metadata"]["modified"].startswith("2262-")
    assert run(folder, "sync", "notes", "n.index").startswith("n.index: nothing changed in 5 files")


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
