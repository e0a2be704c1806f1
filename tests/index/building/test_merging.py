"""Indexes merged from others, or embedded again with another model."""

import re
import sqlite3
from contextlib import closing
from functools import partial

import numpy as np
import pytest

from ctx_embed import SearchIndex
from ctx_embed.index.building.build import build_index, merge_indexes
from ctx_embed.index.model import IndexModel
from ctx_embed.index.storage.folder import IndexFolder
from ctx_embed.index.writing import writer
from ctx_embed.index.writing.writer import reembed
from tests.conftest import SENTENCES
from tests.helpers.cli import Command
from tests.helpers.errors import error
from tests.index.support.hash_model import HashModel, Interrupting, hash_vectors
from tests.index.support.stored import vectors_of

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


def test_a_merged_index_finds_what_each_found(indexes, tmp_path):
    a, b = (tmp_path / name for name in indexes)
    SearchIndex.create("empty.index", chunk="sentences").close()
    message = f"{a} and {b} both have a document 0; --replace keeps the later one"
    assert INDEX.fails("merge", "empty.index", *indexes, "-o", "c.index") == message
    assert INDEX.succeeds("merge", *indexes, "-o", "d.index", "--replace") == "6 documents in d.index\n"
    with SearchIndex.open("d.index") as replaced, SearchIndex.open(b) as index:
        assert replaced.get(0).text == SENTENCES[6]
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


def test_documents_without_ids_of_their_own_are_numbered_anew(hash_model, tmp_path):
    names = [str(tmp_path / name) for name in ("a.index", "b.index", "c.index")]
    (tmp_path / "lines.txt").write_text("one\ntwo\n")
    build_index(tmp_path / "lines.txt", names[0], model=hash_model)
    with SearchIndex.create(names[1], hash_model) as index:
        index.add(["three", "four", "five"], [None, "x", 4])
        index.add(["six", "seven"])
        # Neither a new title nor a deletion makes an id the document's own.
        index.update_metadata([5, 7], {"title": "A title"})
        index.delete(6)
    for replace in (False, True):
        assert merge_indexes(names[:2], f"{names[2]}{replace}", replace=replace) == 6
        with SearchIndex.open(f"{names[2]}{replace}") as index:
            found = {document.text: document.id for document in index}
            assert found == {"one": 5, "two": 6, "three": 7, "four": "x", "five": 4, "seven": 8}
            assert index.get(8).metadata == {"title": "A title"}
            assert index.verify() == []
    # An id that was chosen later, by an upsert, is a document's own.
    for name in names[:2]:
        with SearchIndex.open(name, hash_model) as index:
            index.upsert(["mine"], [0])
    assert "both have a document 0" in error(merge_indexes, names[:2], tmp_path / "d.index")


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


TEXTS = ["The cat sat. The dog ran.", "Prices rise.", "One. Two. Three.", "Rain fell all night.", "Prices rise."]


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "notes.index"
    with SearchIndex.create(path, HashModel(), chunk="sentences") as index:
        index.add(TEXTS, ["a", "b", 3, "d", "e"], [{"n": number} for number in range(5)])
        index.upsert(["Wages fall. Slowly."], ["b"], [{"n": 1}])
        index.delete("d")
    return path


def test_all_but_the_vectors_stays(path):
    model = HashModel(16)
    with SearchIndex.open(path) as index:
        before = [index.get(name) for name in index.ids()]
        assert index.reembed(model) == 4
        # Each text once, and none of the documents that were deleted or replaced.
        assert len(model.seen) == len(set(model.seen)) == 8
        assert [index.get(name) for name in index.ids()] == before
        assert index.describe()["dimension"] == 16
        assert index.verify() == []
        hit = index.search("Two.", 1, mode="dense")[0]
        assert (hit.id, hit.text, hit.metadata, hit.start) == (3, "Two.", {"n": 2}, 5)
        assert hit.score == pytest.approx(1, abs=1e-6)
        assert [hit.id for hit in index.search("falling", mode="words")] == ["b"]
        assert index.add(["new"]) == [4]
        np.testing.assert_allclose(vectors_of(index.path)[0], hash_vectors(["The cat sat."], 16)[0], rtol=1e-6)
        assert index.reembed(model) == 0
    assert [entry.name for entry in path.parent.iterdir()] == ["notes.index"]
    with SearchIndex.open(path, HashModel(16)) as index:
        assert index.count() == 5
    assert re.search(r"ctx-embed index reembed .*notes\.index", error(SearchIndex.open, path, HashModel()))


def interrupted(path, model) -> None:
    """Run until the model interrupts it, with a step for each document."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(writer, "BATCH_DOCUMENTS", 1)
        with pytest.raises(KeyboardInterrupt):
            reembed(IndexFolder(path), IndexModel.of(model))


def test_an_interrupted_run_resumes(path):
    model, first = HashModel(16), Interrupting(5, 16)
    with SearchIndex.open(path, HashModel()) as index:
        interrupted(path, first)
        assert index.search("Two.", 1, mode="dense")[0].text == "Two."
        assert index.describe()["dimension"] == 8
        index.reembed(model)
        assert first.seen == ["The cat sat.", "The dog ran.", "One.", "Two.", "Three."]
        assert sorted(model.seen) == ["Prices rise.", "Slowly.", "Wages fall."]
        assert index.verify() == []


def test_changes_by_others_are_kept_and_another_model_begins_again(path):
    class Changing(HashModel):
        """A model beside which another process changes the index."""

        def encode_document(self, texts, **options):
            if not self.seen:
                with SearchIndex.open(path, HashModel()) as other:
                    other.add(["Another text."], ["new"])
                    other.delete(["a"])
                    other.upsert(["Rain falls."], ["e"])
                    other.update_metadata(3, {"n": 7})
            return super().encode_document(texts, **options)

    with SearchIndex.open(path, HashModel()) as index:
        assert index.reembed(Changing(16)) == 4
        assert set(index.ids()) == {"b", 3, "e", "new"}
        assert index.get(3).metadata == {"n": 7}
        assert index.search("Another text.", 1, mode="dense")[0].id == "new"
        assert index.search("Rain falls.", 1, mode="dense")[0].id == "e"
        assert index.verify() == []

    interrupted(path, Interrupting(3, 12))
    with SearchIndex.open(path, HashModel(16)) as index:
        index.delete([3])
        index.reembed(HashModel(24))
        assert index.describe()["dimension"] == 24
        assert index.verify() == []
    with closing(sqlite3.connect(path / "index.sqlite")) as connection:
        tables = connection.execute("SELECT count(*) FROM sqlite_master WHERE name GLOB 'vectors_*'").fetchone()
    assert tables == (1,)


def test_what_cannot_be_embedded_again_and_who_had_the_index_open(path, tmp_path):
    with SearchIndex.create(tmp_path / "pq.index", HashModel(), "IVF2,PQ4") as index:
        assert "PQ4" in error(index.reembed, HashModel(9))
        assert index.reembed(HashModel(16)) == 0
    with SearchIndex.open(path, HashModel()) as reader, SearchIndex.open(path) as index:
        assert "no such model folder" in error(index.reembed, "./nowhere")
        with reader.writer.editing():
            assert "another process is writing" in error(index.reembed, HashModel(16))
        assert reader.search("Two.", 1, mode="dense")[0].text == "Two."
        index.reembed(HashModel(16))
        for work in (partial(reader.add, ["lost"]), partial(reader.search, "Two.")):
            assert "was embedded again with another model meanwhile; open it again" in error(work)
        assert index.search("Two.", 1, mode="dense")[0].text == "Two."
