import dataclasses
import itertools
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from ctx_embed import Hit, InputError, SearchIndex
from ctx_embed.index import writer
from ctx_embed.index.database import Database
from ctx_embed.index.documents import DEEPEST_METADATA, LAST_IDS
from ctx_embed.index.vectors import DTYPES, LARGEST_WASTE, PAGE_SIZES, page_size
from ctx_embed.texts import Document
from tests.helpers.errors import error
from tests.index.support.hash_model import HashModel
from tests.index.support.stored import stored, vectors_of, widths_of


@pytest.fixture
def path(tmp_path):
    return tmp_path / "index"


def test_documents_come_back_as_they_were_given(path, hash_model):
    metadata = [{"year": 2020, "tags": ["a", None, 1.5]}, None, {"ü\0": {"deep": "\n\0"}}, {"note": "\udcff"}, {}]
    texts = ["first", "NUL \0 in the middle", "", "broken \ud800 text", "word " * 40_000]
    with SearchIndex.create(path, hash_model) as index:
        assert index.add(texts, ["a", np.int64(7), "\0", "b", -5], metadata) == ["a", 7, "\0", "b", -5]
    texts[3], metadata[1], metadata[3] = "broken � text", {}, {"note": "�"}
    assert sorted(hash_model.seen) == sorted(texts)
    with SearchIndex.open(path, hash_model) as index:
        assert index.count() == 5
        found = {hit.id: (hit.text, hit.metadata) for hit in index.search("first", k=5, mode="dense")}
        assert found == dict(zip(["a", 7, "\0", "b", -5], zip(texts, metadata, strict=True), strict=True))
        assert [index.search(query, k=1)[0].id for query in ("broken \ud800 text", texts[4])] == ["b", -5]
        hits = index.search("first", k=3, mode="dense")
        assert replace(hits[0], relevance=None) == Hit("a", hits[0].score, "first", metadata[0])
        assert hits[0].score == pytest.approx(1, abs=1e-6)
    with pytest.raises(dataclasses.FrozenInstanceError):
        hits[0].score = 0


def test_an_id_matches_by_its_text(index):
    index.add(["zero", "five", "six", "odd"], [None, 5, "6", "007"])
    for first in (7, 5, "6"):
        for identifier in (int(first), str(first), np.int64(first)):
            assert index.get(identifier).id == index[identifier].id == first
            assert identifier in index
            said = f"the id {first!r} is already in the index; ids must be unique"
            assert error(index.add, ["b"], [identifier]).endswith(said)
            assert index.upsert(["new"], [identifier]) == [first]
            assert index.update_metadata(identifier, {"n": identifier}) == 1
            for hits in (index.search(like=identifier), index.search("new", exclude=[identifier], mode="dense")):
                assert str(first) not in {str(hit.id) for hit in hits}
    assert index.ids() == ["007", 7, 5, "6"]
    assert error(index.add, ["b", "c"], [9, "9"]).endswith("the id 9 is also that of document 1; ids must be unique")
    assert index.upsert(["b", "c"], ["9", 9]) == ["9", "9"]
    assert (index[9].text, index.delete(["9", 9]), 9 in index) == ("c", 1, False)
    # Other spellings of a number are other ids.
    for other in ("8", 8, "+5", "5.0", " 5", "-0", "05"):
        assert index.get(other) is None
    assert index.delete([5, "6", "7"]) == 3
    # A number that was an id, in either form, does not come again.
    index.add(["d"], ["20"])
    assert index.add(["e"]) == [21]


@given(
    st.lists(
        st.lists(
            st.none()
            | st.builds(int.__add__, st.sampled_from([-(2**63), 0, LAST_IDS]), st.integers(0, 3))
            | st.builds(int.__sub__, st.sampled_from([LAST_IDS, 2**63 - 1]), st.integers(0, 3))
            | st.sampled_from([str(2**63 - 1), str(LAST_IDS), "1e300", "-1"]),
            max_size=4,
        ),
        max_size=6,
    )
)
@settings(deadline=None, max_examples=40)
def test_no_given_id_ends_automatic_ids(batches):
    with TemporaryDirectory() as folder, SearchIndex.create(Path(folder) / "index", HashModel()) as index:
        known: list = []
        for batch in batches:
            new = [str(identifier) for identifier in batch if identifier is not None]
            if len(set(new)) < len(new) or set(new) & set(map(str, known)):
                continue
            found = index.add(["a text"] * len(batch), batch)
            assert all(given in (None, now) for given, now in zip(batch, found, strict=True))
            automatic = [now for given, now in zip(batch, found, strict=True) if given is None]
            assert automatic == sorted(automatic)
            known += found
            assert len(set(known)) == len(known)
        # An id is never used twice, whatever the last ones were.
        index.delete(known)
        last = max((one for one in known if isinstance(one, int) and one < LAST_IDS), default=-1)
        assert index.add(["next"])[0] > last


