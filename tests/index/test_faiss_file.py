import itertools
import json
import re
import shutil
import sqlite3
import struct
import time
import zlib
from contextlib import closing
from functools import partialmethod
from types import SimpleNamespace

import faiss
import numpy as np
import pytest

from ctx_embed import SearchIndex
from ctx_embed.index import faiss_file
from ctx_embed.index.faiss_file import COMPARING_ALL, checked_factory
from ctx_embed.index.folder import IndexFolder
from ctx_embed.model import Model
from tests.helpers.cli import Command
from tests.helpers.errors import error
from tests.index.support.hash_model import HashModel, hash_vectors
from tests.index.support.stored import changed_settings, ids

TEXTS = [f"text {number}" for number in range(300)]
REMEDY = "; try auto, Flat, SQ8, HNSW32, IVF256,SQ8 or IVF256,PQ32"


@pytest.fixture(autouse=True)
def trained_on_few(monkeypatch):
    monkeypatch.setattr(faiss_file, "LEAST_TRAINING", 4)
    # Files that compare all are written for few rows, too.
    monkeypatch.setattr(faiss_file, "STALE_FLAT", 0)
    # They answer, too.
    monkeypatch.setattr("ctx_embed.index.nearest.FEW_ROWS", 0)


def opened(path, model, memory_map=False):
    return SearchIndex(IndexFolder(path, memory_map), Model.of(model))


def search(index, *arguments, **options):
    return index.search(*arguments, mode="dense", **options)


def finds(index, text) -> bool:
    return search(index, text, k=1)[0].text == text


def created(path, model, factory="auto", **options):
    SearchIndex.create(path, model, factory, **options).close()
    return opened(path, model)


def cosines(query: str) -> np.ndarray:
    return hash_vectors(TEXTS).astype(np.float64) @ hash_vectors([query])[0].astype(np.float64)


KINDS = ["Flat", "HNSW8", "HNSW8,SQ8", "IVF4,SQ8", "IVF4,PQ4x4", "IVF4,PQ4x4fs", "SQ8", "auto"]


@pytest.mark.parametrize("factory", KINDS)
def test_every_kind_returns_cosines_and_all_hits_and_nothing_deleted(tmp_path, hash_model, factory):
    path = tmp_path / "index"
    queries = ["a query", "another"]
    with created(path, hash_model, factory) as index:
        for first, stop in ((0, 20), (20, 280), (280, 300)):
            index.add(TEXTS[first:stop], metadata=[{"n": number} for number in range(first, stop)])
            assert finds(index, "text 7")
            # A kind that is trained compares with all until there are enough.
            assert bool([*path.glob("*.faiss")]) == (stop > 20 or "PQ" not in factory)
        found = search(index, queries, k=5)
        everything = search(index, "a query", k=10_000)
    for query, hits in zip(queries, found, strict=True):
        np.testing.assert_allclose([hit.score for hit in hits], cosines(query)[ids(hits)], atol=1e-6)
        assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    # Where not all vectors are compared, only pieces of the ranking are in order.
    assert sorted(ids(everything)) == list(range(len(TEXTS)))
    first = [hit.score for hit in everything[:100]]
    assert first == sorted(first, reverse=True)
    if factory in (*COMPARING_ALL, "auto"):
        assert ids(everything) == list(np.argsort(-cosines("a query"), kind="stable"))
    with opened(path, hash_model) as index:
        assert search(index, queries, k=5) == found
    with opened(path, hash_model, memory_map=True) as index:
        assert search(index, queries, k=5) == found
        assert index.delete(list(range(0, 300, 2))) == 150
        for k in (10, 1000):
            hits = search(index, "text 8", k=k)
            assert len(hits) == min(k, 150)
            assert all(hit.id % 2 for hit in hits)
        wanted = {number for number in range(100, 200) if number % 2}
        expected = [row for row in np.argsort(-cosines("text 8"), kind="stable") if row in wanted]
        assert ids(search(index, "text 8", k=50, where="n >= 100 and n < 200")) == expected
        index.compact()
        assert set(ids(search(index, "text 8", k=1000))) == set(range(1, 300, 2))
        index.add([f"more {number}" for number in range(200)])
        assert finds(index, "more 7")
        assert index.verify() == []


