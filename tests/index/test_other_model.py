"""An index of another default model answers by words, and one line names the command that brings it up to date."""

from __future__ import annotations

import json
import re
import sys
import warnings
from pathlib import Path

import pytest

from ctx_embed.errors import OtherModelError
from ctx_embed.index import SearchIndex
from tests.conftest import SENTENCES
from tests.helpers.cli import Command
from tests.helpers.errors import error
from tests.index.support.child import ENVIRONMENT
from tests.index.support.settings import changed_settings
from tests.serving.server import asking, serving


@pytest.fixture
def other(tmp_path) -> Path:
    path = tmp_path / "default.index"
    with SearchIndex.create(path) as index:
        index.add(SENTENCES, [f"s{n}" for n in range(8)], [{"number": n} for n in range(8)])
    # As after a change of the default model.
    changed_settings(path, model_fingerprint="0" * 64)
    return path


def test_words_are_found_and_the_command_that_is_named_brings_the_rest(other):
    with SearchIndex.open(other) as index:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert index.search("dull film", mode="words")[0].id == "s3"
            assert index.search("film", mode="words", where="number < 3")[0].id == "s2"
        with pytest.warns(UserWarning, match=r"by words alone.*with the model 'default'.*index reembed") as warned:
            (hit, *_) = index.search("dull film")
        assert (hit.id, hit.relevance) == ("s3", None)
        assert "\n" not in str(warned[0].message)
        assert "index reembed" in error(index.add, ["another"])
        assert index.count() == 8
        problems = index.verify()
        assert problems == []
        assert "index reembed" in problems.unchecked[-1]
        with pytest.raises(OtherModelError, match=r"^[^\n]*ctx-embed index reembed [^\n]*$") as caught:
            index.search("dull film", mode="dense")
    command = re.search(r"ctx-embed (index reembed) (\S+)", str(caught.value))
    Command(command[1]).succeeds(command[2])
    with SearchIndex.open(other) as index:
        assert index.search("a boring movie", mode="dense")[0].id in ("s2", "s3")


def test_a_server_answers_by_words(other):
    with serving(other) as server:
        ask = asking(server, other.name)
        for options in ({"mode": "words"}, {}):
            assert ask("search", query="dull film", **options)["hits"][0]["id"] == "s3"
        assert "index reembed" in ask("search", query="dull film", mode="dense")["error"]["message"]
        Command("index reembed").succeeds(other)
        # The server goes on, and finds the new vectors.
        assert ask("search", query="a boring movie", mode="dense")["hits"][0]["id"] in ("s2", "s3")


def test_an_assistant_finds_words_and_is_told_why(other):
    anyio = pytest.importorskip("anyio")
    mcp = pytest.importorskip("mcp")
    arguments = ["-m", "ctx_embed", "mcp", str(other)]
    server = mcp.StdioServerParameters(command=sys.executable, args=arguments, env=ENVIRONMENT)

    async def found() -> dict:
        async with mcp.Client(mcp.stdio_client(server)) as client:
            answer = await client.call_tool("search", {"query": "dull film"})
            return json.loads(answer.content[0].text)

    answer = anyio.run(found)
    assert answer["hits"][0]["id"] == "s3"
    assert "index reembed" in answer["warning"]
