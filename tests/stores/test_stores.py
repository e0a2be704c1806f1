"""Every store keeps the same promises; those whose extra is not installed are skipped. And indexes are built of one."""

import json
import re
import struct
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from itertools import product
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pyarrow
import pytest
from hypothesis import example, given, strategies as st
from pyarrow import parquet

from ctx_embed import InputError, SearchIndex, stores
from ctx_embed.index import writer
from ctx_embed.index.writer import Edit
from ctx_embed.model import Model
from ctx_embed.stores import lancedb, postgresql as postgresql_store
from ctx_embed.stores.columns import arrow_table, fields_of, metadata_of
from ctx_embed.stores.indexing import index_parquet
from ctx_embed.texts import well_formed
from ctx_embed.vectors import unit_rows
from tests.conftest import SENTENCES
from tests.helpers.cli import Command
from tests.helpers.errors import error

KINDS = ("parquet", "lancedb", "postgresql", "qdrant")


@pytest.fixture(params=KINDS, scope="module")
def new_address(request, tmp_path_factory) -> Callable[[], str]:
    """What gives the address of a new store of the kind."""
    return made(request.param, request, tmp_path_factory)


def made(kind, request, tmp_path_factory) -> Callable[[], str]:
    if kind == "postgresql":
        server = request.getfixturevalue("postgresql")
    elif kind != "parquet":
        pytest.importorskip("qdrant_client" if kind == "qdrant" else kind, reason=f"the extra {kind} is not installed")

    def address() -> str:
        folder = tmp_path_factory.mktemp(kind)
        if kind == "postgresql":
            return f"{server}#table {folder.name}"
        return str(folder / "embeddings") if kind == "parquet" else f"{kind}:{folder}#things"

    address.kind = kind
    return address


@pytest.fixture(scope="session")
def embedder():
    """The shipped model."""
    return Model.of()


@pytest.fixture(scope="session")
def rows(embedder) -> Callable[..., stores.Batch]:
    """What gives rows with the vectors of their texts."""

    def make(texts, ids=None, metadata=None) -> stores.Batch:
        ids = [f"d{number}" for number in range(len(texts))] if ids is None else ids
        return stores.Batch(ids, texts, metadata or [{}] * len(texts), embedder.documents(texts))

    return make


METADATA = [
    {"year": 2020, "lang": "en", "tags": ["x", "y"], "stars": 4.5, "good": True, "odd name!": 7},
    {"year": 2019, "lang": "fr", "tags": ["y"], "stars": 3, "good": False},
    {"year": 1999, "lang": "english", "tags": ["xylophone"], "on": "2024-05-01"},
    {"year": None, "quote": "say \"hi\" and 'ho'", "nested": {"deep": [1, {"a": "b"}]}, "on": "2025-01-31"},
    {},
    {"year": 2021, "lang": "ünïcode \u2028", "text": "a field called text", "_score": 1, "on": "2024-05-01T12:30:00"},
    {"year": "a string among numbers", "lang": "en"},
    {"lang": "en%_\\", "stars": 1e20, "numbers": [1, 2.5]},
]


@pytest.fixture(params=KINDS[1:], scope="module")
def filled(request, tmp_path_factory, embedder, rows):
    """A store of each kind that can be searched."""
    with stores.open(made(request.param, request, tmp_path_factory)()) as store:
        store.ensure(stores.Collection.of(embedder, fields_of(METADATA[:6] + METADATA[7:])))
        store.upsert(rows(SENTENCES, metadata=METADATA))
        store.finish()
        store.kind = request.param
        yield store


def contents(store) -> dict[str, tuple[str, dict]]:
    """The text and metadata of each document by its id."""
    if store.name.endswith("embeddings"):
        return {each.id: (each.text, each.metadata) for each in store.documents()}
    return {hit.id: (hit.text, hit.metadata) for hit in store.search("a text", k=10)}


