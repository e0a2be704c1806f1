from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from ctx_embed import SearchIndex, files
from ctx_embed.errors import InputError, UnwritableError
from ctx_embed.files import (
    has_locks,
    locked,
    replaced_file,
    replaced_folder,
    require_file,
    require_folder,
    require_other_file,
    require_replaceable,
)
from ctx_embed.index.storage.database import Database
from tests.helpers.disk import full_disk
from tests.index.support.hash_model import HashModel

posix = pytest.mark.skipif(os.name != "posix", reason="modes, links and pipes of POSIX")


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def error(call, *arguments) -> str:
    with pytest.raises(InputError) as caught, call(*arguments):
        pass
    return str(caught.value)


def refusal(call, *arguments) -> str:
    with pytest.raises(InputError) as caught:
        call(*arguments)
    return str(caught.value)


class Stopped(BaseException):
    """As KeyboardInterrupt: no Exception."""


@pytest.mark.parametrize("old", [None, "old"])
def test_a_file_is_replaced_at_the_end(tmp_path, old):
    path = tmp_path / "file"
    if old:
        path.write_text(old)
    with replaced_file(str(path)) as beside:
        beside.write_text("new")
        assert path.exists() == bool(old)
    assert path.read_text() == "new"
    assert names(tmp_path) == ["file"]


@pytest.mark.parametrize("mistake", [ValueError, Stopped])
@pytest.mark.parametrize("old", [None, "old"])
def test_an_error_leaves_the_old_file(tmp_path, old, mistake):
    path = tmp_path / "file"
    if old:
        path.write_text(old)

    def interrupted():
        with replaced_file(path) as beside:
            beside.write_text("half")
            raise mistake

    with pytest.raises(mistake):
        interrupted()
    assert names(tmp_path) == (["file"] if old else [])
    assert not old or path.read_text() == old


@pytest.mark.parametrize("old", [None, "old"])
def test_a_folder_is_replaced_at_the_end(tmp_path, old):
    path = tmp_path / "folder"
    if old:
        path.mkdir()
        (path / "old").write_text(old)
    with replaced_folder(str(path)) as beside:
        (beside / "deep").mkdir()
        (beside / "deep" / "new").write_text("new")
    assert names(path) == ["deep"]
    assert (path / "deep" / "new").read_text() == "new"
    assert names(tmp_path) == ["folder"]


@pytest.mark.parametrize("mistake", [ValueError, Stopped])
@pytest.mark.parametrize("old", [None, "old"])
def test_an_error_leaves_the_old_folder(tmp_path, old, mistake):
    path = tmp_path / "folder"
    if old:
        path.mkdir()
        (path / "old").write_text(old)

    def interrupted():
        with replaced_folder(path) as beside:
            (beside / "new").write_text("half")
            raise mistake

    with pytest.raises(mistake):
        interrupted()
    assert names(tmp_path) == (["folder"] if old else [])
    assert not old or (path / "old").read_text() == old


def test_stopped_between_the_two_renames_the_old_folder_comes_back(tmp_path, monkeypatch):
    path = tmp_path / "folder"
    path.mkdir()
    (path / "old").write_text("old")
    replace = Path.replace

    def stopped(self, target):
        if Path(target) == path and not self.name.endswith(".replaced"):
            raise Stopped
        return replace(self, target)

    # As on systems that cannot exchange two folders in one step.
    monkeypatch.setattr(files, "_exchanged", lambda left, right: False)
    monkeypatch.setattr(Path, "replace", stopped)

    def interrupted():
        with replaced_folder(path) as beside:
            (beside / "new").write_text("new")

    with pytest.raises(Stopped):
        interrupted()
    assert names(tmp_path) == ["folder"]
    assert (path / "old").read_text() == "old"


def test_killed_between_the_two_renames_the_old_folder_comes_back(tmp_path):
    path = tmp_path / "folder"
    (tmp_path / ".folder.replaced").mkdir()
    (tmp_path / ".folder.replaced" / "old").write_text("old")
    (tmp_path / ".folder.removed").mkdir()
    files.remove_leftovers(path)
    assert names(tmp_path) == ["folder"]
    assert (path / "old").read_text() == "old"
    (tmp_path / ".folder.replaced").mkdir()
    with replaced_folder(path) as beside:
        (beside / "new").touch()
    assert names(tmp_path) == ["folder"]
    assert names(path) == ["new"]