def cache(path):
    (file,) = path.glob("*.faiss")
    return file


def change_facts(path, **changes) -> None:
    """Change what an index has recorded of its FAISS file."""
    with closing(sqlite3.connect(path / "index.sqlite")) as connection, connection:
        (facts,) = connection.execute("SELECT facts FROM faiss").fetchone()
        connection.execute("UPDATE faiss SET facts = ?", (json.dumps(json.loads(facts) | changes),))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda file: file.unlink(),
        lambda file: file.write_bytes(file.read_bytes()[:999] + b"\0\1\2\3" + file.read_bytes()[1003:]),
        lambda file: file.write_bytes(b""),
        lambda file: file.write_bytes(file.read_bytes()[:-9]),
        # Of another generation, or another index.
        lambda file: file.rename(file.with_name(f"{'0' * 32}.faiss")),
        lambda file: file.rename(file.with_name("what.faiss")),
    ],
)
def test_a_cache_that_is_missing_or_wrong_is_built_again(tmp_path, hash_model, spoil):
    path = tmp_path / "index"
    with created(path, hash_model, "HNSW8") as index:
        index.add(TEXTS)
        expected = search(index, "a query")
    spoil(cache(path))
    with opened(path, hash_model) as index:
        assert search(index, "a query") == expected
        index.add(["one more"])
        assert finds(index, "one more")


def test_facts_that_others_have_written_change_no_answer(tmp_path, hash_model):
    path = tmp_path / "index"
    with created(path, hash_model, "SQ8") as index:
        index.add(TEXTS)
        facts, expected = index.describe()["faiss"], search(index, "a query")
        assert expected
    for name, value in itertools.product(facts, (None, "4", -1, 2.5, [1], {"a": 1})):
        change_facts(path, **facts | {name: value})
        with opened(path, hash_model, memory_map=True) as index:
            assert search(index, "a query") == expected


def test_a_reader_builds_nothing_and_a_writer_extends_what_is_stale(tmp_path, hash_model, monkeypatch):
    path = tmp_path / "index"
    with created(path, hash_model, "HNSW8") as index:
        index.add(TEXTS)
        first = cache(path)
        index.add(["one more"])
        assert cache(path) == first
    taken: list[int] = []
    add = faiss.IndexHNSWFlat.add
    monkeypatch.setattr(faiss.IndexHNSWFlat, "add", lambda self, rows: taken.append(len(rows)) or add(self, rows))
    with opened(path, hash_model) as index:
        assert finds(index, "one more")
        index.add(["two more"])
        assert finds(index, "two more")
        assert taken == []
        index.add([f"many more {number}" for number in range(100)])
        assert cache(path) != first
        assert sum(taken) == 102
        assert finds(index, "many more 99")


@pytest.mark.parametrize("dimension", [8, 64])
def test_auto_is_exact_then_trained_measured_and_grown(tmp_path, monkeypatch, dimension):
    monkeypatch.setattr(faiss_file, "EXACT_ROWS", 1000)
    path = tmp_path / "index"
    texts = [f"text {number}" for number in range(9600)]
    with created(path, HashModel(dimension)) as index:
        assert index.factory == "auto"
        for stop, kind in ((1000, "Flat"), (4000, "IVF64,"), (9600, "IVF128,")):
            index.add(texts[len(index) : stop])
            facts = index.describe()["faiss"]
            assert facts["for"].startswith(kind)
            assert facts["kind"] in ("Flat", facts["for"])
            assert all(recall >= 0.98 for recall in facts["recall"].values())
        queries = [f"query {number}" for number in range(50)]
        found = search(index, queries)
        assert [search(index, query) for query in queries[:3]] == found[:3]
        assert finds(index, "text 9007")
    exact = hash_vectors(texts, dimension) @ hash_vectors(queries, dimension).T
    truth = np.argsort(-exact, axis=0)[:10].T
    recall = np.mean([len({*ids(hits)} & set(rows)) / 10 for hits, rows in zip(found, truth, strict=True)])
    assert recall >= 0.93


