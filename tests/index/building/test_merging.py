"""Indexes merged from others, and indexes of directories of embeddings."""

from __future__ import annotations

import json
import re

import pytest

from ctx_embed import InputError, SearchIndex
from ctx_embed.index.building.build import build_index
from ctx_embed.index.building.merging import merge_indexes
from tests.conftest import SENTENCES
from tests.helpers.cli import Command
from tests.helpers.errors import error

INDEX = Command("index")


@pytest.fixture
def indexes(tmp_path, monkeypatch):
    """Two indexes of the shipped model: one with numbers for ids, one with words."""
    monkeypatch.chdir(tmp_path)
    with SearchIndex.create("a.index", chunk="sentences") as index:
        texts = [f"{text}. Another sentence." for text in SENTENCES[:4]]
        index.add(texts, range(4), [{"n": n} for n in range(4)])
        index.delete(1)
    with SearchIndex.create("b.index", chunk="sentences") as index:
        index.add(SENTENCES[4:], ids=["four", "five", 0, "seven"])
    return ["a.index", "b.index"]


def test_a_merged_index_finds_what_each_found(indexes):
    with SearchIndex.open("b.index") as index:
        index.delete(0)
    assert INDEX.succeeds("merge", *indexes, "-o", "c.index") == "6 documents in c.index\n"
    with SearchIndex.open("c.index") as merged:
        assert merged.verify() == []
        assert all(identifier in merged for identifier in (0, 2, 3, "four", "five", "seven"))
        for name in indexes:
            with SearchIndex.open(name) as source:
                for text in SENTENCES:
                    best = source.search(text, k=1, mode="dense")[0]
                    assert best.text in {hit.text for hit in merged.search(text, k=6, mode="dense")}
        assert merged.search("the film", k=1, where="n = 2", mode="dense")[0].metadata == {"n": 2}


def test_an_id_of_two_indexes_is_refused_or_replaced(indexes, tmp_path):
    a, b = (tmp_path / name for name in indexes)
    SearchIndex.create("empty.index", chunk="sentences").close()
    message = f"{a} and {b} both have a document 0; --replace keeps the later one"
    assert INDEX.fails("merge", "empty.index", *indexes, "-o", "c.index") == message
    assert INDEX.succeeds("merge", *indexes, "-o", "d.index", "--replace") == "6 documents in d.index\n"
    assert json.loads(INDEX.succeeds("get", "d.index", "0"))["text"] == SENTENCES[6]


@pytest.mark.parametrize("replace", [False, True])
def test_documents_without_ids_of_their_own_are_numbered_anew(hash_model, replace, tmp_path):
    names = [str(tmp_path / name) for name in ("a.index", "b.index", "c.index")]
    (tmp_path / "lines.txt").write_text("one\ntwo\n")
    build_index(tmp_path / "lines.txt", names[0], model=hash_model)
    with SearchIndex.create(names[1], hash_model) as index:
        index.add(["three", "four", "five"], [None, "x", 4])
        index.add(["six", "seven"])
        # Neither a new title nor a deletion makes an id the document's own.
        index.update_metadata([5, 7], {"title": "A title"})
        index.delete(6)
    assert merge_indexes(names[:2], names[2], replace=replace) == 6
    with SearchIndex.open(names[2]) as index:
        found = {document.text: document.id for document in index}
        assert found == {"one": 5, "two": 6, "three": 7, "four": "x", "five": 4, "seven": 8}
        assert index.get(8).metadata == {"title": "A title"}
        assert index.verify() == []
    # An id that was chosen later, by an upsert, is a document's own.
    for name in names[:2]:
        with SearchIndex.open(name, hash_model) as index:
            index.upsert(["mine"], [0])
    with pytest.raises(InputError, match="both have a document 0"):
        merge_indexes(names[:2], tmp_path / "d.index")


def test_what_cannot_be_merged_leaves_nothing(indexes, hash_model, tmp_path):
    SearchIndex.create("other.index", hash_model, chunk="sentences").close()
    SearchIndex.create("whole.index").close()
    for sources, output, message in (
        (["a.index"], "c.index", "merging needs two indexes or more, got 1"),
        (["a.index", "nowhere"], "c.index", "nowhere: no such index"),
        (["a.index", "other.index"], "c.index", r"the model must be that of .*a.index, 'default' \(.*got None \("),
        (["a.index", "whole.index"], "c.index", r"chunk must be that of .*, 'sentences', got 'none'"),
        (indexes, "b.index", "b.index: already exists"),
    ):
        assert re.search(message, error(merge_indexes, sources, output))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.index", "b.index", "other.index", "whole.index"]


def test_a_directory_of_embeddings_becomes_an_index(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [{"id": f"d{n}", "text": text, "n": n, "deep": {"x": [1]}} for n, text in enumerate(SENTENCES)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    Command("encode").succeeds("in.jsonl", "--to", "out", "--workers", 1)
    build = Command("index build --from-parquet out")
    assert build.succeeds("new.index") == "8 documents indexed in new.index\n"
    with SearchIndex.open("new.index") as index:
        assert index.verify() == []
        hit = index.search(SENTENCES[5], k=1, where="deep.x contains 1 and n > 2", mode="dense")[0]
        assert (hit.id, hit.metadata) == ("d5", {"n": 5, "deep": {"x": [1]}})
    assert "already exists" in build.fails("new.index")
    assert "already in the index" in build.fails("new.index", "--append")
    assert build.succeeds("new.index", "--upsert") == "8 documents added to new.index\n"
    build.succeeds("new.index", "--overwrite", "--dtype", "float16")
    with SearchIndex.open("new.index") as index:
        assert (index.count(), index.describe()["dtype"]) == (8, "float16")
    assert "no embeddings there" in Command("index build --from-parquet").fails("nowhere", "other.index")
    said = build.fails("o.index", "--chunk", "sentences", code=2)
    assert said == "--chunk and --from-parquet cannot be combined"
