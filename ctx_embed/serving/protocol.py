"""Connections: HTTP within limits of time and size."""

from __future__ import annotations

import asyncio
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ctx_embed.serving.settings import Settings

# Maximum size of a request's head; a larger head ends the connection.
HEAD_BYTES = 65_536


class Config(uvicorn.Config):
    """uvicorn's configuration, with the settings of the server.

    Args:
        settings: limits on connections.
        app, options: arguments of ``uvicorn.Config``.
    """

    def __init__(self, settings: Settings, app: Any, **options: Any) -> None:
        super().__init__(app, **options)
        self.settings = settings


class Protocol(HttpToolsProtocol):
    """uvicorn's protocol, with limits on the time that a client takes to send a request and to read its answer."""

    config: Config
    _arriving: asyncio.TimerHandle | None = None
    _leaving: asyncio.TimerHandle | None = None
    _head_bytes = 0

    def _await_head(self) -> None:
        self._head_arrived()
        self._head_bytes = 0
        self._arriving = self.loop.call_later(self.config.settings.head_seconds, self.transport.close)

    def _head_arrived(self) -> None:
        if self._arriving is not None:
            self._arriving.cancel()
            self._arriving = None

    def _await_reader(self) -> None:
        """Give the client time to read what is written."""
        if self._leaving is None:
            self._leaving = self.loop.call_later(self.config.settings.read_seconds, self.transport.abort)

    def _was_read(self) -> None:
        if self._leaving is not None:
            self._leaving.cancel()
            self._leaving = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request."""
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        """End the connection if the head is too large."""
        if self._arriving is not None:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._arriving is not None and self._head_bytes > HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("the head of the request is too large")

    def on_message_begin(self) -> None:
        """Wait for the rest of the head."""
        super().on_message_begin()
        self._await_head()

    def on_headers_complete(self) -> None:
        """Note that the head has arrived."""
        self._head_arrived()
        super().on_headers_complete()

    def pause_writing(self) -> None:
        """Wait for the client to read."""
        super().pause_writing()
        self._await_reader()

    def resume_writing(self) -> None:
        """Note that the client reads."""
        super().resume_writing()
        self._was_read()

    def on_response_complete(self) -> None:
        """Wait for the client to read the end of the answer if the connection closes after it."""
        super().on_response_complete()
        if self.transport.is_closing():
            self._await_reader()

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection."""
        super().timeout_keep_alive_handler()
        self._await_reader()

    def shutdown(self) -> None:
        """Close the connection after the answer that is being made, if any."""
        super().shutdown()
        if self.transport.is_closing():
            self._await_reader()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._head_arrived()
        super().connection_lost(exc)
        self._was_read()
