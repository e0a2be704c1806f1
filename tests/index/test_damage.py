"""Damage of any kind is one line, `verify` reports it, and no answer has other contents; no false alarm."""

import itertools
import json
import os
import random
import re
import shutil
import sqlite3
import zlib
from contextlib import closing, suppress
from functools import partial

import pytest

from ctx_embed import InputError, SearchIndex
from ctx_embed.index.build import build_index, merge_indexes
from ctx_embed.index.database import Database
from ctx_embed.index.verify import verify
from tests.conftest import SENTENCES
from tests.fuzz.fuzzing import limited
from tests.helpers.cli import Command
from tests.helpers.errors import error
from tests.index.support.child import child
from tests.index.support.hash_model import HashModel
from tests.index.support.stored import changed_settings, vectors_of

REMEDY = "restore it from a copy or build the index again"
WORDS = "the word lists are not those of the texts (their words, lengths, totals differ)"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "index"
    with SearchIndex.create(path, HashModel(), "HNSW8") as index:
        index.add([f"text {number}" for number in range(50)])
        index.delete([3, 4])
    return path


@pytest.fixture
def path(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "index")


@pytest.fixture
def database(path):
    return path / "index.sqlite"


def verified(path) -> list[str]:
    with SearchIndex.open(path, HashModel()) as index:
        return index.verify()


def refused(path) -> str:
    return error(SearchIndex.open, path, HashModel())


def changed(database, script: str) -> None:
    with closing(sqlite3.connect(database)) as connection:
        connection.executescript(script)


VECTOR, DOCUMENT = (f"damaged (the checksum of a {kind} is wrong); {REMEDY}" for kind in ("vector", "document"))
LESS, MORE, MOVED = (f"has vectors of {count} passages, but 48 passages" for count in (47, 49, 48))
# A change of the database, who raises which error then, and what `verify` finds.
CHANGES = [
    ("DELETE FROM vectors_1 WHERE row = 7", ["search"], f"damaged (vectors are missing); {REMEDY}", [LESS]),
    ("INSERT INTO vectors_1 SELECT 3, code, checksum FROM vectors_1 WHERE row = 7", [], "", [MORE]),
    ("UPDATE vectors_1 SET row = 3 WHERE row = 7", ["search"], f"damaged (vectors are missing); {REMEDY}", [MOVED]),
    (
        "DELETE FROM documents WHERE row = 7",
        ["search"],
        f"damaged (documents are missing); {REMEDY}",
        ["there are rows that belong to no document, or to several", "holds 47 documents, but its count is 48", WORDS],
    ),
    ("INSERT INTO words (words, rowid, text) VALUES ('delete', 7, 'text 7')", [], "", [WORDS]),
    ("UPDATE vectors_1 SET code = substr(code, 2) WHERE row = 7", ["search", "upsert"], VECTOR, [VECTOR]),
    ("UPDATE vectors_1 SET code = 'text' WHERE row = 7", ["search", "upsert"], VECTOR, [VECTOR]),
    (
        "UPDATE documents SET checksum = checksum + 1 WHERE row = 7",
        ["search", "documents"],
        DOCUMENT,
        ["documents with wrong checksums: 1, in the rows 7", DOCUMENT],
    ),
]


@pytest.mark.parametrize(("statement", "works", "said", "problems"), CHANGES)
def test_changed_rows_are_found_and_give_no_answer(path, database, statement, works, said, problems):
    changed(database, statement)
    assert [line.removeprefix(f"{database}: ") for line in verified(path)] == problems
    arguments = {"search": ["text 7", 50], "upsert": [["text 7"], [8]], "documents": []}
    with SearchIndex.open(path, HashModel()) as index:
        for work in works:
            assert error(getattr(index, work), *arguments[work]) == f"{database}: {said}"
        assert index.count() == 48