def test_a_text_is_found_by_its_own_words_with_its_metadata_and_every_store_ranks_alike(filled, embedder):
    assert filled.count() == len(SENTENCES)
    for number, (hits, text) in enumerate(zip(filled.search(SENTENCES, k=3), SENTENCES, strict=True)):
        assert len(hits) == 3
        assert (hits[0].id, hits[0].text) == (f"d{number}", text)
        assert hits[0].score == pytest.approx(1, abs=1e-5)
        there = {name: value for name, value in METADATA[number].items() if value is not None}
        found = {name: value for name, value in hits[0].metadata.items() if value is not None}
        assert found == there
    queries = ["a pet in the garden", "what does a train ticket cost?"]
    vectors = embedder.documents(SENTENCES)
    for hits, query in zip(filled.search(queries, k=5, exact=True), embedder.queries(queries), strict=True):
        cosines = vectors @ query
        assert [hit.id for hit in hits] == [f"d{place}" for place in np.argsort(-cosines)[:5]]
        assert [hit.score for hit in hits] == pytest.approx(sorted(cosines, reverse=True)[:5], abs=1e-5)


def test_a_filter_finds_the_same_documents_in_every_store(filled):
    for where, found in (
        ("year in (2019, 2020.0) or year < 2000.5", "012"),
        ("not year = 2020", "1234567"),
        ('year = "2020"', ""),
        ("lang in ('en', 'fr', 3)", "016"),
        ('lang contains "en"', "0267"),
        ('lang contains "%_"', "7"),
        ("lang = 'en%_\\\\'", "7"),
        ("lang is null", "34"),
        ("lang is not null and not lang contains 'en'", "15"),
        # By code points, whatever the server's language.
        ("lang < 'F'", ""),
        ("lang > 'english'", "15"),
        ('tags contains "y" and stars > 4 and good != false', "0"),
        ('tags = "y"', ""),
        ("tags is null", "34567"),
        ("numbers contains 1 or numbers contains 2.5", "7"),
        ("numbers contains 1.5", ""),
        ("`odd name!` = 7", "0"),
        (r'quote = "say \"hi\" and \'ho\'"', "3"),
        ("on = '2024-05-01'", "25"),
        ("on > '2024-05-01'", "3"),
        ("on not in ('2024-05-01', 'x')", "3"),
        ("on >= '2024-05-01T12:00:00'", "35"),
        ("on < '2024-06-01' or year = 2021", "25"),
    ):
        if filled.kind == "qdrant" and re.search("lang (contains|<|>)", where):
            # It finds words in strings, not any part, and does not order strings.
            continue
        assert "".join(sorted(hit.id[1] for hit in filled.search("text", k=8, where=where))) == found, where


def test_a_filter_may_name_many_values_and_what_a_store_cannot_do_is_one_line(filled):
    years = ", ".join(str(year) for year in range(2020, 2620))
    dates = ", ".join(f"'2025-{month:02}-{day:02}'" for month in (1, 3, 5, 7, 8, 10) for day in range(1, 32))

    def found(where: str) -> set[str]:
        return {hit.id for hit in filled.search("text", where=where)}

    assert found(f"year in ({years}) or on in ({dates})") == {"d0", "d3", "d5"}
    if filled.kind == "lancedb":
        said = error(found, "nested.deep = 1")
        assert re.search(r"'nested.deep' has no column to filter by \(columns: 'year', .*Qdrant", said)
    elif filled.kind == "qdrant":
        # It finds words in strings.
        assert found("quote contains 'SAY hi' or lang contains 'en'") == {"d0", "d3", "d6", "d7"}
        said = error(found, "lang < 'f'")
        assert "can order only numbers and ISO dates, so lang < 'f' is not possible" in said
    else:
        assert found("lang < 'eo'") >= {"d0"}
    assert re.search(r"filter 'year >': expected .* at the end", error(found, "year >"))
    assert "k must be an integer of at least 1, got 0" in error(filled.search, "a", k=0)
    assert "query 2 must be a string, got None" in error(filled.search, ["a", None])