@posix
def test_another_process_sees_the_old_folder_or_the_new_one(tmp_path, monkeypatch):
    path = tmp_path / "folder"
    path.mkdir()
    (path / "old").touch()
    removed = []
    monkeypatch.setattr(files, "remove_folder", lambda folder: removed.append((names(folder), names(path))))
    with replaced_folder(path) as beside:
        (beside / "new").touch()
    assert removed == ([(["old"], ["new"])] if sys.platform == "linux" else [])


KILLED = """
import os, signal, sys
from ctx_embed.files import replaced_folder
with replaced_folder(sys.argv[1]) as beside:
    (beside / "half").write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


@posix
def test_what_a_killed_process_leaves_goes_and_what_another_one_writes_stays(tmp_path):
    path = tmp_path / "folder"
    kept = [".folder.settings", ".folder.other.abcdefgh.unfinished"]
    for name in kept:
        (tmp_path / name).mkdir()
    assert subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False).returncode == -9
    (left,) = set(names(tmp_path)) - set(kept)
    assert (tmp_path / left / "half").is_file()
    with replaced_folder(path) as beside:
        (beside / "first").touch()
        with replaced_folder(path) as another:
            (another / "second").touch()
            assert set(names(tmp_path)) == {*kept, beside.name, another.name}
        assert set(names(tmp_path)) == {*kept, beside.name, "folder"}
    assert names(path) == ["first"]
    assert set(names(tmp_path)) == {*kept, "folder"}


@posix
def test_modes_are_those_that_open_and_mkdir_give(tmp_path):
    before = os.umask(0o027)
    try:
        with replaced_file(tmp_path / "file"), replaced_folder(tmp_path / "folder") as beside:
            os.close(os.open(beside / "inner", os.O_CREAT, 0o600))
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "folder").stat().st_mode & 0o777 == 0o750
    assert (tmp_path / "folder" / "inner").stat().st_mode & 0o777 == 0o640


@posix
def test_a_link_stays_and_what_it_points_to_is_replaced(tmp_path):
    for name in ("file", "folder"):
        (tmp_path / "real").mkdir(exist_ok=True)
        (tmp_path / name).symlink_to(Path("real") / name)
    (tmp_path / "real" / "folder").mkdir()
    with replaced_file(tmp_path / "file") as beside:
        beside.write_text("new")
    with replaced_folder(tmp_path / "folder") as beside:
        (beside / "new").write_text("new")
    assert names(tmp_path) == ["file", "folder", "real"]
    assert names(tmp_path / "real") == ["file", "folder"]
    assert (tmp_path / "file").is_symlink()
    assert (tmp_path / "folder").is_symlink()
    assert (tmp_path / "real" / "file").read_text() == "new"
    assert names(tmp_path / "real" / "folder") == ["new"]


@pytest.mark.parametrize("call", [replaced_file, replaced_folder])
def test_outputs_that_cannot_be_made(tmp_path, monkeypatch, call):
    missing = tmp_path / "no" / "output"
    assert (
        error(call, missing) == f"cannot write {missing}: the folder {tmp_path / 'no'} does not exist; create it first"
    )
    long = tmp_path / ("n" * 300)
    assert error(call, long) == f"cannot write {long}: File name too long"
    for path in (Path("."), Path(""), Path(".."), Path("/")):
        assert error(call, path) == f"cannot write {path}: it is a folder; name the file or folder to write in it"
    undecodable = tmp_path / "n\udcff"
    assert error(call, undecodable) == f"cannot write {undecodable}: the name must be UTF-8; choose another one"
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    shut = tmp_path / "output"
    assert error(call, shut) == f"cannot write {shut}: the folder {tmp_path} is not writable"
    assert names(tmp_path) == []


def test_a_folder_stands_where_a_file_is_wanted(tmp_path):
    path = tmp_path / "output"
    path.mkdir()
    message = f"cannot write {path}: the output must be a file, got a folder"
    assert error(replaced_file, path) == refusal(require_file, path) == message


def test_a_file_stands_where_a_folder_is_wanted(tmp_path):
    path = tmp_path / "output"
    path.write_text("old")
    message = f"cannot write {path}: it must be a folder, got a file"
    assert error(replaced_folder, path) == refusal(require_replaceable, path, "mark") == message
    assert path.read_text() == "old"


@posix
def test_a_device_is_not_replaced_by_a_file(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    message = f"cannot write {path}: the output must be a file, got a device or a pipe"
    assert error(replaced_file, path) == refusal(require_file, path) == message
    assert path.is_fifo()


def test_only_an_earlier_output_may_be_replaced(tmp_path):
    path = tmp_path / "output"
    require_replaceable(path, "mark")
    path.mkdir()
    require_replaceable(path, "mark")
    (path / "thesis.txt").write_text("years of work")
    assert refusal(require_replaceable, path, "mark") == (
        f"cannot write {path}: the folder holds other things (no mark); choose another name"
    )
    (path / "mark").write_text("")
    require_replaceable(path, "mark")


def test_the_folder_of_an_output(tmp_path):
    require_folder(tmp_path / "output")
    require_file(tmp_path / "output")
    missing = tmp_path / "no" / "output"
    assert refusal(require_folder, missing).endswith("does not exist; create it first")


LOCKING = """
import sys
from pathlib import Path
from ctx_embed.files import locked
with locked(Path(sys.argv[1])) as free:
    print(free, flush=True)
    sys.stdin.read()
