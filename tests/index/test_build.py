import dataclasses
import json
import os
import re
import shutil
import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path
from unittest.mock import Mock, patch

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from ctx_embed import SearchIndex, files
from ctx_embed.files import locked
from ctx_embed.index import writer
from ctx_embed.index.build import Built, Plan, build_index, merge_indexes, read_sources
from ctx_embed.index.database import patient
from ctx_embed.index.folder import IndexFolder
from ctx_embed.index.writer import reembed
from ctx_embed.model import Model
from tests.conftest import SENTENCES
from tests.helpers.cli import Command
from tests.helpers.errors import error
from tests.index.support.hash_model import HashModel, Interrupting, hash_vectors
from tests.index.support.stored import stored, vectors_of

TEXTS = [f"line {number}" for number in range(40)]


def written(path: Path, *lines: str | dict) -> Path:
    """Write a file of lines, and return its path."""
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


@pytest.fixture
def source(tmp_path):
    return written(tmp_path / "source.txt", *TEXTS)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "index"


@pytest.fixture
def unfinished(path):
    """Where an unfinished build stands."""
    return path.with_name("index.partial")


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch):
    monkeypatch.setattr(writer, "STEP_DOCUMENTS", 8)
    monkeypatch.setattr(writer, "BATCH_DOCUMENTS", 4)


def interrupted(source, path, texts=20, **options) -> None:
    with pytest.raises(KeyboardInterrupt):
        build_index(source, path, model=Interrupting(texts), **options)


def test_an_interrupted_build_resumes_with_the_same_options(source, path, unfinished, hash_model):
    # Before the first step an interruption leaves nothing.
    interrupted(source, path, texts=3)
    assert [entry.name for entry in path.parent.iterdir()] == ["source.txt"]
    interrupted(source, path, resume=True)
    assert not path.exists()
    assert list(stored(unfinished).values()) == TEXTS[:16]
    resume = partial(build_index, source, path, resume=True)
    for run, message in (
        (partial(build_index, source, path, model=hash_model), "holds an interrupted build; continue it with"),
        (partial(resume, model=hash_model, chunk="sentences"), "was started with other sources or options; repeat"),
        (partial(resume, model=HashModel(5)), "built with a model of unknown origin, .* dimension 8; this one has"),
    ):
        assert re.search(message, error(run))
    assert resume(model=hash_model) == Built(40)
    assert sorted(hash_model.seen) == sorted(TEXTS[16:])
    assert stored(path) == dict(enumerate(TEXTS))
    assert not unfinished.exists()
    assert resume(model=hash_model) == Built(40, was_complete=True)


