"""The process: its connections, socket and workers."""

import asyncio
import os
import signal
import socket
import sys
import tempfile
from contextlib import nullcontext
from functools import partial
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.supervisors import Multiprocess

from ctx_embed.errors import InputError
from ctx_embed.serving.settings import Settings

# Seconds that running requests get to finish once the server has stopped listening.
GRACE = 30
# Maximum number of connections that wait to be accepted.
BACKLOG = 2048
# Seconds after which a worker that does not answer is restarted; loading a model on a busy machine takes long.
SILENCE = 120
# Maximum size of a request's head, and of what follows its body; more ends the connection.
HEAD_BYTES = 65_536


class _Protocol(HttpToolsProtocol):
    """uvicorn's protocol, with limits on the time and the size of a request's head."""

    def __init__(self, *arguments: Any, settings: Settings, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.settings = settings
        # Ends the connection if a head does not arrive; None while no head is awaited.
        self._timer: asyncio.TimerHandle | None = None
        # Bytes since a head, or a piece of a body, was complete.
        self._head_bytes = 0

    def _await_head(self) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(self.settings.head_seconds, self.transport.close)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        self._head_bytes += len(data)
        super().data_received(data)
        if self._head_bytes > HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("the head of the request is too large")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._await_head()

    def on_headers_complete(self) -> None:
        self._stop_timer()
        self._head_bytes = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._head_bytes = 0
        super().on_body(body)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)


class _Workers(Multiprocess):
    """uvicorn's workers. Each alone holds its end of its pipe, so that one that dies while it is asked is noticed."""

    def keep_subprocess_alive(self) -> None:
        for worker in self.processes:
            worker.child_conn.close()
        super().keep_subprocess_alive()


def run(settings: Settings, port: int, workers: int) -> None:
    """Serve until a signal to stop, then finish running requests. Port 0 chooses a free port, which workers share."""
    # After a stop, uvicorn sends itself the signal again; make the process exit normally then.
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda *_: sys.exit(0))
    several = workers > 1
    with tempfile.TemporaryDirectory(prefix="ctx-embed-metrics-") if several else nullcontext() as folder:
        if folder is not None:
            # prometheus_client reads this variable when it is imported.
            os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder
        from ctx_embed.serving.app import create_app
        from ctx_embed.serving.observing import LOG_CONFIG

        # Load everything here first, so that errors come before a socket is opened or a worker starts.
        app = create_app(settings)
        config = uvicorn.Config(
            partial(create_app, settings) if several else app,
            factory=several,
            workers=workers,
            http=partial(_Protocol, settings=settings),  # type: ignore[arg-type]  # any callable will do
            loop="uvloop",
            ws="none",
            access_log=False,
            log_config=LOG_CONFIG,
            server_header=False,
            backlog=BACKLOG,
            timeout_worker_healthcheck=SILENCE,
            timeout_graceful_shutdown=GRACE,
        )
        is_ipv6 = ":" in settings.host
        listening = socket.socket(socket.AF_INET6 if is_ipv6 else socket.AF_INET)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if sys.platform == "linux":
            # Connections inherit this option: Linux ends a connection whose client reads nothing for this long.
            milliseconds = round(1000 * settings.read_seconds)
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
        try:
            listening.bind((settings.host, port))
            # Clients that connect before the server has started wait for it.
            listening.listen(BACKLOG)
        except OSError as error:
            raise InputError(f"cannot listen on {settings.host}, port {port}: {error.strerror}") from None
        listening.set_inheritable(True)
        address = f"{f'[{settings.host}]' if is_ipv6 else settings.host}:{listening.getsockname()[1]}"
        served = ", ".join(settings.names()) or "no indexes"
        print(f"ctx-embed serves {served} at http://{address} (Ctrl-C stops it)", flush=True)
        if several:
            app.state.service.close()
            _Workers(config, [listening]).run()
        else:
            uvicorn.Server(config).run([listening])
