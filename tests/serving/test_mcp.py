"""Search through the Model Context Protocol, called by the package's own client over a real process."""

from __future__ import annotations

import json
import sys

import pytest

from ctx_embed import SearchIndex
from tests.index.support.child import ENVIRONMENT

pytest.importorskip("mcp", reason="mcp is not installed")


def test_an_assistant_searches_reads_and_describes(index_path):
    import anyio
    from mcp import Client, StdioServerParameters, stdio_client

    parameters = StdioServerParameters(
        command=sys.executable, args=["-m", "ctx_embed", "mcp", str(index_path)], env=ENVIRONMENT
    )

    async def ask() -> None:
        async with Client(stdio_client(parameters)) as client:
            tools = {tool.name: tool for tool in (await client.list_tools()).tools}
            assert set(tools) == {"search", "get", "describe"}
            for tool in tools.values():
                assert all(argument.get("description") for argument in tool.input_schema["properties"].values()), tool
            found = await client.call_tool("search", {"query": "inflation", "k": 1, "where": "year >= 2020"})
            (hit,) = json.loads(found.content[0].text)["hits"]
            assert hit["id"] == 1
            assert hit["relevance"] > 0.9
            found = await client.call_tool("search", {"query": "how do volcanoes erupt?", "min_relevance": 0.9})
            assert json.loads(found.content[0].text)["hits"] == []
            document = await client.call_tool("get", {"id": "cat"})
            assert json.loads(document.content[0].text)["text"] == "the cat sat on the mat"
            part = await client.call_tool("get", {"id": "cat", "start": 4, "length": 3})
            assert json.loads(part.content[0].text)["text"] == "cat"
            assert json.loads(part.content[0].text)["characters"] == 22
            whole = await client.call_tool("get", {"id": "cat", "length": 10**9})
            assert whole.is_error
            described = json.loads((await client.call_tool("describe", {})).content[0].text)
            assert described["documents"] == 6
            assert {field["name"] for field in described["fields"]} == {"year", "lang", "topic", "tame"}
            wrong = await client.call_tool("search", {"query": "x", "where": "year >"})
            assert wrong.is_error
            assert "Traceback" not in wrong.content[0].text
            assert "filter" in wrong.content[0].text
            foreign = await client.call_tool("search", {"query": "日本語", "mode": "dense"})
            assert json.loads(foreign.content[0].text)["warning"] == "The model knows no word of the query."
            unknown = await client.call_tool("search", {"query": "x", "where": "yaer = 2020"})
            assert unknown.is_error
            assert "no document has the field 'yaer'; fields are" in unknown.content[0].text

    anyio.run(ask)


def test_a_hit_names_the_line_of_its_file(tmp_path):
    import anyio
    from mcp import Client, StdioServerParameters, stdio_client

    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / "report.rst").write_text("Report\n======\n\nRain fell all night.\n")
    SearchIndex.create(tmp_path / "notes.index", chunk="sentences").close()
    with SearchIndex.open(tmp_path / "notes.index") as index:
        index.sync(folder)
    parameters = StdioServerParameters(
        command=sys.executable, args=["-m", "ctx_embed", "mcp", str(tmp_path / "notes.index")], env=ENVIRONMENT
    )

    async def ask() -> None:
        async with Client(stdio_client(parameters)) as client:
            found = await client.call_tool("search", {"query": "rain at night", "k": 1})
            (hit,) = json.loads(found.content[0].text)["hits"]
            assert (hit["text"], hit["source"]) == ("Rain fell all night.", "report.rst:4")

    anyio.run(ask)


def test_a_hit_has_the_sentence_that_answers(tmp_path):
    import anyio
    from mcp import Client, StdioServerParameters, stdio_client

    with SearchIndex.create(tmp_path / "museum.index") as index:
        index.add(["The museum is old. It opens at nine. Tickets cost four pounds.", "Rain fell all night."])
    parameters = StdioServerParameters(
        command=sys.executable, args=["-m", "ctx_embed", "mcp", str(index.path)], env=ENVIRONMENT
    )

    async def ask() -> None:
        async with Client(stdio_client(parameters)) as client:
            found = await client.call_tool("search", {"query": "entrance fee in pounds", "mode": "dense"})
            first, second = json.loads(found.content[0].text)["hits"]
            assert first["highlight"] == "Tickets cost four pounds."
            # A passage of one sentence says it once.
            assert "highlight" not in second

    anyio.run(ask)