def test_an_id_is_stored_once_with_its_last_row_whatever_its_text(new_address, embedder, rows):
    address, texts = new_address(), ["cat\0b", "tab\tand\nline \\N \\.", "dog \U0001d518 é \ufeff", "cat " * 25_000]
    with stores.open(address) as store:
        store.ensure(stores.Collection.of(embedder))
        store.upsert(rows(["second", "first", "first again"], ["b'\"%s", "a", "a"]))
        assert store.count() == 2
        if new_address.kind == "parquet":
            # Batches are sorted, so that all writers lock rows in the same order.
            assert list(contents(store)) == ["a", "b'\"%s"]
        store.upsert(rows(["second again", "third"], ["b'\"%s", "c"], [{"n": 1}, {}]))
        store.finish()
        assert store.count() == 3
        found = {identifier: text for identifier, (text, _) in contents(store).items()}
        assert found == {"a": "first again", "b'\"%s": "second again", "c": "third"}
        if new_address.kind != "parquet":
            # Each with its own vector.
            assert [hits[0].score for hits in store.search([*found.values()], k=1)] == pytest.approx([1] * 3, abs=1e-5)
        store.upsert(rows([], []))
        assert store.count() == 3
        store.upsert(rows(texts, metadata=[{"note": text} for text in texts]))
    with stores.open(address) as again:
        found = contents(again)
    assert found["b'\"%s"] == ("second again", {"n": 1})
    for number, text in enumerate(texts):
        text = text.replace("\0", "\ufffd") if new_address.kind == "postgresql" else text
        assert found[f"d{number}"] == (text, {"note": text})


def test_a_collection_is_made_even_if_that_was_cut_short_and_for_one_model(
    new_address, embedder, rows, tiny_model_path, monkeypatch
):
    address, ours = new_address(), stores.Collection.of(embedder)
    with stores.open(new_address()) as store:
        # What is there without a record, as another program's table, is left alone.
        if new_address.kind == "parquet":
            Path(store.name).mkdir()
            (Path(store.name) / "mine.txt").touch()
        else:
            store._create(ours)
        assert "holds other things; choose another name" in error(store.ensure, ours)
        assert store.collection is None
    with stores.open(address) as store:
        for ask in [store.count] if new_address.kind == "parquet" else [store.count, lambda: store.search("a")]:
            assert "no embeddings there; make some with" in error(ask)
        with monkeypatch.context() as patched:
            # As if killed after the note.
            patched.setattr(store, "_create", lambda collection: None)
            store.ensure(ours)
        assert store.ensure(ours) == ours
        store.upsert(rows(["one"]))
        assert store.count() == 1
        other = replace(ours, model_fingerprint="f" * 64, model="elsewhere", dimension=7)
        said = error(store.ensure, other)
        assert f"come from the model 'default' (fingerprint {embedder.fingerprint[:12]}, dimension 320)" in said
        assert "not from 'elsewhere' (fingerprint ffffffffffff, dimension 7); use that model or another" in said
    with stores.open(address, model=tiny_model_path) as store:
        said = "of Parquet files is not searched; make an index of it" if new_address.kind == "parquet" else "tiny"
        assert said in error(store.search, "text")


def test_notes_come_back_by_prefix_and_belong_to_one_collection(new_address, embedder, rows):
    address = new_address()
    place, named, _ = address.rpartition("#")
    # One of the same place, whose notes have the same names. LanceDB refuses other names.
    name = "other" if new_address.kind == "lancedb" else "it's"
    beside = f"{place}#{name}" if named else new_address()
    with stores.open(beside) as other:
        other.ensure(stores.Collection.of(embedder))
        for number in range(30):
            other.write_note(f"run-{number:02}", {"a": number})
    with stores.open(address) as store:
        assert store.collection is None
        store.ensure(stores.Collection.of(embedder))
        note = {"rows": 1, "bad": ['it\'s \u00e9 "x"']}
        store.upsert(rows(["a"]), "0001-2", note)
        store.upsert(rows([], []), "0001-1", {"rows": 0})
        for number in (1, 2):
            store.write_note("run-01", {"a": number})
        assert list(store.notes("part-0001").items()) == [("part-0001-1", {"rows": 0}), ("part-0001-2", note)]
        assert store.notes("run") == {"run-01": {"a": 2}}
        assert store.notes("other") == {}
    with stores.open(beside) as again:
        assert list(again.notes("run").values()) == [{"a": number} for number in range(30)]


VALUES = st.none() | st.booleans() | st.integers(-(2**65), 2**65) | st.floats(allow_nan=False, allow_infinity=False)
VALUES |= st.sampled_from([2**53, 2**53 + 1, -(2**53) - 1, 2**63 - 1, 2**63]) | st.text(st.characters(), max_size=3)
VALUES = st.recursive(
    VALUES, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text("ab"), inner), max_leaves=3
)
NAMES = st.sampled_from(["a", "A", "b", "id", "Text", "_x", "x.y", "embedding", "metadata", "a\n", "é" * 32, "ß" * 30])
ALL_METADATA = st.lists(st.dictionaries(NAMES, VALUES, max_size=3), min_size=1, max_size=4)


