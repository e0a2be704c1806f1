"""The modules at the top of the package: files, texts, vectors, errors and progress."""

import contextlib
import errno
import io
import json
import os
import random
import re
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from safetensors.numpy import save_file

import ctx_embed
from ctx_embed import SearchIndex, files, progress
from ctx_embed.errors import InputError, UnwritableError, installation, unknown_name
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
from ctx_embed.index.database import Database
from ctx_embed.progress import Meter, say
from ctx_embed.texts import BATCH_CHARACTERS, BATCH_TEXTS, as_texts, length_batches, well_formed
from ctx_embed.training.options import SupervisedOptions
from ctx_embed.vectors import unit_rows
from tests.helpers.errors import error, full_disk
from tests.index.support.hash_model import HashModel

posix = pytest.mark.skipif(os.name != "posix", reason="modes, links and pipes of POSIX")


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def fill(path: Path, text: str) -> None:
    """Write a file, or a deep one into a folder that is there."""
    if path.is_dir():
        path /= text
        path.mkdir()
        path /= "file"
    path.write_text(text)


def content(folder: Path) -> dict[str, str | None]:
    found = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*")}
    return {name: path.read_text() if path.is_file() else None for name, path in found.items()}


@pytest.mark.parametrize("replaced", [replaced_file, replaced_folder])
@pytest.mark.parametrize("mistake", [None, ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("old", [None, "old"])
def test_an_output_is_replaced_at_the_end_or_not_at_all(tmp_path, replaced, mistake, old):
    path = tmp_path / "output"
    if old:
        if replaced is replaced_folder:
            path.mkdir()
        fill(path, old)
    before = content(tmp_path)
    with pytest.raises(mistake) if mistake else contextlib.nullcontext(), replaced(str(path)) as beside:
        fill(beside, "new")
        assert before.items() <= content(tmp_path).items()
        assert path.exists() == bool(old)
        if mistake:
            raise mistake
    new = {"output": "new"}
    if replaced is replaced_folder:
        new = {"output": None, "output/new": None, "output/new/file": "new"}
    assert content(tmp_path) == (before if mistake else new)


def test_stopped_between_the_two_renames_the_old_folder_comes_back(tmp_path, monkeypatch):
    path = tmp_path / "folder"
    path.mkdir()
    (path / "old").touch()
    replace = Path.replace

    def stopped(self, target):
        if Path(target) == path and not self.name.endswith(".replaced"):
            raise KeyboardInterrupt
        return replace(self, target)

    # As on systems that cannot exchange two folders in one step.
    monkeypatch.setattr(files, "_exchanged", lambda left, right: False)
    monkeypatch.setattr(Path, "replace", stopped)
    with pytest.raises(KeyboardInterrupt), replaced_folder(path) as beside:
        (beside / "new").touch()
    assert set(content(tmp_path)) == {"folder", "folder/old"}


def test_killed_between_the_two_renames_the_old_folder_comes_back(tmp_path):
    path = tmp_path / "folder"
    (tmp_path / ".folder.replaced" / "old").mkdir(parents=True)
    (tmp_path / ".folder.removed").mkdir()
    files.remove_leftovers(path)
    assert set(content(tmp_path)) == {"folder", "folder/old"}
    (tmp_path / ".folder.replaced").mkdir()
    with replaced_folder(path) as beside:
        (beside / "new").touch()
    assert set(content(tmp_path)) == {"folder", "folder/new"}


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
    (tmp_path / "real" / "folder").mkdir(parents=True)
    for name in ("file", "folder"):
        (tmp_path / name).symlink_to(Path("real") / name)
    with replaced_file(tmp_path / "file") as beside, replaced_folder(tmp_path / "folder") as folder:
        beside.write_text("new")
        (folder / "new").touch()
    assert {path.name for path in tmp_path.iterdir() if path.is_symlink()} == {"file", "folder"}
    assert content(tmp_path / "real") == {"file": "new", "folder": None, "folder/new": ""}


@pytest.mark.parametrize("call", [replaced_file, replaced_folder])
def test_outputs_that_cannot_be_made(tmp_path, monkeypatch, call):
    name = "it is a folder; name the file or folder to write in it"
    for path, said in [
        (tmp_path / "no" / "output", f"the folder {tmp_path / 'no'} does not exist; create it first"),
        (tmp_path / ("n" * 300), "File name too long"),
        *((Path(path), name) for path in (".", "", "..", "/")),
        (tmp_path / "n\udcff", "the name must be UTF-8; choose another one"),
    ]:
        assert error(call, path) == f"cannot write {path}: {said}"
    assert error(require_folder, tmp_path / "no" / "output").endswith("does not exist; create it first")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    shut = tmp_path / "output"
    assert error(call, shut) == f"cannot write {shut}: the folder {tmp_path} is not writable"
    assert names(tmp_path) == []


@posix
def test_what_stands_in_the_way_stays(tmp_path):
    folder, file, pipe = (tmp_path / name for name in ("folder", "file", "pipe"))
    folder.mkdir()
    file.write_text("old")
    os.mkfifo(pipe)
    for path, said in ((folder, "a folder"), (pipe, "a device or a pipe")):
        message = f"cannot write {path}: the output must be a file, got {said}"
        assert error(replaced_file, path) == error(require_file, path) == message
    message = f"cannot write {file}: it must be a folder, got a file"
    assert error(replaced_folder, file) == error(require_replaceable, file, "mark") == message
    assert file.read_text() == "old"
    assert pipe.is_fifo()


def test_only_an_earlier_output_may_be_replaced_and_no_input(tmp_path):
    path = tmp_path / "output"
    path.mkdir()
    require_replaceable(path, "mark")
    (path / "thesis.txt").write_text("years of work")
    assert error(require_replaceable, path, "mark") == (
        f"cannot write {path}: the folder holds other things (no mark); choose another name"
    )
    (path / "mark").touch()
    require_replaceable(path, "mark")
    link = tmp_path / "link"
    link.symlink_to(path / "mark")
    assert error(require_other_file, link, path / "mark").endswith("it is the input; choose another name")
    require_other_file(tmp_path / "new.csv", link)
    require_other_file(link, "-")


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
    # It runs where no lock can be.
    (tmp_path / "locks" / "folder").mkdir()
    for place in ("locks/a", "locks/a/b", "locks/folder", "none/none/a"):
        with locked(tmp_path / place, wait=False) as free:
            assert free


def test_a_file_system_without_locks_is_told_from_a_busy_one(tmp_path, monkeypatch):
    fcntl = pytest.importorskip("fcntl")
    SearchIndex.create(tmp_path / "index", HashModel()).close()
    assert has_locks(tmp_path)

    def busy() -> None:
        database = Database(tmp_path / "index")
        with closing(database), database.reporting_errors():
            raise sqlite3.OperationalError("database is locked")

    def refuse(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    assert "another process is writing" in error(busy)
    monkeypatch.setattr(fcntl, "lockf", refuse)
    assert "the file system has no locks" in error(busy)


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
    monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(errno.EIO, os.strerror(errno.EIO))))
    with pytest.raises(OSError, match=r"Input/output error: '.*file.*'"), replaced_file(tmp_path / "file") as beside:
        beside.write_text("new")
    assert names(tmp_path) == []


def test_what_cannot_be_removed_does_not_keep_its_name(tmp_path, monkeypatch):
    folder, modes = tmp_path / "folder", []
    monkeypatch.setattr(shutil, "rmtree", lambda path, **_: modes.extend(p.stat().st_mode for p in path.rglob("sub")))
    for _ in range(3):
        (folder / "sub").mkdir(parents=True)
        (folder / "sub").chmod(0o500)
        files.remove_folder(folder)
        assert not folder.exists()
    # Read-only folders were made writable before.
    assert [mode & 0o200 for mode in modes] == [0o200] * len(modes) != []
    assert names(tmp_path) == [".folder.removed", ".folder.removed2", ".folder.removed3"]


def test_halves_of_characters_are_read_as_utf_16_reads_them():
    draw = random.Random(0)
    for _ in range(3000):
        text = "".join(draw.choices("\ud83d\ude00\udbff\ud800\udfffaé😀", k=draw.randrange(9)))
        assert well_formed(text) == text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"), ascii(text)
    text = "nothing to do 😀 \0"
    assert well_formed(text) is text


def test_batches_hold_every_text_once_within_their_bounds():
    texts = ["x" * length for length in [5, BATCH_CHARACTERS * 2, 0, *range(600), BATCH_CHARACTERS // 3]]
    found = list(length_batches(texts))
    assert sorted(place for batch in found for place in batch) == list(range(len(texts)))
    for batch in found:
        padded = len(batch) * max(len(texts[place]) for place in batch)
        assert len(batch) <= BATCH_TEXTS
        assert padded <= BATCH_CHARACTERS or len(batch) == 1
    assert list(length_batches([])) == []


@pytest.mark.parametrize(
    "make",
    [list, tuple, iter, pd.Series, pl.Series, np.array, pa.array, lambda texts: pa.chunked_array([texts])],
    ids=["list", "tuple", "iterator", "pandas", "polars", "numpy", "arrow", "arrow chunks"],
)
def test_texts_come_in_any_collection(make, tiny_model):
    texts = ["the cat", "a dog"]
    assert as_texts(make(texts)) == texts
    np.testing.assert_array_equal(tiny_model.encode(as_texts(make(texts))), tiny_model.encode(texts))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ("a", "texts must be a list of strings, got a str; give [text]"),
        (np.array("a"), "texts must be a list of strings, got a ndarray"),
        (None, "texts must be a list of strings, got None"),
        (pd.DataFrame({"text": ["a"]}), "got a DataFrame; give one of its columns ('text')"),
        (pl.DataFrame({"text": ["a"]}), "got a DataFrame; give one of its columns ('text')"),
        (pa.table({"text": ["a"]}), "got a Table; give one of its columns ('text')"),
        (pd.Series(["a", None]), "text 1 must be a string, got "),
    ],
)
def test_what_holds_no_texts_is_one_line(values, message):
    with pytest.raises(InputError, match=re.escape(message)):
        as_texts(values)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_have_length_1_and_zero_stays_zero(dtype):
    vectors = np.array([[3, 4], [0, 0], [1e-30, 0], [3e30, -4e30]], dtype)
    found = unit_rows(vectors)
    assert found.dtype == dtype
    np.testing.assert_allclose(found, [[0.6, 0.8], [0, 0], [1, 0], [0.6, -0.8]], rtol=1e-6)
    np.testing.assert_array_equal(unit_rows(vectors[0]), found[0])


def test_an_unknown_name():
    assert issubclass(InputError, ValueError)
    assert ctx_embed.InputError is InputError
    found = unknown_name("task", "SUBJJ", ["SUBJ", "MR"])
    assert isinstance(found, InputError)
    assert str(found) == "unknown task 'SUBJJ': did you mean 'SUBJ'? known are MR, SUBJ"
    assert str(unknown_name("task", "xyz", {"SUBJ": 1, "MR": 2})) == "unknown task 'xyz': known are MR, SUBJ"


def test_an_extra_is_installed_from_where_the_package_came_from(tmp_path):
    wheel = tmp_path / "a wheel.whl"
    wheel.touch()
    origin = json.dumps({"url": wheel.as_uri(), "archive_info": {}})
    assert installation("peers", origin) == f'pip install "{wheel}[peers]"'
    assert installation("", origin) == f"pip install '{wheel}'"
    clone = json.dumps({"url": tmp_path.as_uri(), "dir_info": {"editable": True}})
    assert installation("peers", clone) == f'pip install -e "{tmp_path}[peers]"'


@pytest.mark.parametrize("url", [None, "file:///nowhere/ctx_embed.whl", "https://example.org/ctx_embed.whl"])
def test_an_installation_from_an_index_or_from_what_is_gone_goes_by_name(url):
    origin = json.dumps({"url": url, "archive_info": {}}) if url else ""
    assert installation("peers", origin) == 'pip install "ctx-embed[peers]"'
    assert installation(origin=origin) == "pip install ctx-embed"


def test_lines_say_how_much_how_fast_and_how_long(capsys):
    with Meter("encoding", 2000, "rows", done=500, interval=0) as meter:
        meter.update(500)
        meter.note("loss 0.1")
        meter.update(1000)
    first, second, last = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"encoding: 1,000 of 2,000 rows, [\d,]+ rows/s, 0 s left", first)
    assert re.fullmatch(r"encoding: 2,000 of 2,000 rows, [\d,]+ rows/s, 0 s left, loss 0.1", second)
    assert re.fullmatch(r"encoding: 2,000 of 2,000 rows, [\d,]+ rows/s, after 0 s, loss 0.1", last)


