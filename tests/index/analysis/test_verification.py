import json
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from functools import partial
from itertools import count, takewhile

import pytest

from ctx_embed import SearchIndex
from ctx_embed.errors import BusyError, DamagedError
from ctx_embed.index.storage.database import Database
from tests.helpers.cli import Command
from tests.helpers.errors import error
from tests.index.support.hash_model import HashModel
from tests.index.support.stored import vectors_of

REMEDY = "restore it from a copy or build the index again"
WORDS = "the word lists are not those of the texts (their words, lengths, totals differ)"


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "index"
    with SearchIndex.create(path, HashModel(), "HNSW8") as index:
        index.add([f"text {number}" for number in range(50)])
        index.delete([3, 4])
    return path


def verified(path) -> list[str]:
    with SearchIndex.open(path, HashModel()) as index:
        return index.verify()


def changed(path, statement: str) -> None:
    with closing(sqlite3.connect(path / "index.sqlite")) as connection, connection:
        connection.execute(statement)


def flipped(file, place: int = -1) -> None:
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize(
    ("statement", "problems"),
    [
        ("DELETE FROM vectors_1 WHERE row = 7", ["has vectors of 47 passages, but 48 passages"]),
        (
            "INSERT INTO vectors_1 SELECT 3, code, checksum FROM vectors_1 WHERE row = 7",
            ["has vectors of 49 passages, but 48 passages"],
        ),
        (
            "DELETE FROM documents WHERE row = 7",
            ["1 of 50 rows belong to no document, or to several", "holds 47 documents, but its count is 48", WORDS],
        ),
        ("INSERT INTO words (words, rowid, text) VALUES ('delete', 7, 'text 7')", [WORDS]),
    ],
)
def test_changed_rows_are_found(path, statement, problems):
    assert verified(path) == []
    changed(path, statement)
    found = [line.removeprefix(f"{path / 'index.sqlite'}: ") for line in verified(path)]
    assert set(problems) <= set(found) if statement.startswith("DELETE FROM vectors") else found == problems


def test_a_changed_vector_and_a_damaged_file_of_faiss_are_found(path):
    database = path / "index.sqlite"
    content = database.read_bytes()
    code = vectors_of(path)[5].tobytes()
    # The lowest bit of a number: no distance shows it.
    flipped(database, content.index(code))
    assert verified(path) == [f"{database}: damaged (the checksum of a vector is wrong); {REMEDY}"]
    database.write_bytes(content)
    (file,) = path.glob("*.faiss")
    flipped(file)
    assert verified(path) == [f"{file}: damaged (its checksum is wrong); remove it and run `ctx-embed index compact`"]
    file.unlink()
    with SearchIndex.open(path, HashModel()) as index:
        index.compact()
    assert verified(path) == []
    assert len(list(path.glob("*.faiss"))) == 1


def test_texts_that_are_not_those_of_the_vectors_are_found(path):
    with closing(Database(path)) as store, store.writing():
        store.connection.execute("UPDATE documents SET text = 'something else' WHERE row IN (7, 8)")
        store.store_checksums("row IN (7, 8)")
    words = f"{path / 'index.sqlite'}: the word lists are not those of the texts (their words differ)"
    assert verified(path) == [words, f"{path}: 2 of 48 passages, embedded again, differ from their stored vectors"]
    with SearchIndex.open(path, HashModel()) as index:
        assert index.verify(embed=False) == [words]


def test_damaged_pages_and_definitions_are_found(path):
    database = path / "index.sqlite"
    content = database.read_bytes()
    definition = content.index(b"CREATE TABLE deleted")
    for start, damage in (
        # Headers of pages, with the number of their cells, and a definition that is no text.
        *((page, b"\xff" * 64) for page in range(4096, len(content), 4096)),
        *((page + 4, bytes([content[page + 4] ^ 1])) for page in range(4096, len(content), 4096)),
        (definition + 11, b"\xed"),
    ):
        database.write_bytes(content[:start] + damage + content[start + len(damage) :])
        try:
            found = verified(path)
        except DamagedError as caught:
            found = [str(caught)]
        assert found
        assert all(line.startswith(str(path)) and "\n" not in line and not line.endswith("***") for line in found)


def test_a_wrong_checksum_of_a_document_is_an_error_and_a_problem(path):
    changed(path, "UPDATE documents SET checksum = checksum + 1 WHERE row = 7")
    with SearchIndex.open(path, HashModel()) as index:
        for work in (partial(index.search, "text", 50), index.documents):
            assert "index.sqlite: damaged (the checksum of a document is wrong)" in error(work)
        assert f"{path / 'index.sqlite'}: documents with wrong checksums: 1, in the rows 7" in index.verify()


def test_the_command_says_what_it_finds(path):
    assert Command("index verify").succeeds(path, "--no-model") == f"{path}: whole, 48 documents\n"
    changed(path, "DELETE FROM documents WHERE row = 7")
    result = Command("index verify").run(path, "--no-model", "--json")
    message = f"Error: {path}: damaged (3 problems); restore it from a copy or build the index again\n"
    assert (result.exit_code, result.stderr) == (1, message)
    found = json.loads(result.stdout)
    assert (len(found["problems"]), len(found["unchecked"])) == (3, 0)


@pytest.mark.parametrize("runs", [4, pytest.param(100, marks=pytest.mark.slow)])
def test_no_false_alarm_while_others_write_and_compact(path, runs):
    stop = threading.Event()

    def write() -> None:
        with SearchIndex.open(path, HashModel()) as index:
            for number in takewhile(lambda _: not stop.is_set(), count()):
                with suppress(BusyError):
                    names = [f"{number} {place}" for place in range(5)]
                    index.add(names, names)
                    index.delete(names[:3])
                    if not number % 3:
                        index.compact()

    with ThreadPoolExecutor(1) as pool, SearchIndex.open(path, HashModel()) as index:
        writing = pool.submit(write)
        try:
            found = [index.verify() for _ in range(runs)]
        finally:
            stop.set()
        writing.result()
    assert found == [[]] * runs
