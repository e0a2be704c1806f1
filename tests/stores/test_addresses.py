from __future__ import annotations

import pytest

from ctx_embed import InputError, stores


@pytest.mark.parametrize(
    ("address", "kind", "name"),
    [
        ("postgresql://me:secret@host/db#t", "PostgreSQL", "postgresql://me@host/db#t"),
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
        ("", "must not be empty"),
        (None, "must be a string or a path, got None"),
        ("lancedb:", "lancedb:: names no folder or server"),
        ("nosuch://x/y", "nosuch://x/y: cannot be reached"),
        ("lancedb:x#_ctx_embed", "holds notes"),
        ('postgresql://x#a"b', "printable name"),
    ],
)
def test_what_names_no_store_is_one_line(address, message):
    with pytest.raises(InputError, match=message):
        stores.open(address)


def test_a_server_that_is_not_there_is_one_line():
    pytest.importorskip("psycopg", reason="the extra pgvector is not installed")
    with pytest.raises(InputError, match=r"^postgresql://me@127.0.0.1:1/db#passages: cannot connect \(.*\)$"):
        stores.open("postgresql://me:secret@127.0.0.1:1/db").count()


def test_a_qdrant_server_that_is_not_there_is_one_line():
    pytest.importorskip("qdrant_client", reason="the extra qdrant is not installed")
    with pytest.raises(InputError, match=r"^qdrant:http://127.0.0.1:1#passages: Qdrant says .*refused"):
        stores.open("qdrant:http://127.0.0.1:1").count()
