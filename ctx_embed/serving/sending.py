"""Sending answers: in pieces, within limits on memory and time."""

from __future__ import annotations

from typing import Any

import anyio
from starlette.types import ASGIApp, Receive, Scope, Send

from ctx_embed.serving.errors import RETRY_AFTER, error_response
from ctx_embed.serving.settings import Settings

# Number of bytes to give to a connection at a time. For a slow reader, the rest of an answer waits here and not in the
# connection's buffer.
PIECE = 1 << 16
# Maximum size of all answers that are being sent, in multiples of the largest answer.
AT_A_TIME = 4


class Sender:
    """Middleware that sends answers in pieces; answers that nobody reads are dropped before they fill the memory.

    Args:
        app: the application behind it.
        settings: limits the size of an answer and the time to send it.
    """

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self.app = app
        self._most = AT_A_TIME * settings.answer_bytes
        self._seconds = settings.timeout
        self._size = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on and send its answer."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start: Any = None
        refused = False

        async def sent(message: Any) -> None:
            nonlocal start, refused
            if message["type"] == "http.response.start":
                start = message
                return
            body = message.get("body", b"")
            if start is not None and len(body) > PIECE and self._size + len(body) > self._most:
                refused = True
                busy = error_response(429, "too many answers are being sent; ask again", "busy", RETRY_AFTER)
                await busy(scope, receive, send)
            elif not refused:
                with anyio.move_on_after(self._seconds):
                    await self._pieces(start, body, message.get("more_body", False), send)
            start = None

        await self.app(scope, receive, sent)

    async def _pieces(self, start: Any, body: bytes, more: bool, send: Send) -> None:
        self._size += len(body)
        try:
            if start is not None:
                await send(start)
            for first in range(0, max(len(body), 1), PIECE):
                last = first + PIECE >= len(body)
                part = body[first : first + PIECE]
                await send({"type": "http.response.body", "body": part, "more_body": more or not last})
        finally:
            self._size -= len(body)