# Not every integer beyond 2^53 is a float.
@example(metadata=[{"a": 0.5}, {"a": 2**53 + 1}, {"a": [-(2**53) - 1]}], sampled=1)
@given(metadata=ALL_METADATA, sampled=st.integers(0, 4))
def test_metadata_comes_back_from_columns(metadata, sampled):
    """Whatever the columns are: those that hold a value exactly, and JSON for the rest."""
    rows = stores.Batch([*map(str, metadata)], [""] * len(metadata), metadata, np.zeros((len(metadata), 2), np.float32))
    collection = stores.Collection("a", 2, fields=fields_of(metadata[:sampled]))
    table = arrow_table(rows, collection)
    for each, row in zip(metadata, table.to_pylist(), strict=True):
        wanted = json.loads(json.dumps({name: value for name, value in each.items() if value is not None}))
        found = metadata_of(row, collection.fields)
        assert found == json.loads(well_formed(json.dumps(wanted, ensure_ascii=False)))
        assert {name: isinstance(value, bool) for name, value in found.items()} == {
            name: isinstance(value, bool) for name, value in wanted.items()
        }
    # A field of equal types has a column, which filters can name.
    types = {"n": "float", "s": "string", "b": "bool", "l": "list:float"}
    assert fields_of([{"n": 1, "s": "x", "b": True, "l": [1]}, {"n": 2.5, "l": [0.5, 1], "s": None}]) == types
    assert fields_of([{"n": 1, "m": "x", "l": []}, {"n": True, "m": 2}]) == {}


@pytest.mark.parametrize("kind", KINDS[1:])
def test_a_text_without_known_tokens_is_stored_and_no_hit(kind, request, tmp_path_factory, embedder, rows):
    """More of them than hits asked for, so that they would crowd out a document that is unlike the query."""
    texts = ["Prices in the city rise faster than wages.", *["日本語"] * 5, "A dog barked.", ""]
    with stores.open(made(kind, request, tmp_path_factory)()) as store:
        store.ensure(stores.Collection.of(embedder))
        store.upsert(rows(texts))
        store.finish()
        assert store.count() == len(texts)
        # LanceDB filters by columns alone.
        for exact, where in product((True, False), (None,) if kind == "lancedb" else (None, "not x = 1")):
            found = store.search("a quantum field theory of everything", k=2, where=where, exact=exact)
            assert {hit.id for hit in found} == {"d0", "d6"}
            assert all(-1 <= hit.score <= 1 for hit in found)
            unknown, known = store.search(["日本語", "A dog barked."], k=1, where=where, exact=exact)
            assert (unknown, known[0].id) == ([], "d6")


@pytest.mark.parametrize("kind", ["lancedb", "postgresql"])
def test_a_database_with_its_index_finds_what_exact_search_finds(kind, embedder, tmp_path, request, monkeypatch):
    if kind == "postgresql":
        opened = stores.open(f"{request.getfixturevalue('postgresql')}#indexed")
    else:
        connect = pytest.importorskip("lancedb", reason="the extra lancedb is not installed").connect
        monkeypatch.setattr(lancedb, "LEAST_INDEXED", 1000)
        opened = stores.open(f"lancedb:{tmp_path / 'db'}")
    # Two thousand unit vectors, fifty around each of forty queries.
    texts = [f"{what} {where}" for what in SENTENCES for where in ("at night", "in spring", "at sea", "by bus", "once")]
    queries = embedder.queries(texts)
    noise = np.random.default_rng(0).normal(size=(2000, 320)) / 320**0.5
    vectors = unit_rows((queries.repeat(50, 0) + noise).astype(np.float32))
    ids = [f"d{number}" for number in range(len(vectors))]
    metadata = [{"n": number % 100} for number in range(len(vectors))]
    with opened as store:
        store.ensure(stores.Collection.of(embedder, fields_of(metadata)))
        store.upsert(stores.Batch(ids, ids, metadata, vectors))
        store.finish()
        for where, known in ((None, np.arange(2000)), ("n = 7", np.arange(7, 2000, 100))):
            nearest = known[np.argsort(-queries @ vectors[known].T)[:, :10]]
            expected = [[ids[place] for place in places] for places in nearest]
            search = partial(store.search, texts, k=10, where=where)
            if kind == "postgresql":
                # It reads all rows only because they are few.
                opened._opened.execute("SET enable_seqscan = off")
                explained = "EXPLAIN SELECT id FROM indexed ORDER BY embedding <=> %s LIMIT 10"
                assert "Index Scan" in str(opened._opened.execute(explained, [queries[0]]).fetchall())
            pairs = zip(search(), expected, strict=True)
            assert np.mean([len({hit.id for hit in hits} & {*of_query}) / 10 for hits, of_query in pairs]) > 0.9
            if kind == "postgresql":
                opened._opened.execute("RESET enable_seqscan")
            with monkeypatch.context() as patched:
                # Few candidates, which an exact search does not take from the index.
                patched.setattr(postgresql_store, "EF_SEARCH", 1)
                patched.setattr(lancedb, "CANDIDATES", 1)
                patched.setattr(lancedb, "LEAST_REFINED", 1)
                assert [[hit.id for hit in hits] for hits in search(exact=True)] == expected
    if kind == "lancedb":
        table = connect(tmp_path / "db").open_table("passages")
        (index,) = table.list_indices()
        assert table.index_stats(index.name).distance_type == "cosine"


