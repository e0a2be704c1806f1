"""Acknowledged changes stay and others are complete or absent: kills and Ctrl-C at any line or moment, full disks, and
several processes at once, forked or without write permission; backups are of one moment."""

import dis
import errno
import json
import linecache
import os
import random
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from itertools import islice
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

import ctx_embed
from ctx_embed import InputError, SearchIndex
from ctx_embed.errors import UnwritableError
from ctx_embed.index import writer
from ctx_embed.index.build import build_index
from ctx_embed.index.database import Database, patient
from ctx_embed.texts import Document
from tests.helpers.cli import Command
from tests.helpers.errors import error
from tests.index.support.child import child
from tests.index.support.hash_model import HashModel, hash_vectors
from tests.index.support.killed import applied, states
from tests.index.support.stored import stored

SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("factory", "dtype", "kind", "stride", "fewest_old", "fewest_new"),
    [
        ("HNSW8", "float32", "add", 11, 5, 5),
        ("Flat", "float32", "add", 8, 5, 5),
        ("Flat", "float32", "reembed", 45, 2, 0),
        ("Flat", "float32", "int8", 5, 5, 2),
        *(pytest.param("Flat", *types, 5, 5, 2, marks=SLOW) for types in (("int8", "float16"), ("float16", "float32"))),
        pytest.param("Flat", "float32", "add", 3, 5, 5, marks=SLOW),
    ],
)
def test_a_kill_at_any_line_leaves_the_old_or_the_new_state(
    tmp_path, hash_model, factory, dtype, kind, stride, fewest_old, fewest_new
):
    with SearchIndex.create(tmp_path / "base", hash_model, factory, dtype=dtype) as index:
        index.add([f"old {number}" for number in range(20)])
        index.add(["old and alone"])
        index.delete([3, 11])
    (tmp_path / "work").mkdir()
    process = child("crash_points", tmp_path / "base", tmp_path / "work", stride, kind)
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 0
    old, new = map(int, output.split())
    assert old > fewest_old
    assert new > fewest_new
    assert old + new > (20 if kind == "add" else 5)


def test_deletions_compact_when_most_vectors_are_dead(tmp_path, hash_model, monkeypatch, caplog):
    path = tmp_path / "index"

    def dead(*_) -> int:
        return index.describe()["vectors_of_deleted"]

    with SearchIndex.create(path, hash_model) as index, SearchIndex.open(path, hash_model) as reader:
        index.writer.least_dead_rows = 6
        index.add([f"text {number}" for number in range(10)])
        assert dead(index.delete(range(5))) == 5
        with monkeypatch.context() as broken:
            broken.setattr(Database, "damaged_rows", Mock(side_effect=InputError("the disk is full")))
            assert dead(index.delete([5]), index.delete([99])) == 6
            assert caplog.messages == [f"{path}: was not compacted (the disk is full)"]
        assert dead(index.add(["text 10"])) == 6
        assert len(reader.search("text", 100, mode="dense")) == 5
        assert dead(index.upsert([f"new {number}" for number in range(6, 10)], range(6, 10))) == 10
        assert dead(index.upsert(["newer 6", "newer 7"], [6, 7])) == 0
        assert len(reader.search("text", 100, mode="dense")) == 5
        assert reader.search("newer 7", 1, mode="dense")[0].id == 7
    assert stored(path) == {8: "new 8", 9: "new 9", 10: "text 10", 6: "newer 6", 7: "newer 7"}


def test_what_an_interrupt_left_in_a_transaction_is_undone(index):
    index.add(["a"])
    with closing(Database(index.path)) as store:
        for begin in (store.reading, store.writing, store.reading):
            for change in ("BEGIN", "UPDATE documents SET text = ''"):
                store.connection.execute(change)
            with begin():
                assert [text for document in store.all() for _, text in document.texts()] == ["a"]


