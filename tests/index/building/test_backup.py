"""Backups made while others write are indexes of one moment."""

from __future__ import annotations

from itertools import islice

from ctx_embed import SearchIndex
from tests.helpers.cli import Command
from tests.helpers.errors import error
from tests.index.support.child import child
from tests.index.support.killed import states
from tests.index.support.stored import stored


def test_a_backup_is_the_index_of_one_moment_while_another_process_edits(tmp_path, hash_model):
    path = tmp_path / "index"
    copies = [tmp_path / f"copy {number}" for number in range(8)]
    with SearchIndex.create(path, hash_model, "HNSW8") as index:
        process = child("killed", "edits", path, 0)
        try:
            process.stdout.readline()
            for copy in copies:
                index.backup(copy)
        finally:
            process.kill()
            process.communicate()
    before = islice(states(), 5000)
    state = next(before)
    for copy in copies:
        found = stored(copy)
        while found != state:
            state = next(before)
    assert state
    with SearchIndex.open(copies[-1], hash_model) as copy:
        copy.add(["another"])
        assert copy.verify(embed=False) == []


def test_a_backup_has_faiss_file_and_answers_alike(tmp_path, hash_model):
    with SearchIndex.create(tmp_path / "index", hash_model, "HNSW8") as index:
        index.add([f"text {number}" for number in range(100)])
        index.backup(tmp_path / "copy")
        assert sorted(entry.name for entry in (tmp_path / "copy").iterdir()) == sorted(
            entry.name for entry in (tmp_path / "index").iterdir() if "-" not in entry.name
        )
        with SearchIndex.open(tmp_path / "copy", hash_model) as copy:
            assert copy.search("text 7", mode="dense") == index.search("text 7", mode="dense")


def test_a_backup_replaces_nothing(index, tmp_path):
    index.add(["one"])
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "mine.txt").write_text("keep me")
    for name in ("taken", "index"):
        assert error(index.backup, tmp_path / name) == f"{tmp_path / name}: already exists; choose another name"
    assert "does not exist; create it first" in error(index.backup, tmp_path / "no" / "copy")
    result = Command("index backup").succeeds(tmp_path / "index", tmp_path / "copy")
    assert result == f"{tmp_path / 'copy'}: 1 document\n"