def test_a_build_beyond_exact_search_shows_each_phase_and_says_what_it_left(tmp_path, monkeypatch):
    source, path = tmp_path / "lines.txt", tmp_path / "index"
    source.write_text("\n".join(f"the text {number} of {number % 97}" for number in range(3000)))
    # Training cannot say how far it is: it says before how long it takes.
    monkeypatch.setattr(faiss_file, "INTERVAL", 0)

    def built(exact):
        monkeypatch.setattr(faiss_file, "EXACT_ROWS", exact)
        done = Command("index build").run(source, path, "--overwrite", "--verbose")
        return re.findall(r"^(\w+)[^:]*: [\d,]+ of ", done.stderr, re.MULTILINE), done.stderr, done.stdout

    assert built(3000)[::2] == (["indexing"], f"3000 documents indexed in {path}\n")
    phases, progress, said = built(2999)
    # A kind that is not near enough gives way to exact search.
    assert phases[:4] == ["indexing", "training", "filling", "measuring"]
    assert phases[-1] == "writing"
    assert "\nabove 2,999 passages, --factory auto leaves exact search: " in said
    assert re.search(r"^training IVF64,PQ160x4fs: about \d+ s left$", progress, re.MULTILINE)


def test_auto_takes_lists_by_size():
    def factory(rows, dimension):
        return faiss_file.factory_for(rows, SimpleNamespace(factory="auto", dimension=dimension, dtype="float32"))

    assert factory(50_000, 320) == "Flat"
    for rows, lists in ((50_001, 256), (1_000_000, 1024), (10_000_000, 4096), (10**10, 65536)):
        assert factory(rows, 320) == f"IVF{lists},PQ160x4fs"
        # Few dimensions are not compressed, and an odd number of them cannot be.
        assert factory(rows, 32) == factory(rows, 321) == f"IVF{lists},SQ8"


UNKNOWN = ["Foo", "", "Flat(", "IDMap2,IVF4,Flat", "HNSW1", "IVF0,Flat", "IVF100000000,Flat", "HNSW9999", "PCA4,Flat"]
UNKNOWN += ["OPQ4,SQ8", "PQ4", "HNSW8,PQ4"]


def test_a_factory_that_does_not_fit_is_refused_at_once(tmp_path, hash_model):
    for factory, reason in (
        *((name, "no such kind") for name in UNKNOWN),
        ("IVF4,PQ0", "M must be > 0"),
        ("IVF4,PQ3", "The dimension of the vector (d) should be a multiple of the number of subquantizers (M)"),
    ):
        assert error(created, tmp_path / "index", hash_model, factory) == f"FAISS factory {factory!r}: {reason}{REMEDY}"
        assert not (tmp_path / "index").exists()
    # That of a stranger is bounded before FAISS reads it.
    for factory in ("(" * 20_000, "IVF16(" * 20 + "Flat", f"SQ{'8' * 5000}", 7):
        began = time.process_time()
        said = error(checked_factory, factory, 8)
        assert "no such kind" in said or "must be a string, e.g. 'Flat', got an int" in said
        assert len(said) < 400
        assert time.process_time() - began < 1
    # One in the settings is no stranger's, until it is changed.
    created(tmp_path / "index", hash_model, "SQ8").close()
    changed_settings(tmp_path / "index", factory="Foo")
    with opened(tmp_path / "index", hash_model) as index:
        assert index.search("a query") == []
        assert "FAISS factory 'Foo': no such kind" in error(index.add, ["a text"])


def changed(path, old: bytes, new: bytes) -> None:
    """Replace bytes of an index's FAISS file and list its new checksum, as an attacker would."""
    file = cache(path)
    content = file.read_bytes()
    assert content.count(old) == 1
    content = content.replace(old, new)
    file.write_bytes(content)
    change_facts(path, bytes=len(content), crc32=zlib.crc32(content))


