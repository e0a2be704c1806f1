"""JSON in and out of requests, quickly."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any

import orjson
from fastapi import Request
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict
from starlette.responses import Response


def dumps(value: Any) -> bytes:
    """Return JSON; NumPy arrays become lists of numbers."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError:
        # Metadata may hold integers above 64 bits, which orjson does not write.
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


class Answer(Response):
    """An answer in JSON."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Return the content as JSON."""
        return dumps(content)


class Body(BaseModel):
    """The body of a request; unknown fields and values of other types are errors."""

    model_config = ConfigDict(extra="forbid", strict=True)


class JsonRequest(Request):
    """A request whose body orjson reads: it refuses NaN, lone surrogates and deep nesting."""

    async def json(self) -> Any:
        """Return the body as JSON values; a JSONDecodeError is reported by FastAPI."""
        return orjson.loads(await self.body())


class JsonRoute(APIRoute):
    """A route whose requests are :class:`JsonRequest`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler of the route."""
        handle = super().get_route_handler()

        async def handler(request: Request) -> Response:
            return await handle(JsonRequest(request.scope, request.receive))

        return handler