def test_what_was_done_before_counts_for_no_speed(capsys, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(progress, "last_line", None)
    meter = Meter("encoding", 2000, "rows", done=500, interval=0)
    clock[0] = 10.0
    meter.update(500)
    assert capsys.readouterr().err == "encoding: 1,000 of 2,000 rows, 50 rows/s, 20 s left\n"


@pytest.mark.parametrize(
    ("option", "refused", "taken"),
    [("token_dropout", 1.0, 0.99), ("token_dropout", -0.1, 0.0), ("learning_rate", 0.0, 1e-9), ("seed", 2**32, 0)],
)
def test_the_ends_of_a_range_belong_to_it_or_not(option, refused, taken):
    assert f"{option} must be " in error(SupervisedOptions, **{option: refused})
    assert getattr(SupervisedOptions(**{option: taken}), option) == taken


def test_meters_name_the_subject_of_their_block(capsys):
    with progress.about("MR, default"), Meter("folds", 1, "fits", interval=0) as meter:
        meter.update()
    with Meter("folds", 1, "fits", interval=0) as meter:
        meter.update()
    named, _, plain, _ = capsys.readouterr().err.splitlines()
    assert named.startswith("MR, default: folds: 1 of 1 fits")
    assert plain.startswith("folds: 1 of 1 fits")


def test_short_work_and_hidden_work_print_nothing(capsys):
    progress.restart()
    assert list(Meter("reading", 3).each("abc")) == ["a", "b", "c"]
    assert list(Meter("reading", 3, shown=False, interval=0).each("abc")) == ["a", "b", "c"]
    assert capsys.readouterr().err == ""
    script = "import sys, ctx_embed.progress as p; m = p.Meter('x', 1); m.update(); assert 'tqdm' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", script], stderr=subprocess.PIPE, check=True).stderr == b""


def test_meters_that_follow_one_another_share_the_interval(capsys):
    progress.restart()
    for _ in range(30):
        with Meter("fold", 1, "folds", interval=0.05) as meter:
            progress.time.sleep(0.01)
            meter.update()
    assert 1 <= len(capsys.readouterr().err.splitlines()) < 20


def test_a_terminal_shows_a_bar_with_lines_above_it(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with Meter("encoding", 3, "rows") as meter:
        for _ in range(3):
            meter.update()
        meter.note("loss 0.1")
        say("a line")
    shown = sys.stderr.getvalue()
    assert "3/3" in shown
    assert "loss 0.1" in shown
    assert re.search(r"(^|[\r\n])a line\n", shown)


def test_durations():
    said = {0.4: "0 s", 59.6: "1 min 00 s", 3599: "59 min 59 s", 7260: "2 h 01 min"}
    assert {seconds: progress.duration(seconds) for seconds in said} == said
