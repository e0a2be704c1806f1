"""A disk without space: every change leaves the index as it was and says so in one line."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from ctx_embed import SearchIndex
from ctx_embed.errors import UnwritableError
from ctx_embed.index.building.build import build_index
from ctx_embed.index.writing import writer
from tests.helpers.errors import error
from tests.index.support.stored import stored


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 1 MB, which only root may mount, on Linux."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1M", "tmpfs", str(disk)]
    if not shutil.which("mount") or subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("a small disk cannot be mounted here")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_no_change_finds_room(small_disk, hash_model):
    path, taken = small_disk / "index", small_disk / "fill"
    with SearchIndex.create(path, hash_model) as index:
        index.add(["one", "two", "three"])
        index.delete([0])
    with taken.open("wb") as file:
        while (free := shutil.disk_usage(small_disk).free) > 0:
            file.write(b"x" * free)
            file.flush()
    for change in (
        lambda index: index.add([f"more {number}" for number in range(5000)]),
        lambda index: index.upsert(["changed"], [1]),
        lambda index: index.delete([1]),
        lambda index: index.compact(),
    ):
        with (
            pytest.raises(UnwritableError, match=r"cannot be written \(the disk is full\)$"),
            SearchIndex.open(path, hash_model) as index,
        ):
            change(index)
    taken.unlink()
    assert stored(path) == {1: "two", 2: "three"}


def test_space_that_ends_during_a_change(small_disk, hash_model):
    path = small_disk / "index"
    expected = {"first": "one"}

    def fill() -> None:
        for number in range(1000):
            texts = {f"{number} {place}": f"text {number} {place} " + "word " * 200 for place in range(20)}
            index.add(list(texts.values()), list(texts))
            expected.update(texts)

    with SearchIndex.create(path, hash_model) as index:
        index.add(["one"], ["first"])
        with pytest.raises(UnwritableError, match=r"cannot be written|cannot write"):
            index.add([f"{number} " + "long " * 100 for number in range(3000)])
        said = error(fill)
    assert said.startswith(("cannot write to ", f"{path / 'index.sqlite'}: cannot be written"))
    assert "\n" not in said
    assert len(expected) > 20
    assert stored(path) == expected


def test_a_build_on_a_full_disk_resumes_when_there_is_room(small_disk, hash_model, tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "STEP_DOCUMENTS", 16)
    monkeypatch.setattr(writer, "BATCH_DOCUMENTS", 16)
    source, ballast = tmp_path / "source.txt", small_disk / "ballast"
    lines = [f"text {number} " + "word " * 100 for number in range(400)]
    source.write_text("\n".join(lines) + "\n")
    ballast.write_bytes(b"x" * 300_000)
    said = error(build_index, source, small_disk / "index", model=hash_model)
    assert "continue with --resume" in said
    assert not (small_disk / "index").exists()
    ballast.unlink()
    subprocess.run(["mount", "-o", "remount,size=8m", str(small_disk)], check=True)
    built = build_index(source, small_disk / "index", model=hash_model, resume=True)
    assert built.documents == 400
    assert list(stored(small_disk / "index").values()) == lines
