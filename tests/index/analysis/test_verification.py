from __future__ import annotations

import json
import sqlite3

import pytest

from ctx_embed import SearchIndex
from ctx_embed.errors import DamagedError
from tests.helpers.cli import Command
from tests.index.support.hash_model import HashModel

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


def changed(path, *statements: str) -> None:
    connection = sqlite3.connect(path / "documents.sqlite")
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


def flipped(file, place: int = -1) -> None:
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)


def test_a_whole_index_has_no_problems(path):
    assert verified(path) == []


def test_a_changed_vector_is_found(path):
    (shard,) = (path / "vectors").iterdir()
    # Flip the lowest bit of a number: no distance shows it.
    flipped(shard, -4)
    assert verified(path) == [f"{shard}: damaged (its checksum is wrong); {REMEDY}"]


def test_a_damaged_file_of_faiss_is_found(path):
    (file,) = (path / "faiss").iterdir()
    flipped(file)
    assert verified(path) == [f"{file}: damaged (its checksum is wrong); remove it and run `ctx-embed index compact`"]
    file.unlink()
    with SearchIndex.open(path, HashModel()) as index:
        index.compact()
    assert verified(path) == []
    assert list((path / "faiss").iterdir()) != []


def test_rows_without_a_document_are_found(path):
    changed(path, "DELETE FROM documents WHERE row = 7")
    assert verified(path) == [
        f"{path / 'documents.sqlite'}: 1 of 50 rows belong to no document, or to several",
        f"{path / 'documents.sqlite'}: holds 47 documents, but its count is 48",
        f"{path / 'documents.sqlite'}: {WORDS}",
    ]


def test_texts_that_are_not_those_of_the_vectors_are_found(path):
    changed(path, "UPDATE documents SET text = 'something else' WHERE row IN (7, 8)")
    words = f"{path / 'documents.sqlite'}: the word lists are not those of the texts (their words differ)"
    assert verified(path) == [words, f"{path}: 2 of 48 passages, embedded again, differ from their stored vectors"]
    with SearchIndex.open(path, HashModel()) as index:
        assert index.verify(embed=False) == [words]


def test_missing_words_are_found(path):
    changed(path, "INSERT INTO words (words, rowid, text) VALUES ('delete', 7, 'text 7')")
    assert verified(path) == [f"{path / 'documents.sqlite'}: {WORDS}"]


def test_a_damaged_page_of_the_database_is_found(path):
    database = path / "documents.sqlite"
    content = database.read_bytes()
    for page in range(4096, len(content), 4096):
        # The whole header of the page, and the number of its cells.
        for start, damage in ((page, b"\xff" * 64), (page + 4, bytes([content[page + 4] ^ 1]))):
            database.write_bytes(content[:start] + damage + content[start + len(damage) :])
            try:
                found = verified(path)
            except ValueError as error:
                found = [str(error)]
            assert all("\n" not in line and not line.endswith("***") for line in found)
    assert found
    assert all(line.startswith(str(database)) for line in found)


def test_a_damaged_definition_that_is_no_text_is_one_line(path):
    database = path / "documents.sqlite"
    content = database.read_bytes()
    assert b"CREATE TABLE deleted" in content
    database.write_bytes(content.replace(b"CREATE TABLE deleted", b"CREATE TABL\xed deleted"))
    with pytest.raises(DamagedError) as caught:
        verified(path)
    assert "\n" not in str(caught.value)


def test_an_index_of_an_older_version_gets_checksums_when_it_is_compacted(path):
    changed(path, "DROP TABLE checksums", "DROP TRIGGER document_changed", "DROP TRIGGER document_deleted")
    note = (
        "the texts and metadata of {} documents, written by an older version without checksums; "
        "`ctx-embed index compact` adds these"
    )
    with SearchIndex.open(path, HashModel()) as index:
        found = index.verify()
        assert (found, found.unchecked) == ([], [note.format(48)])
        assert index.get(7).text == "text 7"
        index.add(["new"])
        index.update_metadata(7, {"n": 1})
        assert index.verify().unchecked == [note.format(47)]
        index.compact()
        found = index.verify()
        assert (found, found.unchecked) == ([], [])
    # An older version changes documents without knowing checksums.
    changed(path, "UPDATE documents SET metadata = '{\"n\": 2}' WHERE id = 7", "DELETE FROM checksums WHERE row = 1")
    with SearchIndex.open(path, HashModel()) as index:
        assert index.get(7).metadata == {"n": 2}
        found = index.verify()
        assert (found, found.unchecked) == ([], [note.format(2)])
        index.compact()
        assert index.verify().unchecked == []
    changed(path, "UPDATE checksums SET checksum = checksum + 1 WHERE row = 7")
    with SearchIndex.open(path, HashModel()) as index:
        with pytest.raises(DamagedError, match=r"documents.sqlite: damaged \(the checksum of a document is wrong\)"):
            index.search("text", 50)
        with pytest.raises(DamagedError):
            list(index.documents())
        assert f"{path / 'documents.sqlite'}: documents with wrong checksums: 1, in the rows 7" in index.verify()


def test_the_command_says_what_it_cannot_check(path):
    changed(path, "DELETE FROM checksums")
    result = Command("index verify").run(path, "--no-model")
    assert result.stdout == f"{path}: whole, 48 documents\n"
    assert result.stderr.startswith("not checked: the texts and metadata of 48 documents, ")
    changed(path, "DELETE FROM documents WHERE row = 7")
    result = Command("index verify").run(path, "--no-model", "--json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert (len(found["problems"]), len(found["unchecked"])) == (3, 1)
