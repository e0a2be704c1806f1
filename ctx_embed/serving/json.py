"""Fast JSON for requests and answers."""

from __future__ import annotations

import asyncio
import gc
import json
import re
from collections.abc import Callable, Coroutine, Iterable
from typing import Annotated, Any, TypeVar

import orjson
from fastapi import Request
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, FailFast
from starlette.responses import Response

from ctx_embed.serving.errors import ApiError, dumps
from ctx_embed.texts import well_formed

Item = TypeVar("Item")


class _FirstError(FailFast):
    """Stops checking a list at its first wrong item: collecting a million errors would take seconds."""

    # pydantic requires that the metadata of types in a union can be hashed.
    __hash__ = object.__hash__


# The escape sequence of half of a character beyond U+FFFF; the fields that hold ids.
SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
IDS = frozenset(("id", "ids", "like", "exclude"))
# The type of a list in a request body.
Listed = Annotated[list[Item], _FirstError()]


def loads(body: bytes) -> Any:
    """Return the JSON values of a body, with the garbage collector off: it would visit all of them many times.

    Lone surrogates, such as half of an emoji, become U+FFFD, as they do in an index; an id must not have any.

    Raises:
        orjson.JSONDecodeError: it is not JSON, or it has NaN or too many levels.
        ApiError: an id has a lone surrogate.
    """
    gc.disable()
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        if not SURROGATE.search(body):
            raise
        try:
            values = json.loads(body.decode(), parse_constant=_refuse)
        except (ValueError, RecursionError):
            raise error from None
        return _well_formed(values)
    finally:
        gc.enable()


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def _well_formed(value: Any, name: str = "") -> Any:
    """Return JSON values without lone surrogates; ``name`` is that of the field that has the value."""
    if isinstance(value, dict):
        return {well_formed(key): _well_formed(field, key) for key, field in value.items()}
    if isinstance(value, list):
        return [_well_formed(item, name) for item in value]
    if not isinstance(value, str) or (formed := well_formed(value)) == value:
        return value
    if name in IDS:
        raise ApiError(400, f"{name}: {value!r} has a lone surrogate; give it another id", "invalid_id")
    return formed


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
        """Return the body as JSON values. A JSONDecodeError is reported by FastAPI."""
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
