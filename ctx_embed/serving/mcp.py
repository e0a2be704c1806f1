"""Search as tools of the Model Context Protocol, through which assistants call it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations

from ctx_embed import __version__
from ctx_embed.errors import InputError
from ctx_embed.index import SearchIndex
from ctx_embed.index.storage.documents import Id

# An assistant reads what it gets: not more than this.
MOST_HITS = 50
VALUES = 20


@contextmanager
def _reported() -> Iterator[None]:
    """Tell the assistant what is wrong with its input; of other errors it learns only that they happened."""
    try:
        yield
    except InputError as error:
        raise ToolError(str(error)) from None


def create_server(index: SearchIndex) -> MCPServer:
    """Return a server whose tools search an index and read its documents; none changes it."""
    server = MCPServer(
        "ctx-embed",
        version=__version__,
        instructions=f"Search {index.count():,} documents ({index.path.name}) by meaning and by keywords.",
        log_level="WARNING",
    )
    reads = ToolAnnotations(read_only_hint=True, open_world_hint=False)

    @server.tool(annotations=reads)
    def search(
        query: str, k: int = 10, mode: Literal["hybrid", "dense", "words"] = "hybrid", where: str | None = None
    ) -> dict[str, Any]:
        """Find the passages that answer a query best.

        Args:
            query: a question, a statement or keywords.
            k: the number of passages, at most 50.
            mode: dense ranks by meaning, words by keywords, hybrid by both.
            where: a filter over metadata, e.g. 'year >= 2020 and lang = "en"'; describe lists the fields.
        """
        with _reported():
            if not 1 <= k <= MOST_HITS:
                raise InputError(f"k must be from 1 to {MOST_HITS}, got {k}")
            hits = index.search(query, k, mode=mode, where=where)
        return {
            "hits": [
                {"id": hit.id, "score": round(hit.score, 4), "text": hit.text, "metadata": hit.metadata} for hit in hits
            ]
        }

    @server.tool(annotations=reads)
    def get(id: Id) -> dict[str, Any]:
        """Return a whole document, with its metadata.

        Args:
            id: the id of a hit.
        """
        with _reported():
            document = index.get(id)
            if document is None:
                raise InputError(f"no document has the id {id!r}")
        return {"id": document.id, "text": document.text, "metadata": document.metadata}

    @server.tool(annotations=reads)
    def describe() -> dict[str, Any]:
        """Return how many documents there are, and their metadata fields with frequent values."""
        with _reported():
            return {"documents": index.count(), "fields": [vars(field) for field in index.fields(VALUES)]}

    return server