def test_a_second_writer_waits_for_a_short_change_and_is_refused_during_a_long_one(index, monkeypatch):
    fcntl = pytest.importorskip("fcntl")
    path, begun, flock = index.path, threading.Event(), fcntl.flock

    def change():
        with closing(Database(path)) as store, store.writing():
            begun.set()
            time.sleep(0.4)

    def for_files_alone(file, operation):
        if stat.S_ISDIR(os.fstat(file if isinstance(file, int) else file.fileno()).st_mode):
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
        flock(file, operation)

    # Without locks of folders, SQLite's own decide.
    for number, flock_here in enumerate((flock, for_files_alone)):
        monkeypatch.setattr(fcntl, "flock", flock_here)
        with closing(Database(path)) as store, store.writing(), patient(0.2):
            message = f"{path}: another process is writing to this index; try again when it has finished"
            assert error(index.add, ["a"]) == message
        other = threading.Thread(target=change)
        other.start()
        assert begun.wait(10)
        assert index.add(["a"]) == [number]
        other.join()
        begun.clear()


def test_an_index_that_is_replaced_or_restored_meanwhile_is_not_mixed(index, tmp_path, hash_model):
    path = index.path
    said = f"{path}: another index has replaced it; open it again"
    index.add(["a"])
    shutil.copytree(path, tmp_path / "copy")
    with SearchIndex.open(path, hash_model) as reader:
        path.rename(tmp_path / "away")
        with SearchIndex.create(path, hash_model) as other:
            other.add(["b"])
        for change in (partial(index.add, ["c"]), partial(reader.delete, [0])):
            assert error(change) == said
        # Who only reads goes on with what it has open, but not beside a copy.
        assert [hit.text for hit in reader.search("a", mode="dense")] == ["a"]
    assert stored(path) == {0: "b"}
    shutil.rmtree(path)
    (tmp_path / "away").rename(path)
    index.add(["b"])
    path.rename(tmp_path / "away")
    (tmp_path / "copy").rename(path)
    for work in (partial(index.add, ["c"]), partial(index.search, "a"), partial(index.get, 0), index.count, index.ids):
        assert error(lambda work=work: list(work() or ())) == said
    assert (stored(path), stored(tmp_path / "away")) == ({0: "a"}, {0: "a", 1: "b"})


def test_a_hard_link_is_read_and_never_written(index, tmp_path, hash_model):
    path, snapshot = index.path, tmp_path / "snapshot"
    index.add(["one", "two"])

    def link() -> None:
        subprocess.run(["cp", "-al", path, snapshot], check=True)

    def refused(other: SearchIndex) -> None:
        for change in (
            partial(other.add, ["three"]),
            partial(other.upsert, ["three"], [0]),
            partial(other.update_metadata, 0, {"n": 1}),
            partial(other.delete, [0]),
            other.compact,
            partial(other.sync, tmp_path / "notes"),
            partial(other.reembed, HashModel(16)),
            partial(build_index, tmp_path / "notes", other.path, model=hash_model, mode="append"),
        ):
            said = f"{other.path / 'index.sqlite'}: cannot be written, since it is a hard link that another copy of "
            assert error(change).startswith(said)
        assert [hit.text for hit in other.search("one", mode="words")] == ["one"]
        assert other.verify() == []

    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.md").write_text("a note")
    # While both are open, and after both were closed.
    link()
    with SearchIndex.open(snapshot, hash_model) as linked:
        refused(index)
        refused(linked)
        linked.backup(tmp_path / "backup")
    index.close()
    with SearchIndex.open(path, hash_model) as index, SearchIndex.open(snapshot, hash_model) as linked:
        refused(linked)
        refused(index)
        shutil.rmtree(snapshot)
        assert index.add(["three"]) == [2]
        # The link may be made while a transaction is open.
        with index.writer.editing() as edit:
            link()
            edit.add_all([Document("four")], replacing=False)
        assert "is a hard link" in error(index.add, ["five"])
        shutil.rmtree(snapshot)
        # A copy of the database that shares only the log.
        snapshot.mkdir()
        os.link(path / "index.sqlite-wal", snapshot / "index.sqlite-wal")
        assert error(index.add, ["five"]).startswith(f"{path / 'index.sqlite-wal'}: cannot be written, since")
    shutil.rmtree(snapshot)
    link()
    assert stored(path) == stored(snapshot) == dict(enumerate(["one", "two", "three", "four"]))
    with SearchIndex.open(tmp_path / "backup", hash_model) as copy:
        assert copy.add(["three"]) == [2]


