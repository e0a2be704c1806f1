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
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from safetensors.numpy import save_file

from ctx_embed import SearchIndex, files, progress
from ctx_embed.errors import UnwritableError, installation, unknown_name
from ctx_embed.files import locked, replaced_file, replaced_folder, require_other_file, require_replaceable
from ctx_embed.index.database import Database
from ctx_embed.progress import Meter, say
from ctx_embed.texts import BATCH_CHARACTERS, BATCH_TEXTS, as_texts, length_batches, well_formed
from ctx_embed.training.options import SupervisedOptions
from ctx_embed.vectors import unit_rows
from tests.helpers.errors import error, full_disk
from tests.index.support.hash_model import HashModel

posix = pytest.mark.skipif(os.name != "posix", reason="modes, links and pipes of POSIX")


def content(folder: Path) -> dict[str, str]:
    """The texts of the files at any depth."""
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(("replaced", "inner"), [(replaced_file, ""), (replaced_folder, "sub/file")])
@pytest.mark.parametrize("mistake", [None, ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("old", [None, "old"])
def test_an_output_is_replaced_at_the_end_or_not_at_all(tmp_path, replaced, inner, mistake, old):
    path = tmp_path / "output"
    if old:
        (path / inner).parent.mkdir(parents=True, exist_ok=True)
        (path / inner).write_text(old)
    before = content(tmp_path)
    with pytest.raises(mistake) if mistake else contextlib.nullcontext(), replaced(str(path)) as beside:
        (beside / inner).parent.mkdir(exist_ok=True)
        (beside / inner).write_text("new")
        assert before.items() <= content(tmp_path).items()
        assert path.exists() == bool(old)
        if mistake:
            raise mistake
    assert content(tmp_path) == (before if mistake else {f"output/{inner}".strip("/"): "new"})
    assert os.listdir(tmp_path) == ["output"] * bool(old or not mistake)


def test_stopped_or_killed_between_the_two_renames_the_old_folder_comes_back(tmp_path, monkeypatch):
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
    assert (os.listdir(tmp_path), os.listdir(path)) == (["folder"], ["old"])
    # Killed.
    path.rename(tmp_path / ".folder.replaced")
    (tmp_path / ".folder.removed").mkdir()
    files.remove_leftovers(path)
    assert (os.listdir(tmp_path), os.listdir(path)) == (["folder"], ["old"])
    (tmp_path / ".folder.replaced").mkdir()
    monkeypatch.undo()
    with replaced_folder(path) as beside:
        (beside / "new").touch()
    assert (os.listdir(tmp_path), os.listdir(path)) == (["folder"], ["new"])


@posix
def test_another_process_sees_the_old_folder_or_the_new_one(tmp_path, monkeypatch):
    path = tmp_path / "folder"
    path.mkdir()
    (path / "old").touch()
    removed = []
    monkeypatch.setattr(files, "remove_folder", lambda folder: removed.append((os.listdir(folder), os.listdir(path))))
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
    (left,) = set(os.listdir(tmp_path)) - set(kept)
    assert (tmp_path / left / "half").is_file()
    with replaced_folder(path) as beside:
        (beside / "first").touch()
        with replaced_folder(path) as another:
            (another / "second").touch()
            assert {*os.listdir(tmp_path)} == {*kept, beside.name, another.name}
        assert {*os.listdir(tmp_path)} == {*kept, beside.name, "folder"}
    assert os.listdir(path) == ["first"]
    assert {*os.listdir(tmp_path)} == {*kept, "folder"}


@posix
def test_a_link_stays_what_it_points_to_is_replaced_and_modes_are_those_that_open_and_mkdir_give(tmp_path):
    (tmp_path / "real").mkdir()
    for name in ("file", "folder"):
        (tmp_path / name).symlink_to(Path("real") / name)
    before = os.umask(0o027)
    try:
        with replaced_file(tmp_path / "file") as beside, replaced_folder(tmp_path / "folder") as folder:
            beside.write_text("new")
            os.close(os.open(folder / "inner", os.O_CREAT, 0o600))
    finally:
        os.umask(before)
    assert {path.name for path in tmp_path.iterdir() if path.is_symlink()} == {"file", "folder"}
    assert content(tmp_path / "real") == {"file": "new", "folder/inner": ""}
    for name, mode in (("file", 0o640), ("folder", 0o750), ("folder/inner", 0o640)):
        assert (tmp_path / name).stat().st_mode & 0o777 == mode


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
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    shut = tmp_path / "output"
    assert error(call, shut) == f"cannot write {shut}: the folder {tmp_path} is not writable"
    assert os.listdir(tmp_path) == []


@posix
def test_what_stands_in_the_way_stays(tmp_path):
    folder, file, pipe = (tmp_path / name for name in ("folder", "file", "pipe"))
    folder.mkdir()
    file.write_text("old")
    os.mkfifo(pipe)
    for path, said in ((folder, "a folder"), (pipe, "a device or a pipe")):
        assert error(replaced_file, path) == f"cannot write {path}: the output must be a file, got {said}"
    message = f"cannot write {file}: it must be a folder, got a file"
    assert error(replaced_folder, file) == error(require_replaceable, file, "mark") == message
    assert file.read_text() == "old"
    assert pipe.is_fifo()


def test_only_an_earlier_output_may_be_replaced_and_no_input(tmp_path):
    path = tmp_path / "output"
    path.mkdir()
    require_replaceable(path, "mark")
    (path / "thesis.txt").write_text("years of work")
    assert "the folder holds other things (no mark); choose another name" in error(require_replaceable, path, "mark")
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

    def busy() -> None:
        with contextlib.closing(Database(tmp_path / "index")) as database, database.reporting_errors():
            raise sqlite3.OperationalError("database is locked")

    assert "another process is writing" in error(busy)
    monkeypatch.setattr(fcntl, "lockf", Mock(side_effect=OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))))
    assert "the file system has no locks" in error(busy)