"""


def test_a_lock_is_let_go_of_when_its_process_is_killed(tmp_path):
    path = tmp_path / "locks" / "a"
    command = [sys.executable, "-c", LOCKING, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "True\n"
        with locked(path, wait=False) as free, locked(tmp_path / "locks" / "b", wait=False) as other:
            assert (free, other) == (False, True)
        process.kill()
    with locked(path) as free:
        assert free
    with locked(path, wait=False) as free:
        assert free


def test_a_block_lets_go_of_its_lock_at_an_error(tmp_path):
    with pytest.raises(TimeoutError), locked(tmp_path / "locks" / "a"):
        raise TimeoutError
    with locked(tmp_path / "locks" / "a", wait=False) as free:
        assert free


def test_a_block_runs_where_no_lock_can_be(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "locks" / "folder").mkdir(parents=True)
    for path in (tmp_path / "file" / "a", tmp_path / "locks" / "folder", tmp_path / "none" / "none" / "a"):
        with locked(path) as free:
            assert free


def test_an_output_never_replaces_its_input(tmp_path):
    source, link = tmp_path / "texts.csv", tmp_path / "link.csv"
    source.write_text("text")
    link.symlink_to(source)
    for name in (source, link, tmp_path / "." / "texts.csv"):
        assert refusal(require_other_file, name, source) == f"cannot write {name}: it is the input; choose another name"
    require_other_file(tmp_path / "new.csv", source)
    require_other_file(source, "-")
    require_other_file(source, tmp_path / "absent")


def test_a_file_system_without_locks_is_told_from_a_busy_one(tmp_path, monkeypatch):
    fcntl = pytest.importorskip("fcntl")
    SearchIndex.create(tmp_path / "index", HashModel()).close()
    assert has_locks(tmp_path)

    def message() -> str:
        database = Database(tmp_path / "index" / "index.sqlite")
        with closing(database), pytest.raises(InputError) as caught, database.reporting_errors():
            raise sqlite3.OperationalError("database is locked")
        return str(caught.value)

    def refuse(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    assert "another process is writing" in message()
    monkeypatch.setattr(fcntl, "lockf", refuse)
    assert "the file system has no locks" in message()


def test_a_full_disk_under_safetensors_is_one_line(tmp_path):
    """safetensors raises an error of its own, not an OSError."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "old").touch()
    with (
        full_disk(100_000),
        pytest.raises(UnwritableError, match=r"cannot write .*model: File too large"),
        replaced_folder(tmp_path / "model") as beside,
    ):
        save_file({"table": np.zeros(100_000, np.float32)}, beside / "model.safetensors")
    assert [path.name for path in tmp_path.rglob("*")] == ["model", "old"]


def test_a_sync_that_fails_names_its_file(tmp_path, monkeypatch):
    def failing(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(OSError, match=r"Input/output error: '.*file.*'"), replaced_file(tmp_path / "file") as beside:
        beside.write_text("new")
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_removed_does_not_keep_its_name(tmp_path, monkeypatch):
    folder, modes = tmp_path / "folder", []
    monkeypatch.setattr(shutil, "rmtree", lambda path, **_: modes.extend(p.stat().st_mode for p in path.rglob("sub")))
    for _ in range(3):
        (folder / "sub").mkdir(parents=True)
        (folder / "sub").chmod(0o500)
        files.remove_folder(folder)
        assert not folder.exists()
    # Read-only folders were made writable before.
    assert modes
    assert all(mode & 0o200 for mode in modes)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".folder.removed",
        ".folder.removed2",
        ".folder.removed3",
    ]
