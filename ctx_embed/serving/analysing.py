"""Analyses of an index: computed once for each state of it; topics in a process that ends when nobody waits."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from pathlib import Path
from typing import Any

import anyio
import anyio.to_process

from ctx_embed.index import SearchIndex
from ctx_embed.serving.json import json_list

# Maximum number of stored results.
KEPT = 64


def topics(path: Path, most_bytes: int, count: int | None, seed: int) -> bytes:
    """Return the topics of an index as JSON, without the ids of their documents: those may be millions."""
    with SearchIndex.open(path) as index:
        found = index.topics(count, seed)
    shown = (
        {"size": topic.size, "words": topic.words, "examples": topic.examples, "label": topic.label} for topic in found
    )
    return json_list(shown, most_bytes)


def _start() -> None:
    """Do nothing: calling this starts the process that the next topics use."""


class Analyses:
    """The results of analyses, shared by all requests for the same one."""

    def __init__(self) -> None:
        self._running: OrderedDict[Hashable, asyncio.Task[bytes]] = OrderedDict()
        self._waiting: dict[Hashable, int] = {}
        self._limiter = anyio.CapacityLimiter(1)

    async def shared(self, key: Hashable, work: Callable[[], Awaitable[bytes]]) -> bytes:
        """Return the result of work, which runs once per key and is cancelled when all who wait have left."""
        if (task := self._running.get(key)) is None:
            task = self._running[key] = asyncio.ensure_future(work())
        self._running.move_to_end(key)
        self._waiting[key] = self._waiting.get(key, 0) + 1
        try:
            return await asyncio.shield(task)
        finally:
            self._waiting[key] -= 1
            if not self._waiting[key]:
                del self._waiting[key]
                task.cancel()
                if task.cancelled() or not task.done() or task.exception() is not None:
                    self._running.pop(key, None)
            # Drop the results that were requested longest ago.
            done = [key for key, task in self._running.items() if task.done() and key not in self._waiting]
            for old in done[: max(len(done) - KEPT, 0)]:
                del self._running[old]

    async def in_process(self, work: Callable[..., bytes], *arguments: Any) -> bytes:
        """Return the result of a function of this module, computed in another process, which a cancellation kills."""
        # Start the process in a task of its own: cancelling a task during the start would leave the process behind.
        await asyncio.shield(asyncio.ensure_future(anyio.to_process.run_sync(_start, limiter=self._limiter)))
        return await anyio.to_process.run_sync(work, *arguments, cancellable=True, limiter=self._limiter)
