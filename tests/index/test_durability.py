"""Acknowledged changes stay and others are complete or absent: kills, random additions, readers next to writers."""

from __future__ import annotations

import random
import shutil
import threading
import time
from contextlib import closing

import numpy as np
import pytest

from ctx_embed import InputError, SearchIndex
from ctx_embed.index.storage.documents import DocumentStore
from tests.index.support.child import child
from tests.index.support.hash_model import hash_vectors
from tests.index.support.stored import stored

LONG = pytest.mark.slow


@pytest.mark.parametrize(("factory", "stride"), [("Flat", 9), ("HNSW8", 11), pytest.param("Flat", 3, marks=LONG)])
def test_a_kill_at_any_line_leaves_the_old_or_the_new_state(tmp_path, hash_model, factory, stride):
    base = tmp_path / "base"
    with SearchIndex.create(base, hash_model, factory) as index:
        index.add([f"old {number}" for number in range(20)])
        index.add(["old and alone"])
    (tmp_path / "work").mkdir()
    process = child("crash_points", base, tmp_path / "work", stride)
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 0
    kills, old, new = map(int, output.split())
    assert kills > 20
    assert old > 5
    assert new > 5


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("float32", "int8"),
        pytest.param("int8", "float16", marks=LONG),
        pytest.param("float16", "float32", marks=LONG),
    ],
)
def test_a_kill_while_the_vectors_change_their_data_type_leaves_an_intact_index(tmp_path, hash_model, old, new):
    base = tmp_path / "base"
    with SearchIndex.create(base, hash_model, "Flat", dtype=old) as index:
        index.add([f"old {number}" for number in range(20)])
        index.add(["old and alone"])
    (tmp_path / "work").mkdir()
    process = child("crash_points", base, tmp_path / "work", 5, new)
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 0
    _, before, after = map(int, output.split())
    assert before > 5
    assert after > 2


def test_random_kills_lose_no_acknowledged_document(tmp_path, hash_model):
    path = tmp_path / "index"
    SearchIndex.create(path, hash_model).close()
    generator = random.Random(0)
    expected: dict[str, str] = {}
    batch = 0
    for _ in range(4):
        process = child("writer", path, batch)
        for _ in range(generator.randint(1, 12)):
            batch = int(process.stdout.readline()) + 1
        time.sleep(generator.random() * 0.03)
        process.kill()
        acknowledged = process.communicate()[0].split()
        batch = int(acknowledged[-1]) + 1 if acknowledged else batch
        present = stored(path)
        # The batch that was under way at the kill is there completely or not at all.
        batch += f"{batch}-0" in present
        expected = {
            f"{number}-{place}": f"text {number} {place}"
            for number in range(batch)
            for place in range(random.Random(number).randint(1, 6))
        }
        assert present == expected


def test_a_reader_sees_whole_additions_while_another_process_writes(tmp_path, hash_model):
    path = tmp_path / "index"
    with SearchIndex.create(path, hash_model) as index:
        process = child("writer", path, 0)
        try:
            process.stdout.readline()
            before = 0
            end = time.monotonic() + 1.5
            while time.monotonic() < end:
                hits = index.search("a query", k=10_000, mode="dense")
                texts = [hit.text for hit in hits]
                scores = hash_vectors(texts) @ hash_vectors(["a query"])[0]
                np.testing.assert_allclose([hit.score for hit in hits], scores, atol=1e-6)
                sizes = [random.Random(number).randint(1, 6) for number in range(len(hits))]
                assert len(hits) in np.cumsum(sizes)
                assert len(hits) >= before
                before = len(hits)
        finally:
            process.kill()
            process.communicate()
        assert before > 5


def test_threads_share_one_index(tmp_path, hash_model):
    wrong: list[BaseException] = []
    with SearchIndex.create(tmp_path / "index", hash_model) as index:
        index.add(["first"])

        def add(thread: int) -> None:
            for number in range(8):
                index.add([f"{thread} {number}", f"{thread} {number} too"])

        def search() -> None:
            for _ in range(60):
                hits = index.search("first", k=1000, mode="dense")
                assert hits[0].text == "first"
                assert len(hits) % 2 == 1

        def guarded(work, *arguments) -> None:
            try:
                work(*arguments)
            except BaseException as error:
                wrong.append(error)

        jobs = [threading.Thread(target=guarded, args=(add, thread)) for thread in range(2)]
        jobs += [threading.Thread(target=guarded, args=(search,)) for _ in range(2)]
        for job in jobs:
            job.start()
        for job in jobs:
            job.join()
        assert not wrong
        assert index.count() == 33


def test_deletions_compact_when_most_vectors_are_dead(tmp_path, hash_model, monkeypatch, caplog):
    path = tmp_path / "index"

    def dead(index) -> int:
        return index.describe()["vectors_of_deleted"]

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


def refusing(*arguments) -> int:
    raise InputError("the disk is full")


def test_a_second_writer_is_refused(tmp_path, hash_model):
    path = tmp_path / "index"
    with SearchIndex.create(path, hash_model) as index:
        store = DocumentStore(path / "index.sqlite")
        with store.writing(), pytest.raises(InputError) as caught:
            index.add(["a"])
        store.close()
        message = f"{path}: another process is writing to this index; try again when it has finished"
        assert str(caught.value) == message
        assert index.add(["a"]) == [0]


def test_a_second_writer_waits_for_a_short_change(tmp_path, hash_model):
    path = tmp_path / "index"
    begun = threading.Event()

    def change():
        with closing(DocumentStore(path / "index.sqlite")) as store, store.writing():
            begun.set()
            time.sleep(0.4)

    with SearchIndex.create(path, hash_model) as index:
        other = threading.Thread(target=change)
        other.start()
        assert begun.wait(10)
        assert index.add(["a"]) == [0]
        other.join()


def test_an_index_replaced_meanwhile_is_neither_written_to_nor_mixed(tmp_path, hash_model):
    path = tmp_path / "index"
    with SearchIndex.create(path, hash_model) as index:
        index.add(["a"])
        with SearchIndex.open(path, hash_model) as reader:
            path.rename(tmp_path / "away")
            with SearchIndex.create(path, hash_model) as other:
                other.add(["b"])
            for change in (lambda: index.add(["c"]), lambda: reader.delete([0])):
                with pytest.raises(InputError) as caught:
                    change()
                assert str(caught.value) == f"{path}: another index has replaced it; open it again"
            # Who only reads goes on with what it has open.
            assert [hit.text for hit in reader.search("a", mode="dense")] == ["a"]
    assert stored(path) == {0: "b"}
    assert stored(tmp_path / "away") == {0: "a"}


def test_an_index_that_is_restored_meanwhile_is_not_mixed_with_its_copy(tmp_path, hash_model):
    path = tmp_path / "index"
    with SearchIndex.create(path, hash_model) as index:
        index.add(["a"])
        shutil.copytree(path, tmp_path / "copy")
        index.add(["b"])
        path.rename(tmp_path / "away")
        (tmp_path / "copy").rename(path)
        for work in (lambda: index.add(["c"]), lambda: index.search("a"), lambda: index.get(0), index.count, index.ids):
            with pytest.raises(InputError) as caught:
                list(work() or ())
            assert str(caught.value) == f"{path}: another index has replaced it; open it again"
    assert stored(path) == {0: "a"}
