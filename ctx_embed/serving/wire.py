"""Requests and answers: JSON, read and written fast, and errors in the form that OpenAI's clients expect."""

import asyncio
import gc
import json
import re
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Annotated, Any, TypeVar

import orjson
from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, Field, model_validator
from starlette.exceptions import HTTPException
from starlette.responses import Response

from ctx_embed.errors import BusyError, DamagedError, InputError, LateError, UnwritableError, quoted, shortened
from ctx_embed.texts import well_formed

Item = TypeVar("Item")
# The type of a list in a request body. Collecting the errors of a million wrong items would take seconds.
Listed = Annotated[list[Item], Field(fail_fast=True)]
# The escape of a lone surrogate (half a character beyond U+FFFF), and the largest body in which others can wait for it.
SURROGATE, LONE, MOST_REPAIRED = re.compile(rb"\\u[dD][89a-fA-F]"), re.compile("[\ud800-\udfff]"), 1 << 19
IDS = frozenset(("id", "ids", "like", "exclude"))  # fields that hold ids
# Seconds after which a client may ask again.
RETRY_AFTER = {"Retry-After": "1"}
# Status and code of the library's errors, the most specific first.
STATUSES = {
    BusyError: (503, "writing"),
    LateError: (504, "timeout"),
    UnwritableError: (507, "storage"),
    DamagedError: (500, "damaged"),
    InputError: (400, None),
}


class Answer(Response):
    """An answer in JSON."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Return the content as JSON; bytes are JSON already."""
        return content if isinstance(content, bytes) else dumps(content)


class ApiError(HTTPException):
    """An error with its own status: ``code`` is for programs, ``param`` the field of the body that is wrong."""

    def __init__(
        self,
        status: int,
        message: str,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
        param: str | None = None,
    ) -> None:
        super().__init__(status, message, dict(headers or {}))
        self.code, self.param = code, param

    def answer(self) -> Answer:
        """Return the answer that reports the error."""
        kind = "invalid_request_error" if self.status_code < 500 else "server_error"
        error = {"message": " ".join(self.detail.split("\n")), "type": kind, "param": self.param, "code": self.code}
        return Answer({"error": error}, self.status_code, self.headers)


def busy(message: str = "the server is busy; ask again") -> ApiError:
    """Return the error for a request that may succeed a moment later."""
    return ApiError(429, message, "busy", RETRY_AFTER)


async def answer_error(request: Request, error: Any) -> Response:
    """Return the answer that reports an error of a request."""
    if isinstance(error, RequestValidationError):
        # Report only the first error in a body, with its place.
        first = error.errors()[0]
        where = [shortened(str(part)) for part in first["loc"] if part != "body"]
        if first["type"] == "json_invalid":
            error = ApiError(400, f"the body must be JSON ({first['ctx']['error']})", "invalid_json")
        elif not where:
            error = ApiError(400, "the body must be a JSON object with Content-Type: application/json")
        else:
            reason = str(first["msg"])
            error = ApiError(400, f"{'.'.join(where)}: {reason[:1].lower()}{reason[1:]}", param=where[0])
    elif isinstance(error, HTTPException) and not isinstance(error, ApiError):
        path = shortened(request.url.path)
        messages = {
            404: f"no such route: {request.method} {path}; see /docs",
            405: f"{path} does not take {request.method}; see /docs",
        }
        message = messages.get(error.status_code, str(error.detail))
        error = ApiError(error.status_code, message, headers=error.headers)
    elif isinstance(error, InputError):
        status, code = next(outcome for kind, outcome in STATUSES.items() if isinstance(error, kind))
        error = ApiError(status, str(error), code, RETRY_AFTER if status == 503 else None)
    elif not isinstance(error, ApiError):
        error = ApiError(500, "an error of the server; its log has the traceback")
    answer: Answer = error.answer()
    return answer


HANDLERS: dict[Any, Any] = dict.fromkeys((HTTPException, RequestValidationError, InputError, Exception), answer_error)


def dumps(value: Any) -> bytes:
    """Return JSON; NumPy arrays become lists of numbers."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError:
        # Metadata may hold integers above 64 bits, which orjson does not write.
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def json_list(values: Iterable[Any], most: int, part: bool = False) -> bytes:
    """Return a JSON array, written item by item so that other threads can run in between; bytes are JSON already.

    If it has more than ``most`` bytes, raise an ApiError (413) or, with ``part``, leave out the items that do not fit.
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


async def loads(body: bytes) -> Any:
    """Return the JSON values of a body, with the garbage collector off: it would visit all of them many times.

    Lone surrogates, such as half of an emoji, become U+FFFD, as they do in an index; one in an id is an ApiError. NaN,
    too many levels, and lone surrogates in more than 0.5 MB raise an orjson.JSONDecodeError.
    """
    gc.disable()
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        if len(body) > MOST_REPAIRED or not SURROGATE.search(body):
            raise
        wrong = error
    finally:
        gc.enable()
    try:
        return await asyncio.to_thread(_repaired, body)
    except (ValueError, RecursionError):
        raise wrong from None


def _repaired(body: bytes) -> Any:
    # NaN and Infinity are not JSON, and int raises a ValueError for them.
    return _well_formed(json.loads(body.decode(), parse_constant=int))


def _well_formed(value: Any, name: str = "") -> Any:
    """Return JSON values without lone surrogates; ``name`` is the field that holds them."""
    if isinstance(value, dict):
        return {well_formed(key): _well_formed(field, key) for key, field in value.items()}
    if isinstance(value, list):
        return [_well_formed(item, name) for item in value]
    # Pairs are characters by now. To encode each of many texts in vain would take seconds.
    if not isinstance(value, str) or not LONE.search(value):
        return value
    if name in IDS:
        raise ApiError(400, f"{name}: {quoted(value)} has a lone surrogate; give it another id", "invalid_id")
    return LONE.sub("\ufffd", value)


class Body(BaseModel):
    """The body of a request; unknown fields and values of other types are errors."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def with_one_unknown(cls, values: Any) -> Any:
        """Return the fields without all unknown ones but the first: an error for each of thousands takes seconds."""
        if not isinstance(values, dict) or len(values) <= len(cls.model_fields):
            return values
        chosen = [*cls.model_fields, next(name for name in values if name not in cls.model_fields)]
        return {name: values[name] for name in chosen if name in values}


class JsonRequest(Request):
    """A request whose body is parsed by orjson."""

    async def json(self) -> Any:
        """Return the body as JSON values. A JSONDecodeError is reported by FastAPI."""
        body = await self.body()
        # Let other requests run before and after the parsing of a large body.
        await asyncio.sleep(0)
        values = await loads(body)
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
