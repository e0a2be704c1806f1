from __future__ import annotations

import struct
from dataclasses import asdict

import pyarrow
import pytest
from pyarrow import parquet

from ctx_embed import InputError, SearchIndex, stores


@pytest.mark.parametrize(
    ("address", "kind", "name"),
    [
        ("postgresql://me:secret@host/db#t", "PostgreSQL", "postgresql://me@host/db#t"),
        (
            "postgresql://me@host/db?password=se&sslmode=x#s.t",
            "PostgreSQL",
            "postgresql://me@host/db?password=***&sslmode=x#s.t",
        ),
        (
            "postgresql://me:p@ss/w@host/db?sslpassword=se",
            "PostgreSQL",
            "postgresql://me@host/db?sslpassword=***#passages",
        ),
        ("postgresql://me:pa#ss@host/db#t", "PostgreSQL", "postgresql://me@host/db#t"),
        ("postgresql://m#e:#pa?ss#@host", "PostgreSQL", "postgresql://m#e@host#passages"),
        ("qdrant:http://me:se#cret@host:6333#c", "Qdrant", "qdrant:http://me@host:6333#c"),
        ("qdrant:http://me:secret@host:6333?api_key=se#c", "Qdrant", "qdrant:http://me@host:6333?api_key=***#c"),
        ("postgres://host", "PostgreSQL", "postgres://host#passages"),
        ("lancedb:some/folder", "LanceDB", "lancedb:some/folder#passages"),
        ("qdrant:http://localhost:6333#c", "Qdrant", "qdrant:http://localhost:6333#c"),
        ("qdrant:folder#c", "Qdrant", "qdrant:folder#c"),
        ("some/folder", "Parquet", "some/folder"),
        ("file:///nowhere/at/all", "Parquet", "file:///nowhere/at/all"),
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


def test_a_server_that_is_not_there_is_one_line():
    pytest.importorskip("psycopg", reason="the extra pgvector is not installed")
    with pytest.raises(InputError, match=r"^postgresql://me@127.0.0.1:1/db#passages: cannot connect \(.*\)$"):
        stores.open("postgresql://me:secret@127.0.0.1:1/db").count()


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
    with pytest.raises(InputError) as error:
        stores.open(address).count()
    assert "TOP" not in str(error.value)


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


def test_a_qdrant_server_that_is_not_there_is_one_line():
    pytest.importorskip("qdrant_client", reason="the extra qdrant is not installed")
    with pytest.raises(InputError, match=r"^qdrant:http://127.0.0.1:1#passages: Qdrant says .*refused"):
        stores.open("qdrant:http://127.0.0.1:1").count()


def test_a_folder_that_cannot_be_used_is_one_line(tmp_path, embedder, rows):
    pytest.importorskip("lancedb", reason="the extra lancedb is not installed")
    pytest.importorskip("qdrant_client", reason="the extra qdrant is not installed")
    (tmp_path / "file").write_text("a letter")
    for address, message in (
        (str(tmp_path / "file"), "must be a folder, got a file; choose another name"),
        (f"lancedb:{tmp_path / 'file'}", r"LanceDB says .*File exists"),
        (f"qdrant:{tmp_path / 'file'}", r"Qdrant says .*File exists"),
        (str(tmp_path / "not" / "there"), r"the folder .*not does not exist; create it first"),
    ):
        with stores.open(address) as store, pytest.raises(InputError, match=message):
            store.ensure(stores.Collection.of(embedder))
    assert (tmp_path / "file").read_text() == "a letter"


def test_damaged_parts_are_one_line(tmp_path, embedder, rows):
    with stores.open(tmp_path / "out") as store:
        store.ensure(stores.Collection.of(embedder))
        store.upsert(rows(["one", "two"]))
        (part,) = (tmp_path / "out").glob("part-*.parquet")
        part.write_bytes(part.read_bytes()[:1000])
        for ask in (store.count, lambda: list(store.documents()), store.finish):
            with pytest.raises(InputError, match=r"part-.*parquet: damaged \(.*; delete the directory and encode"):
                ask()


@pytest.mark.parametrize(
    "damage", [{"fields": 3}, {"fields": {"n": 3}}, {"model": 3}, {"dimension": None}, {"more": 1}]
)
def test_a_damaged_record_of_the_model_is_one_line(embedder, damage):
    note = asdict(stores.Collection.of(embedder))
    assert stores.Collection.from_json("out", note) == stores.Collection.of(embedder)
    with pytest.raises(InputError, match=r"^out: the record of its model is damaged; encode it again$"):
        stores.Collection.from_json("out", note | damage)


def test_damaged_values_are_one_line(tmp_path, embedder, rows):
    with stores.open(tmp_path / "out") as store:
        store.ensure(stores.Collection.of(embedder))
        store.upsert(rows(["one", "two"]))
        (part,) = (tmp_path / "out").glob("part-*.parquet")
        table = parquet.read_table(part)
        ends = pyarrow.py_buffer(struct.pack("<3i", 0, 1, 2))
        not_utf8 = pyarrow.StringArray.from_buffers(2, ends, pyarrow.py_buffer(b"\xa0\xff"))
        place, metadata = table.column_names.index("text"), table.column_names.index("metadata")
        for damaged, message in (
            (table.drop_columns(["text"]), r"damaged \(it lacks the column text\); delete the directory and encode"),
            (table.set_column(place, "text", not_utf8), r"damaged \(.*UTF8.*\); delete the directory and encode"),
            (table.set_column(metadata, "metadata", [["[1]", "{"]]), "the metadata of the row '.*' is damaged; encode"),
        ):
            parquet.write_table(damaged, part)
            with pytest.raises(InputError, match=message):
                list(store.documents())


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
