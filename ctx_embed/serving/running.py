"""Running the server: sockets, worker processes, log and signals."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from functools import cached_property, partial
from types import FrameType
from typing import Any

import uvicorn
from uvicorn.supervisors import multiprocess

from ctx_embed.errors import InputError
from ctx_embed.serving.protocol import Config, Protocol
from ctx_embed.serving.settings import Settings

# Seconds that running requests get to finish once the server has stopped listening.
GRACE = 30
# Seconds that the last accepted connections get to send their request.
LAST = 3.0
# Seconds that clients get to finish opening the last connections.
HANDSHAKE = 0.2
# Linux's socket option for a filter, and a filter that drops the packets that open connections: those with TCP's SYN
# flag, which is bit 1 of byte 13.
SO_ATTACH_FILTER = 26
DROP_SYN = [(0x30, 0, 0, 13), (0x45, 0, 1, 2), (0x06, 0, 0, 0), (0x06, 0, 0, 0xFFFFFFFF)]
# Maximum number of connections that wait to be accepted.
BACKLOG = 2048
# Seconds after which a worker that does not answer is restarted; loading a model on a busy machine takes long.
SILENCE = 120
# Whether the system spreads connections among the sockets bound to a port.
SPREADS = sys.platform == "linux"


class Server(uvicorn.Server):
    """uvicorn's server, which loses no request when it is told to stop.

    On SIGTERM it keeps serving for a while, during which `/readyz` answers 503 and each answer closes its connection.
    Then it accepts the waiting connections, stops listening, and finishes the running requests.

    Args:
        config: has the seconds from SIGTERM to the end of listening.
    """

    config: Config

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self._ends = float("inf")

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to stop."""
        if sig != signal.SIGTERM or not self.started:
            super().handle_exit(sig, frame)
        elif self._ends == float("inf"):
            # Requests find this in the state of their ASGI scope.
            self.lifespan.state["draining"] = True
            self._ends = time.monotonic() + self.config.settings.drain

    async def on_tick(self, counter: int) -> bool:
        """Return whether to stop now."""
        if time.monotonic() >= self._ends and not self.should_exit:
            super().handle_exit(signal.SIGTERM, None)
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept the waiting connections, then stop listening and finish the running requests."""
        self.lifespan.state["draining"] = True
        for listening in sockets or []:
            drop_new_connections(listening)
        await asyncio.sleep(HANDSHAKE)
        waiting = []
        for listening in sockets or []:
            with contextlib.suppress(OSError):
                while True:
                    waiting.append(listening.accept()[0])
        # Stop listening at once: without a filter, connections that arrive now are reset.
        for server in self.servers:
            server.close()
        for listening in sockets or []:
            listening.close()
        for connection in waiting:
            await asyncio.get_running_loop().connect_accepted_socket(self._protocol, connection)
        latest = time.monotonic() + LAST
        while self._awaits_requests() and not self.force_exit and time.monotonic() < latest:
            await asyncio.sleep(0.05)
        await super().shutdown(sockets)

    def _awaits_requests(self) -> bool:
        """Return whether a connection has not sent its first request yet."""
        return any(getattr(connection, "cycle", None) is None for connection in self.server_state.connections)

    def _protocol(self) -> Protocol:
        return Protocol(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)


class Worker(multiprocess.Process):
    """A worker process."""

    config: Config

    @cached_property
    def server(self) -> Server:
        """The server, in the process itself."""
        return Server(self.config)


# uvicorn's supervisor makes processes by this name.
multiprocess.Process = Worker  # type: ignore[misc]


class OwnSocket:
    """An address that becomes a socket of its own in each worker process it is sent to.

    With a shared socket, one worker may accept all connections; with a socket each, the kernel spreads them.
    """

    def __init__(self, host: str, port: int) -> None:
        self._address = host, port

    def __reduce__(self) -> tuple[Any, ...]:
        return _socket, (*self._address, True)


class Workers(multiprocess.Multiprocess):
    """The worker processes.

    Args:
        config: uvicorn's configuration.
        sockets: what the processes listen on.
        ready: called once all processes accept connections.
        died: called with the process id and the exit status of a worker that ended by itself.
    """

    def __init__(
        self, config: Config, sockets: list[Any], ready: Callable[[], None], died: Callable[[int, int], None]
    ) -> None:
        super().__init__(config, sockets)
        self._ready = ready
        self._died = died

    def init_processes(self) -> None:
        """Start the processes and wait until they accept connections."""
        super().init_processes()
        if all(process.wait_until_ready(SILENCE, self.should_exit) for process in self.processes):
            self._ready()

    def keep_subprocess_alive(self) -> None:
        """Start a process for each that ended."""
        before = list(self.processes)
        super().keep_subprocess_alive()
        for process in before:
            if process not in self.processes and process.pid is not None:
                self._died(process.pid, process.exitcode or 0)


def run(settings: Settings, port: int, workers: int) -> None:
    """Serve until a signal to stop; running requests are finished.

    Args:
        settings: what to serve.
        port: port to listen on; 0 takes a free one.
        workers: number of processes.

    Raises:
        InputError: something cannot be served, or the port is taken.
    """
    # After a stop, uvicorn sends itself the signal again; make the process exit normally then.
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda *_: sys.exit(0))
    if workers == 1:
        _run(settings, port, workers)
        return
    with tempfile.TemporaryDirectory(prefix="ctx-embed-metrics-") as folder:
        # prometheus_client reads this variable when it is imported.
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder
        _run(settings, port, workers)


def _run(settings: Settings, port: int, workers: int) -> None:
    from ctx_embed.serving.app import create_app
    from ctx_embed.serving.observing import LOG_CONFIG, note_death

    # Load everything here first, so that errors come before a socket is opened or a worker starts.
    app = create_app(settings)
    several = workers > 1
    config = Config(
        settings,
        partial(create_app, settings) if several else app,
        factory=several,
        host=settings.host,
        port=port,
        workers=workers,
        http=Protocol,
        loop="uvloop",
        ws="none",
        access_log=False,
        log_config=LOG_CONFIG,
        server_header=False,
        backlog=BACKLOG,
        timeout_worker_healthcheck=SILENCE,
        timeout_graceful_shutdown=GRACE,
    )
    listening = _socket(settings.host, port)
    port = listening.getsockname()[1]
    address = f"[{settings.host}]" if ":" in settings.host else settings.host
    names = ", ".join(settings.names()) or "no indexes"

    def announce() -> None:
        print(f"ctx-embed serves {names} at http://{address}:{port} (Ctrl-C stops it)", flush=True)

    if not several:
        announce()
        Server(config).run(sockets=[listening])
        return
    app.state.service.close()
    if SPREADS:
        listening.close()
        # A socket that is bound but does not listen reserves the port while workers restart.
        listening = _socket(settings.host, port, shared=True)
    sockets = [OwnSocket(settings.host, port) if SPREADS else listening]
    Workers(config, sockets, announce, note_death).run()


def drop_new_connections(listening: socket.socket) -> None:
    """Let no more connections arrive at a socket, so that none is reset when it closes.

    The client tries again after a second, when the port is closed. Other systems than Linux have no such filter.
    """
    if sys.platform == "linux":
        code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in DROP_SYN))
        with contextlib.suppress(OSError):
            program = struct.pack("@HP", len(DROP_SYN), ctypes.addressof(code))
            listening.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)


def _socket(host: str, port: int, shared: bool = False) -> socket.socket:
    """Return a socket that listens on an address.

    Args:
        host, port: the address.
        shared: share the port with other sockets, and do not listen yet.

    Raises:
        InputError: the address is taken or does not belong to this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        listening.bind((host, port))
        if not shared:
            # Clients that connect while workers start wait for them.
            listening.listen(BACKLOG)
    except OSError as error:
        raise InputError(f"cannot listen on {host}, port {port}: {error.strerror}") from None
    listening.set_inheritable(True)
    return listening
