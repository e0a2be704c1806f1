"""Search as tools of the Model Context Protocol, through which assistants call it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations
from pydantic import Field, ValidationError

from ctx_embed import __version__
from ctx_embed.deadlines import within
from ctx_embed.errors import InputError, OtherModelError, quoted
from ctx_embed.index import SearchIndex
from ctx_embed.index.documents import Id
from ctx_embed.index.filters import unknown_fields_message
from ctx_embed.index.hits import rounded_down
from ctx_embed.index.query import Mode, Options, is_blank
from ctx_embed.options import declared

MEANINGS = {known.name: known.metadata["meaning"] for known in declared(Options)}
# Limits on the hits, values and characters that an assistant gets at a time, because it reads all of them.
MOST_HITS = 50
VALUES = 20
CHARACTERS = 20_000
# The time limit of a call.
SECONDS = 10


@contextmanager
def _reported() -> Iterator[None]:
    """Report wrong input, or work that takes too long, to the assistant; of other errors only that they happened."""
    try:
        with within(SECONDS):
            yield
    except InputError as error:
        raise ToolError(str(error)) from None


class _Server(MCPServer):
    """A server that says in one line which argument is wrong."""

    async def call_tool(self, *arguments: Any, **options: Any) -> Any:
        try:
            return await super().call_tool(*arguments, **options)
        except ToolError as error:
            if not isinstance(error.__cause__, ValidationError):
                raise
            first = error.__cause__.errors()[0]
            raise ToolError(f"{first['loc'][0]}: {first['msg']}, got {quoted(first['input'])}") from None


def create_server(index: SearchIndex) -> MCPServer:
    """Return a server whose tools search an index and read its documents; none changes it."""
    server = _Server(
        "ctx-embed",
        version=__version__,
        instructions=f"Search {index.count():,} documents ({index.path.name}) by meaning and by keywords.",
        log_level="WARNING",
    )
    reads = ToolAnnotations(read_only_hint=True, open_world_hint=False)

    @server.tool(annotations=reads)
    def search(
        query: Annotated[str, Field(description="A question, a statement or keywords.")],
        k: Annotated[int, Field(description=MEANINGS["k"], ge=1, le=MOST_HITS)] = Options.k,
        mode: Annotated[Mode, Field(description=MEANINGS["mode"])] = "hybrid",
        late: Annotated[bool, Field(description=MEANINGS["late"])] = Options.late,
        where: Annotated[str | None, Field(description=f"{MEANINGS['where']} describe lists the fields.")] = None,
        min_relevance: Annotated[float | None, Field(description=MEANINGS["min_relevance"], ge=0, le=1)] = None,
    ) -> dict[str, Any]:
        """Find the passages that answer a query best, with the file, line or page that each comes from.

        Highlight is the sentence of a passage that answers best. Relevance, from 0 to 1, is the share of questions
        without an answer here whose best passage would score lower; without one of 0.8, answered is false.
        """
        with _reported():
            if where is not None and (message := unknown_fields_message(index.unknown_fields(where))):
                raise InputError(message)
            options: Any = {"mode": mode, "late": late, "where": where, "min_relevance": min_relevance}
            hits = index.search(query, k, **options, highlight=True)
            sources = [index.source(hit) for hit in hits]
            warning = None if hits.known else "The model knows no word of the query."
            warning = "The query is empty: it finds nothing." if is_blank(query) else warning
            try:
                _ = index.embedder if mode == "hybrid" else None
            except OtherModelError as error:
                warning = f"Found by words alone, not by meaning: {error}"
        rows = [
            {"id": hit.id, "score": round(hit.score, 4), "text": hit.text, "metadata": hit.metadata}
            | ({} if hit.relevance is None else {"relevance": rounded_down(hit.relevance)})
            # An assistant can read a sentence, but hardly count characters.
            | ({} if hit.highlight in (None, (0, len(hit.text))) else {"highlight": hit.text[slice(*hit.highlight)]})
            | ({} if source is None else {"source": source.label})
            for hit, source in zip(hits, sources, strict=True)
        ]
        answered = {} if hits.answered is None else {"answered": hits.answered}
        return {"hits": rows} | answered | ({} if warning is None else {"warning": warning})

    @server.tool(annotations=reads)
    def get(
        id: Annotated[Id, Field(description="Id of a hit.")],
        start: Annotated[int, Field(description="First character to return, from 0.", ge=0)] = 0,
        length: Annotated[int, Field(description="Maximum characters to return.", ge=1, le=CHARACTERS)] = CHARACTERS,
    ) -> dict[str, Any]:
        """Return the text of a document, or a part of a long one, with its metadata."""
        with _reported():
            document = index.get(id)
            if document is None:
                raise InputError(f"no document has the id {quoted(id)}")
        part = {"id": document.id, "text": document.text[start : start + length], "start": start}
        return {**part, "characters": len(document.text), "metadata": document.metadata}

    @server.tool(annotations=reads)
    def describe() -> dict[str, Any]:
        """Return how many documents there are, and their metadata fields with frequent values."""
        with _reported():
            return {"documents": index.count(), "fields": [vars(field) for field in index.fields(VALUES)]}

    return server
