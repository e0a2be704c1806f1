"""Running the server: sockets, worker processes, log and signals."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.supervisors import Multiprocess

from ctx_embed.errors import InputError
from ctx_embed.serving.app import create_app
from ctx_embed.serving.observing import LOG_CONFIG, SHARED_METRICS
from ctx_embed.serving.settings import Settings

# Seconds that requests at work get to finish after a signal to stop.
GRACE = 30
# Connections that wait to be accepted.
BACKLOG = 2048
# Seconds after which a worker that says nothing is started anew; on a busy machine it takes long to load its model.
SILENCE = 120
# Whether the system spreads connections among the sockets bound to a port.
SPREADS = sys.platform == "linux"

# What the head of a request may take; a slower or larger one ends its connection.
HEAD_SECONDS, HEAD_BYTES = 10.0, 65_536


class Protocol(HttpToolsProtocol):
    """uvicorn's protocol, with limits on the head of a request: its own wait without end for what never comes."""

    _waiting: asyncio.TimerHandle | None = None
    _head_bytes = 0

    def _wait(self) -> None:
        self._arrived()
        self._head_bytes = 0
        self._waiting = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def _arrived(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """End the connection if the head is too large."""
        if self._waiting is not None:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._waiting is not None and self._head_bytes > HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("the head of the request is too large")

    def on_message_begin(self) -> None:
        """Wait for the rest of the head."""
        super().on_message_begin()
        self._wait()

    def on_headers_complete(self) -> None:
        """Note that the head has arrived."""
        self._arrived()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._arrived()
        super().connection_lost(exc)


class OwnSocket:
    """An address that becomes a socket of its own in each worker process it is sent to.

    From a socket that they share, one worker may take all connections; among sockets the kernel spreads them.
    """

    def __init__(self, host: str, port: int) -> None:
        self._address = host, port

    def __reduce__(self) -> tuple[Any, ...]:
        return _socket, (*self._address, True)


class Workers(Multiprocess):
    """The worker processes.

    Args:
        config: of uvicorn.
        sockets: for each process.
        ready: called once all processes accept connections.
    """

    def __init__(self, config: uvicorn.Config, sockets: list[Any], ready: Callable[[], None]) -> None:
        super().__init__(config, sockets)
        self._ready = ready

    def init_processes(self) -> None:
        """Start the processes and wait until they accept connections."""
        super().init_processes()
        if all(process.wait_until_ready(SILENCE, self.should_exit) for process in self.processes):
            self._ready()


def run(settings: Settings, port: int, workers: int) -> None:
    """Serve until a signal says to stop; requests at work are finished.

    Args:
        settings: what to serve.
        port: to listen on; 0 takes a free one.
        workers: the number of processes.

    Raises:
        InputError: something cannot be served, or the port is taken.
    """
    # Errors come before the socket and the workers.
    app = create_app(settings)
    several = workers > 1
    options: dict[str, Any] = {
        "host": settings.host,
        "port": port,
        "workers": workers,
        "http": Protocol,
        "loop": "uvloop",
        "ws": "none",
        "access_log": False,
        "log_config": LOG_CONFIG,
        "server_header": False,
        "backlog": BACKLOG,
        "timeout_worker_healthcheck": SILENCE,
        "timeout_graceful_shutdown": GRACE,
        "factory": several,
    }
    config = uvicorn.Config(partial(create_app, settings) if several else app, **options)
    listening = _socket(settings.host, port)
    port = listening.getsockname()[1]
    address = f"[{settings.host}]" if ":" in settings.host else settings.host
    names = ", ".join(settings.names()) or "no indexes"

    def announce() -> None:
        print(f"ctx-embed serves {names} at http://{address}:{port} (Ctrl-C stops it)", flush=True)

    # uvicorn sends itself the signal again after it has stopped as asked; this is then no failure.
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda *_: sys.exit(0))
    if several:
        app.state.service.close()
        with tempfile.TemporaryDirectory(prefix="ctx-embed-metrics-") as folder:
            os.environ[SHARED_METRICS] = folder
            if SPREADS:
                listening.close()
                # It keeps the port while workers are started anew.
                listening = _socket(settings.host, port, shared=True)
            sockets = [OwnSocket(settings.host, port) if SPREADS else listening]
            Workers(config, sockets, announce).run()
    else:
        announce()
        uvicorn.Server(config).run(sockets=[listening])


def _socket(host: str, port: int, shared: bool = False) -> socket.socket:
    """Return a socket that listens on an address.

    Args:
        host, port: the address.
        shared: bind it where others are bound too, and do not listen yet.

    Raises:
        InputError: the address is taken or is none of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        listening.bind((host, port))
        if not shared:
            # Who connects while workers start waits for them.
            listening.listen(BACKLOG)
    except OSError as error:
        raise InputError(f"cannot listen on {host}, port {port}: {error.strerror}") from None
    listening.set_inheritable(True)
    return listening
