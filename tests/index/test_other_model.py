"""An index of another default model answers by words, and one line names the command that brings it up to date."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from ctx_embed.errors import InputError, OtherModelError
from ctx_embed.index import SearchIndex
from tests.index.support.child import ENVIRONMENT
from tests.index.support.settings import changed_settings
from tests.serving.server import post, serving

COMMAND = [sys.executable, "-c", "from ctx_embed.cli.main import main; main()"]
SENTENCES = [
    "the cat sat on the mat and looked at the dog",
    "a dog barked at the cat in the garden",
    "the film was a joy from the first scene to the last",
    "a dull film without one good idea",
    "rain fell on the garden and the house all night",
    "she reads a good book in the house",
    "the train to the city was late again",
    "prices in the city rise faster than wages",
]


class TestAnIndexOfAnotherDefaultModel:
    @pytest.fixture
    def other(self, tmp_path) -> Path:
        path = tmp_path / "default.index"
        with SearchIndex.create(path) as index:
            ids = [f"s{number}" for number in range(len(SENTENCES))]
            index.add(SENTENCES, ids=ids, metadata=[{"number": number} for number in range(len(SENTENCES))])
        # As after a change of the default model.
        changed_settings(path, model_fingerprint="0" * 64)
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
        assert "\n" not in str(caught.value)
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