def test_the_forms_of_a_query(index, monkeypatch):
    assert index.search("a") == []
    assert index.search(["a", "b"]) == [[], []]
    assert index.search([]) == index.search([], fuse=True) == index.search(["a", "b"], fuse=True) == []
    assert index.search(np.ones(8)) == index.search("a", mmr=0.5, group="id", offset=3) == []
    assert "no document has the id 0" in error(index.search, like=0)
    index.add(["a", "b", "c"])
    assert [index.search("a")] == index.search(["a"])
    assert index.search(("a", "b"), k=2) == index.search(np.array(["a", "b"]), k=np.int64(2))
    assert len(index.search("a", k=10**12)) == 3
    # Of each query the ten best are read, which say whether it is answered.
    index.add([f"text {number}" for number in range(40)])
    asked: list[int] = []
    fetch = index._folder.fetch
    monkeypatch.setattr(index._folder, "fetch", lambda rows: asked.extend(rows) or fetch(rows))
    assert [len(hits) for hits in index.search(["a", ""], k=1)] == [1, 1]
    assert len(asked) <= 20


def test_equal_texts_come_in_the_order_of_their_addition_and_batches_change_nothing(index):
    index.add(["same"] * 30 + ["other"])
    index.add(["same"] * 5)
    hits = index.search("same", k=35, mode="dense")
    assert [hit.id for hit in hits] == [*range(30), *range(31, 36)]
    assert len({hit.score for hit in hits}) == 1
    assert index.search("same", k=1, mode="dense") == hits[:1]
    index.add([f"text {number}" for number in range(100)])
    queries = [f"query {number}" for number in range(40)]
    assert index.search(queries) == [index.search(query) for query in queries]


def test_what_cannot_be_added_is_one_line_and_changes_nothing(index, monkeypatch):
    def nested(levels: int) -> dict[str, Any]:
        value: Any = 1
        for level in range(levels - 1):
            value = [value] if level % 2 else {"a": value}
        return {"b": value}

    index.add(["kept"], ["stored"], [nested(DEEPEST_METADATA)])
    for arguments, message in (
        (("one text",), "texts must be a list of strings, got a str; give [text]"),
        ((["a", 5],), "document 2: the text must be a string, got an int"),
        ((["a", "b"], ["x"]), "ids must have one entry for each of the 2 texts, got 1"),
        ((["a", "b"], "xy"), "ids must be a list of strings or integers, got a str"),
        ((["a"], None, {"a": 1}), "metadata must be a list of dictionaries, got a dict"),
        ((["a", "b"], ["x", "x"]), "document 2: the id 'x' is also that of document 1; ids must be unique"),
        ((["a", "b"], [4, "stored"]), "document 2: the id 'stored' is already in the index; ids must be unique"),
        ((["a"], [True]), "document 1: the id must be a string or an integer, got a bool"),
        ((["a"], [1 << 63]), f"document 1: the id {1 << 63} does not fit into 64 bits; give it as a string"),
        ((["a"], [2.0]), "document 1: the id must be a string or an integer, got a float"),
        ((["a"], ["\ud800"]), "document 1: the id '\\ud800' has a lone surrogate; give it another id"),
        ((["a"], None, [{1: 2}]), "document 1: the metadata must be a dictionary with string keys, got {1: 2}"),
        ((["a"], None, [nested(DEEPEST_METADATA + 1)]), "document 1: the metadata is nested more than 100 levels deep"),
        ((["a"], None, [{"x": {1, 2}}]), "document 1: the metadata field 'x' cannot be stored as JSON (Object of"),
        ((["a"], None, [{"x": float("inf")}]), "document 1: the metadata field 'x' cannot be stored as JSON (Out of"),
    ):
        said = error(index.add, *arguments)
        assert said.startswith(message)
        assert "\n" not in said
        assert index.count() == index.count("b is not null") == 1

    def stream(broken: bool):
        yield from (Document(f"text {number}") for number in range(30))
        if broken:
            raise InputError("line 31 is broken")

    monkeypatch.setattr(writer, "BATCH_DOCUMENTS", 4)
    assert error(index.add_documents, stream(broken=True)) == "line 31 is broken"
    assert index.count() == 1
    assert index.verify() == []
    assert index.add_documents(stream(broken=False)) == list(range(30))