def test_builds_of_other_documents_or_another_index_are_other_builds(tmp_path):
    plan = Plan(sources=[str(tmp_path)], target=tmp_path / "index", adds=False)
    others: list[dict] = [{"sources": [str(tmp_path), "-"]}, {"include": ["*.md"]}, {"exclude": ["*.md"]}]
    others += [{"follow_links": True}, {"documents": "lines"}, {"stores": (object(),)}]
    others += [{f"{name}_field": "body"} for name in ("text", "id", "title", "embedding")]
    others += [{name: "another"} for name in ("mode", "factory", "chunk", "dtype", "encoding")]
    # Where the same documents go, by which means, does not make another build.
    means = {"target", "adds", "resume", "model", "backend", "progress"}
    assert {field.name for field in dataclasses.fields(Plan)} == means.union(*others)
    signatures = {dataclasses.replace(plan, **change).signature for change in others}
    assert len(signatures | {plan.signature}) == len(others) + 1
    for name in means:
        assert dataclasses.replace(plan, **{name: "other"}).signature == plan.signature


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_an_interrupted_addition_resumes(source, path, hash_model, mode, tmp_path):
    build_index(source, path, model=hash_model)
    rows = [{"id": 39 if mode == "upsert" else "x", "text": "new"}, *({"text": f"more {n}"} for n in range(30))]
    if mode == "upsert":
        rows = [{"id": 40 + n, **row} for n, row in enumerate(rows)]
    more = written(tmp_path / "more.jsonl", *rows)
    interrupted(more, path, mode=mode)
    # Whole documents, from the first one on.
    first = [row["id"] if "id" in row else 39 + place for place, row in enumerate(rows[:16])]
    expected = dict(enumerate(TEXTS)) | dict(zip(first, (row["text"] for row in rows[:16]), strict=True))
    assert stored(path) == expected
    said = error(build_index, more, path, model=hash_model, mode=mode)
    assert "the first 16 documents of an interrupted build of the same sources; continue it with --resume" in said
    for command in ("info", "verify --no-model"):
        said_of = Command(f"index {command}").run(path)
        assert f"{path}: an addition was interrupted after 16 documents; repeat its command: " in said_of.stderr
    # Another name of the file, and the default said, are the same build.
    (tmp_path / "link.jsonl").symlink_to(more)
    for again in (tmp_path / "link.jsonl", f"{tmp_path}/../{tmp_path.name}/more.jsonl"):
        assert error(build_index, again, path, model=hash_model, mode=mode, documents="lines") == said
    # Another process adds meanwhile: automatic ids change.
    with SearchIndex.open(path, hash_model) as index:
        assert index.add(["meanwhile"], None if mode == "append" else ["m"]) == [55 if mode == "append" else "m"]
    # Another build is no repetition of this one.
    build_index(written(tmp_path / "other.txt", "other"), path, model=hash_model, mode="append")
    expected |= {55: "meanwhile", 56: "other"} if mode == "append" else {"m": "meanwhile", 56: "other"}
    hash_model.seen.clear()
    assert build_index(more, path, model=hash_model, mode=mode, resume=True) == Built(31)
    assert hash_model.seen == [row["text"] for row in rows[16:]]
    expected |= {row.get("id", 41 + place): row["text"] for place, row in enumerate(rows) if place >= 16}
    assert stored(path) == expected
    assert build_index(more, path, model=hash_model, mode=mode, resume=True) == Built(31, was_complete=True)
    assert stored(path) == expected
    assert not Command("index verify --no-model").run(path).stderr
    # A counted id that comes again is a given one.
    written(more, {"text": "counted"}, {"text": "given", "id": 72})
    assert "document 1 has no id, so --upsert" in error(build_index, more, path, model=hash_model, mode="upsert")
    build_index(more, path, model=hash_model, mode="append")
    assert stored(path)[72] == "given"


def test_of_two_additions_of_the_same_sources_one_adds_each_document_once(
    source, path, hash_model, tmp_path, monkeypatch
):
    build_index(source, path, model=hash_model)
    texts, editing, edits = [f"more {number}" for number in range(20)], writer.Writer.editing, list[int]()
    more = written(tmp_path / "more.txt", *texts)
    add = partial(build_index, more, path, model=hash_model, mode="append")

    def edit(self, **options):
        edits.append(1)
        if len(edits) == 2:
            # Between two steps of the first one.
            assert add(resume=True) == Built(20)
        return editing(self, **options)

    monkeypatch.setattr(writer.Writer, "editing", edit)
    assert "another build is running; try again when it has finished" in error(add)
    assert list(stored(path).values()) == [*TEXTS, *texts]


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_a_kill_at_the_end_does_nothing_twice(source, path, hash_model, tmp_path, monkeypatch, mode):
    build_index(source, path, model=hash_model)
    more = written(tmp_path / "more.txt", "one", "two")
    expected = dict(enumerate([*TEXTS, "one", "two"] if mode == "append" else ["one", "two"]))
    with monkeypatch.context() as patched:
        killed = Mock(side_effect=KeyboardInterrupt)
        patched.setattr(*((writer.Writer, "tidy") if mode == "append" else (files, "remove_folder")), killed)
        with pytest.raises(KeyboardInterrupt):
            build_index(more, path, model=hash_model, mode=mode)
    assert stored(path) == expected
    again = build_index(more, path, model=hash_model, mode=mode, resume=True)
    assert (again.documents, again.was_complete) == (2, mode == "overwrite")
    assert stored(path) == expected
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["index", "more.txt", "source.txt"]


