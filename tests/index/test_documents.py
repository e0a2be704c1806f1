"""Listing, counting and describing documents, and changing their metadata alone, with the model that ships."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from ctx_embed import InputError, SearchIndex
from ctx_embed.index.storage import documents as storage
from ctx_embed.texts import Document
from tests.helpers.errors import error

NOTES = [
    Document("The cat sat on the mat.", "cat", {"lang": "en", "tags": ["animal", "home"], "n": 1, "ok": True}),
    Document("Der Hund schlief.", "dog", {"lang": "de", "tags": ["animal"], "n": 1.5, "ok": False}),
    Document("Prices rise.", 3, {"lang": "en", "tags": [], "by": {"name": "Ann"}}),
    Document("Wages fall.", 4, {"lang": None, "by": {"name": "Ann"}, "tags": ["home", "home", {"x": 1}]}),
]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("notes") / "notes.index"
    with SearchIndex.create(path) as index:
        index.add_documents(NOTES)
    return path


@pytest.fixture
def notes(path):
    with SearchIndex.open(path) as index:
        yield index


def test_documents_come_in_pages_of_bounded_size(notes, monkeypatch):
    monkeypatch.setattr(storage, "DOCUMENTS_AT_ONCE", 2)
    assert list(notes) == list(notes.documents()) == NOTES
    assert notes["dog"] == NOTES[1]
    with pytest.raises(KeyError):
        notes["c"]
    assert list(notes.documents('lang = "en"')) == [NOTES[0], NOTES[2]]
    for offset, limit in itertools.product([*range(6), 10**30], [0, 1, 2, 3, 9, 10**30, None]):
        stop = None if limit is None else offset + limit
        assert list(notes.documents(offset=offset, limit=limit)) == NOTES[offset:stop]
    assert list(notes.documents("not lang = 'de'", offset=1, limit=1)) == [NOTES[2]]


def test_changes_while_documents_are_read_do_not_affect_them(index, monkeypatch):
    monkeypatch.setattr(storage, "DOCUMENTS_AT_ONCE", 2)
    index.add([f"text {number}" for number in range(7)])
    seen = []
    for document in index.documents():
        seen.append(document.id)
        index.delete(document.id)
        index.add(["new"])
        index.compact()
    assert seen == list(range(7))
    assert index.count() == 7


def test_facets_count_documents(notes):
    assert notes.facets("lang") == [("en", 2), ("de", 1)]
    assert notes.facets("tags") == [("animal", 2), ("home", 2)]
    assert notes.facets("by.name") == [("Ann", 2)]
    assert notes.facets("by") == []
    assert notes.facets("n", limit=10**30) == [(1, 1), (1.5, 1)]
    found = notes.facets("ok")
    assert sorted(found) == [(False, 1), (True, 1)]
    assert {type(value) for value, _ in found} == {bool}
    assert notes.facets("tags", 'lang = "de"') == [("animal", 1)]
    assert notes.facets("lang", limit=1) == [("en", 2)]
    assert notes.count('tags contains "home"') == 2


def test_metadata_change_without_embedding(index, hash_model):
    index.add(["a", "b", "c"], metadata=[{"x": 1, "y": [1]}, {"x": 2}, None])
    hash_model.seen.clear()
    assert index.search("a", where="x = 5") == []
    assert index.update_metadata(0, {"x": 5, "y": None, "z": {"deep": "ü"}}) == 1
    assert index.get(0).metadata == {"x": 5, "z": {"deep": "ü"}}
    assert index.update_metadata([1, 2, 1], {"x": 7}) == 2
    assert index.ids("x = 7") == [1, 2]
    assert [hit.id for hit in index.search("a", where="x = 5")] == [0]
    generation = index.describe()["generation"]
    assert index.update_metadata([0, 1], {}) == 2
    assert index.update_metadata([], {"x": 1}) == 0
    assert index.describe()["generation"] == generation
    assert hash_model.seen == []
    for ids, changes, message in [
        ([0, 9], {"x": 0}, "no document has the id 9"),
        (0, {"x": float("inf")}, "cannot be stored as JSON"),
        (0, {"x": {"y": [10**309]}}, "the metadata field 'x' cannot be stored as JSON"),
        (0, [1], "the metadata must be a dictionary"),
        (0.5, {}, "ids must be an id or a list of ids, got a float"),
    ]:
        with pytest.raises(InputError, match=message):
            index.update_metadata(ids, changes)
    assert index.get(0).metadata["x"] == 5
    assert index.verify() == []


@pytest.mark.parametrize(
    ("work", "arguments", "message"),
    [
        ("documents", {"where": "x >"}, "filter 'x >'"),
        ("documents", {"offset": -1}, "offset must be an integer of at least 0, got -1"),
        ("documents", {"limit": 1.5}, "limit must be an integer of at least 0, got 1.5"),
        ("facets", {"field": "a b"}, "field 'a b': expected the end at character 3, got 'b'"),
        ("facets", {"field": ""}, "field '': expected the name of a field at the end"),
        ("facets", {"field": 5}, "the field must be a string, e.g. 'year', got an int"),
        ("facets", {"field": "lang", "limit": 0}, "limit must be an integer of at least 1, got 0"),
        ("ids", {"where": f"n = {'9' * 30}"}, "does not fit into 64 bits"),
    ],
)
def test_mistakes_are_found_at_once(notes, work, arguments, message):
    assert message in error(getattr(notes, work), **arguments)


def test_metadata_of_numpy_and_pandas(index):
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame(
        {
            "text": ["one", "two"],
            "stars": [4.5, None],
            "count": pandas.array([3, None], "Int64"),
            "on": pandas.to_datetime(["2024-01-31T10:00:00Z", None]),
            "good": [True, False],
        }
    )
    index.add(table["text"], table.index, table.drop(columns="text").to_dict("records"))
    assert index[0].metadata == {"stars": 4.5, "count": 3, "on": "2024-01-31T10:00:00+00:00", "good": True}
    assert {name for name, value in index[1].metadata.items() if value is not None} == {"good"}
    assert index.ids('on = "2024-01-31"') == [0]
    day = {"n": np.int64(1), "at": np.datetime64("2024-01-31"), "list": [np.float32(0.5), float("nan")]}
    index.add((text for text in ["three"]), ["x"], [day])
    assert index["x"].metadata == {"n": 1, "at": "2024-01-31", "list": [0.5, None]}
    columns = "('text', 'stars', 'count', 'on', 'good')"
    assert error(index.add, table) == (
        f"texts must be a list of strings, got a DataFrame; give one of its columns {columns}"
    )
    expected = index.search(["one", "two"])
    for queries in (table["text"], table["text"].to_numpy(), (text for text in ["one", "two"])):
        assert index.search(queries) == expected
    assert error(index.search, table).endswith(f"give one of its columns {columns}")
    assert index.search("one", offset=10**30) == []