def test_a_closed_index_says_so_to_those_who_search_it_too(index):
    index.add(["a"])
    ready = threading.Barrier(4)

    def search() -> None:
        ready.wait()
        while True:
            index.search("a")

    with ThreadPoolExecutor(3) as pool:
        searches = [pool.submit(search) for _ in range(3)]
        ready.wait()
        index.close()
        assert {str(each.exception()) for each in searches} == {f"{index.path}: this index is closed; open it again"}
    index.close()
    for work in (index.count, partial(index.add, ["a"]), partial(index.search, "a")):
        assert "this index is closed; open it again" in error(work)


def test_places_without_an_index_or_without_room_for_one(path, hash_model, tmp_path):
    file, nothing = tmp_path / "file", tmp_path / "nothing"
    file.write_text("{}")
    (tmp_path / "folder").mkdir()
    for work, place, message in (
        (SearchIndex.create, file, f"cannot write {file}: it must be a folder, got a file"),
        (SearchIndex.create, tmp_path / "no" / "index", "cannot write .*does not exist; create it first"),
        (SearchIndex.open, tmp_path / "folder", r".*: a folder but not an index \(it has no index.sqlite\)"),
        (SearchIndex.open, file, f"{file}: must be the folder of an index, got a file"),
        (SearchIndex.open, nothing, f"{nothing}: no such index; make one with `ctx-embed index build` or SearchIndex"),
    ):
        assert re.match(message, error(work, place, hash_model))


@pytest.mark.parametrize("empty", [False, True])
def test_of_two_who_create_an_index_the_slower_is_refused(path, hash_model, monkeypatch, tmp_path, empty):
    create = Database.create

    def quicker(database, settings) -> None:
        create(database, settings)
        monkeypatch.setattr(Database, "create", create)
        with SearchIndex.create(path, hash_model) as index:
            index.add(["kept"])

    if empty:
        path.mkdir()
    monkeypatch.setattr(Database, "create", quicker)
    taken = f"{path}: already exists and is not empty; open it with SearchIndex.open, or choose another folder"
    for _ in range(2):
        assert error(SearchIndex.create, path, hash_model) == taken
    with SearchIndex.open(path, hash_model) as index:
        assert index.get(0).text == "kept"
    assert [entry.name for entry in tmp_path.iterdir()] == ["index"]


def test_a_kind_that_faiss_cannot_build_is_reported_once(path, hash_model, monkeypatch, caplog):
    def failing(*arguments, **options):
        raise RuntimeError("Error in virtual void faiss::X at x.cpp:1: Error: 'ok' failed: no centroids")

    monkeypatch.setattr("ctx_embed.index.faiss_file.is_stale", lambda *arguments: True)
    monkeypatch.setattr("ctx_embed.index.faiss_file.write", failing)
    with SearchIndex.create(path, hash_model, factory="HNSW8") as index:
        index.add(["a cat"])
        index.add(["a dog"])
        assert [hit.text for hit in index.search("a cat", k=1)] == ["a cat"]
    said = "FAISS cannot build HNSW8; search compares every vector (no centroids)"
    assert caplog.messages == [f"{path}: {said}"]


