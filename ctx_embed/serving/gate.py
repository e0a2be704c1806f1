"""Middleware that limits requests and answers: who may send them, how many at a time, how large, and for how long."""

import hmac
from typing import Any

import anyio
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ctx_embed.errors import shortened
from ctx_embed.serving.service import Service
from ctx_embed.serving.settings import LOOPBACK, Key, Settings
from ctx_embed.serving.wire import ApiError, busy

# Routes that need no key: probes have none, and the page asks the user for one.
PROBES = ("/healthz", "/readyz")
OPEN = ("/", "/docs", "/openapi.json", "/v1/server", "/v1/access")
# Endings of the paths whose bodies hold texts; bodies of other paths have at most SHORT_BODY bytes.
TEXTS = ("/add", "/upsert", "/embeddings", "/rerank", "/classify")
SHORT_BODY = 1 << 20
# All bodies together may take this many times the maximum size of one body; so may all answers being sent.
BODIES, ANSWERS = 8, 4
# Seconds in which a body must arrive, unless the time limit of a request is lower.
BODY_SECONDS = 30.0
# What a body may have at most: parsing more would delay other requests. And the bytes that are counted for it.
MOST = {"commas": 700_000, "opening brackets": 200_000, "strings": 200_000, "fields": 50_000}
MARKS = (b",", b"[", b"{", b":", b'"', b'\\"')
# Number of bytes to give to a connection at a time. For a slow reader, the rest of an answer waits here and not in the
# connection's buffer.
PIECE = 1 << 16


class Gate:
    """Checks keys, and keeps requests within the limits of the settings."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self.app, self.keys, self.settings = app, service.keys, service.settings
        self.requests = 0
        # The size of all bodies that are in memory or arriving, and those that are arriving, in order.
        self._bytes = 0
        self._arriving: dict[anyio.CancelScope, None] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request pass, or answer it with an error."""
        path = scope["path"].removeprefix(self.settings.root_path) if scope["type"] == "http" else ""
        if scope["type"] != "http" or path in PROBES:
            return await self.app(scope, receive, send)
        body = b""
        read = started = False

        async def replayed() -> Message:
            nonlocal read
            if read:
                return await receive()
            read = True
            return {"type": "http.request", "body": body, "more_body": False}

        async def noted(message: Any) -> None:
            nonlocal started
            started = True
            limit.deadline = float("inf")
            await send(message)

        try:
            if (key := self._key(scope, path)) is not None:
                scope["state"]["key"] = key
            if scope["method"] == "POST":
                body = await self._body(Headers(scope=scope), path, receive)
            if path == "/metrics":
                return await self.app(scope, receive, send)
            if self.requests >= self.settings.max_requests:
                raise busy()
            self.requests += 1
            try:
                # The time limit ends when the answer begins.
                with anyio.move_on_after(self.settings.timeout) as limit:
                    await self.app(scope, replayed, noted)
            finally:
                self.requests -= 1
            if limit.cancelled_caught and not started:
                raise ApiError(504, f"the answer took longer than {self.settings.timeout:g} s", "timeout")
        except ApiError as error:
            await error.answer()(scope, receive, send)
        finally:
            self._bytes -= len(body)

    def _key(self, scope: Scope, path: str) -> Key | None:
        """Return the key of a request, or None if it needs none; an ApiError says that it is not allowed."""
        if not self.keys:
            # Without keys only this machine may send requests. Check the Host, because a web page could send requests
            # through a host name of its own that resolves to this machine.
            if self.settings.host in LOOPBACK and not self.settings.no_keys:
                for host in map(str.lower, Headers(scope=scope).getlist("host")):
                    name = host[1:].partition("]")[0] if host.startswith("[") else host.rpartition(":")[0] or host
                    if name not in LOOPBACK:
                        raise ApiError(
                            403, f"the Host must be {', '.join(LOOPBACK)}, got {shortened(name)}", "wrong_host"
                        )
            return None
        kind, _, sent = Headers(scope=scope).get("authorization", "").partition(" ")
        secret = sent.strip(" \t").encode("latin-1") if kind.lower() == "bearer" else b""
        # Compared in constant time.
        matching = [key for key in self.keys if hmac.compare_digest(secret, key.secret)]
        key = max(matching, key=lambda key: key.writes, default=None)
        if key is None and path not in OPEN and not path.startswith("/static/"):
            message = "unknown API key" if secret else "an API key is needed; send it as Authorization: Bearer KEY"
            raise ApiError(401, message, "invalid_api_key", {"WWW-Authenticate": "Bearer"})
        return key

    async def _body(self, headers: Headers, path: str, receive: Receive) -> bytes:
        """Return the body of a request, once it is complete; ``_bytes`` counts it.

        When all bodies together are too large, the one that began to arrive first is dropped.
        """
        # Require JSON, because browsers let pages of any site send some other types without asking the server first.
        if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise ApiError(415, "the body must be JSON; send Content-Type: application/json", "not_json")
        most = self.settings.body_bytes if path.endswith(TEXTS) else min(SHORT_BODY, self.settings.body_bytes)
        too_large = ApiError(413, f"the body must be at most {most:,} bytes", "body_too_large")
        length = headers.get("content-length", "")
        if length.isdecimal() and int(length) > most:
            raise too_large
        seconds = min(BODY_SECONDS, self.settings.timeout)
        late = anyio.current_time() + seconds
        body, counts, complete = bytearray(), [0] * len(MARKS), False
        try:
            with anyio.CancelScope(deadline=late) as arriving:
                self._arriving[arriving] = None
                while not complete:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        # nginx's status for this; it appears only in the log.
                        raise ApiError(499, "the client left before its request was complete")
                    body += (part := message.get("body", b""))
                    self._bytes += len(part)
                    if len(body) > most:
                        raise too_large
                    counts = [count + part.count(mark) for count, mark in zip(counts, MARKS, strict=True)]
                    _require_few(*counts)
                    complete = not message.get("more_body", False)
                    if self._bytes > BODIES * self.settings.body_bytes:
                        next(iter(self._arriving)).cancel()
                        # If the cancelled request is this one, it ends here.
                        await anyio.sleep(0)
            if arriving.cancelled_caught:
                if anyio.current_time() >= late:
                    raise ApiError(408, f"the body took longer than {seconds:g} s", "slow_body")
                raise busy()
        except BaseException:
            self._bytes -= len(body)
            raise
        finally:
            del self._arriving[arriving]
        return bytes(body)


