"""Search through the Model Context Protocol, called by the package's own client over a real process."""

import json
import sys
from typing import Any

import anyio
import pytest

from ctx_embed import SearchIndex
from tests.index.support.child import ENVIRONMENT

mcp = pytest.importorskip("mcp", reason="mcp is not installed")


async def answer(client: Any, tool: str, **arguments: object) -> dict[str, Any]:
    """Return the JSON values that a tool answers."""
    return json.loads((await client.call_tool(tool, arguments)).content[0].text)


def test_an_assistant_searches_reads_and_describes(tmp_path):
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / "cat.txt").write_text("The cat sat on the mat.\n\nRain fell all night.\n")
    (folder / "museum.txt").write_text("The museum is old. It opens at nine. Tickets cost four pounds.\n")
    with SearchIndex.create(tmp_path / "notes.index") as index:
        index.sync(folder)
        index.add(["prices rise faster than wages"], [1], [{"year": 2020}])

    arguments = ["-m", "ctx_embed", "mcp", str(tmp_path / "notes.index")]
    parameters = mcp.StdioServerParameters(command=sys.executable, args=arguments, env=ENVIRONMENT)

    async def ask() -> None:
        async with mcp.Client(mcp.stdio_client(parameters)) as client:
            await used(client)

    async def used(client: Any) -> None:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(tools) == {"search", "get", "describe"}
        for tool in tools.values():
            assert all(argument.get("description") for argument in tool.input_schema["properties"].values()), tool
        (hit,) = (await answer(client, "search", query="inflation", k=1, where="year >= 2020"))["hits"]
        assert hit["id"] == 1
        assert hit["relevance"] > 0.9
        first, *_ = (await answer(client, "search", query="entrance fee in pounds", mode="dense"))["hits"]
        assert (first["highlight"], first["source"]) == ("Tickets cost four pounds.", "museum.txt:1")
        assert (await answer(client, "search", query="how do volcanoes erupt?", min_relevance=0.9))["hits"] == []
        assert (await answer(client, "get", id="cat.txt"))["text"].startswith("The cat sat on the mat.")
        part = await answer(client, "get", id="cat.txt", start=4, length=3)
        assert (part["text"], part["characters"]) == ("cat", 46)
        described = await answer(client, "describe")
        assert described["documents"] == 3
        assert {"year", "source"} <= {field["name"] for field in described["fields"]}
        foreign = await answer(client, "search", query="日本語", mode="dense")
        assert foreign["warning"] == "The model knows no word of the query."
        assert (await client.call_tool("get", {"id": "cat.txt", "length": 10**9})).is_error
        for where, said in (("year >", "filter"), ("yaer = 2020", "no document has a field 'yaer' (fields: ")):
            wrong = await client.call_tool("search", {"query": "x", "where": where})
            assert wrong.is_error
            assert said in wrong.content[0].text
            assert "Traceback" not in wrong.content[0].text

    anyio.run(ask)