def test_a_full_disk_under_safetensors_is_one_line(tmp_path):
    """safetensors raises an error of its own, not an OSError."""
    path = tmp_path / "model"
    said = pytest.raises(UnwritableError, match=r"cannot write .*model: File too large")
    with full_disk(100_000), said, replaced_folder(path) as beside:
        save_file({"table": np.zeros(100_000, np.float32)}, beside / "model.safetensors")
    assert os.listdir(tmp_path) == []


def test_a_sync_that_fails_names_its_file(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(errno.EIO, os.strerror(errno.EIO))))
    with pytest.raises(OSError, match=r"Input/output error: '.*file.*'"), replaced_file(tmp_path / "file") as beside:
        beside.write_text("new")
    assert os.listdir(tmp_path) == []


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
    assert {*os.listdir(tmp_path)} == {".folder.removed", ".folder.removed2", ".folder.removed3"}


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
        assert len(batch) <= BATCH_TEXTS
        assert len(batch) * max(len(texts[place]) for place in batch) <= BATCH_CHARACTERS or len(batch) == 1
    assert list(length_batches([])) == []


def test_texts_come_in_any_collection_and_what_holds_none_is_one_line():
    texts = ["the cat", "a dog"]
    for make in (list, tuple, iter, pd.Series, pl.Series, np.array, pa.array, lambda texts: pa.chunked_array([texts])):
        assert as_texts(make(texts)) == texts
        assert {type(text) for text in as_texts(make(texts))} == {str}
    for values, said in (
        ("a", "texts must be a list of strings, got a str; give [text]"),
        (np.array("a"), "texts must be a list of strings, got a ndarray"),
        (None, "texts must be a list of strings, got None"),
        (pl.DataFrame({"text": ["a"]}), "got a DataFrame; give one of its columns ('text')"),
        (pa.table({"text": ["a"]}), "got a Table; give one of its columns ('text')"),
        (pd.Series(["a", None]), "text 1 must be a string, got "),
    ):
        assert said in error(as_texts, values)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_have_length_1_and_zero_stays_zero(dtype):
    vectors = np.array([[3, 4], [0, 0], [1e-30, 0], [3e30, -4e30]], dtype)
    found = unit_rows(vectors)
    assert found.dtype == dtype
    np.testing.assert_allclose(found, [[0.6, 0.8], [0, 0], [1, 0], [0.6, -0.8]], rtol=1e-6)
    np.testing.assert_array_equal(unit_rows(vectors[0]), found[0])


