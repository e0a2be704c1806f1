"""Dynamic batching: requests of several connections are computed in one call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Item = TypeVar("Item")
Result = TypeVar("Result")


class Batcher(Generic[Key, Item, Result]):
    """Gathers items of an event loop and computes them in a worker thread, a batch at a time.

    While a batch is computed the next one gathers: batches grow with the load, and an idle server answers at once.

    Args:
        work: takes a key and the items submitted with it; returns a result for each item.
        most: takes a key; returns the largest number of items in a batch.
    """

    def __init__(self, work: Callable[[Key, list[Item]], Sequence[Result]], most: Callable[[Key], int]) -> None:
        self._work = work
        self._most = most
        self._waiting: dict[Key, list[tuple[Item, asyncio.Future[Result]]]] = {}
        self._busy = False
        self._thread = ThreadPoolExecutor(1, "ctx-embed-batch")

    async def __call__(self, key: Key, item: Item) -> Result:
        """Return the result for an item, or raise the error of its batch; items with the same key share batches."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Result] = loop.create_future()
        self._waiting.setdefault(key, []).append((item, future))
        if not self._busy:
            self._busy = True
            # Start later, so that other items of this turn of the event loop join the batch.
            loop.call_soon(self._next, loop)
        return await future

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start a batch of the key that has waited longest."""
        while self._waiting:
            key = next(iter(self._waiting))
            waiting = self._waiting.pop(key)
            most = self._most(key)
            batch, rest = waiting[:most], waiting[most:]
            if rest:
                self._waiting[key] = rest
            # Leave out clients that gave up: their futures are cancelled.
            batch = [(item, future) for item, future in batch if not future.done()]
            if batch:
                self._thread.submit(self._run, loop, key, batch)
                return
        self._busy = False

    def _run(self, loop: asyncio.AbstractEventLoop, key: Key, batch: list[tuple[Item, asyncio.Future[Result]]]) -> None:
        results: Any
        try:
            results, error = self._work(key, [item for item, _ in batch]), None
        except Exception as raised:
            results, error = [None] * len(batch), raised

        def finish() -> None:
            # Start the next batch first, so that it is computed while the answers of this one are written.
            self._next(loop)
            for (_, future), result in zip(batch, results, strict=True):
                if not future.done():
                    if error is None:
                        future.set_result(result)
                    else:
                        future.set_exception(error)

        loop.call_soon_threadsafe(finish)

    def close(self) -> None:
        """Wait for the current batch and end the thread."""
        self._thread.shutdown()
