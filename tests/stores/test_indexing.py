"""A search index built from a directory of embeddings, in steps that survive kills."""

import subprocess
import sys
from functools import partial

import pytest

from ctx_embed import SearchIndex, stores
from ctx_embed.index.writing import writer
from ctx_embed.index.writing.writer import Edit
from ctx_embed.stores.indexing import index_parquet
from tests.helpers.cli import Command
from tests.helpers.errors import error

DOCUMENTS, STEP = 60, 12
# Build or resume, and die by the kill signal just before one of the commits.
KILLED = """
import os, signal, sys
from ctx_embed.index.building import build
from ctx_embed.index.writing import writer
from ctx_embed.stores import indexing

writer.STEP_DOCUMENTS, writer.STEP_SECONDS, writer.BATCH_DOCUMENTS = {step}, 600, 4
record, commits = build.record, [0]

def recorded(store, state):
    record(store, state)
    commits[0] += 1
    if commits[0] == {commit}:
        os.kill(os.getpid(), signal.SIGKILL)

build.record = recorded
indexing.index_parquet({source!r}, {path!r}, mode={mode!r}, resume=True)
"""


@pytest.fixture
def source(tmp_path, embedder, rows):
    """Rows in several parts, one of which replaces an earlier one."""
    with stores.open(tmp_path / "embeddings") as store:
        store.ensure(stores.Collection.of(embedder, {"n": "int"}))
        for first in range(0, DOCUMENTS, 20):
            places = range(first, first + 20)
            store.upsert(rows([f"text {n}" for n in places], [f"d{n}" for n in places], [{"n": n} for n in places]))
    return tmp_path / "embeddings"


def stored(path) -> dict[str, str]:
    with SearchIndex.open(path) as index:
        assert index.verify() == []
        return {document.id: document.text for document in index.documents()}


@pytest.mark.skipif(sys.platform == "win32", reason="kills processes")
@pytest.mark.parametrize("mode", ["create", "upsert"])
def test_a_killed_build_resumes_after_its_last_step(source, tmp_path, embedder, rows, monkeypatch, mode):
    path, partial = tmp_path / "index", tmp_path / "index.partial"
    expected = {f"d{n}": f"text {n}" for n in range(DOCUMENTS)}
    if mode == "upsert":
        with SearchIndex.create(path) as index:
            index.add(["another", "of old"], ids=["x", "d3"])
        expected["x"] = "another"
    kept = []
    for commit in (2, 3):
        program = KILLED.format(step=STEP, commit=commit, source=str(source), path=str(path), mode=mode)
        assert subprocess.run([sys.executable, "-c", program], check=False).returncode == -9
        kept.append(len(stored(partial)))
    # The step that a process was about to commit is lost, those before it are not.
    assert kept == [0, 2 * STEP]
    assert "holds an interrupted build; continue it with --resume" in error(index_parquet, source, path, mode=mode)
    added = []
    add = Edit.add
    monkeypatch.setattr(Edit, "add", lambda self, some, **given: added.append(len(some)) or add(self, some, **given))
    built = index_parquet(source, path, mode=mode, resume=True)
    assert built.documents == DOCUMENTS
    assert sum(added) == DOCUMENTS - kept[-1] + (DOCUMENTS if mode == "upsert" else 0)
    assert stored(path) == expected
    assert not partial.exists()
    with SearchIndex.open(path) as index:
        hit = index.search("text 17", k=1, where="n = 17")[0]
        assert hit.score == pytest.approx(1, abs=1e-5)
    assert index_parquet(source, path, mode=mode, resume=True).was_complete


def test_embeddings_that_changed_meanwhile_are_refused(source, tmp_path, embedder, rows, monkeypatch):
    path = tmp_path / "index"
    monkeypatch.setattr(writer, "STEP_DOCUMENTS", STEP)
    monkeypatch.setattr(writer, "BATCH_DOCUMENTS", 4)
    add = Edit.add
    calls = []

    def interrupted(self, some, **given):
        calls.append(some)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return add(self, some, **given)

    monkeypatch.setattr(Edit, "add", interrupted)
    with pytest.raises(KeyboardInterrupt):
        index_parquet(source, path)
    with stores.open(source) as store:
        store.upsert(rows(["other"], ["d1"], [{}]))
    assert "the input has changed since this build started" in error(index_parquet, source, path, resume=True)
    # From the beginning, the newer row is there once.
    assert index_parquet(source, path, mode="overwrite").documents == DOCUMENTS
    assert stored(path)["d1"] == "other"


def test_of_rows_with_one_id_in_several_directories_the_last_is_indexed(source, tmp_path, embedder, rows):
    with stores.open(tmp_path / "more") as store:
        store.ensure(stores.Collection.of(embedder))
        store.upsert(rows(["newer", "new"], ["d7", "e"]))
    INDEX, path = Command("index build --from-parquet"), tmp_path / "both.index"
    build = partial(INDEX.succeeds, source, tmp_path / "more", path)
    refused = partial(INDEX.fails, source, tmp_path / "more", path)
    assert build() == f"{DOCUMENTS + 2} documents indexed in {path}\n"
    found = stored(path)
    assert (len(found), found["d7"], found["e"]) == (DOCUMENTS + 1, "newer", "new")
    assert build("--resume").startswith("nothing to do")
    assert "already exists" in refused()
    assert "already in the index" in refused("--append")
    assert build("--upsert") == f"{DOCUMENTS + 2} documents added to {path}\n"
    build("--overwrite", "--dtype", "float16")
    with SearchIndex.open(path) as index:
        assert (index.count(), index.describe()["dtype"]) == (DOCUMENTS + 1, "float16")
    assert "no embeddings there" in INDEX.fails("nowhere", path)
    assert refused("--chunk", "sentences", code=2) == "--chunk and --from-parquet cannot be combined"


def test_a_directory_that_is_not_complete_is_refused(source, tmp_path):
    with stores.open(source) as store:
        store.write_note("run-0000", {"signature": "", "finished": True})
        assert index_parquet(source, tmp_path / "a.index").documents == DOCUMENTS
        store.write_note("run-0001", {"signature": "", "finished": False})
    said = error(index_parquet, source, tmp_path / "b.index")
    assert "is not complete; wait for its run, or repeat that `ctx-embed encode`" in said
    assert not (tmp_path / "b.index").exists()
