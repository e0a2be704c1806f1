"""Access to the server: whose requests are let in, how many at a time, how large, and for how long."""

from __future__ import annotations

from typing import Any

import anyio
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ctx_embed.serving.errors import RETRY_AFTER, ApiError, error_response
from ctx_embed.serving.service import Service
from ctx_embed.serving.settings import LOOPBACK, Key

# Routes that need no key: probes have none, and the page asks the user for one.
PROBES = ("/healthz", "/readyz")
OPEN = ("/", "/docs", "/openapi.json", "/v1/server", "/v1/access")
# Routes that are answered even when the server is busy.
ALWAYS = (*PROBES, "/metrics")
# Endings of the paths whose bodies hold texts; bodies of other paths have at most SHORT_BODY bytes.
TEXTS = ("/add", "/upsert", "/embeddings", "/rerank", "/classify")
SHORT_BODY = 1 << 20
# The bodies of all requests together may take this many times the largest body.
AT_A_TIME = 8
# Seconds in which a body must arrive, unless the time limit of a request is lower.
BODY_SECONDS = 30.0
# Maximum numbers of commas and of opening brackets in a body: parsing more values would delay other requests.
MOST_COMMAS, MOST_BRACKETS = 700_000, 200_000


def sent_key(scope: Scope) -> bytes:
    """Return the key that a request has sent; empty without one."""
    for name, value in scope["headers"]:
        if name == b"authorization":
            kind, _, key = bytes(value).partition(b" ")
            return key.strip() if kind.lower() == b"bearer" else b""
    return b""


def busy(message: str = "the server is busy; ask again") -> ApiError:
    """Return the error for a request that may succeed a moment later."""
    return ApiError(429, message, "busy", RETRY_AFTER)


class Bodies:
    """The request bodies in memory; when they are too large together, the one that began to arrive first is dropped.

    Args:
        most: maximum bytes of all bodies together.
        seconds: time in which a body must arrive.
    """

    def __init__(self, most: int, seconds: float) -> None:
        self._most = most
        self._seconds = seconds
        self._size = 0
        self._arriving: dict[anyio.CancelScope, None] = {}

    async def read(self, receive: Receive, most: int) -> bytes:
        """Return the body of a request; call :meth:`release` after use.

        Raises:
            ApiError: it is larger than ``most`` bytes (413), takes too long (408) or was dropped for others (429).
        """
        parts: list[bytes] = []
        size = 0
        complete = False
        late = anyio.current_time() + self._seconds
        try:
            with anyio.CancelScope(deadline=late) as arriving:
                self._arriving[arriving] = None
                while not complete:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ApiError(499, "the client left before its request was complete")
                    part = message.get("body", b"")
                    size += len(part)
                    self._size += len(part)
                    if size > most:
                        raise ApiError(413, f"the body must be at most {most:,} bytes", "body_too_large")
                    parts.append(part)
                    complete = not message.get("more_body", False)
                    if self._size > self._most:
                        next(iter(self._arriving)).cancel()
                        # If the cancelled request is this one, it ends here.
                        await anyio.sleep(0)
            if arriving.cancelled_caught:
                if anyio.current_time() >= late:
                    raise ApiError(408, f"the body took longer than {self._seconds:g} s", "slow_body")
                raise busy()
        except BaseException:
            self._size -= size
            raise
        finally:
            del self._arriving[arriving]
        return b"".join(parts)

    def release(self, body: bytes) -> None:
        """Forget a body."""
        self._size -= len(body)


class Gate:
    """Middleware that checks keys and keeps requests within the limits of the settings.

    Args:
        app: the application behind it.
        service: has the keys and limits.
    """

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self.app = app
        self.service = service
        self.settings = service.settings
        self.bodies = Bodies(AT_A_TIME * self.settings.body_bytes, min(BODY_SECONDS, self.settings.timeout))
        self.requests = 0

    def _access(self, scope: Scope, path: str) -> Key | None:
        """Return the key of a request.

        Raises:
            ApiError: the request is not allowed.
        """
        keys = self.service.keys
        if not keys:
            # Without keys only this machine may send requests. Check the Host, because a web page could send requests
            # through a host name of its own that resolves to this machine.
            if self.settings.host in LOOPBACK and not self.settings.no_keys:
                self._require_loopback(scope)
            return None
        secret = sent_key(scope)
        key = keys.find(secret)
        if path in OPEN or path.startswith("/static/"):
            return key
        if key is None:
            said = "unknown API key" if secret else "an API key is needed; send it as Authorization: Bearer KEY"
            raise ApiError(401, said, "invalid_api_key", {"WWW-Authenticate": "Bearer"})
        return key

    def _require_loopback(self, scope: Scope) -> None:
        for name, value in scope["headers"]:
            if name == b"host":
                host = bytes(value).decode("latin-1").lower()
                host = host.partition("]")[0].lstrip("[") if host.startswith("[") else host.rpartition(":")[0] or host
                if host not in LOOPBACK:
                    raise ApiError(403, f"the Host must be {', '.join(LOOPBACK)}, got {host}", "wrong_host")

    async def _body(self, scope: Scope, path: str, receive: Receive) -> bytes:
        """Return the body of a request, once it is complete.

        Raises:
            ApiError: it is not JSON, too large or too slow.
        """
        if scope["method"] != "POST":
            return b""
        headers = dict(scope["headers"])
        # Browsers let other sites' pages send some other types without asking the server first.
        if headers.get(b"content-type", b"").partition(b";")[0].strip().lower() != b"application/json":
            raise ApiError(415, "the body must be JSON; send Content-Type: application/json", "not_json")
        most = self.settings.body_bytes if path.endswith(TEXTS) else min(SHORT_BODY, self.settings.body_bytes)
        length = headers.get(b"content-length", b"")
        if length.isdigit() and int(length) > most:
            raise ApiError(413, f"the body must be at most {most:,} bytes", "body_too_large")
        return await self.bodies.read(receive, most)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request pass, or answer it with an error."""
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        path = scope["path"].removeprefix(self.settings.root_path)
        if path in PROBES:
            return await self.app(scope, receive, send)
        body = b""
        try:
            if (key := self._access(scope, path)) is not None:
                scope["state"]["key"] = key
            body = await self._body(scope, path, receive)
            if body.count(b",") > MOST_COMMAS or body.count(b"[") + body.count(b"{") > MOST_BRACKETS:
                said = (
                    f"the body must have at most {MOST_COMMAS:,} commas and {MOST_BRACKETS:,} opening brackets; "
                    "send several requests"
                )
                raise ApiError(413, said, "too_many_values")
            if path in ALWAYS:
                return await self.app(scope, receive, send)
            if self.requests >= self.settings.max_requests:
                raise busy()
            await self._timed(scope, _replayed(body, receive), send)
        except ApiError as error:
            response = error_response(error.status_code, error.detail, error.code, error.headers)
            await response(scope, receive, send)
        finally:
            self.bodies.release(body)

    async def _timed(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, with a time limit until its answer begins."""
        started = False

        async def noted(message: Any) -> None:
            nonlocal started
            started = True
            limit.deadline = float("inf")
            await send(message)

        self.requests += 1
        try:
            with anyio.move_on_after(self.settings.timeout) as limit:
                await self.app(scope, receive, noted)
            if limit.cancelled_caught and not started:
                raise ApiError(504, f"the answer took longer than {self.settings.timeout:g} s", "timeout")
        finally:
            self.requests -= 1


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Return a ``receive`` that first returns a body that was already read."""
    read = False

    async def replayed() -> Message:
        nonlocal read
        if read:
            return await receive()
        read = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replayed
