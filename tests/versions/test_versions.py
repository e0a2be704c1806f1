"""What every released version wrote is opened and used by this one; make.py writes the archives."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
import warnings
from pathlib import Path

import pytest

from ctx_embed import load
from ctx_embed.errors import InputError, OtherModelError
from ctx_embed.fingerprint import fingerprint
from ctx_embed.index import SearchIndex
from ctx_embed.index.storage.manifest import MANIFEST
from tests.index.support.child import ENVIRONMENT
from tests.serving.server import post, serving

ARCHIVES = sorted(Path(__file__).parent.glob("*.tar.gz"))
INDEXES = ("default", "sentences", "hnsw", "float16", "int8", "notes", "tiny")
COMMAND = [sys.executable, "-c", "from ctx_embed.cli.main import main; main()"]


@pytest.fixture(params=ARCHIVES, ids=lambda path: path.name.removesuffix(".tar.gz"))
def released(request, tmp_path) -> Path:
    """The folder of what a version wrote."""
    with tarfile.open(request.param) as archive:
        archive.extractall(tmp_path, filter="data")
    (folder,) = tmp_path.iterdir()
    return folder


def made_by(path: Path, fingerprint: str) -> None:
    """Let an index say that another model has made it, as after a change of the default model."""
    manifest = path / MANIFEST
    found = json.loads(manifest.read_text())
    manifest.write_text(json.dumps(found | {"model_fingerprint": fingerprint}))


@pytest.mark.parametrize("name", INDEXES)
def test_indexes_are_searched_extended_and_embedded_again(released, name):
    path = released / f"{name}.index"
    model = str(released / "classifier") if name == "tiny" else None
    with SearchIndex.open(path) as index:
        assert index.verify(embed=False) == []
        count = index.count()
        assert "dull film" in index.search("dull film", mode="words")[0].text
    with SearchIndex.open(path, model) as index:
        assert index.reembed(model) in (0, count)
        assert index.search("a boring movie", k=count, mode="dense")
        index.add(["a new document"], ids=["new"])
        assert index.search("a new document", mode="dense")[0].id == "new"
        index.delete(["new"])
        index.compact()
        assert index.verify() == []
        assert index.count() == count


def test_metadata_of_indexes_is_found(released):
    with SearchIndex.open(released / "default.index") as index:
        hits = index.search("film", mode="words", where='label = "b" and number >= 3 and day > "2026-01-01"')
        assert [hit.id for hit in hits] == ["s3"]
        assert index.get("s3").metadata == {"label": "b", "number": 3, "day": "2026-04-01"}


def test_classifiers_and_data_sets_are_read(released):
    def run(*arguments: object) -> str:
        done = subprocess.run([*COMMAND, *map(str, arguments)], capture_output=True, text=True, check=True)
        return done.stdout

    predicted = json.loads(run("predict", released / "classifier", released / "records.jsonl", "--json"))
    assert [row["label"] in "ab" for row in predicted] == [True] * 8
    data_set = [str(part) for part in ("--from-parquet", released / "parquet", released / "new.index")]
    refused = subprocess.run([*COMMAND, "index", "build", *data_set], capture_output=True, text=True)
    assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (1, "", 1)
    assert refused.stderr.endswith("another version of it made them, so embed the texts again\n")
    assert not (released / "new.index").exists()
    record = released / "parquet" / "_collection.json"
    record.write_text(json.dumps(json.loads(record.read_text()) | {"model_fingerprint": fingerprint(load())}))
    assert run("index", "build", *data_set).startswith("8 documents")


class TestAnIndexOfAnotherDefaultModel:
    @pytest.fixture
    def other(self, released) -> Path:
        path = released / "default.index"
        made_by(path, "0" * 64)
        return path

    def test_words_and_metadata_are_found_without_a_word(self, other):
        with warnings.catch_warnings(), SearchIndex.open(other) as index:
            warnings.simplefilter("error")
            assert index.search("dull film", mode="words")[0].id == "s3"
            assert index.search("film", mode="words", where="number < 3")[0].id == "s2"

    def test_hybrid_searches_find_words_and_say_why(self, other):
        said = pytest.warns(UserWarning, match=r"by words alone.*built with the model 'default'.*index reembed")
        with SearchIndex.open(other) as index, said as warned:
            hits = index.search("dull film")
        assert hits[0].id == "s3"
        assert hits[0].relevance is None
        assert "\n" not in str(warned[0].message)

    def test_dense_searches_refuse_in_one_line(self, other):
        with SearchIndex.open(other) as index, pytest.raises(OtherModelError, match="index reembed") as caught:
            index.search("dull film", mode="dense")
        assert "\n" not in str(caught.value)

    def test_additions_refuse_and_change_nothing(self, other):
        with SearchIndex.open(other) as index, pytest.raises(InputError, match="index reembed"):
            index.add(["another"])
        with SearchIndex.open(other) as index:
            assert index.count() == 8

    def test_verify_checks_all_but_the_vectors(self, other):
        with SearchIndex.open(other) as index:
            problems = index.verify()
        assert problems == []
        assert "index reembed" in problems.unchecked[-1]

    def test_the_command_that_is_named_brings_it_up_to_date(self, other):
        with SearchIndex.open(other) as index, pytest.raises(OtherModelError) as caught:
            index.search("dull film", mode="dense")
        command = re.search(r"ctx-embed (index reembed \S+)", str(caught.value))[1]
        subprocess.run([*COMMAND, *command.split()], check=True, capture_output=True)
        with SearchIndex.open(other) as index:
            assert index.search("a boring movie", mode="dense")[0].id in ("s2", "s3")

    def test_a_server_answers_by_words(self, other):
        with serving(other) as server:

            def answer(query: str, **options: str) -> dict:
                return post(f"{server.url}/v1/indexes/{other.name}/search", json={"query": query, **options}).json()

            assert answer("dull film", mode="words")["hits"][0]["id"] == "s3"
            assert answer("dull film")["hits"][0]["id"] == "s3"
            assert "index reembed" in answer("dull film", mode="dense")["error"]["message"]
            subprocess.run([*COMMAND, "index", "reembed", other], check=True, capture_output=True)
            # The server goes on, and finds the new index in its place.
            assert answer("a boring movie", mode="dense")["hits"][0]["id"] in ("s2", "s3")

    def test_an_assistant_finds_words_and_is_told_why(self, other):
        anyio = pytest.importorskip("anyio")
        mcp = pytest.importorskip("mcp")
        server = mcp.StdioServerParameters(
            command=sys.executable, args=[*COMMAND[1:], "mcp", str(other)], env=ENVIRONMENT
        )

        async def found(**options: str) -> dict:
            async with mcp.Client(mcp.stdio_client(server)) as client:
                answer = await client.call_tool("search", {"query": "dull film", **options})
                return json.loads(answer.content[0].text)

        answer = anyio.run(found)
        assert answer["hits"][0]["id"] == "s3"
        assert "index reembed" in answer["warning"]
