"""An index folder holds regular files only: pipes and links in it are one line, and nothing waits for them."""

from __future__ import annotations

import os
import signal
import sqlite3
from contextlib import closing, contextmanager

import pytest

from ctx_embed import InputError, SearchIndex

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
def test_a_database_that_is_no_regular_file_is_one_line(folder, hash_model, replace):
    path = folder / "index.sqlite"
    replace(path)
    with pytest.raises(InputError) as caught:
        read(folder, hash_model)
    assert str(caught.value).startswith(f"{path}: damaged (not a regular file)")


def test_a_pipe_is_no_faiss_file(tmp_path, hash_model):
    with SearchIndex.create(tmp_path / "index", hash_model, "HNSW8") as index:
        index.add([f"text {number}" for number in range(50)])
    (path,) = (tmp_path / "index").glob("*.faiss")
    pipe(path)
    read(tmp_path / "index", hash_model)


ENDLESS = "WITH RECURSIVE n(row) AS (SELECT 1 UNION ALL SELECT row + 1 FROM n) SELECT row, 1, 0, row, '{}', 'x' FROM n"


@pytest.mark.parametrize(
    "hostile",
    [
        f"DROP TABLE documents; CREATE VIEW documents(row, passages, checksum, id, metadata, text) AS {ENDLESS}",
        f"DROP TABLE settings; CREATE VIEW settings(name, content, checksum) AS SELECT row, id, text FROM ({ENDLESS})",
        "CREATE TRIGGER empty AFTER INSERT ON documents BEGIN DELETE FROM documents; END",
    ],
)
def test_a_view_or_trigger_in_the_database_is_one_line(folder, hash_model, hostile):
    path = folder / "index.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(hostile)
    with pytest.raises(InputError, match="it has the view or trigger"), within(20):
        SearchIndex.open(folder, hash_model).close()
