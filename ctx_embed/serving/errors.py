"""Errors as clients of OpenAI's API expect them: a status and ``{"error": {"message", "type", "param", "code"}}``."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import orjson
from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from ctx_embed.errors import BusyError, DamagedError, InputError, LateError, UnwritableError

# Seconds after which a client may ask again.
RETRY_AFTER = {"Retry-After": "1"}


def dumps(value: Any) -> bytes:
    """Return JSON; NumPy arrays become lists of numbers."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError:
        # Metadata may hold integers above 64 bits, which orjson does not write.
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


class ErrorDetail(BaseModel):
    """What went wrong."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(BaseModel):
    """The body of every answer with a status of 400 or above."""

    error: ErrorDetail


class ApiError(HTTPException):
    """An error with its own status.

    Args:
        status: the HTTP status.
        message: one line.
        code: a word that programs may compare.
        headers: more headers.
    """

    def __init__(
        self, status: int, message: str, code: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(status, message, dict(headers or {}))
        self.code = code


def error_response(
    status: int,
    message: str,
    code: str | None = None,
    headers: Mapping[str, str] | None = None,
    param: str | None = None,
) -> Response:
    """Return the answer that reports an error."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    error = {"message": " ".join(message.split("\n")), "type": kind, "param": param, "code": code}
    return Response(dumps({"error": error}), status, headers, "application/json")


def _answering(
    status: int, code: str | None = None, headers: Mapping[str, str] | None = None, message: str | None = None
) -> Callable[[Request, Any], Awaitable[Response]]:
    """Return a handler that reports errors with this status; None as message is that of the error."""

    async def answer(request: Request, error: Any) -> Response:
        return error_response(status, str(error) if message is None else message, code, headers)

    return answer


async def _api_error(request: Request, error: Any) -> Response:
    return error_response(error.status_code, error.detail, error.code, error.headers)


async def _http_error(request: Request, error: Any) -> Response:
    messages = {
        404: f"no such route: {request.method} {request.url.path}; see /docs",
        405: f"{request.url.path} does not take {request.method}; see /docs",
    }
    return error_response(error.status_code, messages.get(error.status_code, str(error.detail)), headers=error.headers)


async def _invalid(request: Request, error: Any) -> Response:
    """Report the first thing that is wrong with a body, with its place in it."""
    first = error.errors()[0]
    where = [str(part) for part in first["loc"] if part != "body"]
    if first["type"] == "json_invalid":
        return error_response(400, f"the body must be JSON ({first['ctx']['error']})", "invalid_json")
    if not where:
        return error_response(400, "the body must be a JSON object with Content-Type: application/json")
    said = str(first["msg"])
    return error_response(400, f"{'.'.join(where)}: {said[:1].lower()}{said[1:]}", param=where[0])


HANDLERS: dict[Any, Any] = {
    ApiError: _api_error,
    BusyError: _answering(503, "writing", RETRY_AFTER),
    LateError: _answering(504, "timeout"),
    UnwritableError: _answering(507, "storage"),
    DamagedError: _answering(500, "damaged"),
    InputError: _answering(400),
    HTTPException: _http_error,
    RequestValidationError: _invalid,
    # 499 is nginx's status for this; it appears only in the log.
    ClientDisconnect: _answering(499, message="the client left before its request was complete"),
    Exception: _answering(500, message="an error of the server; its log has the traceback"),
}
