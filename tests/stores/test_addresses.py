from __future__ import annotations

import re
import struct
from dataclasses import asdict

import pyarrow
import pytest
from pyarrow import parquet

from ctx_embed import InputError, SearchIndex, stores
from tests.helpers.errors import error


@pytest.mark.parametrize(
    ("address", "kind", "name"),
    [
        ("postgresql://me:secret@host/db#t", "PostgreSQL", "postgresql://me@host/db#t"),
        ("postgresql://me@h?password=se&sslmode=x#s.t", "PostgreSQL", "postgresql://me@h?password=***&sslmode=x#s.t"),
        ("postgresql://me:p@ss/w@h/db?sslpassword=se", "PostgreSQL", "postgresql://me@h/db?sslpassword=***#passages"),
        ("postgresql://me:pa#ss@host/db#t", "PostgreSQL", "postgresql://me@host/db#t"),
        ("postgresql://m#e:#pa?ss#@host", "PostgreSQL", "postgresql://m#e@host#passages"),
        ("qdrant:http://me:se#cret@host:6333#c", "Qdrant", "qdrant:http://me@host:6333#c"),
        ("qdrant:http://me:secret@host:6333?api_key=se#c", "Qdrant", "qdrant:http://me@host:6333?api_key=***#c"),
        ("postgres://host", "PostgreSQL", "postgres://host#passages"),
        ("lancedb:some/folder", "LanceDB", "lancedb:some/folder#passages"),
        *((name, "Qdrant", name) for name in ("qdrant:http://localhost:6333#c", "qdrant:folder#c")),
        *((name, "Parquet", name) for name in ("some/folder", "file:///nowhere/at/all")),
    ],
)
def test_an_address_names_a_store_and_hides_its_password(address, kind, name):
    store = stores.open(address)
    assert type(store).__name__ == kind
    assert repr(store) == f"{kind}({name!r})"


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("", "must be a folder, postgresql://, lancedb: or qdrant:, got an empty one"),
        (None, "must be a folder, postgresql://, lancedb: or qdrant:, got None"),
        ("lancedb:", "lancedb:: names no folder or server"),
        ("nosuch://x/y", "nosuch://x/y: cannot be reached"),
        ("lancedb:x#_ctx_embed", "holds notes"),
        ('postgresql://x#a"b', "printable name"),
    ],
)
def test_what_names_no_store_is_one_line(address, message):
    with pytest.raises(InputError, match=message):
        stores.open(address)


def test_a_search_index_is_no_store(tmp_path):
    SearchIndex.create(tmp_path / "index").close()
    with pytest.raises(InputError, match=r"has one writer; encode .*To search it, use ctx_embed.SearchIndex$"):
        stores.open(tmp_path / "index")


@pytest.mark.parametrize(
    ("package", "address", "message"),
    [
        ("psycopg", "postgresql://me:secret@127.0.0.1:1/db", r"postgresql://me@.*/db#passages: cannot connect \(.*\)$"),
        ("qdrant_client", "qdrant:http://127.0.0.1:1", "qdrant:http://127.0.0.1:1#passages: Qdrant says .*refused"),
    ],
)
def test_a_server_that_is_not_there_is_one_line(package, address, message):
    pytest.importorskip(package)
    assert re.match(message, error(stores.open(address).count))


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://me@127.0.0.1:1/db?password=TOP",
        "postgresql://me:a#TOP@127.0.0.1:1/db",
        "postgresql://me:TOP?a#b@127.0.0.1:1/db",
        "s3://KEY:TOP@bucket/x?region=%",
        "s3://KEY:a#TOP@bucket/x?region=%",
        "s3://KEY:a?TOP@bucket/x?region=%",
    ],
)
def test_no_error_shows_a_password(address):
    pytest.importorskip("psycopg", reason="the extra pgvector is not installed")
    assert "TOP" not in error(lambda: stores.open(address).count())