def test_overwriting_keeps_the_old_one_until_the_new_one_is_whole(source, path, hash_model, tmp_path):
    old = written(tmp_path / "old.txt", "old")
    build_index(old, path, model=hash_model)
    interrupted(source, path, mode="overwrite")
    assert stored(path) == {0: "old"}
    assert build_index(source, path, model=hash_model, mode="overwrite", resume=True) == Built(40)
    assert stored(path) == dict(enumerate(TEXTS))
    interrupted(source, path, mode="overwrite")
    assert build_index(old, path, model=hash_model, mode="overwrite") == Built(1)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["index", "old.txt", "source.txt"]


def test_what_is_in_the_way_and_what_a_killed_writer_leaves_is_not(source, path, unfinished, hash_model):
    unfinished.mkdir()
    written(unfinished / "precious", "keep me")
    said = error(build_index, source, path, model=hash_model, mode="overwrite")
    assert said == f"{unfinished}: exists but is no interrupted build; delete it or choose another index name"
    shutil.rmtree(unfinished)
    interrupted(source, path)
    (unfinished / f"{'0' * 32}.faiss").write_text("{")
    assert build_index(source, path, model=hash_model, resume=True) == Built(40)
    (path / f"{'0' * 32}.faiss").write_text("{")
    assert build_index(source, path, model=hash_model, mode="overwrite") == Built(40)
    assert sorted(entry.name for entry in path.iterdir()) == ["index.sqlite"]


@pytest.mark.parametrize("begun", [True, False])
def test_a_running_build_is_neither_joined_nor_removed(source, path, unfinished, hash_model, begun):
    interrupted(source, path) if begun else SearchIndex.create(unfinished, hash_model).close()
    with locked(unfinished / "lock"):
        message = f"{unfinished}: another build is running; try again when it has finished"
        assert error(build_index, source, path, model=hash_model, resume=True) == message
    assert (unfinished / "index.sqlite").is_file()
    assert build_index(source, path, model=hash_model, resume=True) == Built(40)


def test_a_bad_line_keeps_what_came_before_and_changed_sources_are_noticed(path, unfinished, hash_model, tmp_path):
    lines = [{"text": text} for text in TEXTS]
    source = written(tmp_path / "source.jsonl", *lines[:30], "{broken", *lines[30:])
    message = error(build_index, source, path, model=hash_model)
    assert message.startswith(f"{source}, line 31: not JSON (")
    assert message.endswith(f"; 24 documents are stored in {unfinished}: continue with --resume")
    written(source, {"text": "another"}, *lines[1:])
    said = error(build_index, source, path, model=hash_model, resume=True)
    assert f"has changed since this build started; restore its first 24 documents, or delete {unfinished}" in said
    written(source, *lines, {"text": "one more"})
    assert build_index(source, path, model=hash_model, resume=True) == Built(41)


def test_embeddings_from_a_field_and_identical_texts(path, hash_model, tmp_path):
    rows = [{"text": "a", "vector": hash_vectors(["a"])[0].tolist(), "n": 1}, {"text": "b", "vector": [1.0] * 8}]
    build_index(written(tmp_path / "a.jsonl", *rows), path, model=hash_model, embedding_field="vector")
    build_index(written(tmp_path / "more.txt", *"accac"), path, model=hash_model, mode="append")
    # The index knows the vector of one of them already.
    assert hash_model.seen == ["c"]
    with SearchIndex.open(path, hash_model) as index:
        assert index.get(0).metadata == {"n": 1}
        vectors = vectors_of(path)
    np.testing.assert_allclose(vectors[[0, 2, 3, 4, 5, 6]], hash_vectors(["a", "a", "c", "c", "a", "c"]), atol=1e-6)
    path = str(tmp_path / "a.parquet")
    parquet.write_table(pyarrow.table({"text": ["a", "b"], "vector": [[1.0, 2.0], None], "n": [3, 4]}), path)
    document = next(iter(read_sources([path], embedding_field="vector")))
    assert (document.text, document.metadata, document.embedding) == ("a", {"n": 3}, [1.0, 2.0])
    lines = str(written(tmp_path / "a.jsonl", {"text": "a", "vector": [1]}, {"text": "b", "vector": None}))
    for source, message in ((path, "no field 'vector' (fields: 'n')"), (lines, "null in the field 'vector' (fields: ")):
        assert f"{source}, document 2: {message}" in error(read_sources, [source], embedding_field="vector")