OURS = str(Path(ctx_embed.__file__).parent / "index")


def has_no_signals(frame) -> bool:
    """Return whether Python handles no signal at this line: ``try:``, or the end of a block of ``with``.

    An exception that a tracer raises there passes ``__exit__`` by.
    """
    code, line, place = frame.f_code, frame.f_lineno, frame.f_lasti
    if code.co_code[place] == dis.opmap["NOP"]:
        return True
    is_with = linecache.getline(code.co_filename, line).lstrip().startswith("with ")
    return is_with and place > min(start for start, number in dis.findlinestarts(code) if number == line)


def interrupted_at(line: int, work) -> bool:
    """Do some work and interrupt it before the ``line``-th line of ours; return whether it got so far."""
    lines = 0

    def trace(frame, event, argument):
        nonlocal lines
        if not frame.f_code.co_filename.startswith(OURS):
            return None
        if event == "line" and not has_no_signals(frame):
            lines += 1
            if lines == line:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


# Between open() and the with that closes the file, Ctrl-C leaves the closing to the collector, which warns.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
@pytest.mark.parametrize("stride", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_an_index_goes_on_after_ctrl_c_at_any_line(index, stride):
    index.add(["one cat", "two cats", "a dog"], [1, 2, 3], [{"n": 1}, {"n": 2}, {"n": 3}])
    for work in (
        lambda: index.search("cat", where="n >= 2"),
        lambda: index.upsert(["a dog again"], [3], [{"n": 3}]),
        index.count,
    ):
        line = 1
        while interrupted_at(line, work):
            assert {hit.id for hit in index.search("cat", mode="words")} == {1, 2}
            assert index.update_metadata(1, {"n": line}) == 1
            line += stride
        assert line > stride
    assert index.verify() == []
    index.close()
    assert list(stored(index.path)) == [1, 2, 3]


def test_a_word_that_sqlite_cuts_inside_a_character(index):
    long = "日" * 10_923
    index.add(["a cat", "a dog"])
    for query in (long, "é" * 20_000):
        assert index.search(query, mode="words") == []
        index.search(query)
        assert index.search("another cat", mode="words")[0].id == 0
    index.add([f"{long} stored"], ["long"])
    assert index.verify() == []
    for query in ("stored", "strored"):
        assert index.search(query, mode="words")[0].id == "long"
    index.delete("long")
    assert index.verify() == []


# Half a minute, so that a signal that is lost ends in a failure.
LONG = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < 3e8) SELECT count(*) FROM n"


def test_ctrl_c_in_a_long_statement_is_ctrl_c(index):
    index.add(["one cat"])
    # A process that a shell started in the background ignores it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    press = threading.Timer(0.3, signal.raise_signal, [signal.SIGINT])
    press.start()
    store = index._folder
    with pytest.raises(KeyboardInterrupt), store.reporting_errors():
        store.connection.execute(LONG)
    press.join()
    signal.signal(signal.SIGINT, before)
    index.add(["two cats"])
    assert index.count() == 2
    assert index.verify() == []


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