# Addresses, and what cannot be used


def test_an_address_names_a_store_without_its_password_or_is_one_line(tmp_path):
    for address, kind, name in (
        ("postgresql://me@h?password=se&sslmode=x#s.t", "PostgreSQL", "postgresql://me@h?password=***&sslmode=x#s.t"),
        ("postgresql://me:p@ss/w@h/db?sslpassword=se", "PostgreSQL", "postgresql://me@h/db?sslpassword=***#passages"),
        ("postgresql://m#e:#pa?ss#@host", "PostgreSQL", "postgresql://m#e@host#passages"),
        ("qdrant:http://me:se#cret@host:6333#c", "Qdrant", "qdrant:http://me@host:6333#c"),
        ("qdrant:http://me:secret@host:6333?api_key=se#c", "Qdrant", "qdrant:http://me@host:6333?api_key=***#c"),
        ("postgres://host", "PostgreSQL", "postgres://host#passages"),
        ("lancedb:some/folder", "LanceDB", "lancedb:some/folder#passages"),
        *((name, "Qdrant", name) for name in ("qdrant:http://localhost:6333#c", "qdrant:folder#c")),
        *((name, "Parquet", name) for name in ("some/folder", "file:///nowhere/at/all", "C:\\x", "./a:b", "s/a:b")),
    ):
        store = stores.open(address)
        assert type(store).__name__ == kind
        assert repr(store) == f"{kind}({name!r})"
    for address, message in (
        ("", "must be a folder, postgresql://, lancedb: or qdrant:, got ''"),
        ("lancedb:", "lancedb:: names no folder or server"),
        ("lancdb:lv#t", "unknown store 'lancdb:lv#t'; stores are lancedb:..., qdrant:..., postgresql://... "),
        ("nosuch://x/y", "nosuch://x/y: cannot be reached"),
        ("lancedb:x#_ctx_embed", "holds notes"),
        ('postgresql://x#a"b', "printable name"),
    ):
        assert message in error(stores.open, address)
    SearchIndex.create(tmp_path / "index").close()
    said = error(stores.open, tmp_path / "index")
    assert re.search(r"has one writer; encode .*To search it, use ctx_embed.SearchIndex$", said)


def test_postgresql_has_schemas_and_stores_rows_with_the_note_of_their_part_or_not_at_all(
    postgresql, embedder, rows, monkeypatch
):
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
    with stores.open(f"{postgresql}#nowhere.t") as to:
        assert 'schema "nowhere" does not exist' in error(to.ensure, stores.Collection.of(embedder))
    with stores.open(f"{postgresql}#together") as store:
        store.ensure(stores.Collection.of(embedder))
        with monkeypatch.context() as patched:
            patched.setattr(store, "write_note", Mock(side_effect=OSError("cut off")))
            assert "cut off" in error(store.upsert, rows(["a"]), "0001", {})
        assert store.count() == 0
        store.upsert(rows(["a"]), "0001", {})
        assert (store.count(), store.notes("part-")) == (1, {"part-0001": {}})


