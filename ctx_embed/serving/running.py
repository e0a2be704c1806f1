"""Running the server: its socket, worker processes and log."""

from __future__ import annotations

import os
import signal
import socket
import sys
import tempfile
from contextlib import nullcontext
from functools import partial

import uvicorn
from uvicorn.supervisors import Multiprocess

from ctx_embed.errors import InputError
from ctx_embed.serving.protocol import Config, Protocol
from ctx_embed.serving.settings import Settings

# Seconds that running requests get to finish once the server has stopped listening.
GRACE = 30
# Maximum number of connections that wait to be accepted.
BACKLOG = 2048
# Seconds after which a worker that does not answer is restarted; loading a model on a busy machine takes long.
SILENCE = 120


def run(settings: Settings, port: int, workers: int) -> None:
    """Serve until a signal to stop; running requests are finished.

    Args:
        settings: what to serve.
        port: port to listen on; 0 takes a free one.
        workers: number of processes, which share the port.

    Raises:
        InputError: something cannot be served, or the port is taken.
    """
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
        config = Config(
            settings,
            partial(create_app, settings) if several else app,
            factory=several,
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
        listening = _listening(settings.host, port)
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        names = ", ".join(settings.names()) or "no indexes"
        print(f"ctx-embed serves {names} at http://{host}:{listening.getsockname()[1]} (Ctrl-C stops it)", flush=True)
        if several:
            app.state.service.close()
            Multiprocess(config, [listening]).run()
        else:
            uvicorn.Server(config).run([listening])


def _listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens on an address; clients that connect before the server has started wait for it.

    Raises:
        InputError: the address is taken or does not belong to this machine.
    """
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(BACKLOG)
    except OSError as error:
        raise InputError(f"cannot listen on {host}, port {port}: {error.strerror}") from None
    listening.set_inheritable(True)
    return listening