def test_a_changed_vector_and_a_damaged_file_of_faiss_are_found(path, database):
    content = database.read_bytes()
    place = content.index(vectors_of(path)[5].tobytes())
    # The lowest bit of a number: no distance shows it.
    database.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
    assert verified(path) == [f"{database}: {VECTOR}"]
    database.write_bytes(content)
    with closing(Database(path)) as store, store.writing():
        vector = 2 * vectors_of(path)[5]
        store.run("UPDATE vectors_1 SET code = ?, checksum = ? WHERE row = 7", (vector.tobytes(), zlib.crc32(vector)))
    with SearchIndex.open(path, HashModel()) as index:
        assert index.verify(embed=False) == [f"{database}: has vectors that are not of length 1"]
    database.write_bytes(content)
    (file,) = path.glob("*.faiss")
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    assert verified(path) == [f"{file}: damaged (its checksum is wrong); remove it and run `ctx-embed index compact`"]
    file.unlink()
    with SearchIndex.open(path, HashModel()) as index:
        index.compact()
    assert verified(path) == []
    assert len(list(path.glob("*.faiss"))) == 1


def test_texts_that_are_not_those_of_the_vectors_are_found(path, database):
    with closing(Database(path)) as store, store.writing():
        store.connection.execute("UPDATE documents SET text = 'something else' WHERE row IN (7, 8)")
        store.store_checksums("row IN (7, 8)")
    words = f"{database}: the word lists are not those of the texts (their words differ)"
    said = "2 of 48 passages, embedded again, differ from their stored vectors (of the documents 7, 8)"
    assert verified(path) == [words, f"{path}: {said}"]
    with SearchIndex.open(path, HashModel()) as index:
        assert index.verify(embed=False) == [words]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format_version": 4}, "{folder}: has format 4, ctx-embed reads 1; build it again"),
        ({"format_version": None}, "{damaged} (its settings have no format_version)"),
        ({"format_version": True}, "{damaged} (the setting 'format_version' is missing or of the wrong type)"),
        ({"dimension": 0}, "{damaged} (dimension 0, table 1, dtype 'float32')"),
        ({"dtype": "float7"}, "{damaged} (dimension 8, table 1, dtype 'float7')"),
        ({"chunk": "oone"}, "{damaged} (chunk 'oone')"),
        ({"index_id": 5}, "{damaged} (the setting 'index_id' is missing or of the wrong type)"),
        ({"table": -1}, "{damaged} (dimension 8, table -1, dtype 'float32')"),
        ({"unrelated": [0.1, float("nan")]}, "{damaged} (the setting 'unrelated' is out of range)"),
        ({"unrelated": [1.0, None]}, "{damaged} (the setting 'unrelated' is of the wrong type)"),
    ],
)
def test_changed_settings(path, database, change, message):
    changed_settings(path, **change)
    assert refused(path).removesuffix(f"; {REMEDY}") == message.format(folder=path, damaged=f"{database}: damaged")


