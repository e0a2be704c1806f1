"""Acknowledged changes stay and others are complete or absent: kills at any line, and several who read and write."""

from __future__ import annotations

import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial

import pytest

from ctx_embed import InputError, SearchIndex
from ctx_embed.index.storage.documents import DocumentStore
from tests.helpers.errors import error
from tests.index.support.child import child
from tests.index.support.stored import stored

SLOW = pytest.mark.slow
OTHER_TYPES = [("int8", "float16"), ("float16", "float32")]


def killed_at_lines(folder, model, *options, dtype="float32", stride=None) -> tuple[int, int]:
    """Kill operations at every stride-th line, and return how many kills left the old and the new state."""
    with SearchIndex.create(folder / "base", model, *options[:1], dtype=dtype) as index:
        index.add([f"old {number}" for number in range(20)])
        index.add(["old and alone"])
    (folder / "work").mkdir()
    process = child("crash_points", folder / "base", folder / "work", stride, *options[1:])
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 0
    old, new = map(int, output.split())
    return old, new


@pytest.mark.parametrize(("factory", "stride"), [("Flat", 8), ("HNSW8", 11), pytest.param("Flat", 3, marks=SLOW)])
def test_a_kill_at_any_line_leaves_the_old_or_the_new_state(tmp_path, hash_model, factory, stride):
    old, new = killed_at_lines(tmp_path, hash_model, factory, stride=stride)
    assert old + new > 20
    assert min(old, new) > 5


@pytest.mark.parametrize(
    ("before", "after"), [("float32", "int8"), *(pytest.param(*types, marks=SLOW) for types in OTHER_TYPES)]
)
def test_a_kill_while_the_vectors_change_their_data_type_leaves_an_intact_index(tmp_path, hash_model, before, after):
    old, new = killed_at_lines(tmp_path, hash_model, "Flat", after, dtype=before, stride=5)
    assert old > 5
    assert new > 2


def test_threads_share_one_index(index):
    index.add(["first"])

    def add(thread: int) -> None:
        for number in range(8):
            index.add([f"{thread} {number}", f"{thread} {number} too"])

    def search(_: int) -> None:
        for _ in range(60):
            hits = index.search("first", k=1000, mode="dense")
            assert hits[0].text == "first"
            assert len(hits) % 2 == 1

    with ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(work, thread) for thread in range(2) for work in (add, search)]
    assert [job.exception() for job in jobs] == [None] * 4
    assert index.count() == 33


def test_deletions_compact_when_most_vectors_are_dead(tmp_path, hash_model, monkeypatch, caplog):
    path = tmp_path / "index"

    def dead(index) -> int:
        return index.describe()["vectors_of_deleted"]

    def refusing(*arguments) -> int:
        raise InputError("the disk is full")

    with SearchIndex.create(path, hash_model) as index, SearchIndex.open(path, hash_model) as reader:
        index.writer.least_dead_rows = 6
        index.add([f"text {number}" for number in range(10)])
        index.delete(range(5))
        assert dead(index) == 5
        with monkeypatch.context() as broken:
            broken.setattr(DocumentStore, "damaged_rows", refusing)
            assert index.delete([5]) == 1
            assert dead(index) == 6
            assert caplog.messages == [f"{path}: was not compacted (the disk is full)"]
            index.delete([99])
            assert len(caplog.messages) == 1
        index.add(["text 10"])
        assert dead(index) == 6
        assert len(reader.search("text", 100, mode="dense")) == 5
        index.upsert([f"new {number}" for number in range(6, 10)], range(6, 10))
        assert dead(index) == 10
        index.upsert(["newer 6", "newer 7"], [6, 7])
        assert dead(index) == 0
        assert len(reader.search("text", 100, mode="dense")) == 5
        assert reader.search("newer 7", 1, mode="dense")[0].id == 7
    assert stored(path) == {8: "new 8", 9: "new 9", 10: "text 10", 6: "newer 6", 7: "newer 7"}


def test_a_second_writer_waits_for_a_short_change_and_is_refused_during_a_long_one(index):
    path = index.path
    begun = threading.Event()

    def change():
        with closing(DocumentStore(path / "index.sqlite")) as store, store.writing():
            begun.set()
            time.sleep(0.4)

    with closing(DocumentStore(path / "index.sqlite")) as store, store.writing():
        message = f"{path}: another process is writing to this index; try again when it has finished"
        assert error(index.add, ["a"]) == message
    other = threading.Thread(target=change)
    other.start()
    assert begun.wait(10)
    assert index.add(["a"]) == [0]
    other.join()


def test_an_index_replaced_meanwhile_is_neither_written_to_nor_mixed(index, tmp_path, hash_model):
    path = index.path
    index.add(["a"])
    with SearchIndex.open(path, hash_model) as reader:
        path.rename(tmp_path / "away")
        with SearchIndex.create(path, hash_model) as other:
            other.add(["b"])
        for change in (partial(index.add, ["c"]), partial(reader.delete, [0])):
            assert error(change) == f"{path}: another index has replaced it; open it again"
        # Who only reads goes on with what it has open.
        assert [hit.text for hit in reader.search("a", mode="dense")] == ["a"]
    assert stored(path) == {0: "b"}
    assert stored(tmp_path / "away") == {0: "a"}


def test_an_index_that_is_restored_meanwhile_is_not_mixed_with_its_copy(index, tmp_path):
    path = index.path
    index.add(["a"])
    shutil.copytree(path, tmp_path / "copy")
    index.add(["b"])
    path.rename(tmp_path / "away")
    (tmp_path / "copy").rename(path)
    for work in (partial(index.add, ["c"]), partial(index.search, "a"), partial(index.get, 0), index.count, index.ids):
        assert error(lambda work=work: list(work() or ())) == f"{path}: another index has replaced it; open it again"
    assert stored(path) == {0: "a"}
