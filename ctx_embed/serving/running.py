"""Running the server: sockets, worker processes, log and signals."""

from __future__ import annotations

import signal
import socket
import sys
from functools import partial
from typing import Any

import uvicorn
from uvicorn.supervisors import Multiprocess

from ctx_embed.errors import InputError
from ctx_embed.serving.app import create_app
from ctx_embed.serving.settings import Settings

# Seconds that requests at work get to finish after a signal to stop.
GRACE = 30


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
        "http": "httptools",
        "loop": "uvloop",
        "ws": "none",
        "access_log": False,
        "log_level": "warning",
        "server_header": False,
        "timeout_graceful_shutdown": GRACE,
        "factory": several,
    }
    config = uvicorn.Config(partial(create_app, settings) if several else app, **options)
    listening = _socket(settings.host, port)
    address = f"[{settings.host}]" if ":" in settings.host else settings.host
    names = ", ".join(settings.names()) or "no indexes"
    print(
        f"ctx-embed serves {names} at http://{address}:{listening.getsockname()[1]} (Ctrl-C stops it)", file=sys.stderr
    )
    # uvicorn sends itself the signal again after it has stopped as asked; this is then no failure.
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda *_: sys.exit(0))
    if several:
        app.state.service.close()
        Multiprocess(config, sockets=[listening]).run()
    else:
        uvicorn.Server(config).run(sockets=[listening])


def _socket(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to an address.

    Raises:
        InputError: the address is taken or is none of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as error:
        raise InputError(f"cannot listen on {host}, port {port}: {error.strerror}") from None
    listening.set_inheritable(True)
    return listening
