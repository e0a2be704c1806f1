"""An index folder holds regular files only: pipes and links in it are one line, and nothing waits for them."""

import os
import shutil
import sqlite3
from contextlib import closing, suppress
from functools import partial

import pytest

from ctx_embed import InputError, SearchIndex
from ctx_embed.index.building.build import build_index, merge_indexes
from tests.fuzz.fuzzing import limited
from tests.helpers.errors import error
from tests.index.support.hash_model import HashModel

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
ENDLESS = "WITH RECURSIVE n(row) AS (SELECT 1 UNION ALL SELECT row + 1 FROM n) SELECT row, 1, 0, row, '{}', 'x' FROM n"


@pytest.fixture(autouse=True)
def impatient():
    """Raise an error in a test that waits for long."""
    with limited(20):
        yield


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "whole.index"
    with SearchIndex.create(path, HashModel(), "HNSW8", chunk="sentences") as index:
        index.add([f"One sentence {number}. And another." for number in range(40)])
        index.delete([3])
    return path


@pytest.fixture
def folder(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "piped.index")


def merge(path) -> None:
    SearchIndex.create(path.with_name("whole.index"), HashModel(), chunk="sentences").close()
    merge_indexes([path.with_name("whole.index"), path], path.with_name("merged.index"), replace=True)


def build(mode, path) -> None:
    source = path.with_name("more.txt")
    source.write_text("more\n")
    build_index(source, path, model=HashModel(), mode=mode)


def call(method, argument, path) -> None:
    with SearchIndex.open(path, HashModel()) as index:
        getattr(index, method)(argument)


WORKS = {"merge": merge, "append": partial(build, "append"), "overwrite": partial(build, "overwrite")}
CALLS = {
    "search": "one",
    "add": ["A new text."],
    "delete": [5],
    "verify": True,
    "compact": None,
    "reembed": HashModel(16),
}
WORKS |= {name: partial(call, name, argument) for name, argument in CALLS.items()}


@pytest.mark.parametrize("name", ["index.sqlite", "*.faiss"])
@pytest.mark.parametrize("work", WORKS)
def test_a_pipe_is_no_file_of_an_index(folder, name, work):
    (place,) = folder.glob(name)
    place.unlink()
    os.mkfifo(place)
    if (name, work) == ("*.faiss", "search"):
        WORKS[work](folder)
    else:
        with suppress(InputError):
            WORKS[work](folder)


@pytest.mark.parametrize("special", [os.mkfifo, lambda path: path.symlink_to(path)], ids=["pipe", "link to itself"])
def test_the_database_must_be_a_regular_file(folder, special):
    path = folder / "index.sqlite"
    path.unlink()
    special(path)
    assert error(WORKS["search"], folder).startswith(f"{path}: damaged (not a regular file)")


@pytest.mark.parametrize(
    "hostile",
    [
        f"DROP TABLE documents; CREATE VIEW documents(row, passages, checksum, id, metadata, text) AS {ENDLESS}",
        f"DROP TABLE settings; CREATE VIEW settings(name, content, checksum) AS SELECT row, id, text FROM ({ENDLESS})",
        "CREATE TRIGGER empty AFTER INSERT ON documents BEGIN DELETE FROM documents; END",
    ],
)
def test_a_view_or_trigger_in_the_database_is_one_line(folder, hostile):
    with closing(sqlite3.connect(folder / "index.sqlite")) as connection:
        connection.executescript(hostile)
    assert "it has the view or trigger" in error(SearchIndex.open, folder, HashModel())
