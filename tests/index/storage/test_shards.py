from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

import numpy as np
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctx_embed import InputError
from ctx_embed.errors import DamagedError
from ctx_embed.index.storage import dtypes
from ctx_embed.index.storage import shards as module
from ctx_embed.index.storage.shards import FEW_TIMES, Shard, ShardFolder


def numbered(first: int, rows: int) -> np.ndarray:
    """Return vectors (rows, 2) that contain the number of their row."""
    return np.stack([np.arange(first, first + rows), np.zeros(rows)], axis=1).astype(np.float32)


@settings(max_examples=15, deadline=None)
@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=40))
def test_small_additions_leave_few_shards_in_order(tmp_path_factory, sizes):
    folder = ShardFolder(tmp_path_factory.mktemp("vectors"), 2)
    shards: list[Shard] = []
    row = 0
    for size in sizes:
        shards = folder.append(shards, numbered(row, size))
        row += size
    folder.check(shards)
    assert all(left.rows >= 2 * right.rows for left, right in pairwise(shards))
    np.testing.assert_array_equal(np.concatenate(list(folder.blocks(shards))), numbered(0, row))
    np.testing.assert_array_equal(
        np.concatenate(list(folder.blocks(shards, row // 2))), numbered(row // 2, row - row // 2)
    )
    rows = np.random.default_rng(0).integers(0, row, 20)
    np.testing.assert_array_equal(folder.gather(shards, rows)[:, 0], rows)
    folder.remove_unlisted(shards)
    assert {path.name for path in folder.folder.iterdir()} == {shard.name for shard in shards}


def test_a_full_shard_is_never_written_again(tmp_path):
    folder = ShardFolder(tmp_path, 2)
    shards = folder.append([], numbered(0, 8), shard_rows=8)
    full = shards[0]
    for row in range(8, 40):
        shards = folder.append(shards, numbered(row, 1), shard_rows=8)
    assert shards[0] == full
    assert max(shard.rows for shard in shards) == 8
    np.testing.assert_array_equal(np.concatenate(list(folder.blocks(shards))), numbered(0, 40))


def test_a_changed_byte_is_found(tmp_path):
    folder = ShardFolder(tmp_path, 2)
    (shard,) = folder.append([], numbered(0, 4))
    path = tmp_path / shard.name
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        list(folder.blocks([shard]))
    message = f"{path}: damaged (its checksum is wrong); restore it from a copy or build the index again"
    assert str(caught.value) == message


def test_a_list_with_a_gap_is_found(tmp_path):
    folder = ShardFolder(tmp_path, 2)
    shard = folder.write(3, [numbered(3, 4)], 4)
    with pytest.raises(InputError, match="it starts at row 3, not 0"):
        folder.check([shard])


def test_a_folder_that_is_gone_is_one_line(tmp_path):
    folder = ShardFolder(tmp_path / "gone", 2)
    with pytest.raises(InputError, match=r"cannot write to .*gone: No such file or directory"):
        folder.append([], numbered(0, 1))


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_safetensors_reads_a_shard_that_was_written_in_blocks(tmp_path, dtype):
    from safetensors.numpy import load_file

    folder = ShardFolder(tmp_path, 2, dtype)
    unit = np.eye(2, dtype=np.float32)[np.arange(10) % 2]
    shard = folder.write(0, [unit[:7], unit[7:]], 10)
    stored = load_file(tmp_path / shard.name)["vectors"]
    np.testing.assert_array_equal(dtypes.DTYPES[dtype].decode(stored), unit)
    np.testing.assert_array_equal(np.concatenate(list(folder.blocks([shard]))), unit)
    folder.check([shard])


@pytest.mark.parametrize("dtype", sorted(dtypes.DTYPES))
def test_rows_are_the_same_however_often_they_are_read(tmp_path, dtype):
    vectors = np.random.default_rng(0).normal(size=(3000, 8)).astype(np.float32)
    folder = ShardFolder(tmp_path, 8, dtype)
    shards = folder.append([], vectors, shard_rows=1000)
    stored = np.concatenate(list(folder.blocks(shards)))
    rows = np.random.default_rng(1).integers(0, 3000, 200)
    for _ in range(FEW_TIMES + 2):
        np.testing.assert_array_equal(folder.gather(shards, rows), stored[rows])


def test_blocks_begin_at_any_row(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "READ_ROWS", 7)
    vectors = np.arange(60, dtype=np.float32).reshape(30, 2)
    folder = ShardFolder(tmp_path, 2)
    shards = [folder.write(0, [vectors[:17]], 17), folder.write(17, [vectors[17:]], 13)]
    for start in range(30):
        np.testing.assert_array_equal(np.concatenate(list(folder.blocks(shards, start))), vectors[start:])


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")
def test_a_few_rows_do_not_bring_their_neighbours_into_memory(tmp_path):
    folder = ShardFolder(tmp_path, 320)
    shards = folder.append([], np.ones((32_768, 320), np.float32))
    process = psutil.Process()
    before = process.memory_info().rss
    folder.gather(shards, np.random.default_rng(0).integers(0, 32_768, 300))
    assert process.memory_info().rss - before < 4e6


def test_a_row_beyond_the_end_of_its_file_is_damage(tmp_path):
    folder = ShardFolder(tmp_path, 2)
    shards = folder.append([], numbered(0, 4000))
    folder.gather(shards, np.array([3999]))
    os.truncate(tmp_path / shards[0].name, 5000)
    with pytest.raises(DamagedError, match="its size is wrong"):
        folder.gather(shards, np.array([3999]))