def test_an_unknown_name_is_a_value_error_that_says_the_nearest_known_one():
    found = unknown_name("task", "SUBJJ", {"SUBJ": 1, "MR": 2})
    assert isinstance(found, ValueError)
    assert str(found) == "unknown task 'SUBJJ': did you mean 'SUBJ'? known are MR, SUBJ"


def test_the_package_is_installed_again_from_where_it_came_from_or_by_its_name(tmp_path):
    wheel = tmp_path / "a wheel.whl"
    wheel.touch()
    archive = {"archive_info": {}}
    for origin, package, with_extra in (
        ({"url": wheel.as_uri(), **archive}, f"'{wheel}'", f'"{wheel}[peers]"'),
        ({"url": tmp_path.as_uri(), "dir_info": {"editable": True}}, f"-e {tmp_path}", f'-e "{tmp_path}[peers]"'),
        ({"url": "file:///nowhere/ctx_embed.whl", **archive}, "ctx-embed", '"ctx-embed[peers]"'),
        ({"url": "https://example.org/ctx_embed.whl", **archive}, "ctx-embed", '"ctx-embed[peers]"'),
        (None, "ctx-embed", '"ctx-embed[peers]"'),
    ):
        given = json.dumps(origin) if origin else ""
        assert installation("", given) == f"pip install {package}"
        assert installation("peers", given) == f"pip install {with_extra}"


@pytest.fixture
def clock(monkeypatch) -> SimpleNamespace:
    """A clock whose time passes only where a test says so."""
    found = SimpleNamespace(now=0.0, monotonic=lambda: found.now)
    monkeypatch.setattr(progress, "time", found)
    monkeypatch.setattr(progress, "last_line", None)
    return found


def test_lines_say_how_much_how_fast_and_how_long(capsys, clock):
    with progress.about("MR"), Meter("encoding", 2000, "rows", done=500, interval=0) as meter:
        clock.now = 10.0
        # What was done before counts for no speed.
        meter.update(500)
        meter.note("loss 0.1")
        meter.update(1000)
    with Meter("folds", 1, "fits", interval=0) as meter:
        meter.update()
    assert capsys.readouterr().err.splitlines()[:4] == [
        "MR: encoding: 1,000 of 2,000 rows, 50 rows/s, 20 s left",
        "MR: encoding: 2,000 of 2,000 rows, 150 rows/s, 0 s left, loss 0.1",
        "MR: encoding: 2,000 of 2,000 rows, 150 rows/s, after 10 s, loss 0.1",
        "folds: 1 of 1 fits, 1,000,000 fits/s, 0 s left",
    ]
    said = {0.4: "0 s", 59.6: "1 min 00 s", 3599: "59 min 59 s", 7260: "2 h 01 min"}
    assert {seconds: progress.duration(seconds) for seconds in said} == said


@pytest.mark.parametrize(
    ("option", "refused", "taken"),
    [("token_dropout", 1.0, 0.99), ("token_dropout", -0.1, 0.0), ("learning_rate", 0.0, 1e-9), ("seed", 2**32, 0)],
)
def test_the_ends_of_a_range_belong_to_it_or_not(option, refused, taken):
    assert f"{option} must be " in error(SupervisedOptions, **{option: refused})
    assert getattr(SupervisedOptions(**{option: taken}), option) == taken


def test_short_work_and_hidden_work_print_nothing_and_meters_share_the_interval(capsys, clock):
    progress.restart()
    assert list(Meter("reading", 3).each("abc")) == ["a", "b", "c"]
    assert list(Meter("reading", 3, shown=False, interval=0).each("abc")) == ["a", "b", "c"]
    assert capsys.readouterr().err == ""
    for number in range(30):
        with Meter("fold", 1, "folds") as meter:
            clock.now += 1
            meter.update()
        # Every ten seconds two lines: of the update, and of the end.
        assert len(capsys.readouterr().err.splitlines()) == 2 * (number % 10 == 9)
    script = "import sys, ctx_embed.progress as p; m = p.Meter('x', 1); m.update(); assert 'tqdm' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", script], stderr=subprocess.PIPE, check=True).stderr == b""


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