class Failing:
    """A database's client of which one call fails, by its number."""

    def __init__(self, client, number: int) -> None:
        self.client, self.left = client, number

    def __getattr__(self, name: str):
        self.left -= name != "close"
        return (
            getattr(self.client, name) if self.left or name == "close" else Mock(side_effect=RuntimeError("cut\noff"))
        )


@pytest.mark.parametrize("kind", ["postgresql", "qdrant"])
def test_whatever_call_of_a_client_fails_the_error_is_one_line(kind, request, tmp_path_factory, embedder, rows):
    address = made(kind, request, tmp_path_factory)
    for number in range(1, 200):
        with stores.open(address()) as store:
            store._opened = client = Failing(store._opened, number)
            said = ""
            try:
                store.ensure(stores.Collection.of(embedder))
                store.upsert(rows(["a cat", "日本語"]), "0001", {})
                store.finish()
                assert store.count() == len(store.search("a cat", where="n is null")) + 1 == 2
            except InputError as raised:
                said = str(raised)
            assert said.endswith("says cut off") == (client.left <= 0)
            if client.left > 0:
                break
    assert 10 < number < 199


def test_a_folder_or_server_that_cannot_be_used_is_one_line_without_a_password(tmp_path, embedder):
    for package, extra in (("lancedb", "lancedb"), ("qdrant_client", "qdrant"), ("psycopg", "pgvector")):
        pytest.importorskip(package, reason=f"the extra {extra} is not installed")
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
    said = error(stores.open("postgresql://me:x@127.0.0.1:1/db").count)
    assert re.match(r"postgresql://me@.*/db#passages: PostgreSQL says .*refused", said)
    said = error(stores.open("qdrant:http://127.0.0.1:1").count)
    assert re.match("qdrant:http://127.0.0.1:1#passages: Qdrant says .*refused", said)
    for address in (
        "postgresql://me@127.0.0.1:1/db?password=TOP",
        "postgresql://me:TOP?a#b@127.0.0.1:1/db",
        "s3://KEY:a#TOP@bucket/x?region=%",
        "s3://KEY:a?TOP@bucket/x?region=%",
    ):
        assert "TOP" not in error(lambda of: stores.open(of).count(), address)


def test_damaged_parts_and_a_damaged_record_of_the_model_are_one_line(tmp_path, embedder, rows):
    with stores.open(tmp_path / "out") as store:
        store.ensure(stores.Collection.of(embedder))
        store.upsert(rows(["one", "two"]))
        (part,) = (tmp_path / "out").glob("part-*.parquet")
        table = parquet.read_table(part)
        part.write_bytes(part.read_bytes()[:1000])
        for ask in (store.count, lambda: list(store.documents()), store.finish):
            assert re.search(r"part-.*parquet: damaged \(.*; delete it and encode", error(ask))
        ends = pyarrow.py_buffer(struct.pack("<3i", 0, 1, 2))
        not_utf8 = pyarrow.StringArray.from_buffers(2, ends, pyarrow.py_buffer(b"\xa0\xff"))
        place, metadata = table.column_names.index("text"), table.column_names.index("metadata")
        for damaged, message in (
            (table.drop_columns(["text"]), r"damaged \(it lacks the column text\); delete it and encode"),
            (table.set_column(place, "text", not_utf8), r"damaged \(.*UTF8.*\); delete it and encode"),
            (table.set_column(metadata, "metadata", [["[1]", "{"]]), "the metadata of the row '.*' is damaged; encode"),
        ):
            parquet.write_table(damaged, part)
            assert re.search(message, error(lambda: list(store.documents())))
    note = asdict(store.collection)
    for damage in ({"fields": 3}, {"fields": {"n": 3}}, {"model": 3}, {"dimension": None}, {"more": 1}):
        store.write_note("collection", note | damage)
        assert "out: the record of its model is damaged" in error(store.require_collection)
    store.write_note("collection", note | {"metric": "dot"})
    assert "out: must compare vectors by the cosine, got 'dot'" in error(store.require_collection)


DOCUMENTS, STEP = 60, 12


@pytest.fixture
def source(tmp_path, embedder, rows):
    """Rows in several parts, one of which replaces an earlier one."""
    with stores.open(tmp_path / "embeddings") as store:
        store.ensure(stores.Collection.of(embedder, {"n": "int"}))
        for first in range(0, DOCUMENTS, 20):
            places = range(first, first + 20)
            store.upsert(rows([f"text {n}" for n in places], [f"d{n}" for n in places], [{"n": n} for n in places]))
    return tmp_path / "embeddings"


