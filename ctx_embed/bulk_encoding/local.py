"""Workers as processes of one machine: each asks for the next piece when idle; a process that dies is replaced."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any

from ctx_embed.errors import InputError

if TYPE_CHECKING:
    from ctx_embed.bulk_encoding.work import Job, Part, Work
    from ctx_embed.rows.pieces import Piece

# Deaths per worker that are tolerated in a row, with no part finished in between.
MOST_DEATHS = 10
_ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS", "POLARS_MAX_THREADS"), "1"
)


def default_workers() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run(work: Work, workers: int | None, finished: Callable[[Part], None]) -> None:
    """Embed pieces.

    Args:
        work: the pieces.
        workers: the number of processes; None: one for each core. A single worker runs in this process.
        finished: called with each part.

    Raises:
        InputError: an error of :meth:`ctx_embed.bulk_encoding.work.Worker.run`, or workers keep dying.
    """
    count = min(workers or default_workers(), max(len(work.pieces), 1))
    if count == 1:
        from ctx_embed.bulk_encoding.work import Worker

        worker = Worker(work.job)
        for piece in work.pieces:
            for part in worker.run(piece, work.done.get(piece.key, ())):
                finished(part)
        return
    _Pool(work, finished).run(count)


class _Pool:
    def __init__(self, work: Work, finished: Callable[[Part], None]) -> None:
        self.job = work.job
        self.waiting = deque(work.pieces)
        self.done = {key: list(names) for key, names in work.done.items()}
        self.finished = finished
        self.spawn = multiprocessing.get_context("spawn")
        self.processes: dict[Connection, Any] = {}
        self.working: dict[Connection, Piece] = {}
        self.idle: set[Connection] = set()
        self.deaths = 0

    def run(self, count: int) -> None:
        try:
            for _ in range(count):
                self._start()
            while self.waiting or self.working:
                for ready in wait(list(self.processes)):
                    self._hear(ready, count)  # type: ignore[arg-type]
        finally:
            for connection, process in self.processes.items():
                with suppress(OSError):
                    connection.send(None)
                if self.waiting or self.working:
                    process.terminate()
            for connection, process in self.processes.items():
                process.join()
                connection.close()

    def _start(self) -> None:
        ours, theirs = self.spawn.Pipe()
        process = self.spawn.Process(target=_serve, args=(theirs, self.job), daemon=True)
        with _one_thread():
            process.start()
        theirs.close()
        self.processes[ours] = process

    def _hear(self, connection: Connection, count: int) -> None:
        try:
            kind, value = connection.recv()
        except (EOFError, OSError):
            self._replace(connection, count)
            return
        if kind == "error":
            raise InputError(value)
        if kind == "part":
            self.deaths = 0
            self.done.setdefault(self.working[connection].key, []).append(value.name)
            self.finished(value)
            return
        # "ready": the process has started or finished a piece, and waits for the next one.
        self.working.pop(connection, None)
        self.idle.add(connection)
        self._deal()

    def _deal(self) -> None:
        """Give waiting pieces to idle processes."""
        while self.waiting and self.idle:
            connection, piece = self.idle.pop(), self.waiting.popleft()
            self.working[connection] = piece
            # A process that has just died is replaced when the end of its connection is read.
            with suppress(OSError):
                connection.send((piece, self.done.get(piece.key, [])))

    def _replace(self, connection: Connection, count: int) -> None:
        process = self.processes.pop(connection)
        connection.close()
        process.join()
        self.idle.discard(connection)
        piece = self.working.pop(connection, None)
        if piece is not None:
            self.waiting.appendleft(piece)
        self.deaths += 1
        if self.deaths > MOST_DEATHS * count:
            raise InputError(
                f"worker processes keep dying (the last with exit code {process.exitcode}); is there enough memory? "
                "Try fewer --workers"
            )
        self._deal()
        if self.waiting:
            self._start()


@contextmanager
def _one_thread() -> Iterator[None]:
    """Limit the libraries of processes that are started inside the block to one thread."""
    before = {name: os.environ.get(name) for name in _ONE_THREAD}
    os.environ.update(_ONE_THREAD)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _serve(connection: Connection, job: Job) -> None:
    """Embed the pieces received, until None is received or the connection ends."""
    # A terminal sends Ctrl-C to all its processes; the parent ends the workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    from ctx_embed.bulk_encoding.work import Worker

    with suppress(EOFError, OSError):
        try:
            worker = Worker(job)
            connection.send(("ready", None))
            while (task := connection.recv()) is not None:
                for part in worker.run(*task):
                    connection.send(("part", part))
                connection.send(("ready", None))
        except InputError as error:
            connection.send(("error", str(error)))
