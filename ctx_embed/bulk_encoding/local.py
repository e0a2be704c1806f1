"""Workers as threads of this process: each takes the next piece when idle. The kernel lets them run at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from queue import Queue
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ctx_embed.bulk_encoding.work import Part, Work
    from ctx_embed.rows.pieces import Piece


def run(work: Work, workers: int | None, finished: Callable[[Part], None]) -> None:
    """Embed pieces.

    Args:
        work: the pieces.
        workers: the number of threads; None: as many as may work at once.
        finished: called with each part, in the thread of the caller.

    Raises:
        InputError: an error of :meth:`ctx_embed.bulk_encoding.work.Worker.run`.
    """
    from ctx_embed.bulk_encoding.work import Worker, one_thread_each
    from ctx_embed.numpy_model.contextualizer import available_threads

    count = max(min(workers or available_threads(), len(work.pieces)), 1)
    parts: Queue[Part | None] = Queue(count)
    stopped = threading.Event()
    waiting = iter(work.pieces)

    def take() -> Piece | None:
        with lock:
            return None if stopped.is_set() else next(waiting, None)

    def embed(worker: Worker) -> None:
        try:
            while (piece := take()) is not None:
                for part in worker.run(piece, work.done.get(piece.key, ())):
                    parts.put(part)
                    if stopped.is_set():
                        return
        finally:
            parts.put(None)

    lock = threading.Lock()
    with ExitStack() as stack:
        stack.enter_context(one_thread_each())
        at_hand: list[Worker] = []
        for _ in range(count):
            embedder = at_hand[0].embedder if at_hand else None
            at_hand.append(stack.enter_context(closing(Worker(work.job, embedder))))
        pool = stack.enter_context(ThreadPoolExecutor(count))
        running = [pool.submit(embed, worker) for worker in at_hand]
        at_work = count
        try:
            while at_work:
                part = parts.get()
                if part is not None:
                    finished(part)
                    continue
                at_work -= 1
                if any(each.done() and each.exception() for each in running):
                    stopped.set()
        finally:
            # Whoever waits to hand a part over must be heard, or no thread ends.
            stopped.set()
            while at_work:
                at_work -= parts.get() is None
        for each in running:
            each.result()
