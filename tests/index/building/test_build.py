import json
import os
import re
from functools import partial as partially

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from ctx_embed import SearchIndex, files
from ctx_embed.files import locked
from ctx_embed.index.building import build
from ctx_embed.index.building.build import Built, read_sources
from ctx_embed.index.writing import writer
from tests.helpers.errors import error
from tests.index.support.hash_model import HashModel, Interrupting, hash_vectors
from tests.index.support.stored import stored, vectors_of

TEXTS = [f"line {number}" for number in range(40)]


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "source.txt"
    path.write_text("\n".join(TEXTS) + "\n")
    return path


@pytest.fixture
def path(tmp_path):
    return tmp_path / "index"


@pytest.fixture
def partial(path):
    """Where an unfinished build stands."""
    return path.with_name("index.partial")


build_index = build.build_index


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch):
    monkeypatch.setattr(writer, "STEP_DOCUMENTS", 8)
    monkeypatch.setattr(writer, "BATCH_DOCUMENTS", 4)


def interrupted(source, path, texts=20, **options) -> None:
    with pytest.raises(KeyboardInterrupt):
        build_index(source, path, model=Interrupting(texts), **options)


def test_an_interrupted_build_resumes_with_the_same_options(source, path, partial, hash_model):
    # Before the first step an interruption leaves nothing.
    interrupted(source, path, texts=3)
    assert [entry.name for entry in path.parent.iterdir()] == ["source.txt"]
    interrupted(source, path, resume=True)
    assert not path.exists()
    assert list(stored(partial).values()) == TEXTS[:16]
    resume = partially(build_index, source, path, resume=True)
    for run, message in (
        (partially(build_index, source, path, model=hash_model), "holds an interrupted build; continue it with"),
        (partially(resume, model=hash_model, chunk="sentences"), "was started with other sources or options; repeat"),
        (partially(resume, model=HashModel(5)), "built with a model of unknown origin, .* dimension 8; this one has"),
    ):
        assert re.search(message, error(run))
    assert resume(model=hash_model) == Built(40)
    assert sorted(hash_model.seen) == sorted(TEXTS[16:])
    assert stored(path) == dict(enumerate(TEXTS))
    assert not partial.exists()
    assert resume(model=hash_model) == Built(40, was_complete=True)


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_an_interrupted_addition_resumes(source, path, hash_model, mode, tmp_path):
    build_index(source, path, model=hash_model)
    more = tmp_path / "more.jsonl"
    rows = [{"id": 39 if mode == "upsert" else "x", "text": "new"}, *({"text": f"more {n}"} for n in range(30))]
    more.write_text("".join(json.dumps(row) + "\n" for row in rows))
    interrupted(more, path, mode=mode)
    assert stored(path) == dict(enumerate(TEXTS))
    # Another process adds meanwhile: automatic ids change.
    with SearchIndex.open(path, hash_model) as index:
        assert index.add(["meanwhile"]) == [40]
    assert build_index(more, path, model=hash_model, mode=mode, resume=True) == Built(31)
    expected = dict(enumerate([*TEXTS, "meanwhile"])) | {rows[0]["id"]: "new"}
    expected |= {number: f"more {number - 41}" for number in range(41, 71)}
    assert stored(path) == expected
    assert build_index(more, path, model=hash_model, mode=mode, resume=True) == Built(31, was_complete=True)
    assert stored(path) == expected


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_a_kill_at_the_end_does_nothing_twice(source, path, hash_model, tmp_path, monkeypatch, mode):
    build_index(source, path, model=hash_model)
    more = tmp_path / "more.txt"
    more.write_text("one\ntwo\n")
    expected = dict(enumerate([*TEXTS, "one", "two"] if mode == "append" else ["one", "two"]))

    def killed(folder):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(build if mode == "append" else files, "remove_folder", killed)
        with pytest.raises(KeyboardInterrupt):
            build_index(more, path, model=hash_model, mode=mode)
    assert stored(path) == expected
    again = build_index(more, path, model=hash_model, mode=mode, resume=True)
    assert (again.documents, again.was_complete) == (2, mode == "overwrite")
    assert stored(path) == expected
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["index", "more.txt", "source.txt"]


def test_overwriting_keeps_the_old_one_until_the_new_one_is_whole(source, path, hash_model, tmp_path):
    old = tmp_path / "old.txt"
    old.write_text("old\n")
    build_index(old, path, model=hash_model)
    interrupted(source, path, mode="overwrite")
    assert stored(path) == {0: "old"}
    assert build_index(source, path, model=hash_model, mode="overwrite", resume=True) == Built(40)
    assert stored(path) == dict(enumerate(TEXTS))
    assert build_index(old, path, model=hash_model, mode="overwrite") == Built(1)
    interrupted(source, path, mode="overwrite")
    assert build_index(old, path, model=hash_model, mode="overwrite") == Built(1)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["index", "old.txt", "source.txt"]


def test_a_link_to_an_index_stays(source, path, hash_model, tmp_path):
    build_index(source, path, model=hash_model)
    link = tmp_path / "link"
    link.symlink_to(path.name)
    for mode, documents in (("append", 80), ("overwrite", 40)):
        build_index(source, link, model=hash_model, mode=mode)
        assert len(stored(path)) == documents
    assert link.is_symlink()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["index", "link", "source.txt"]


