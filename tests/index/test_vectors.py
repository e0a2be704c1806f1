from __future__ import annotations

import faiss
import numpy as np
import pytest
from hash_model import hash_vectors

from ctx_embed import InputError, SearchIndex
from ctx_embed.index.folder import IndexFolder
from ctx_embed.index.kinds import checked_factory

TEXTS = [f"text {number}" for number in range(300)]
REMEDY = "; try auto, Flat, HNSW32 or IVF256,SQ8"


def cosines(query: str) -> np.ndarray:
    return hash_vectors(TEXTS).astype(np.float64) @ hash_vectors([query])[0].astype(np.float64)


@pytest.mark.parametrize("factory", ["Flat", "HNSW8", "IVF8,Flat", "IVF4,PQ4x4", "SQ8", "PCA4,Flat", "PQ4x4,RFlat"])
def test_every_kind_gives_cosines_and_all_hits(tmp_path, hash_model, factory):
    with SearchIndex.create(tmp_path / "index", hash_model, factory) as index:
        index.add(TEXTS[:280])
        index.add(TEXTS[280:])
        found = index.search(["a query", "another"], k=5)
        everything = index.search("a query", k=10_000)[0]
    for query, hits in zip(["a query", "another"], found, strict=True):
        np.testing.assert_allclose([hit.score for hit in hits], cosines(query)[[hit.id for hit in hits]], atol=1e-6)
        assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    assert [hit.id for hit in everything] == list(np.argsort(-cosines("a query"), kind="stable"))
    with SearchIndex.open(tmp_path / "index", hash_model) as index:
        assert index.search(["a query", "another"], k=5) == found


def test_flat_is_exact(tmp_path, hash_model):
    with SearchIndex.create(tmp_path / "index", hash_model) as index:
        index.add(TEXTS)
        for query in ["a query", "another", "text 7"]:
            (hits,) = index.search(query, k=10)
            assert [hit.id for hit in hits] == list(np.argsort(-cosines(query), kind="stable")[:10])
            np.testing.assert_allclose([hit.score for hit in hits], np.sort(cosines(query))[::-1][:10], atol=1e-7)


def cache(path):
    (file,) = (path / "faiss").glob("*.faiss")
    return file


def damage(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 255
    file.write_bytes(content)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda file: file.unlink(),
        damage,
        lambda file: file.write_bytes(b""),
        lambda file: file.write_bytes(file.read_bytes()[:-9]),
        # A later generation than that of the documents, as after a copy from elsewhere.
        lambda file: file.rename(file.with_name(file.name.replace("g1-", "g9-"))),
        lambda file: file.rename(file.with_name(file.name.replace("r300-", "r299-"))),
        lambda file: file.rename(file.with_name("what.faiss")),
    ],
)
def test_a_cache_that_is_missing_or_wrong_is_built_again(tmp_path, hash_model, spoil):
    path = tmp_path / "index"
    with SearchIndex.create(path, hash_model, "HNSW8") as index:
        index.add(TEXTS)
        expected = index.search("a query")
    spoil(cache(path))
    with SearchIndex.open(path, hash_model) as index:
        assert index.search("a query") == expected


def test_a_cache_is_extended_rather_than_built_again(tmp_path, hash_model, monkeypatch):
    path = tmp_path / "index"
    with SearchIndex.create(path, hash_model, "HNSW8") as index:
        index.add(TEXTS)
        first = cache(path)
        index.add(["one more"])
        assert cache(path) == first
    taken: list[int] = []
    add = faiss.IndexHNSWFlat.add
    monkeypatch.setattr(faiss.IndexHNSWFlat, "add", lambda self, rows: taken.append(len(rows)) or add(self, rows))
    with SearchIndex.open(path, hash_model) as index:
        assert index.search("one more", k=1)[0][0].text == "one more"
        assert taken == [1]
        index.add(["two more"])
        assert index.search("two more", k=1)[0][0].text == "two more"
        assert taken == [1, 1]
        index.add([f"many more {number}" for number in range(100)])
        assert cache(path) != first
        assert taken == [1, 1, 100]


def test_a_kind_that_is_trained_says_how_many_documents_it_needs(tmp_path, hash_model):
    path = tmp_path / "index"
    with SearchIndex.create(path, hash_model, "IVF16,PQ4x4") as index:
        with pytest.raises(InputError) as caught:
            index.add(TEXTS[:15])
        assert str(caught.value) == (
            "FAISS factory 'IVF16,PQ4x4' is trained on the first addition and needs at least 16 documents in it, got "
            "15: add more at once, or take a smaller factory, e.g. Flat"
        )
        assert index.count() == 0
        assert index.search("a") == [[]]
        index.add(TEXTS[:16])
        index.add(["alone"])
        assert index.search("alone", k=1)[0][0].text == "alone"
    # The cache is gone: it is trained again on what is stored.
    cache(path).unlink()
    with SearchIndex.open(path, hash_model) as index:
        assert index.search("alone", k=1)[0][0].text == "alone"
        assert len(index.search("alone", k=100)[0]) == 17


@pytest.mark.parametrize(
    ("factory", "reason"),
    [
        ("Foo", "could not parse index string Foo"),
        ("", "could not parse index string"),
        ("Flat(", "factory string Flat(: unbalanced parentheses st=1"),
        ("PQ3", "The dimension of the vector (d) should be a multiple of the number of subquantizers (M)"),
        ("IDMap,Flat", "ids are kept beside the vectors already, leave IDMap out"),
        ("IDMap2,IVF4,Flat", "ids are kept beside the vectors already, leave IDMap out"),
        ("NSG16,Flat", "its graph cannot grow by additions, take HNSW instead"),
        ("ZnLattice1x2_3", "it cannot compare by inner products"),
        ("LSH", "'metric == METRIC_L2' failed"),
        ("HNSW0", "a size in it is too small"),
        ("HNSW1", "a size in it is too small"),
        ("IVF0,Flat", "a size in it is too small"),
    ],
)
def test_a_factory_that_does_not_fit_is_refused_at_once(tmp_path, hash_model, factory, reason):
    with pytest.raises(InputError) as caught:
        SearchIndex.create(tmp_path / "index", hash_model, factory)
    assert str(caught.value) == f"FAISS factory {factory!r}: {reason}{REMEDY}"
    assert not (tmp_path / "index").exists()


def test_a_factory_is_a_string():
    with pytest.raises(InputError, match=r"the FAISS factory is a int, a string is needed, e\.g\. 'Flat'"):
        checked_factory(7, 8)  # type: ignore[arg-type]


def test_a_changed_factory_in_the_manifest_is_refused(tmp_path, hash_model):
    path = tmp_path / "index"
    SearchIndex.create(path, hash_model).close()
    manifest = path / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"Flat"', '"Foo"'))
    with pytest.raises(InputError, match="FAISS factory 'Foo': could not parse"):
        SearchIndex.open(path, hash_model)
    IndexFolder(path).documents.close()
