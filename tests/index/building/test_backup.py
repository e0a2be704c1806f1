"""Backups made while others write are indexes of one moment."""

from __future__ import annotations

import pytest

from ctx_embed import InputError, SearchIndex
from tests.helpers.cli import Command
from tests.index.support.child import child
from tests.index.support.killed import states
from tests.index.support.stored import stored


def test_a_backup_is_the_index_of_one_moment_while_another_process_edits(tmp_path, hash_model):
    path = tmp_path / "index"
    with SearchIndex.create(path, hash_model, "HNSW8") as index:
        process = child("killed", "edits", path, 0)
        try:
            process.stdout.readline()
            for number in range(8):
                index.backup(tmp_path / f"copy {number}")
        finally:
            process.kill()
            process.communicate()
    before = states()
    state = next(before)
    for number in range(8):
        found = stored(tmp_path / f"copy {number}")
        for _ in range(5000):
            if found == state:
                break
            state = next(before)
        assert found == state
    assert state
    with SearchIndex.open(tmp_path / "copy 7", hash_model) as copy:
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


def test_a_backup_replaces_nothing(tmp_path, hash_model):
    with SearchIndex.create(tmp_path / "index", hash_model) as index:
        index.add(["one"])
        for name in ("taken", "index"):
            (tmp_path / "taken").mkdir(exist_ok=True)
            (tmp_path / "taken" / "mine.txt").write_text("keep me")
            with pytest.raises(InputError) as caught:
                index.backup(tmp_path / name)
            assert str(caught.value) == f"{tmp_path / name}: already exists; choose another name"
        with pytest.raises(InputError, match="does not exist; create it first"):
            index.backup(tmp_path / "no" / "copy")
    result = Command("index backup").run(tmp_path / "index", tmp_path / "copy")
    assert result.stdout == f"{tmp_path / 'copy'}: 1 document\n"