@pytest.mark.parametrize("memory_map", [False, True])
@pytest.mark.parametrize(
    ("factory", "old", "new"),
    [
        ("SQ8", struct.pack("<q", 300 * 8), struct.pack("<q", 2**31)),
        ("IVF8,Flat", struct.pack("<q", 299), struct.pack("<q", 2**32)),
        ("IVF8,PQ8x4fs", struct.pack("<q", 299), struct.pack("<q", 2**40)),
    ],
    ids=["size", "row", "large row"],
)
def test_hostile_files(tmp_path, hash_model, memory_map, factory, old, new):
    """A file that declares 2 GB, or that proposes rows it does not have, changes no answer and takes no memory."""
    path = tmp_path / "index"
    with created(path, hash_model, factory) as index:
        index.add(TEXTS, metadata=[{"n": number} for number in range(len(TEXTS))])
    changed(path, old, new)
    limit = faiss.get_deserialization_vector_byte_limit()
    with opened(path, hash_model, memory_map) as index:
        start = time.process_time()
        (hit,) = index.search(TEXTS[7], k=1, mode="dense")
        assert time.process_time() - start < 1
        assert hit.text == TEXTS[7]
        for query in TEXTS[-1], "a query":
            assert len(index.search(query, k=10_000, mode="dense")) == len(TEXTS)
            assert len(index.search(query, k=5, mode="dense", where="n >= 10")) == 5
    assert faiss.get_deserialization_vector_byte_limit() == limit


def test_a_restored_backup_never_uses_a_file_of_a_later_time(tmp_path, hash_model):
    path = tmp_path / "index"
    with created(path, hash_model, "HNSW8") as index:
        index.add(TEXTS[:100])
        index.backup(tmp_path / "backup")
        with opened(tmp_path / "backup", hash_model) as backup:
            assert cache(tmp_path / "backup").name == cache(path).name
            assert search(backup, "text 7") == search(index, "text 7")
        index.delete(list(range(50)))
        index.add(TEXTS[100:])
        index.compact()
    shutil.copy(cache(path), tmp_path / "backup")
    with opened(tmp_path / "backup", hash_model) as index:
        assert finds(index, "text 7")
        assert len(search(index, "text 7", 1000)) == 100
        index.add(["more"])
        assert index.verify() == []


@pytest.mark.parametrize(("dtype", "kind"), [("float32", "Flat"), ("float16", "SQfp16"), ("int8", "SQ8")])
def test_small_types_have_a_small_flat_file(tmp_path, dtype, kind):
    with created(tmp_path / "index", HashModel(64), dtype=dtype) as index:
        index.add(TEXTS)
        assert index.describe()["faiss"]["kind"] == kind
        exact = hash_vectors(TEXTS, 64) @ hash_vectors(["a query"], 64)[0]
        assert len({*ids(search(index, "a query", 10))} & set(np.argsort(-exact)[:10].tolist())) >= 9
        assert index._folder.read(lambda view: view.nearest.faiss) is not None


def test_a_hybrid_search_asks_for_fewer_spare_candidates(tmp_path, hash_model, monkeypatch):
    asked: list[int] = []
    search = faiss.IndexHNSWFlat.search
    monkeypatch.setattr("ctx_embed.index.search.DEPTH", 40)
    with created(tmp_path / "index", hash_model, "HNSW8") as index:
        index.add(TEXTS)
    change_facts(tmp_path / "index", spare=100)
    recorded = partialmethod(lambda self, queries, k, **options: asked.append(k) or search(self, queries, k, **options))
    monkeypatch.setattr(faiss.IndexHNSWFlat, "search", recorded)
    with opened(tmp_path / "index", hash_model) as index:
        for mode in ("dense", "hybrid"):
            assert index.search("text 7", k=1, mode=mode)[0].text == "text 7"
    assert asked == [140, 110]


def test_queries_after_a_damaged_list_propose_nothing_and_those_before_stay(monkeypatch):
    class Index:
        def search(self, queries, k, params):
            if queries[0, 0]:
                raise RuntimeError("a list of the file is damaged")
            return None, np.zeros((len(queries), k), np.int64)

    for name in ("effort_of", "search_parameters"):
        monkeypatch.setattr(faiss_file, name, lambda *_: None)
    loaded = SimpleNamespace(index=Index(), rows=np.array([7, 8]), spare=0, effort=None)
    queries = np.arange(200, dtype=np.float32)[:, None] // 64
    for given, known in ((queries, 64), (queries + 1, 0)):
        proposed = faiss_file.Loaded.proposed(loaded, given, 1, 1, None, 1.0)
        assert [len(rows) > 0 for rows in proposed] == [True] * known + [False] * (200 - known)