def _require_few(commas: int, lists: int, objects: int, colons: int, quotes: int, escaped: int) -> None:
    """Raise an ApiError if a body has so many of :data:`MARKS` that its values may be too many."""
    # Texts have commas and colons, too: only as many quotation marks make them strings and fields.
    strings = min(commas, quotes - escaped)
    found = commas, lists + objects, strings, min(strings, colons)
    if any(count > most for count, most in zip(found, MOST.values(), strict=True)):
        most = ", ".join(f"{most:,} {name}" for name, most in MOST.items())
        raise ApiError(413, f"the body must have at most {most}; send several requests", "too_many_values")


class Sender:
    """Sends answers in pieces; answers that nobody reads are dropped before they fill the memory."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self.app, self.settings = app, settings
        self._bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on and send its answer."""
        start: Any = None
        refused, late = False, 0.0

        async def sent(message: Any) -> None:
            nonlocal start, refused, late
            if message["type"] == "http.response.start":
                start, late = message, anyio.current_time() + self.settings.timeout
                return
            body, more = message.get("body", b""), message.get("more_body", False)
            is_large = start is not None and len(body) > PIECE
            if is_large and self._bytes + len(body) > ANSWERS * self.settings.answer_bytes:
                refused = True
                await busy("too many answers are being sent; ask again").answer()(scope, receive, send)
            elif not refused:
                self._bytes += len(body)
                try:
                    with anyio.CancelScope(deadline=late) as sending:
                        if start is not None:
                            await send(start)
                        for first in range(0, max(len(body), 1), PIECE):
                            part, last = body[first : first + PIECE], first + PIECE >= len(body)
                            await send({"type": "http.response.body", "body": part, "more_body": more or not last})
                    # A piece after a missing one would hide the gap.
                    refused = sending.cancelled_caught
                finally:
                    self._bytes -= len(body)
            start = None

        await self.app(scope, receive, sent if scope["type"] == "http" else send)
