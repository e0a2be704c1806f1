"""A disk without space: every change leaves the index as it was and says so in one line."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from ctx_embed import SearchIndex
from ctx_embed.errors import UnwritableError


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 1 MB, which only root may mount, on Linux."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1M", "tmpfs", str(disk)]
    if not shutil.which("mount") or os.geteuid() or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("only root can mount a small disk")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def fill(disk: Path) -> Path:
    path = disk / "fill"
    with path.open("wb") as file:
        while (free := shutil.disk_usage(disk).free) > 0:
            file.write(b"x" * free)
            file.flush()
    return path


def test_a_full_disk(small_disk, hash_model):
    path = small_disk / "index"
    with SearchIndex.create(path, hash_model) as index:
        index.add(["one", "two", "three"])
        index.delete([0])
    taken = fill(small_disk)
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
    with SearchIndex.open(path, hash_model) as index:
        assert [(document.id, document.text) for document in index.documents()] == [(1, "two"), (2, "three")]
        assert index.verify() == []


def test_space_that_ends_during_a_change(small_disk, hash_model):
    path = small_disk / "index"
    with SearchIndex.create(path, hash_model) as index:
        index.add(["one", "two", "three"])
        with pytest.raises(UnwritableError, match=r"cannot be written|cannot write"):
            index.add([f"{number} " + "long " * 100 for number in range(3000)])
        assert len(index) == 3
        index.add(["four"])
        assert index.verify() == []
