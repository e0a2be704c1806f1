"""An index folder holds regular files only: pipes and links in it are one line, and nothing waits for them."""

from __future__ import annotations

import os
import signal
import struct
from contextlib import contextmanager

import numpy as np
import pytest

from ctx_embed import InputError, SearchIndex
from ctx_embed.index.storage.shards import ShardFolder

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")


@contextmanager
def within(seconds: int):
    """Raise TimeoutError if the block takes longer."""

    def late(*_):
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture
def folder(tmp_path, hash_model):
    with SearchIndex.create(tmp_path / "index", hash_model) as index:
        index.add(["one", "two"])
    return tmp_path / "index"


def read(folder, model) -> None:
    with within(20), SearchIndex.open(folder, model) as index:
        index.search("one", mode="dense")


def pipe(path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def link_to_itself(path) -> None:
    path.unlink()
    path.symlink_to(path)


@pytest.mark.parametrize("replace", [pipe, link_to_itself])
@pytest.mark.parametrize("name", ["manifest.json", "vectors/*.safetensors"])
def test_files_that_are_not_regular_are_one_line(folder, hash_model, name, replace):
    (path,) = folder.glob(name)
    replace(path)
    with pytest.raises(InputError) as caught:
        read(folder, hash_model)
    assert str(caught.value).startswith(f"{path}: damaged (")
    assert "not a regular file" in str(caught.value)


def test_a_pipe_is_no_faiss_file(folder, hash_model):
    pipe(folder / "faiss" / "n0-g1-r2-00000000.faiss")
    read(folder, hash_model)


def test_a_header_nested_too_deeply_is_one_line(tmp_path):
    vectors = ShardFolder(tmp_path, 8)
    shard = vectors.write(0, [np.ones((200, 8), np.float32)], 200)
    with (tmp_path / shard.name).open("r+b") as file:
        file.write(struct.pack("<Q", 4000) + b"[" * 4000)
    with pytest.raises(InputError, match="its header cannot be read"):
        vectors.dtype_of(shard)