def test_an_index_and_its_hits_describe_themselves(index):
    assert index
    index.add(["one <b>", "two"], ["<i>", "2"], [{"<u>": "<s>"}, None])
    facts = index.describe()
    assert facts.pop("bytes") > 2 * 8 * 4
    assert facts.pop("model_fingerprint") == index.embedder.fingerprint
    numbers = {"documents": 2, "vectors": 2, "vectors_of_deleted": 0, "generation": 1, "format_version": 1}
    kinds = {"dimension": 8, "dtype": "float32", "factory": "auto", "chunk": "none", "faiss": None, "model": None}
    assert facts == {"path": str(index.path), **numbers, **kinds}
    assert (len(index), "2" in index, "three" in index, index[2].text) == (2, True, False, "two")
    name = repr(str(index.path))
    assert repr(index) == f"SearchIndex({name}, 2 documents, model {index.embedder.fingerprint[:12]}, auto)"
    hits = index.search("one", k=2)
    assert isinstance(hits, list)
    page = hits._repr_html_()
    assert "<b>one</b> &lt;b&gt;" in page
    assert "<caption>&lt;p&gt;</caption>" in index.search("<p>")._repr_html_()
    assert all(f"<{tag}>&lt;{name}&gt;</{tag}>" in page for tag, name in (("td", "i"), ("th", "u"), ("td", "s")))
    index.close()
    assert repr(index) == f"SearchIndex({name}, closed)"
    assert "open an index with SearchIndex.open('x.index')" in error(SearchIndex, "x.index")


NOUNS = ["cat", "ship", "price", "law", "song", "engine", "river", "doctor", "planet", "recipe"]
VERBS = ["sees", "moves", "changes", "finds", "needs", "follows", "keeps", "breaks", "paints", "sells"]
TEXTS = [f"the {a} {verb} the {b}" for a, verb, b in itertools.product(NOUNS, VERBS, NOUNS) if a != b]


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


def test_vectors_fill_the_pages_of_the_database(tmp_path):
    for dimension, dtype in itertools.product((8, 64, 256, 320, 384, 768, 1024, 9999), DTYPES):
        row = dimension * np.dtype(DTYPES[dtype].scalar).itemsize + 16
        waste = {size: (size - 12) % row / (size - 12) for size in PAGE_SIZES}
        fitting = [size for size in PAGE_SIZES if waste[size] <= LARGEST_WASTE]
        assert page_size(dimension, dtype) == (fitting or PAGE_SIZES)[0]
    with SearchIndex.create(tmp_path / "index", HashModel(700)) as index:
        index.add(["a text"])
        ((size,),) = index._folder.run("PRAGMA page_size")
        assert size == page_size(700, "float32") > PAGE_SIZES[0]


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


def test_the_data_type_changes_in_place_even_if_that_failed_before(path, hash_model, monkeypatch):
    def full(*arguments) -> None:
        raise InputError("the disk is full")

    said = "dtype must be one of float32, float16, int8, got 'int4'"
    assert error(SearchIndex.create, path, hash_model, dtype="int4") == said
    with SearchIndex.create(path, hash_model) as index, SearchIndex.open(path, hash_model) as reader:
        texts = [f"text {number}" for number in range(300)]
        index.add(texts)
        index.delete(range(0, 300, 3))
        hits = reader.search("a query", 20, mode="dense")
        assert error(index.compact, "int4") == said
        assert index.compact("int8") == 100
        # Who opened the index before keeps to the new data type.
        reader.add(["by another writer"])
        assert widths_of(path) == {8}
        reader.delete(300)
        assert len({hit.id for hit in reader.search("a query", 20, mode="dense")} & {hit.id for hit in hits}) >= 18
        assert index.describe()["dtype"] == "int8"
        index.add(["text 300"])
        assert index.compact("int8") == 1
        with monkeypatch.context() as broken:
            broken.setattr("ctx_embed.index.folder.VectorTable.put", full)
            assert error(index.compact, "float16") == "the disk is full"
        index.add(["more"])
        for text in ("text 1", "text 300", "more"):
            assert reader.search(text, 1, mode="dense")[0].text == text
        assert widths_of(path) == {8, 16}
        assert index.verify() == []
        assert index.compact("float16") == 0
        assert widths_of(path) == {16}
        assert index.compact("float32") == 0
    kept = [text for number, text in enumerate(texts) if number % 3]
    assert list(stored(path, exact=False).values()) == [*kept, "text 300", "more"]
    assert widths_of(path) == {8 * 4}
