"""Listing, counting and describing documents, changing their metadata alone, and data sets and files of them."""

import itertools
import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from ctx_embed import SearchIndex
from ctx_embed.index.building.build import build_index
from ctx_embed.index.datasets import add_dataset, to_dataset
from ctx_embed.index.storage import database as storage
from ctx_embed.texts import Document
from tests.helpers.errors import error
from tests.index.support.hash_model import HashModel, hash_vectors

NOTES = [
    Document("The cat sat on the mat.", "cat", {"lang": "en", "tags": ["animal", "home"], "n": 1, "ok": True}),
    Document("Der Hund schlief.", "dog", {"lang": "de", "tags": ["animal"], "n": 1.5, "ok": False}),
    Document("Prices rise.", 3, {"lang": "en", "tags": [], "by": {"name": "Ann"}}),
    Document("Wages fall.", 4, {"lang": None, "by": {"name": "Ann"}, "tags": ["home", "home", {"x": 1}]}),
]


@pytest.fixture(scope="module")
def notes(tmp_path_factory):
    """An index that no test changes."""
    with SearchIndex.create(tmp_path_factory.mktemp("notes") / "notes.index", HashModel()) as index:
        index.add_documents(NOTES)
        yield index


def test_documents_come_in_pages_of_bounded_size(notes, monkeypatch):
    monkeypatch.setattr(storage, "ROWS_AT_ONCE", 2)
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
    monkeypatch.setattr(storage, "ROWS_AT_ONCE", 2)
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
        (0, {"x": {"y": [10**309]}}, "the metadata field 'x' cannot be stored as JSON"),
        (0, [1], "the metadata must be a dictionary"),
        (0.5, {}, "ids must be an id or a list of ids, got a float"),
    ]:
        assert message in error(index.update_metadata, ids, changes)
    assert index.get(0).metadata["x"] == 5
    assert index.verify() == []


@pytest.mark.parametrize(
    ("work", "arguments", "message"),
    [
        ("documents", {"where": "x >"}, "filter 'x >'"),
        ("documents", {"offset": -1}, "offset must be an integer of at least 0, got -1"),
        ("documents", {"limit": 1.5}, "limit must be an integer of at least 0, got 1.5"),
        ("facets", {"field": "a b"}, "field 'a b': expected the end at character 3, got 'b'"),
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


NOT_FINITE = [(float("nan"), "nan"), (float("inf"), "inf"), (1e308, "inf")]


@pytest.fixture
def three(tmp_path, hash_model):
    with SearchIndex.create(tmp_path / "index", hash_model) as three:
        three.add(["one", "two", "three"], ["a", "b", "c"], [{"n": 1}, {"n": 2}, {"n": 3}])
        yield three


def test_export_writes_arrays_and_lines(three, tmp_path):
    assert "does not exist; create it first" in error(three.export, tmp_path / "no" / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["index"]
    three.delete("b")
    assert three.export(tmp_path / "out") == 2
    vectors = np.load(tmp_path / "out.npy")
    first, second = map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())
    assert first == {"id": "a", "text": "one", "metadata": {"n": 1}}
    assert second["id"] == "c"
    np.testing.assert_allclose(vectors, hash_vectors(["one", "three"]), rtol=1e-6)
    assert vectors.dtype == np.float32


def test_data_sets_go_out_and_in(three, tmp_path, hash_model):
    dataset = to_dataset(three)
    assert dataset.column_names == ["id", "text", "metadata", "embedding"]
    with SearchIndex.create(tmp_path / "other", hash_model) as other:
        hash_model.seen.clear()
        assert add_dataset(other, dataset, identifier="id") == 3
        assert hash_model.seen == []
        assert other.get("b").metadata == {"n": 2}
        expected = {hit.id: hit.score for hit in three.search("x", 3, mode="dense")}
        assert {hit.id: hit.score for hit in other.search("x", 3, mode="dense")} == pytest.approx(expected)
        assert add_dataset(other, dataset.remove_columns("embedding"), embedding=None) == 3
        rows = [{"text": "a", "embedding": [1.0] * 8}, {"text": "b", "embedding": None}]
        splits, names = {"train": dataset, "test": dataset}, "'id', 'text', 'metadata', 'embedding'"
        for given, options, message in (
            (rows, {}, "row 2 of the data set: null in the column 'embedding'"),
            (splits, {}, "the data set must be one split, got several; choose one of 'train', 'test'"),
            (dataset, {"text": "body"}, f"row 1 of the data set: no column 'body' (columns: {names})"),
        ):
            assert error(add_dataset, other, given, **options) == message
        assert other.count() == 6
        assert "the ids must be all integers or all strings for a data set, got both" in error(to_dataset, other)
    with SearchIndex.create(tmp_path / "cut", hash_model, chunk="sentences") as cut:
        cut.add(["One.", "Two. Three."])
        assert to_dataset(cut)["start"] == [0, 0, 5]


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_what_goes_out_comes_in_again(three, tmp_path, hash_model, suffix):
    path = tmp_path / f"out{suffix}"
    if suffix == ".jsonl":
        three.export(tmp_path / "out")
    else:
        pq.write_table(to_dataset(three).data.table, path)
    build_index(path, tmp_path / "other", model=hash_model, embedding_field="embedding" if suffix != ".jsonl" else None)
    with SearchIndex.open(tmp_path / "other", hash_model) as other:
        assert [other.get(name) for name in "abc"] == [three.get(name) for name in "abc"]
        assert other.search("x", 3, where="n >= 2", mode="dense") == three.search("x", 3, where="n >= 2", mode="dense")


@pytest.mark.parametrize(
    ("embedding", "message"),
    [
        ([1.0], "the embedding must have shape (8,), got (1,)"),
        *(([value] * 8, f"the embedding must have a finite length, got {name}") for value, name in NOT_FINITE),
        *((value, "the embedding must be a list of numbers") for value in ("vector", ["a"] * 8, ["1"] * 8, [None] * 8)),
        ([1j] * 8, "the embedding must be a list of numbers"),
        (None, "its embedding is None; give one for each text or for none"),
    ],
)
def test_embeddings_that_cannot_be_stored(three, embedding, message):
    assert error(three.add, ["text"], embeddings=[embedding]) == f"document 1: {message}"
    assert three.count() == 3


def test_given_embeddings_are_stored_at_unit_length(three, hash_model):
    hash_model.seen.clear()
    three.add(["given"], ["g"], embeddings=3 * hash_vectors(["given"]))
    assert hash_model.seen == []
    assert three.search("given", 1, mode="dense")[0].score == pytest.approx(1, abs=1e-6)
    said = error(three.add, ["a", "b"], embeddings=[[1.0] * 8])
    assert said == "embeddings must have one entry for each of the 2 texts, got 1"
