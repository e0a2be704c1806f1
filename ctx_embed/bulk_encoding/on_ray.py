"""Workers as actors of a Ray cluster: Ray Data distributes the pieces, and replaces actors that die."""

from __future__ import annotations

import logging
import os
import pickle
import re
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from ctx_embed.errors import InputError, missing_extra

if TYPE_CHECKING:
    from ctx_embed.bulk_encoding.work import Part, Work

# Cores that each actor reserves; less than one leaves room for Ray Data's own tasks.
ACTOR_CPUS = 0.5
# Ray schedules each block separately, so their number is bounded.
MOST_BLOCKS = 4096
CONNECTION_SECONDS = 10


class Actor:
    """A worker in a process of Ray; relative paths are of the working folder ``folder``, if this machine has it."""

    def __init__(self, work: Work, folder: str) -> None:
        from ctx_embed.bulk_encoding.work import Worker

        self.work = work
        with suppress(OSError):
            os.chdir(folder)
        try:
            self.worker: Worker | InputError = Worker(work)
        except InputError as error:
            self.worker = error

    def __call__(self, batch: Mapping[str, Any]) -> Iterator[dict[str, list[bytes]]]:
        """Yield the parts of a piece, or an InputError: Ray would retry the piece if it were raised."""
        from ctx_embed.bulk_encoding.work import one_thread_each

        try:
            if isinstance(self.worker, InputError):
                raise self.worker
            for place in batch["item"]:
                with one_thread_each():
                    for part in self.worker.run(self.work.pieces[int(place)]):
                        yield {"part": [pickle.dumps(part)]}
        except InputError as error:
            yield {"part": [pickle.dumps(error)]}


@contextmanager
def cluster(address: str | None = None) -> Iterator[None]:
    """Connect to the Ray cluster at an address, unless the program has done so; None starts Ray on this machine."""
    try:
        import ray
        import ray.data
    except ImportError:
        raise missing_extra("the engine ray", "ray") from None
    if ray.is_initialized():
        yield
        return
    if address and (host := re.fullmatch(r"(?:ray://)?([^:/]+):(\d+)", address)):
        try:
            # Ray itself would wait for minutes.
            socket.create_connection((host[1], int(host[2])), timeout=CONNECTION_SECONDS).close()
        except (OSError, OverflowError, UnicodeError) as error:
            raise InputError(f"Ray at {address}: cannot be reached ({error}); is the cluster running?") from None
    # By default Ray gives its workers the low priority of nice 15.
    os.environ.setdefault("RAY_worker_niceness", "0")
    # Ray's own processes print warnings about its internals.
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    quiet: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    try:
        # Without "local" Ray would look for a cluster that an earlier process recorded, perhaps before it was killed.
        with _without_standard_error():
            ray.init(address=address, **quiet) if address else ray.init("local", include_dashboard=False, **quiet)
    # Ray raises many types of error, and plain `Exception` when a node takes too long to start.
    except Exception as error:
        ray.shutdown()
        said = f"{' '.join(str(error).split()):.200}"
        if address:
            raise InputError(f"Ray at {address}: cannot be reached ({said})") from None
        raise InputError(f"Ray cannot be started on this machine ({said}); try again, or use --engine local") from None
    try:
        yield
    finally:
        ray.shutdown()


@contextmanager
def _without_standard_error() -> Iterator[None]:
    """Drop what compiled code prints inside the block, such as Ray's line about its own log level."""
    sys.stderr.flush()
    kept, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        for descriptor in (kept, nothing):
            os.close(descriptor)


def run(work: Work, workers: int | None, finished: Callable[[Part], None]) -> None:
    """Embed the pieces in actors (None: one a core); call ``finished`` with each part, perhaps more than once."""
    import ray
    import ray.data

    if not work.pieces:
        return
    context = ray.data.DataContext.get_current()
    bars, level = context.enable_progress_bars, logging.getLogger("ray.data").level
    context.enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    try:
        count = workers or max(int(ray.cluster_resources().get("CPU", 1)), 1)
        pieces = len(work.pieces)
        items = ray.data.from_items(list(range(pieces)), override_num_blocks=min(pieces, MOST_BLOCKS))
        parts = items.map_batches(
            Actor,
            fn_constructor_args=(work, os.getcwd()),
            batch_size=1,
            num_cpus=ACTOR_CPUS,
            compute=ray.data.ActorPoolStrategy(size=min(count, pieces)),
        )
        for row in parts.iter_rows():
            part = pickle.loads(row["part"])
            if isinstance(part, InputError):
                raise part
            finished(part)
    except ray.exceptions.RayError as error:
        if isinstance(error, ray.exceptions.RayTaskError):
            raise
        raise InputError(f"Ray: {str(error).strip().splitlines()[-1]:.300}; repeat the command to resume") from None
    finally:
        context.enable_progress_bars = bars
        logging.getLogger("ray.data").setLevel(level)
