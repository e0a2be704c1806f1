"""Index folders hold regular files only: a pipe in one, which waits for its writer, makes no command wait."""

from __future__ import annotations

import os
import shutil
import signal
from contextlib import suppress

import pytest

from ctx_embed import InputError, SearchIndex
from ctx_embed.index.building.build import build_index
from ctx_embed.index.building.merging import merge_indexes
from tests.index.support.hash_model import HashModel

SECONDS = 5


@pytest.fixture
def index(tmp_path):
    with SearchIndex.create(tmp_path / "whole.index", HashModel(), "HNSW8", chunk="sentences") as index:
        index.add([f"One sentence {number}. And another." for number in range(40)])
        index.delete([3])
    return tmp_path / "whole.index"


def change(path) -> None:
    with SearchIndex.open(path, HashModel()) as index:
        index.add(["A new text."])
        index.delete([5])


def compact(path) -> None:
    with SearchIndex.open(path, HashModel()) as index:
        index.compact()


def reembed(path) -> None:
    with SearchIndex.open(path, HashModel()) as index:
        index.reembed(HashModel(16))


def verify(path) -> None:
    with SearchIndex.open(path, HashModel()) as index:
        index.verify()


def merge(path) -> None:
    merge_indexes([path.with_name("whole.index"), path], path.with_name("merged.index"), replace=True)


def append(path) -> None:
    source = path.with_name("more.txt")
    source.write_text("more\n")
    build_index(source, path, model=HashModel(), mode="append")


def overwrite(path) -> None:
    source = path.with_name("more.txt")
    source.write_text("more\n")
    build_index(source, path, model=HashModel(), mode="overwrite")


@pytest.mark.parametrize("name", ["index.sqlite", "*.faiss"])
@pytest.mark.parametrize("work", [change, compact, reembed, verify, merge, append, overwrite])
def test_a_pipe_is_no_file_of_an_index(index, tmp_path, name, work):
    path = tmp_path / "piped.index"
    shutil.copytree(index, path)
    (place,) = path.glob(name)
    place.unlink()
    os.mkfifo(place)

    def ring(*_) -> None:
        raise AssertionError(f"still waiting after {SECONDS} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(SECONDS)
    try:
        with suppress(InputError):
            work(path)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
