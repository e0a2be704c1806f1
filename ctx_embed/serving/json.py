"""Fast JSON for requests and answers."""

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
    """Stops checking a list at its first wrong item: collecting a million errors would take seconds."""

    # pydantic requires that the metadata of types in a union can be hashed.
    __hash__ = object.__hash__


# The type of a list in a request body.
Listed = Annotated[list[Item], _FirstError()]


def loads(body: bytes) -> Any:
    """Return the JSON values of a body, with the garbage collector off: it would visit all of them many times.

    Raises:
        orjson.JSONDecodeError: it is not JSON, or it has NaN, lone surrogates or too many levels.
    """
    gc.disable()
    try:
        return orjson.loads(body)
    finally:
        gc.enable()


def json_list(values: Iterable[Any], most: int, part: bool = False) -> bytes:
    """Return a JSON array, written item by item so that other threads can run in between.

    Args:
        values: the items; bytes are JSON already.
        most: maximum size of the array in bytes.
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
    """A request whose body is parsed by orjson."""

    async def json(self) -> Any:
        """Return the body as JSON values; a JSONDecodeError is reported by FastAPI."""
        values = loads(await self.body())
        # Let other requests run between the parsing of a large body and its validation.
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