@pytest.mark.skipif(os.name != "posix", reason="modes are those of POSIX")
def test_a_link_to_an_index_stays_and_a_private_index_stays_private(source, path, hash_model, tmp_path):
    build_index(source, path, model=hash_model)
    path.chmod(0o700)
    (path / "index.sqlite").chmod(0o600)
    (tmp_path / "link").symlink_to(path.name)
    for mode, documents in (("append", 80), ("overwrite", 40)):
        build_index(source, tmp_path / "link", model=hash_model, mode=mode)
        assert len(stored(path)) == documents
    assert (tmp_path / "link").is_symlink()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["index", "link", "source.txt"]
    with SearchIndex.open(path, hash_model) as index:
        index.reembed(HashModel(5))
        index.add(["more"])
        modes = {entry.name: entry.stat().st_mode & 0o777 for entry in path.iterdir()}
    assert set(modes.values()) == {0o600}
    assert path.stat().st_mode & 0o777 == 0o700


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


def test_a_merged_index_finds_what_each_found_and_what_cannot_be_merged_leaves_nothing(indexes, hash_model, tmp_path):
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
    b = tmp_path / indexes[1]
    SearchIndex.create("empty.index", chunk="sentences").close()
    message = "two indexes have a document 0; --replace keeps the later one"
    assert INDEX.fails("merge", "empty.index", *indexes, "-o", "c.index") == message
    assert INDEX.succeeds("merge", *indexes, "-o", "d.index", "--replace").endswith("6 documents in d.index\n")
    with SearchIndex.open("d.index") as replaced, SearchIndex.open(b) as index:
        assert replaced.get(0).text == SENTENCES[6]
        index.delete(0)
    assert INDEX.succeeds("merge", *indexes, "-o", "c.index").endswith("6 documents in c.index\n")
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
    build_index(written(tmp_path / "lines.txt", "one", "two"), names[0], model=hash_model)
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
    # They are above all ids of all.
    SearchIndex.create(tmp_path / "empty.index", hash_model).close()
    merge_indexes([*names[:2], tmp_path / "empty.index"], tmp_path / "more.index")
    with SearchIndex.open(tmp_path / "more.index") as index:
        assert index.ids() == [5, 6, 7, "x", 4, 8]
    # An id that was chosen later, by an upsert, is a document's own.
    for name in names[:2]:
        with SearchIndex.open(name, hash_model) as index:
            index.upsert(["mine"], [0])
    assert "two indexes have a document 0" in error(merge_indexes, names[:2], tmp_path / "d.index")


NOTES = ["The cat sat. The dog ran.", "Prices rise.", "One. Two. Three.", "Rain fell all night.", "Prices rise."]


@pytest.fixture
def notes(tmp_path):
    path = tmp_path / "notes.index"
    with SearchIndex.create(path, HashModel(), chunk="sentences") as index:
        index.add(NOTES, ["a", "b", 3, "d", "e"], [{"n": number} for number in range(5)])
        index.upsert(["Wages fall. Slowly."], ["b"], [{"n": 1}])
        index.delete("d")
    return path


def test_all_but_the_vectors_stays(notes):
    model = HashModel(16)
    with SearchIndex.open(notes) as index:
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
    assert [entry.name for entry in notes.parent.iterdir()] == ["notes.index"]
    with SearchIndex.open(notes, HashModel(16)) as index:
        assert index.count() == 5
    assert re.search(r"ctx-embed index reembed .*notes\.index", error(SearchIndex.open, notes, HashModel()))


