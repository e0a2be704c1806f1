"""Embedding the texts of an index again with another model."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from functools import partial

import numpy as np
import pytest

from ctx_embed import InputError, SearchIndex
from ctx_embed.index.building.reembedding import reembed
from ctx_embed.index.model import IndexModel
from ctx_embed.index.storage.folder import IndexFolder
from ctx_embed.index.writing import writer
from tests.helpers.errors import error
from tests.index.support.child import child
from tests.index.support.hash_model import HashModel, Interrupting, hash_vectors
from tests.index.support.stored import vectors_of

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
    with pytest.raises(InputError, match=r"ctx-embed index reembed .*notes\.index"):
        SearchIndex.open(path, HashModel())


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


def test_a_kill_leaves_the_old_index_or_the_new_one(tmp_path):
    with SearchIndex.create(tmp_path / "base", HashModel()) as index:
        index.add([f"note {number} about the weather" for number in range(12)])
        index.delete([3, 11])
    process = child("reembed_points", tmp_path, 45)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    old, new = map(int, output.split())
    assert old + new > 5
    assert old >= 3