def stored(path) -> dict[str, str]:
    with SearchIndex.open(path) as index:
        assert index.verify() == []
        return {document.id: document.text for document in index.documents()}


def test_an_interrupted_build_resumes_after_its_last_step_if_its_source_is_the_same(
    source, tmp_path, embedder, rows, monkeypatch
):
    path, add, added = tmp_path / "index", Edit.add, []

    def interrupted(self, some, **given):
        added.append(len(some))
        if len(added) == 8:
            raise KeyboardInterrupt
        return add(self, some, **given)

    monkeypatch.setattr(writer, "STEP_DOCUMENTS", STEP)
    monkeypatch.setattr(writer, "BATCH_DOCUMENTS", 4)
    monkeypatch.setattr(Edit, "add", interrupted)
    with pytest.raises(KeyboardInterrupt):
        index_parquet(source, path)
    # The step that was under way is lost, those before it are not.
    assert len(stored(tmp_path / "index.partial")) == 2 * STEP
    assert index_parquet(source, path, resume=True).documents == DOCUMENTS
    assert sum(added[8:]) == DOCUMENTS - 2 * STEP
    assert stored(path) == {f"d{n}": f"text {n}" for n in range(DOCUMENTS)}
    with SearchIndex.open(path) as index:
        assert index.search("text 17", k=1, where="n = 17")[0].score == pytest.approx(1, abs=1e-5)
    assert index_parquet(source, path, resume=True).was_complete
    added.clear()
    with pytest.raises(KeyboardInterrupt):
        index_parquet(source, path, mode="overwrite")
    with stores.open(source) as store:
        store.upsert(rows(["other"], ["d1"], [{}]))
    said = error(index_parquet, source, path, mode="overwrite", resume=True)
    assert "the input has changed since this build started" in said
    # From the beginning, the newer row is there once.
    assert index_parquet(source, path, mode="overwrite").documents == DOCUMENTS
    assert stored(path)["d1"] == "other"


def test_of_rows_with_one_id_in_several_directories_the_last_is_indexed(source, tmp_path, embedder, rows):
    with stores.open(tmp_path / "more") as store:
        store.ensure(stores.Collection.of(embedder))
        store.upsert(rows(["newer", "new"], ["d7", "e"]))
    INDEX, path = Command("index build --from-parquet"), tmp_path / "both.index"
    build = partial(INDEX.succeeds, source, tmp_path / "more", path)
    refused = partial(INDEX.fails, source, tmp_path / "more", path)
    assert build() == f"{DOCUMENTS + 2} documents indexed in {path}\n"
    found = stored(path)
    assert (len(found), found["d7"], found["e"]) == (DOCUMENTS + 1, "newer", "new")
    assert build("--resume").startswith("nothing to do")
    assert "already exists" in refused()
    assert "already in the index" in refused("--append")
    assert build("--upsert") == f"{DOCUMENTS + 2} documents added to {path}\n"
    build("--overwrite", "--dtype", "float16")
    with SearchIndex.open(path) as index:
        assert (index.count(), index.describe()["dtype"]) == (DOCUMENTS + 1, "float16")
    assert "no embeddings there" in INDEX.fails("nowhere", path)
    assert refused("--chunk", "sentences", code=2) == "--chunk and --from-parquet cannot be combined"


def test_a_directory_that_is_not_complete_or_of_another_model_is_refused(source, tmp_path, embedder):
    with stores.open(tmp_path / "other") as store:
        store.ensure(replace(stores.Collection.of(embedder), model_fingerprint="f" * 64))
    for directories in ([source, tmp_path / "other"], tmp_path / "other"):
        assert "its vectors come from the model" in error(index_parquet, directories, tmp_path / "index")
    with stores.open(source) as store:
        store.write_note("run-0000", {"signature": "", "finished": True})
        assert index_parquet(source, tmp_path / "a.index").documents == DOCUMENTS
        store.write_note("run-0001", {"signature": "", "finished": False})
    said = error(index_parquet, source, tmp_path / "b.index")
    assert "must be complete; wait for its `ctx-embed encode`, or repeat that command" in said
    assert not any((tmp_path / name).exists() for name in ("index", "b.index"))