def test_a_damaged_database_is_not_opened(path, database):
    content = database.read_bytes()
    for text, right in itertools.product(("", '{"format_version": 1', "\xff\xfe", "[1]"), (False, True)):
        with closing(sqlite3.connect(database)) as connection, connection:
            values = (text, zlib.crc32(text.encode("latin-1")) if right else 0)
            connection.execute("UPDATE settings SET content = ?, checksum = ?", values)
        assert refused(path).startswith(f"{database}: damaged (")
    for damaged, reason in (
        (b"", "no such table: settings"),
        (content[: len(content) // 2], "database disk image is malformed"),
    ):
        database.write_bytes(damaged)
        assert refused(path) == f"{database}: cannot be read ({reason}); {REMEDY}"
    database.write_bytes(content)
    changed(database, "DELETE FROM documents WHERE row > 40")
    assert refused(path) == f"{path}: has 41 rows, but its count is 50; {REMEDY}"
    changed(database, "DELETE FROM state")
    assert refused(path) == f"{database}: damaged (its state has a wrong type); {REMEDY}"


def test_no_damage_hides_another(path, database):
    changed(database, "UPDATE state SET next_row = 51; UPDATE vectors_1 SET checksum = 1 WHERE row = 7")
    assert {f"{path}: has 50 rows, but its count is 51; {REMEDY}", f"{database}: {VECTOR}"} <= set(verify(path))
    checked = "UPDATE documents SET checksum = 504788250 WHERE row = 7; UPDATE state SET next_row = 4000000000000000000"
    changed(database, f"INSERT INTO passages VALUES (7, 0, 'a'); {checked}")
    said = "invalid literal for int() with base 10: 'a'", "its next row is 4000000000000000000"
    assert {f"{database}: damaged ({each}); {REMEDY}" for each in said} <= set(verify(path))
    for change in ("stop = 1.5", "stop = 'a'", "generation = 'a'"):
        changed(database, f"UPDATE compaction SET {change}")
        assert f"{database}: damaged (the rows of its last compaction are missing or overlap); {REMEDY}" in verify(path)


def test_the_command_says_what_it_finds(path, database):
    assert Command("index verify").succeeds(path, "--no-model") == f"{path}: whole, 48 documents\n"
    changed(database, "DELETE FROM documents WHERE row = 7")
    result = Command("index verify").run(path, "--no-model", "--json")
    message = f"Error: {path}: damaged (3 problems); restore it from a copy or build the index again\n"
    assert (result.exit_code, result.stderr) == (1, message)
    found = json.loads(result.stdout)
    assert (len(found["problems"]), len(found["unchecked"])) == (3, 0)


@pytest.mark.parametrize("runs", [4, pytest.param(100, marks=pytest.mark.slow)])
def test_no_false_alarm_while_others_write_and_compact(tmp_path, runs):
    SearchIndex.create(tmp_path / "index", HashModel()).close()
    with child("killed", "edits", tmp_path / "index", 0) as process:
        process.stdout.readline()
        found = [verified(tmp_path / "index") for _ in range(runs)]
        process.kill()
    assert found == [[]] * runs


QUERIES = ("a question about the weather", "prices", '"the film"')
PAGE = 4096


def contents(index, out) -> dict[str, list]:
    """Return what each way of reading answers; an error is an answer, too."""

    def exported() -> list:
        index.export(out)
        return [json.loads(line) for line in out.with_suffix(".jsonl").read_text().splitlines()]

    def searched(query, mode) -> list:
        hits = index.search(query, 5, mode=mode, document=True)
        return [answer for hit in hits for answer in ([hit.id, hit.document, hit.metadata], [hit.id, hit.text])]

    works = {"documents": lambda: map(vars, index.documents()), "export": exported}
    for name in (1, 2, 5, "document 0", "document 3"):
        works[f"get {name}"] = lambda name=name: [vars(document) for document in [index.get(name)] if document]
    for query, mode in itertools.product(QUERIES, ("dense", "words", "hybrid")):
        works[f"{mode} {query}"] = partial(searched, query, mode)
    found = {}
    for name, work in works.items():
        found[name] = ["error"]
        with suppress(InputError):
            found[name] = [json.dumps(answer, sort_keys=True) for answer in work()]
    return found


@pytest.fixture
def varied(tmp_path):
    """An index of the model that ships with ids, metadata and passages of each kind."""
    path = tmp_path / "index"
    with SearchIndex.create(path, chunk="sentences") as index:
        for number, (first, second) in enumerate(itertools.permutations(SENTENCES[:6], 2)):
            identifier = number if number % 3 else f"document {number}"
            metadata = {"n": number, "tags": ["a", "b"], "source": f"notes/{number}.md"}
            index.add([f"{first} {second} Number {number}."], [identifier], [metadata])
        index.delete([4, "document 6"])
        index.update_metadata(5, {"title": "changed"})
    return path


def flipped(content: bytes, generator: random.Random, _: int) -> bytearray:
    """Return the content with another bit."""
    damaged = bytearray(content)
    damaged[generator.randrange(len(content))] ^= 1 << generator.randrange(8)
    return damaged


def swapped(content: bytes, generator: random.Random, number: int) -> bytearray:
    """Return the content with two pages swapped, one copied or zero, or the rest cut off."""
    damaged, places = bytearray(content), generator.sample(range(len(content) // PAGE), 2)
    one, other = (slice(PAGE * place, PAGE * (place + 1)) for place in places)
    damaged[one] = content[other] if number % 4 < 2 else bytes(PAGE)
    if number % 4 == 0:
        damaged[other] = content[one]
    elif number % 4 == 3:
        del damaged[one.start :]
    return damaged


def change(index) -> None:
    """Change a damaged index in every way: it ends well or with an InputError."""
    for work, *arguments in (
        (index.add, ["a new text"], ["new"]),
        (index.delete, [5]),
        (index.upsert, ["another"], [8]),
        (index.update_metadata, 7, {"title": "changed"}),
        *((work,) for work in (index.compact, index.topics, index.duplicates, index.fields)),
    ):
        with suppress(InputError):
            work(*arguments)


@pytest.mark.parametrize(
    ("damage", "count", "seed"),
    [
        (flipped, 150, 0),
        (swapped, 24, 0),
        pytest.param(flipped, 3000, 1, marks=pytest.mark.slow),
        pytest.param(swapped, 1000, 1, marks=pytest.mark.slow),
    ],
)
def test_damage_is_reported_or_changes_nothing(varied, embedder, damage, count, seed):
    path = varied
    with SearchIndex.open(path, embedder) as index:
        whole = contents(index, path.with_name("out"))
    known = {answer for answers in whole.values() for answer in answers} | {"error"}
    database = path / "index.sqlite"
    original = database.read_bytes()
    generator = random.Random(seed)
    reported = 0
    for number in range(count):
        for file in path.iterdir():
            file.unlink()
        database.write_bytes(damage(original, generator, number))
        found = {}
        try:
            with SearchIndex.open(path, embedder) as index:
                problems = list(index.verify(embed=False))
                found = contents(index, path.with_name("out"))
                if damage is swapped:
                    change(index)
        except InputError as caught:
            problems = [str(caught)]
        # A report of SQLite ends with stars.
        assert not any("\n" in line or line.endswith("***") for line in problems)
        reported += bool(problems)
        if found != whole:
            assert problems, f"trial {number}: {[name for name in whole if found.get(name) != whole[name]]}"
        for name, answers in found.items():
            assert set(answers) <= known, f"trial {number}: {name}"
    # Many bits belong to nothing that is stored; without enough others the test would see no damage.
    assert reported > count // (10 if damage is flipped else 2)


def test_compaction_keeps_no_damaged_text(path, database):
    database.write_bytes(database.read_bytes().replace(b"text 17", b"Text 17"))
    with SearchIndex.open(path, HashModel()) as index:
        assert re.search("damaged .*verify", error(index.compact))
        assert any("wrong checksums" in line for line in index.verify(embed=False))


ENDLESS = "WITH RECURSIVE n(row) AS (SELECT 1 UNION ALL SELECT row + 1 FROM n) SELECT row, 1, 0, row, '{}', 'x' FROM n"


def merge(path) -> None:
    SearchIndex.create(path.with_name("empty.index"), HashModel()).close()
    merge_indexes([path.with_name("empty.index"), path], path.with_name("merged.index"), replace=True)


def build(mode, path) -> None:
    source = path.with_name("more.txt")
    source.write_text("more\n")
    build_index(source, path, model=HashModel(), mode=mode)


def call(method, argument, path) -> None:
    with SearchIndex.open(path, HashModel()) as index:
        getattr(index, method)(argument)


WORKS = {"merge": merge, "append": partial(build, "append"), "overwrite": partial(build, "overwrite")}
CALLS = {"search": "one", "add": ["A text."], "delete": [5], "verify": True, "compact": None, "reembed": HashModel(16)}
WORKS |= {name: partial(call, name, argument) for name, argument in CALLS.items()}


def link_to_itself(place) -> None:
    place.symlink_to(place)


@pytest.mark.parametrize(
    ("name", "work", "make"),
    [*itertools.product(["index.sqlite", "*.faiss"], WORKS, [os.mkfifo]), ("index.sqlite", "search", link_to_itself)],
)
def test_a_pipe_or_a_link_to_itself_is_no_file_of_an_index_and_nothing_waits_for_it(path, name, work, make):
    (place,) = path.glob(name)
    place.unlink()
    make(place)
    with limited(20):
        # A new index replaces the database; FAISS's file can be made again.
        if name == "*.faiss" or work == "overwrite":
            WORKS[work](path)
        else:
            assert error(WORKS[work], path) == f"{place}: damaged (not a regular file); {REMEDY}"


@pytest.mark.parametrize(
    "hostile",
    [
        f"DROP TABLE documents; CREATE VIEW documents(row, passages, checksum, id, metadata, text) AS {ENDLESS}",
        f"DROP TABLE settings; CREATE VIEW settings(name, content, checksum) AS SELECT row, id, text FROM ({ENDLESS})",
        "CREATE TRIGGER empty AFTER INSERT ON documents BEGIN DELETE FROM documents; END",
    ],
)
def test_a_view_or_trigger_in_the_database_is_one_line(path, database, hostile):
    changed(database, hostile)
    with limited(20):
        assert "it has the view or trigger" in refused(path)
