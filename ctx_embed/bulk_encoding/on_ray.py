"""A Ray cluster: Ray Data hands the pieces to actors, restarts those that die, and repeats what they had begun."""

from __future__ import annotations

import logging
import os
import pickle
import re
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from ctx_embed.errors import InputError, missing_extra

if TYPE_CHECKING:
    from ctx_embed.bulk_encoding.work import Part, Work

# Of a core: as much as the actor asks for, so that Ray Data's own tasks find room beside it.
ACTOR_CPUS = 0.5
# Ray plans each block by itself.
MOST_BLOCKS = 4096
CONNECTION_SECONDS = 10


class Actor:
    """A worker in a process of Ray's.

    Args:
        work: what there is to do.
        folder: where relative paths begin, if this machine has it.
    """

    def __init__(self, work: Work, folder: str) -> None:
        from ctx_embed.bulk_encoding.work import Worker

        self.work = work
        with suppress(OSError):
            os.chdir(folder)
        try:
            self.worker: Worker | InputError = Worker(work.job)
        except InputError as error:
            self.worker = error

    def __call__(self, batch: Mapping[str, Any]) -> Iterator[dict[str, list[bytes]]]:
        """Yield the parts of a piece; an error of the user's as itself, or Ray would repeat it."""
        try:
            if isinstance(self.worker, InputError):
                raise self.worker
            for place in batch["item"]:
                piece = self.work.pieces[int(place)]
                for part in self.worker.run(piece, self.work.done.get(piece.key, ())):
                    yield {"part": [pickle.dumps(part)]}
        except InputError as error:
            yield {"part": [pickle.dumps(error)]}


@contextmanager
def cluster(address: str | None = None) -> Iterator[None]:
    """Be connected to a Ray cluster inside the block; a program that has called ``ray.init`` keeps what it has.

    Args:
        address: of a cluster, ``auto`` for the one of this machine; None starts Ray here.

    Raises:
        InputError: Ray is not installed, or there is no cluster.
    """
    try:
        import ray
        import ray.data
    except ImportError:
        raise missing_extra("the engine ray", "ray") from None
    if ray.is_initialized():
        yield
        return
    if address and (host := re.fullmatch(r"(?:ray://)?([^:/]+):(\d+)", address)):
        _require_listening(address, host[1], int(host[2]))
    # Ray would start workers at nice 15, where any other program goes first.
    os.environ.setdefault("RAY_worker_niceness", "0")
    quiet: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    try:
        ray.init(address=address, **quiet) if address else ray.init(include_dashboard=False, **quiet)
    # Ray raises many kinds, and `Exception` itself when a node takes too long to start.
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


def _require_listening(address: str, host: str, port: int) -> None:
    """Raise an error if no process listens at an address, for which Ray would wait minutes.

    Raises:
        InputError: none does.
    """
    try:
        socket.create_connection((host, port), timeout=CONNECTION_SECONDS).close()
    except (OSError, OverflowError, UnicodeError) as error:
        raise InputError(f"Ray at {address}: cannot be reached ({error}); is the cluster running?") from None


def run(work: Work, workers: int | None, finished: Callable[[Part], None]) -> None:
    """Embed pieces on the cluster that the process is connected to.

    Args:
        work: the pieces.
        workers: actors; None: one for each core of the cluster.
        finished: is called with each part, at least once.

    Raises:
        InputError: as :func:`ctx_embed.bulk_encoding.local.run`, or the cluster fails.
    """
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
