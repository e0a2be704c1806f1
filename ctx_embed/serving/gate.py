"""The gate of the server: who may come in, how much at a time, how large and for how long."""

from __future__ import annotations

from typing import Any

import anyio
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ctx_embed.serving.errors import RETRY_AFTER, ApiError, error_response
from ctx_embed.serving.service import Service
from ctx_embed.serving.settings import LOOPBACK

# What needs no key: probes have none, and the page asks for one itself.
PROBES = ("/healthz", "/readyz")
OPEN = ("/", "/docs", "/openapi.json", "/v1/server", "/v1/access")
# The last part of the paths that change an index.
WRITES = ("/add", "/upsert", "/delete", "/update_metadata")
# The bodies held at a time, in multiples of the largest one.
BODIES = 8


def sent_key(scope: Scope) -> bytes:
    """Return the key that a request has sent; empty without one."""
    for name, value in scope["headers"]:
        if name == b"authorization":
            kind, _, key = bytes(value).partition(b" ")
            return key.strip() if kind.lower() == b"bearer" else b""
    return b""


class Gate:
    """Middleware that checks keys and keeps requests within the limits of the settings.

    Args:
        app: the application behind it.
        service: the keys and limits.
    """

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self.app = app
        self.settings = service.settings
        self.keys = service.keys
        self.requests = 0
        self.body_bytes = 0

    def _require_access(self, scope: Scope) -> None:
        path = scope["path"]
        if not self.keys:
            # Without keys only this machine may ask; a page elsewhere must not reach it under a name of its own.
            if self.settings.host in LOOPBACK and not self.settings.no_keys:
                self._require_loopback(scope)
            return
        if path in OPEN or path.startswith("/static/"):
            return
        key = sent_key(scope)
        if self.keys.allows(key, False):
            if path.endswith(WRITES) and not self.keys.allows(key, True):
                raise ApiError(403, "this key may read only; changes need a write key", "read_only_key")
            return
        said = "unknown API key" if key else "an API key is needed; send it as Authorization: Bearer KEY"
        raise ApiError(401, said, "invalid_api_key", {"WWW-Authenticate": "Bearer"})

    def _require_loopback(self, scope: Scope) -> None:
        for name, value in scope["headers"]:
            if name == b"host":
                host = bytes(value).decode("latin-1").lower()
                host = host.partition("]")[0].lstrip("[") if host.startswith("[") else host.rpartition(":")[0] or host
                if host not in LOOPBACK:
                    raise ApiError(403, f"the Host must be {', '.join(LOOPBACK)}, got {host}", "wrong_host")

    def _require_json(self, scope: Scope) -> None:
        """Refuse what a form on a foreign page could send without asking."""
        headers = dict(scope["headers"])
        if headers.get(b"content-type", b"").partition(b";")[0].strip().lower() != b"application/json":
            raise ApiError(415, "the body must be JSON; send Content-Type: application/json", "not_json")
        length = headers.get(b"content-length", b"")
        if length.isdigit() and int(length) > self.settings.body_bytes:
            raise self._too_large()

    def _too_large(self) -> ApiError:
        return ApiError(413, f"the body must be at most {self.settings.body_bytes:,} bytes", "body_too_large")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request pass, or answer it with an error."""
        if scope["type"] != "http" or scope["path"] in PROBES:
            return await self.app(scope, receive, send)
        try:
            self._require_access(scope)
            if scope["method"] == "POST":
                self._require_json(scope)
            if self.requests >= self.settings.requests:
                raise ApiError(429, "the server is busy; ask again", "busy", RETRY_AFTER)
        except ApiError as error:
            response = error_response(error.status_code, error.detail, error.code, error.headers)
            return await response(scope, receive, send)
        return await self._timed(scope, receive, send)

    async def _timed(self, scope: Scope, receive: Receive, send: Send) -> None:
        received = 0
        complete = started = False

        async def limited() -> Message:
            nonlocal received, complete
            message = await receive()
            if message["type"] == "http.request":
                size = len(message.get("body", b""))
                received += size
                self.body_bytes += size
                complete = not message.get("more_body", False)
                if received > self.settings.body_bytes:
                    raise self._too_large()
                if self.body_bytes > BODIES * self.settings.body_bytes:
                    raise ApiError(429, "the server is busy; ask again", "busy", RETRY_AFTER)
            return message

        async def noted(message: Any) -> None:
            nonlocal started
            started = True
            await send(message)

        self.requests += 1
        try:
            with anyio.move_on_after(self.settings.seconds) as scope_of_time:
                await self.app(scope, limited, noted)
            if scope_of_time.cancelled_caught and not started:
                seconds = f"{self.settings.seconds:g} s"
                response = (
                    error_response(504, f"the answer took longer than {seconds}", "timeout")
                    if complete
                    else error_response(408, f"the body took longer than {seconds}", "slow_body")
                )
                await response(scope, receive, send)
        finally:
            self.requests -= 1
            self.body_bytes -= received