def test_a_change_on_a_full_disk_changes_nothing_and_a_build_resumes_when_there_is_room(
    small_disk, hash_model, tmp_path, monkeypatch
):
    path, taken = small_disk / "index", small_disk / "fill"
    expected = {"first": "one", "second": "two"}
    with SearchIndex.create(path, hash_model) as index:
        index.add([*expected.values(), "three"], [*expected, "gone"])
        index.delete(["gone"])
    with taken.open("wb") as file:
        while (free := shutil.disk_usage(small_disk).free) > 0:
            file.write(b"x" * free)
            file.flush()
    for name, *arguments in (
        ("add", [f"more {number}" for number in range(5000)]),
        ("upsert", ["changed"], ["first"]),
        ("delete", ["first"]),
        ("compact",),
    ):
        said = pytest.raises(UnwritableError, match=r"cannot be written \(the disk is full\)$")
        with said, SearchIndex.open(path, hash_model) as index:
            getattr(index, name)(*arguments)
    taken.unlink()
    assert stored(path) == expected
    monkeypatch.setattr(writer, "STEP_DOCUMENTS", 16)
    monkeypatch.setattr(writer, "BATCH_DOCUMENTS", 16)
    source, path = tmp_path / "source.txt", small_disk / "built"
    lines = [f"text {number} " + "word " * 100 for number in range(400)]
    source.write_text("\n".join(lines) + "\n")
    taken.write_bytes(b"x" * 200_000)
    assert "continue with --resume" in error(build_index, source, path, model=hash_model)
    assert not path.exists()
    subprocess.run(["mount", "-o", "remount,size=8m", str(small_disk)], check=True)
    assert build_index(source, path, model=hash_model, resume=True).documents == 400
    assert list(stored(path).values()) == lines


def test_a_backup_replaces_nothing(index, tmp_path):
    index.add(["one"])
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "mine.txt").write_text("keep me")
    for name in ("taken", "index"):
        assert error(index.backup, tmp_path / name) == f"{tmp_path / name}: already exists; choose another name"
    inside = index.path / "copy"
    assert error(index.backup, inside) == f"{inside}: lies in an index; choose another folder"
    assert "does not exist; create it first" in error(index.backup, tmp_path / "no" / "copy")
    result = Command("index backup").succeeds(tmp_path / "index", tmp_path / "copy")
    assert result == f"{tmp_path / 'copy'}: 1 document\n"


@pytest.mark.parametrize(
    ("factory", "kills"), [("HNSW8", 5), *(pytest.param(factory, 65, marks=SLOW) for factory in ("auto", "HNSW8"))]
)
def test_kills_while_editing(tmp_path, hash_model, factory, kills):
    """Kill a process that adds, replaces, deletes and compacts; after each kill the index is what was acknowledged."""
    path = tmp_path / "index"
    SearchIndex.create(path, hash_model, factory).close()
    generator = random.Random(0)
    number, state = 0, {}
    for _ in range(kills):
        process = child("killed", "edits", path, number)
        said = [process.stdout.readline() for _ in range(generator.randint(1, 8))]
        time.sleep(generator.random() * 0.05)
        process.kill()
        for line in (*said, *process.communicate()[0].split()):
            assert int(line) == number
            state, number = applied(number, state), number + 1
        present = stored(path)
        if present != state:
            # The operation that was under way at the kill is there completely or not at all.
            state, number = applied(number, state), number + 1
        assert present == state
    assert state == next(islice(states(), number, None))


