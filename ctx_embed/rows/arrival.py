"""Rows in blocks: of a given size, or as they arrive."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from queue import Empty, Queue
from threading import Thread
from typing import TypeVar

Item = TypeVar("Item")


def in_blocks(items: Iterable[Item], most: int) -> Iterator[list[Item]]:
    """Yield items in lists of at most ``most``."""
    stream = iter(items)
    while block := list(islice(stream, most)):
        yield block


def arriving(items: Iterable[Item], most: int) -> Iterator[list[Item]]:
    """Yield lists of the items that have arrived so far, at most ``most``, without waiting for the rest of a pipe.

    Errors of ``items`` are raised after the items before them.
    """
    queue: Queue[list[Item] | BaseException | None] = Queue(most)

    def read() -> None:
        try:
            for item in items:
                queue.put([item])
            queue.put(None)
        except BaseException as error:
            queue.put(error)

    # A daemon, because it may wait for a pipe forever and must not keep the process alive.
    Thread(target=read, daemon=True).start()
    found: list[Item] | BaseException | None = []
    while isinstance(found, list):
        block: list[Item] = []
        with suppress(Empty):
            while len(block) < most and isinstance(found := queue.get(block=not block), list):
                block += found
        if block:
            yield block
    if found is not None:
        raise found
