from __future__ import annotations

import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from ctx_embed import InputError, SearchIndex
from ctx_embed.index.building.build import build_index
from ctx_embed.index.datasets import add_dataset, to_dataset
from tests.helpers.errors import error
from tests.index.support.hash_model import hash_vectors

NOT_FINITE = [(float("nan"), "nan"), (float("inf"), "inf"), (1e308, "inf")]


@pytest.fixture
def index(tmp_path, hash_model):
    with SearchIndex.create(tmp_path / "index", hash_model) as index:
        index.add(["one", "two", "three"], ["a", "b", "c"], [{"n": 1}, {"n": 2}, {"n": 3}])
        yield index


def test_export_writes_arrays_and_lines(index, tmp_path):
    with pytest.raises(InputError, match="does not exist; create it first"):
        index.export(tmp_path / "no" / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["index"]
    index.delete("b")
    assert index.export(tmp_path / "out") == 2
    vectors = np.load(tmp_path / "out.npy")
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert lines == [
        {"id": "a", "text": "one", "metadata": {"n": 1}},
        {"id": "c", "text": "three", "metadata": {"n": 3}},
    ]
    np.testing.assert_allclose(vectors, hash_vectors(["one", "three"]), rtol=1e-6)
    assert vectors.dtype == np.float32


def test_data_sets_go_out_and_in(index, tmp_path, hash_model):
    dataset = to_dataset(index)
    assert dataset.column_names == ["id", "text", "metadata", "embedding"]
    with SearchIndex.create(tmp_path / "other", hash_model) as other:
        hash_model.seen.clear()
        assert add_dataset(other, dataset, identifier="id") == 3
        assert hash_model.seen == []
        assert other.get("b").metadata == {"n": 2}
        expected = {hit.id: hit.score for hit in index.search("x", 3, mode="dense")}
        assert {hit.id: hit.score for hit in other.search("x", 3, mode="dense")} == pytest.approx(expected)
        assert add_dataset(other, dataset.remove_columns("embedding"), embedding=None) == 3
        rows = [{"text": "a", "embedding": [1.0] * 8}, {"text": "b", "embedding": None}]
        assert error(add_dataset, other, rows) == "row 2 of the data set: null in the column 'embedding'"
        said = error(add_dataset, other, {"train": dataset, "test": dataset})
        assert said == "the data set must be one split, got several; choose one of 'train', 'test'"
        assert other.count() == 6
        names = "'id', 'text', 'metadata', 'embedding'"
        said = error(add_dataset, other, dataset, text="body")
        assert said == f"row 1 of the data set: no column 'body' (columns: {names})"
        said = error(to_dataset, other)
        assert "the ids must be all integers or all strings for a data set, got both" in said


def test_passages_keep_where_they_start(tmp_path, hash_model):
    with SearchIndex.create(tmp_path / "index", hash_model, chunk="sentences") as index:
        index.add(["One.", "Two. Three."])
        assert to_dataset(index)["start"] == [0, 0, 5]


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_what_goes_out_comes_in_again(index, tmp_path, hash_model, suffix):
    path = tmp_path / f"out{suffix}"
    if suffix == ".jsonl":
        index.export(tmp_path / "out")
    else:
        pq.write_table(to_dataset(index).data.table, path)
    build_index(path, tmp_path / "other", model=hash_model, embedding_field="embedding" if suffix != ".jsonl" else None)
    with SearchIndex.open(tmp_path / "other", hash_model) as other:
        assert [other.get(name) for name in "abc"] == [index.get(name) for name in "abc"]
        assert other.search("x", 3, where="n >= 2", mode="dense") == index.search("x", 3, where="n >= 2", mode="dense")


@pytest.mark.parametrize(
    ("embedding", "message"),
    [
        ([1.0], "the embedding must have shape (8,), got (1,)"),
        ([[1.0] * 8], "the embedding must have shape (8,), got (1, 8)"),
        *(([value] * 8, f"the embedding must have a finite length, got {name}") for value, name in NOT_FINITE),
        *((value, "the embedding must be a list of numbers") for value in ("vector", ["a"] * 8, ["1"] * 8, [None] * 8)),
        ([1j] * 8, "the embedding must be a list of numbers"),
        (None, "its embedding is None; give one for each text or for none"),
    ],
)
def test_embeddings_that_cannot_be_stored(index, embedding, message):
    assert error(index.add, ["text"], embeddings=[embedding]) == f"document 1: {message}"
    assert index.count() == 3


def test_given_embeddings_are_stored_at_unit_length(index, hash_model):
    hash_model.seen.clear()
    index.add(["given"], ["g"], embeddings=3 * hash_vectors(["given"]))
    assert hash_model.seen == []
    assert index.search("given", 1, mode="dense")[0].score == pytest.approx(1, abs=1e-6)
    with pytest.raises(InputError, match="embeddings must have one entry for each of the 2 texts, got 1"):
        index.add(["a", "b"], embeddings=[[1.0] * 8])