def test_changed_sources_are_noticed(source, path, partial, hash_model):
    interrupted(source, path)
    source.write_text("another first line\n" + "\n".join(TEXTS[1:]) + "\n")
    assert error(build_index, source, path, model=hash_model, resume=True) == (
        f"{source}: the input has changed since this build started; restore its first 16 documents, or delete "
        f"{partial} and start again; 16 documents are stored in {partial}: continue with --resume"
    )
    source.write_text("\n".join([*TEXTS, "one more"]) + "\n")
    assert build_index(source, path, model=hash_model, resume=True) == Built(41)


def test_what_a_killed_writer_leaves_is_not_in_the_way(source, path, partial, hash_model):
    interrupted(source, path)
    (partial / f"{'0' * 32}.faiss.tmp").write_text("{")
    assert build_index(source, path, model=hash_model, resume=True) == Built(40)
    (path / f"{'0' * 32}.faiss").write_text("{")
    assert build_index(source, path, model=hash_model, mode="overwrite") == Built(40)
    assert sorted(entry.name for entry in path.iterdir()) == ["index.sqlite"]


@pytest.mark.parametrize("begun", [True, False])
def test_a_running_build_is_neither_joined_nor_removed(source, path, partial, hash_model, begun):
    if begun:
        interrupted(source, path)
    else:
        SearchIndex.create(partial, hash_model).close()
    with locked(partial / "lock"):
        message = f"{partial}: another build is running; try again when it has finished"
        assert error(build_index, source, path, model=hash_model, resume=True) == message
    assert (partial / "index.sqlite").is_file()
    assert build_index(source, path, model=hash_model, resume=True) == Built(40)


def test_what_is_in_the_way(source, path, partial, hash_model):
    partial.mkdir()
    (partial / "precious").write_text("keep me")
    said = error(build_index, source, path, model=hash_model, mode="overwrite")
    assert said == f"{partial}: exists but is not an interrupted build; delete it or choose another index name"


def test_a_counted_id_that_comes_again_is_a_given_one(source, path, hash_model, tmp_path):
    build_index(source, path, model=hash_model)
    more = tmp_path / "more.jsonl"
    more.write_text('{"text": "counted"}\n{"text": "given", "id": 40}\n')
    build_index(more, path, model=hash_model, mode="upsert")
    assert stored(path)[40] == "given"


def test_a_bad_line_late_in_the_source_keeps_what_came_before(path, partial, hash_model, tmp_path):
    source = tmp_path / "source.jsonl"
    lines = [json.dumps({"text": text}) for text in TEXTS]
    source.write_text("\n".join([*lines[:30], "{broken", *lines[30:]]))
    message = error(build_index, source, path, model=hash_model)
    assert message.startswith(f"{source}, line 31: not JSON (")
    assert message.endswith(f"; 24 documents are stored in {partial}: continue with --resume")
    source.write_text("\n".join(lines))
    assert build_index(source, path, model=hash_model, resume=True) == Built(40)


def test_embeddings_from_a_field_and_identical_texts(path, hash_model, tmp_path):
    source = tmp_path / "source.jsonl"
    rows = [{"text": "a", "vector": hash_vectors(["a"])[0].tolist(), "n": 1}, {"text": "b", "vector": [1.0] * 8}]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    build_index(source, path, model=hash_model, embedding_field="vector")
    more = tmp_path / "more.txt"
    more.write_text("a\nc\nc\na\nc\n")
    build_index(more, path, model=hash_model, mode="append")
    assert hash_model.seen == ["a", "c"]
    with SearchIndex.open(path, hash_model) as index:
        assert index.get(0).metadata == {"n": 1}
        vectors = vectors_of(path)
    np.testing.assert_allclose(vectors[[0, 2, 3, 4, 5, 6]], hash_vectors(["a", "a", "c", "c", "a", "c"]), atol=1e-6)


@pytest.mark.skipif(os.name != "posix", reason="modes are those of POSIX")
def test_a_private_index_stays_private_when_it_is_built_anew(source, path, hash_model):
    build_index(source, path, model=hash_model)
    path.chmod(0o700)
    (path / "index.sqlite").chmod(0o600)
    build_index(source, path, model=hash_model, mode="overwrite")
    with SearchIndex.open(path, hash_model) as index:
        index.reembed(HashModel(5))
        index.add(["more"])
        modes = {entry.name: entry.stat().st_mode & 0o777 for entry in path.iterdir()}
    assert set(modes.values()) == {0o600}
    assert path.stat().st_mode & 0o777 == 0o700


def test_embeddings_come_from_a_field(tmp_path):
    path = str(tmp_path / "a.parquet")
    parquet.write_table(pyarrow.table({"text": ["a", "b"], "vector": [[1.0, 2.0], None], "n": [3, 4]}), path)
    document = next(iter(read_sources([path], embedding_field="vector")))
    assert (document.text, document.metadata, document.embedding) == ("a", {"n": 3}, [1.0, 2.0])
    lines = tmp_path / "a.jsonl"
    lines.write_text('{"text": "a", "vector": [1]}\n{"text": "b", "vector": null}\n')
    for source, field, message in (
        (path, "nothing", "document 1: no field 'nothing' for the embedding (fields: 'vector', 'n')"),
        (path, "vector", "document 2: no field 'vector' for the embedding (fields: 'n')"),
        (str(lines), "vector", "document 2: null in the field 'vector' for the embedding (fields: 'vector')"),
    ):
        assert error(read_sources, [source], embedding_field=field) == f"{source}, {message}"