def test_a_table_of_postgresql_is_made_in_its_schema(postgresql, embedder, rows):
    import psycopg

    with psycopg.connect(postgresql, autocommit=True) as connection:
        connection.execute('CREATE SCHEMA IF NOT EXISTS "my library"')
        with stores.open(f"{postgresql}#my library.books") as store:
            store.ensure(stores.Collection.of(embedder))
            store.upsert(rows(["a whale"]))
            store.finish()
        assert connection.execute('SELECT id FROM "my library".books').fetchall() == [("d0",)]
    with stores.open(f"{postgresql}#my library.books") as store:
        assert [hit.text for hit in store.search("a whale")] == ["a whale"]
    with (
        pytest.raises(InputError, match='schema "nowhere" does not exist'),
        stores.open(f"{postgresql}#nowhere.t") as to,
    ):
        to.ensure(stores.Collection.of(embedder))


def test_a_folder_that_cannot_be_used_is_one_line(tmp_path, embedder):
    pytest.importorskip("lancedb", reason="the extra lancedb is not installed")
    pytest.importorskip("qdrant_client", reason="the extra qdrant is not installed")
    file = tmp_path / "file"
    file.write_text("a letter")
    for address, message in (
        (str(file), "must be a folder, got a file; choose another name"),
        (f"lancedb:{file}", r"LanceDB says .*File exists"),
        (f"qdrant:{file}", r"Qdrant says .*File exists"),
        (str(tmp_path / "not" / "there"), r"the folder .*not does not exist; create it first"),
    ):
        with stores.open(address) as store:
            assert re.search(message, error(store.ensure, stores.Collection.of(embedder)))
    assert file.read_text() == "a letter"


def test_damaged_parts_are_one_line(tmp_path, embedder, rows):
    with stores.open(tmp_path / "out") as store:
        store.ensure(stores.Collection.of(embedder))
        store.upsert(rows(["one", "two"]))
        (part,) = (tmp_path / "out").glob("part-*.parquet")
        table = parquet.read_table(part)
        part.write_bytes(part.read_bytes()[:1000])
        for ask in (store.count, lambda: list(store.documents()), store.finish):
            assert re.search(r"part-.*parquet: damaged \(.*; delete the directory and encode", error(ask))
        ends = pyarrow.py_buffer(struct.pack("<3i", 0, 1, 2))
        not_utf8 = pyarrow.StringArray.from_buffers(2, ends, pyarrow.py_buffer(b"\xa0\xff"))
        place, metadata = table.column_names.index("text"), table.column_names.index("metadata")
        for damaged, message in (
            (table.drop_columns(["text"]), r"damaged \(it lacks the column text\); delete the directory and encode"),
            (table.set_column(place, "text", not_utf8), r"damaged \(.*UTF8.*\); delete the directory and encode"),
            (table.set_column(metadata, "metadata", [["[1]", "{"]]), "the metadata of the row '.*' is damaged; encode"),
        ):
            parquet.write_table(damaged, part)
            assert re.search(message, error(lambda: list(store.documents())))


@pytest.mark.parametrize(
    "damage", [{"fields": 3}, {"fields": {"n": 3}}, {"model": 3}, {"dimension": None}, {"more": 1}]
)
def test_a_damaged_record_of_the_model_is_one_line(tmp_path, embedder, damage):
    note = asdict(stores.Collection.of(embedder))
    store = stores.open(tmp_path / "out")
    store.write_note("collection", note)
    assert store.collection == stores.Collection.of(embedder)
    store.write_note("collection", note | damage)
    with pytest.raises(InputError, match="out: the record of its model is damaged; encode it again"):
        store.require_collection()


def test_a_collection_whose_making_was_cut_short_is_made(new_address, embedder, rows, monkeypatch):
    with stores.open(new_address()) as store:
        collection = stores.Collection.of(embedder)
        with monkeypatch.context() as patched:
            # As if killed after the note.
            patched.setattr(store, "_create", lambda collection: None)
            store.ensure(collection)
        assert store.ensure(collection) == collection
        store.upsert(rows(["one"]))
        assert store.count() == 1
