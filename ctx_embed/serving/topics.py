"""The topics of an index, computed in a process of its own, which imports no more than it needs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import anyio
import anyio.to_process

from ctx_embed.index import SearchIndex
from ctx_embed.serving.wire import json_list


async def topics(limiter: anyio.CapacityLimiter, *arguments: Any) -> bytes:
    """Return the result of :func:`computed`; a cancellation kills its process."""
    # Start the process in a task of its own: cancelling a task during the start would leave the process behind.
    await asyncio.shield(asyncio.ensure_future(anyio.to_process.run_sync(_start, limiter=limiter)))
    return await anyio.to_process.run_sync(computed, *arguments, cancellable=True, limiter=limiter)


def _start() -> None:
    """Do nothing: calling this starts the process that the next topics use."""


def computed(path: Path, most_bytes: int, count: int | None, seed: int) -> bytes:
    """Return the topics of an index as JSON, without the ids of their documents: those may be millions."""
    with SearchIndex.open(path) as index:
        found = index.topics(count, seed)
    names = ("size", "words", "examples", "label")
    return json_list(({name: getattr(topic, name) for name in names} for topic in found), most_bytes)
