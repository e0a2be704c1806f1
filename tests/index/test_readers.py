"""A reader without write permission sees exactly what is committed; a forked process has its own connection."""

import os
import shutil
import signal
import sys
import tempfile
from functools import partial
from pathlib import Path

import pytest

from ctx_embed import SearchIndex
from tests.helpers.errors import error
from tests.index.support.hash_model import HashModel
from tests.index.support.stored import stored

NOBODY = 65534


@pytest.fixture
def folder():
    """A folder that everybody may read, and only its owner may change."""
    with tempfile.TemporaryDirectory(prefix="ctx-embed-test-") as name:
        os.chmod(name, 0o755)
        yield Path(name)


def read_as_nobody(path: Path, requests: int, answers: int) -> None:
    """Search an index as a user who may only read, once for each byte of a pipe."""
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    with SearchIndex.open(path, HashModel()) as index:
        while os.read(requests, 1):
            hits = index.search("text", 1000, mode="dense")
            found = [index.count(), len(hits), len(index.ids()), sum(1 for _ in index.documents())]
            os.write(answers, f"{' '.join(map(str, found))}\n".encode())


@pytest.fixture
def reader():
    """Yield a function that starts a reader, which returns a function that lets it look."""
    if os.name != "posix" or os.geteuid():
        pytest.skip("only root can become another user")
    children = []

    def started(path: Path):
        (requests, asking), (answering, answers) = os.pipe(), os.pipe()
        child = os.fork()
        if not child:
            try:
                os.close(asking)
                read_as_nobody(path, requests, answers)
            finally:
                os._exit(0)
        os.close(requests)
        os.close(answers)
        children.append((child, asking, answering))

        def look() -> list[int]:
            os.write(asking, b"x")
            return [int(number) for number in os.read(answering, 100).split()]

        return look

    yield started
    for child, asking, answering in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(asking)
        os.close(answering)


def test_a_reader_of_another_user_sees_each_commit(folder, reader, hash_model):
    path = folder / "index"
    with SearchIndex.create(path, hash_model) as index:
        index.add([f"text {number}" for number in range(20)])
        # All is imported before the fork, since nobody may read the package.
        assert len(index.search("text", 1000, mode="dense")) == len(list(index.documents())) == 20
    look = reader(path)
    assert look() == [20] * 4
    # Nobody has the index open between these changes, so SQLite leaves no log.
    for number in range(3):
        with SearchIndex.open(path, hash_model) as index:
            index.add([f"more {number}"])
            index.delete([number])
            index.compact()
        assert not (path / "index.sqlite-wal").exists()
        assert look() == [20] * 4
    # A writer has it open, and its changes are in the log.
    with SearchIndex.open(path, hash_model) as index:
        for number in range(3):
            index.add([f"even more {number}"])
            assert look() == [21 + number] * 4
            assert reader(path)() == [21 + number] * 4
    assert look() == [23] * 4


def test_a_snapshot_has_the_changes_in_its_log(folder, reader, hash_model):
    path, snapshot = folder / "index", folder / "snapshot"
    snapshot.mkdir()
    with SearchIndex.create(path, hash_model) as index:
        index.add(["text one", "text two"])
        # An open connection keeps the log, whose index is shared memory that a file system's snapshot may lack.
        assert index.ids() == [0, 1]
        index.add(["text three"])
        for name in ("index.sqlite", "index.sqlite-wal"):
            shutil.copy(path / name, snapshot / name)
    look = reader(snapshot)
    assert look() == look() == [3] * 4
    assert sorted(os.listdir(snapshot)) == ["index.sqlite", "index.sqlite-wal"]


def test_who_may_only_read_is_refused_to_write_and_reads_again_what_changes(index, hash_model, monkeypatch):
    index.add(["one"])
    index.close()
    seen = []

    def work(view) -> int:
        seen.append(view.count)
        if len(seen) == 1:
            with monkeypatch.context() as patched:
                patched.setattr(os, "access", access)
                with SearchIndex.open(index.path, hash_model) as writer:
                    writer.add(["two"])
        return view.count

    access = os.access
    monkeypatch.setattr(os, "access", lambda *arguments: False)
    with SearchIndex.open(index.path, hash_model) as reader:
        assert "readonly database" in error(reader.add, ["two"])
        assert reader.search("one", mode="dense")[0].text == "one"
        assert reader._folder.read(work) == 2
        assert seen == [1, 2]
        assert reader.verify(embed=False) == []
    assert [entry.name for entry in index.path.iterdir()] == ["index.sqlite"]


forking = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")


def fork(work) -> int:
    """Return the number of a child that does some work, and ends as a script does."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        work()
        code = 0
    finally:
        sys.stdout.flush()
        os._exit(code)


def succeeds(child: int) -> bool:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@forking
def test_forked_workers_that_open_an_index_lose_nothing(index, hash_model):
    index.add(["of the parent"], ["parent"])

    def work(number: int) -> None:
        with SearchIndex.open(index.path, hash_model) as own:
            for place in range(5):
                own.add([f"text {number} {place}"], [f"{number} {place}"])

    children = [fork(partial(work, number)) for number in range(3)]
    for number in range(5):
        index.add([f"parent {number}"], [f"parent {number}"])
    assert all(map(succeeds, children))
    assert index.count() == 1 + 15 + 5
    index.close()
    assert len(stored(index.path)) == 21


@forking
def test_an_inherited_index_goes_on_with_a_connection_of_its_own(index):
    index.add(["one"])

    def work() -> None:
        assert index.search("one", mode="dense")[0].text == "one"
        index.add(["of the child"])
        index.close()

    assert succeeds(fork(work))
    assert [document.text for document in index] == ["one", "of the child"]
    index.add(["two"])
    index.close()
    assert list(stored(index.path).values()) == ["one", "of the child", "two"]


@forking
def test_a_child_born_during_a_change_is_refused_in_one_line(index, hash_model):
    index.add(["one"])

    def work() -> None:
        for use in (index.count, lambda: SearchIndex.open(index.path, hash_model)):
            assert "the parent process was reading or changing this index when it" in error(use)

    with index.writer.editing() as edit:
        edit.delete([0])
        assert succeeds(fork(work))
    index.add(["two"])
    index.close()
    assert list(stored(index.path).values()) == ["two"]
