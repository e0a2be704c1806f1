"""A Ray cluster: Ray Data hands the pieces to actors, restarts those that die, and repeats what they had begun."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ctx_embed.errors import InputError, missing_extra

if TYPE_CHECKING:
    from ctx_embed.scaling.work import Part, Work

# Of a core: as much as the actor asks for, so that Ray Data's own tasks find room beside it.
ACTOR_CPUS = 0.5
# Ray plans each block by itself.
MOST_BLOCKS = 4096


class Actor:
    """A worker in a process of Ray's."""

    def __init__(self, work: Work) -> None:
        from ctx_embed.scaling.work import Worker

        self.worker = Worker(work.job)
        self.work = work

    def __call__(self, batch: Mapping[str, Any]) -> Iterator[dict[str, list[bytes]]]:
        """Yield the parts of a piece; an error of the user's as itself, or Ray would repeat it."""
        for place in batch["item"]:
            piece = self.work.pieces[int(place)]
            try:
                for part in self.worker.run(piece, self.work.done.get(piece.key, ())):
                    yield {"part": [pickle.dumps(part)]}
            except InputError as error:
                yield {"part": [pickle.dumps(error)]}


def run(work: Work, workers: int | None, finished: Callable[[Part], None], address: str | None = None) -> None:
    """Embed pieces.

    Args:
        work: the pieces.
        workers: actors; None: one for each core of the cluster.
        finished: is called with each part, at least once.
        address: of a cluster, ``auto`` for the one of this machine; None starts Ray here, for this run. A program that
            has called ``ray.init`` keeps what it has.

    Raises:
        InputError: as :func:`ctx_embed.scaling.local.run`, Ray is not installed, or there is no cluster.
    """
    try:
        import ray
        import ray.data
    except ImportError:
        raise missing_extra("the engine ray", "ray") from None
    if not work.pieces:
        return
    ours = not ray.is_initialized()
    if ours:
        quiet: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
        try:
            ray.init(address=address, **quiet) if address else ray.init(include_dashboard=False, **quiet)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise InputError(
                f"Ray at {address or 'this machine'}: cannot be reached ({str(error).strip():.200})"
            ) from None
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
            fn_constructor_args=(work,),
            batch_size=1,
            num_cpus=ACTOR_CPUS,
            compute=ray.data.ActorPoolStrategy(size=min(count, pieces)),
        )
        for row in parts.iter_rows():
            part = pickle.loads(row["part"])
            if isinstance(part, InputError):
                raise part
            finished(part)
    finally:
        context.enable_progress_bars = bars
        logging.getLogger("ray.data").setLevel(level)
        if ours:
            ray.shutdown()