@pytest.mark.parametrize("kills", [3, pytest.param(70, marks=SLOW)])
def test_kills_while_building(tmp_path, kills):
    """Kill a process that builds an index and then one that appends to it, until both are done; repeat."""
    generator = random.Random(1)
    source, more = tmp_path / "source.jsonl", tmp_path / "more.txt"
    first = {f"s{number}": f"text {number}" for number in range(150)}
    both = first | {number: f"more {number}" for number in range(100)}
    source.write_text("".join(json.dumps({"id": name, "text": text}) + "\n" for name, text in first.items()))
    more.write_text("".join(f"more {number}\n" for number in range(100)))
    done, round_number = 0, 0
    while done < kills:
        path, round_number = tmp_path / f"index{round_number}", round_number + 1
        partial = path.with_name(f"{path.name}.partial")
        for mode, given, before, after in (("create", source, {}, first), ("append", more, first, both)):
            finished = False
            while not finished:
                process = child("killed", "build", given, path, mode)
                said = "".join(process.stdout.readline() for _ in range(generator.randint(0, 6)))
                time.sleep(generator.random() * 0.03)
                process.kill()
                lines = (said + process.communicate()[0]).splitlines()
                assert process.returncode in (0, -9)
                acknowledged = max((int(line) for line in lines if line.strip("-").isdigit()), default=-1)
                place = path if path.exists() else partial
                present = stored(place) if (place / "index.sqlite").exists() else {}
                assert list(present.items()) == list(after.items())[: len(present)]
                assert len(present) - len(before) >= acknowledged
                # What is built is there when it is whole.
                assert mode == "append" or place == partial or present == after
                is_there = mode == "create" and place == path and not partial.exists()
                finished = is_there or any(line.startswith("done") for line in lines)
                done += not finished
            assert stored(path) == after
        assert not partial.exists()


def test_a_kill_in_the_first_moment_of_a_build_leaves_nothing_for_long(tmp_path, hash_model):
    source, path = tmp_path / "source.txt", tmp_path / "index"
    source.write_text("one\n")
    # This is what a kill at the last moment of an earlier build leaves.
    (tmp_path / ".index.partial.removed" / "vectors").mkdir(parents=True)
    process = child("killed", "dies", source, path, "create")
    process.communicate()
    assert process.returncode == -9
    (left,) = {entry.name for entry in tmp_path.iterdir()} - {"source.txt"}
    assert left.startswith(".index.partial.")
    build_index(source, path, model=hash_model, resume=True)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["index", "source.txt"]


@pytest.mark.parametrize("factory", [pytest.param("auto", marks=SLOW), "HNSW8"])
def test_a_reader_sees_whole_states_while_another_process_edits(tmp_path, hash_model, factory):
    """So does who makes a backup."""
    path, copy = tmp_path / "index", tmp_path / "copy"
    with SearchIndex.create(path, hash_model, factory) as index:
        process = child("killed", "edits", path, 0)
        try:
            process.stdout.readline()
            before, looks = enumerate(islice(states(), 5000)), 0
            number, state = next(before)
            end = time.monotonic() + 2
            while time.monotonic() < end or looks < 9:
                if looks % 3:
                    hits = index.search("a query", k=10_000, mode="dense")
                    scores = hash_vectors([hit.text for hit in hits]) @ hash_vectors(["a query"])[0]
                    np.testing.assert_allclose([hit.score for hit in hits], scores, atol=1e-6)
                    present = {hit.id: hit.text for hit in hits}
                    assert len(present) == len(hits)
                else:
                    shutil.rmtree(copy, ignore_errors=True)
                    index.backup(copy)
                    present = stored(copy)
                # States appear in order, and each look sees one of them.
                while present != state:
                    number, state = next(before)
                looks += 1
        finally:
            process.kill()
            process.communicate()
        assert number > 3
    with SearchIndex.open(copy, hash_model) as index:
        index.add(["another"], [-1])
        assert index.verify(embed=False) == []


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


NOBODY = 65534


@pytest.fixture
def folder():
    """A folder that everybody may read, and only its owner may change."""
    with tempfile.TemporaryDirectory(prefix="ctx-embed-test-") as name:
        os.chmod(name, 0o755)
        yield Path(name)


FORK = get_context("fork") if hasattr(os, "fork") else None


def read_as_nobody(path: Path, asked: Connection) -> None:
    """Search an index as a user who may only read, whenever it is asked to."""
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    with SearchIndex.open(path, HashModel()) as index:
        while asked.recv():
            hits = index.search("text", 1000, mode="dense")
            asked.send([index.count(), len(hits), len(index.ids()), sum(1 for _ in index.documents())])