def interrupted_reembedding(notes, model) -> None:
    """Run until the model interrupts it, with a step for each document."""
    with patch.object(writer, "BATCH_DOCUMENTS", 1), pytest.raises(KeyboardInterrupt):
        reembed(IndexFolder(notes), Model.of(model))


def test_an_interrupted_run_resumes(notes):
    model, first = HashModel(16), Interrupting(5, 16)
    with SearchIndex.open(notes, HashModel()) as index:
        interrupted_reembedding(notes, first)
        assert index.search("Two.", 1, mode="dense")[0].text == "Two."
        assert index.describe()["dimension"] == 8
        index.reembed(model)
        assert first.seen == ["The cat sat.", "The dog ran.", "One.", "Two.", "Three."]
        assert sorted(model.seen) == ["Prices rise.", "Slowly.", "Wages fall."]
        assert index.verify() == []


def test_changes_by_others_are_kept_and_another_model_begins_again(notes):
    class Changing(HashModel):
        """A model beside which another process changes the index."""

        def encode_document(self, texts, **options):
            if not self.seen:
                with SearchIndex.open(notes, HashModel()) as other:
                    other.add(["Another text."], ["new"])
                    other.delete(["a"])
                    other.upsert(["Rain falls."], ["e"])
                    other.update_metadata(3, {"n": 7})
                    other.compact("float16")
            return super().encode_document(texts, **options)

    with SearchIndex.open(notes, HashModel()) as index:
        assert index.reembed(Changing(16)) == 4
        assert set(index.ids()) == {"b", 3, "e", "new"}
        assert index.get(3).metadata == {"n": 7}
        assert index.describe()["dtype"] == "float16"
        assert index.search("Another text.", 1, mode="dense")[0].id == "new"
        assert index.search("Rain falls.", 1, mode="dense")[0].id == "e"
        assert index.verify() == []

    interrupted_reembedding(notes, Interrupting(3, 12))
    with SearchIndex.open(notes, HashModel(16)) as index:
        index.delete([3])
        index.reembed(HashModel(24))
        assert index.describe()["dimension"] == 24
        assert index.verify() == []
    with closing(sqlite3.connect(notes / "index.sqlite")) as connection:
        tables = connection.execute("SELECT count(*) FROM sqlite_master WHERE name GLOB 'vectors_*'").fetchone()
    assert tables == (1,)


def test_what_cannot_be_embedded_again_and_who_had_the_index_open(notes, tmp_path):
    with SearchIndex.create(tmp_path / "pq.index", HashModel(), "IVF2,PQ4") as index:
        assert "PQ4" in error(index.reembed, HashModel(9))
        assert index.reembed(HashModel(16)) == 0
    with SearchIndex.open(notes, HashModel()) as reader, SearchIndex.open(notes) as index:
        assert "no such model folder" in error(index.reembed, "./nowhere")
        with reader.writer.editing(), patient(0.2):
            assert "another process is writing" in error(index.reembed, HashModel(16))
        assert reader.search("Two.", 1, mode="dense")[0].text == "Two."
        index.reembed(HashModel(16))
        for work in (partial(reader.add, ["lost"]), partial(reader.search, "Two.")):
            assert "was embedded again with another model meanwhile; open it again" in error(work)
        assert index.search("Two.", 1, mode="dense")[0].text == "Two."


def test_an_index_that_cannot_be_written_is_refused_before_anything_is_embedded(source, path, unfinished, monkeypatch):
    build_index(source, path, model=HashModel())
    access = os.access
    monkeypatch.setattr(os, "access", lambda name, mode: access(name, mode) and str(name) != str(path))
    said = error(build_index, source, path, mode="append", model=Interrupting(0))
    assert said == f"cannot write {path / 'index.sqlite'}: the folder {path} is not writable"
    assert not unfinished.exists()
