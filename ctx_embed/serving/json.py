"""JSON in and out of requests, quickly."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine, Iterable
from typing import Annotated, Any, TypeVar

import orjson
from fastapi import Request
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, FailFast
from starlette.responses import Response

from ctx_embed.serving.errors import ApiError, dumps

Item = TypeVar("Item")


class _FirstError(FailFast):
    """Ends the check of a list at its first wrong item: a million errors take seconds."""

    # Types with metadata must be hashable to be alternatives of others.
    __hash__ = object.__hash__


# A list in a body.
Listed = Annotated[list[Item], _FirstError()]


def loads(body: bytes) -> Any:
    """Return the JSON values of a body, without the garbage collector, which would look at all of them many times.

    Raises:
        orjson.JSONDecodeError: it is no JSON, or it has NaN, lone surrogates or too many levels.
    """
    gc.disable()
    try:
        return orjson.loads(body)
    finally:
        gc.enable()


def json_list(values: Iterable[Any], most: int, part: bool = False) -> bytes:
    """Return a JSON array, made piece by piece, so that other threads run meanwhile.

    Args:
        values: the items; bytes are JSON already.
        most: largest array in bytes.
        part: stop before an item that does not fit, unless it is the first.

    Raises:
        ApiError: the array is larger (413).
    """
    pieces: list[bytes] = []
    size = 2
    for value in values:
        piece = value if isinstance(value, bytes) else dumps(value)
        size += len(piece) + 1
        if size > most:
            if part and pieces:
                break
            raise ApiError(
                413, f"the answer would be larger than {most:,} bytes; ask for less at a time", "answer_too_large"
            )
        pieces.append(piece)
    return b"[" + b",".join(pieces) + b"]"


class Answer(Response):
    """An answer in JSON."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Return the content as JSON; bytes are JSON already."""
        return content if isinstance(content, bytes) else dumps(content)


class Body(BaseModel):
    """The body of a request; unknown fields and values of other types are errors."""

    model_config = ConfigDict(extra="forbid", strict=True)


class JsonRequest(Request):
    """A request whose body orjson reads."""

    async def json(self) -> Any:
        """Return the body as JSON values; a JSONDecodeError is reported by FastAPI."""
        values = loads(await self.body())
        # Other requests come between the reading of a large body and its check.
        await asyncio.sleep(0)
        return values


class JsonRoute(APIRoute):
    """A route whose requests are :class:`JsonRequest`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler of the route."""
        handle = super().get_route_handler()

        async def handler(request: Request) -> Response:
            return await handle(JsonRequest(request.scope, request.receive))

        return handler