@pytest.fixture
def reader():
    """Yield a function that starts a reader, which returns a function that lets it look."""
    if os.name != "posix" or os.geteuid():
        pytest.skip("only root can become another user")

    def started(path: Path):
        ours, theirs = FORK.Pipe()
        FORK.Process(target=read_as_nobody, args=(path, theirs)).start()
        return lambda: ours.send(True) or ours.recv()

    yield started
    for each in FORK.active_children():
        each.kill()
        each.join()


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
    seen, access = [], os.access

    def work(view) -> int:
        seen.append(view.count)
        if len(seen) == 1:
            with monkeypatch.context() as patched:
                patched.setattr(os, "access", access)
                with SearchIndex.open(index.path, hash_model) as writer:
                    writer.add(["two"])
        return view.count

    monkeypatch.setattr(os, "access", lambda *arguments: False)
    with SearchIndex.open(index.path, hash_model) as reader:
        assert "readonly database" in error(reader.add, ["two"])
        assert reader.search("one", mode="dense")[0].text == "one"
        assert reader._folder.read(work) == 2
        assert seen == [1, 2]
        assert reader.verify(embed=False) == []
    assert [entry.name for entry in index.path.iterdir()] == ["index.sqlite"]


forking = pytest.mark.skipif(FORK is None, reason="there is no fork")


def fork(work, joined: bool = True):
    """Return a child that has done some work, without an error, or that still does it."""
    process = FORK.Process(target=work)
    process.start()
    if joined:
        process.join()
        assert process.exitcode == 0
    return process


@forking
@pytest.mark.parametrize("seconds", [2, pytest.param(40, marks=SLOW)])
def test_ten_writers_take_turns(index, hash_model, tmp_path, seconds):
    def work(number: int) -> None:
        waits: list[float] = []
        with SearchIndex.open(index.path, hash_model) as own:
            stop = time.monotonic() + seconds
            while not waits or time.monotonic() < stop:
                began = time.monotonic()
                own.add([f"{number} {len(waits)}"])
                waits.append(time.monotonic() - began)
        (tmp_path / f"{number}.json").write_text(json.dumps(waits))

    children = [fork(partial(work, number), joined=False) for number in range(10)]
    for number in range(5):
        index.add([f"parent {number}"])
    # None is refused, and what each was told is there.
    assert [each.join() or each.exitcode for each in children] == [0] * 10
    waits = [json.loads((tmp_path / f"{number}.json").read_text()) for number in range(10)]
    index.close()
    assert len(stored(index.path)) == 5 + sum(map(len, waits))
    assert max(map(max, waits)) < 30
    # Nobody starves: the last of ten has a fair part of an equal share.
    assert seconds < 40 or min(map(len, waits)) > sum(map(len, waits)) / 40


@forking
def test_the_turn_of_a_killed_writer_ends_with_it(index):
    reading, writing = FORK.Pipe()

    def work() -> None:
        with closing(Database(index.path)) as store, store.writing():
            # This child of a child lives on, without the turn.
            other = fork(partial(time.sleep, 60), joined=False)
            writing.send(other.pid)
            time.sleep(60)

    child = fork(work, joined=False)
    other = reading.recv()
    try:
        with patient(0.2):
            assert "another process is writing" in error(index.add, ["a"])
        child.kill()
        child.join()
        assert index.add(["a"]) == [0]
    finally:
        os.kill(other, signal.SIGKILL)


@forking
def test_an_inherited_index_goes_on_with_a_connection_of_its_own_but_not_during_a_change(index, hash_model):
    index.add(["one"])

    def work() -> None:
        assert index.search("one", mode="dense")[0].text == "one"
        index.add(["of the child"])
        index.close()

    fork(work)
    assert [document.text for document in index] == ["one", "of the child"]

    def refused() -> None:
        for use in (index.count, lambda: SearchIndex.open(index.path, hash_model)):
            assert "the parent process was reading or changing this index when it" in error(use)

    with index.writer.editing() as edit:
        edit.delete([0])
        fork(refused)
    index.add(["two"])
    index.close()
    assert list(stored(index.path).values()) == ["of the child", "two"]
