"""Vectors as float32, float16 and int8: what is stored, what is found, and what other versions do."""

import numpy as np
import pytest

from ctx_embed import InputError, SearchIndex
from ctx_embed.index.storage.vectors import DTYPES
from tests.helpers.errors import error
from tests.index.support.stored import stored, vectors_of, widths_of

NOUNS = ["cat", "ship", "price", "law", "song", "engine", "river", "doctor", "planet", "recipe"]
VERBS = ["sees", "moves", "changes", "finds", "needs", "follows", "keeps", "breaks", "paints", "sells"]
TEXTS = [
    f"the {a} {verb} the {b}{' again' * (n % 3)}"
    for a in NOUNS
    for n, verb in enumerate(VERBS)
    for b in NOUNS
    if a != b
]


@pytest.fixture(scope="module")
def indexes(tmp_path_factory, embedder):
    """Return the folders of indexes of the same texts, by data type."""
    paths = {dtype: tmp_path_factory.mktemp("dtypes") / dtype for dtype in DTYPES}
    vectors = embedder.encode_document(TEXTS)
    for dtype, path in paths.items():
        with SearchIndex.create(path, embedder, dtype=dtype) as index:
            index.add(TEXTS, embeddings=vectors)
    return paths


def test_every_half_float_is_read_exactly_and_int8_keeps_directions_and_its_codes():
    halves = np.arange(2**16, dtype=np.uint16).view(np.float16)
    halves = halves[np.isfinite(halves)][None]
    np.testing.assert_array_equal(DTYPES["float16"].decode(halves), halves.astype(np.float32))
    vectors = np.random.default_rng(0).standard_normal((500, 320)).astype(np.float32)
    vectors[0] = 0
    vectors[1] = np.eye(320)[3] * -1
    vectors[1:] /= np.linalg.norm(vectors[1:], axis=1, keepdims=True)
    codes = DTYPES["int8"].encode(vectors)
    decoded = DTYPES["int8"].decode(codes)
    assert np.linalg.norm(decoded - vectors, axis=1).max() < 0.01
    np.testing.assert_array_equal(decoded[:2], vectors[:2])
    np.testing.assert_allclose(np.linalg.norm(decoded[1:], axis=1), 1, atol=1e-6)
    np.testing.assert_array_equal(DTYPES["int8"].encode(decoded), codes)


@pytest.mark.parametrize(("dtype", "width", "recall"), [("float32", 4, 1), ("float16", 2, 0.995), ("int8", 1, 0.98)])
def test_smaller_vectors_find_the_same_passages(indexes, embedder, dtype, width, recall):
    assert widths_of(indexes[dtype]) == {width * 320}
    queries = [f"a {noun} {verb}" for noun in NOUNS for verb in VERBS[:5]]
    with SearchIndex.open(indexes["float32"], embedder) as exact, SearchIndex.open(indexes[dtype], embedder) as index:
        assert index.describe()["dtype"] == dtype
        assert index.verify() == []
        pairs = list(zip(exact.search(queries, mode="dense"), index.search(queries, mode="dense"), strict=True))
        assert index.search(queries[:1], mode="dense")[0] == index.search(queries[0], mode="dense")
    found = sum(len({hit.id for hit in left} & {hit.id for hit in right}) for left, right in pairs)
    assert found / (10 * len(queries)) >= recall
    # Scores are those of the stored vectors.
    stored = vectors_of(indexes[dtype])
    for query, (_, hits) in zip(embedder.encode_query(queries), pairs, strict=True):
        cosines = np.clip(stored[[hit.id for hit in hits]] @ query, -1, 1)
        np.testing.assert_allclose([hit.score for hit in hits], cosines, atol=1e-5)


def test_the_data_type_changes_in_place(tmp_path, hash_model):
    path = tmp_path / "index"
    with SearchIndex.create(path, hash_model) as index, SearchIndex.open(path, hash_model) as reader:
        texts = [f"text {number}" for number in range(300)]
        index.add(texts)
        index.delete(range(0, 300, 3))
        hits = reader.search("a query", 20, mode="dense")
        assert index.compact("int8") == 100
        # Who opened the index before keeps to the new data type.
        reader.add(["by another writer"])
        assert widths_of(path) == {8}
        reader.delete(300)
        assert len({hit.id for hit in reader.search("a query", 20, mode="dense")} & {hit.id for hit in hits}) >= 18
        assert index.describe()["dtype"] == "int8"
        index.add(["text 300"])
        assert index.compact("int8") == 1
        assert reader.search("text 300", 1, mode="dense")[0].text == "text 300"
        assert index.compact("float16") == 0
        assert index.compact("float32") == 0
    kept = [text for number, text in enumerate(texts) if number % 3]
    assert list(stored(path, exact=False).values()) == [*kept, "text 300"]
    assert widths_of(path) == {8 * 4}


def test_a_failed_change_leaves_everything_searchable_and_can_be_repeated(index, tmp_path, hash_model, monkeypatch):
    def full(*arguments) -> None:
        raise InputError("the disk is full")

    index.add(["a text", "another text"])
    with monkeypatch.context() as broken:
        broken.setattr("ctx_embed.index.storage.folder.VectorTable.put", full)
        assert error(index.compact, "int8") == "the disk is full"
    index.add(["more"])
    assert [hit.text for hit in index.search("a text", 1, mode="dense")] == ["a text"]
    assert widths_of(index.path) == {8, 32}
    index.compact("int8")
    assert widths_of(index.path) == {8}
    assert index.verify() == []
    assert error(index.compact, "int4") == "dtype must be one of float32, float16, int8, got 'int4'"
    assert "dtype must be one of" in error(SearchIndex.create, tmp_path / "other", hash_model, dtype="double")
    assert not (tmp_path / "other").exists()
