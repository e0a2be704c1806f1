"""The work of a run, and its workers: each reads a piece, embeds it part by part, and stores each part.

Here workers are threads of this process, which the kernel lets run at once; in ``on_ray.py`` actors of a Ray cluster.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, Queue
from typing import Any

from threadpoolctl import threadpool_limits

from ctx_embed.bulk_encoding.pieces import PART_BYTES, Piece
from ctx_embed.errors import InputError, UnknownTextsWarning
from ctx_embed.index.model import IndexModel
from ctx_embed.numpy_model.contextualizer import available_threads
from ctx_embed.rows.reading import Fields
from ctx_embed.rows.table import Raw, Table
from ctx_embed.stores import Batch
from ctx_embed.stores import open as open_store

# Number of bad rows that a part describes; it counts all of them.
NAMED = 20


@dataclass(frozen=True)
class Work:
    """A run. Every worker gets a copy.

    Args:
        target: the address of the store.
        run: the run's number, the prefix of the names of its parts.
        model: the name or path that loads the model.
        backend: "numpy" or "torch"; None chooses.
        fingerprint: the model's fingerprint.
        fields: the fields with text and id.
        part_rows: maximum number of rows in a part.
        stores: whether workers store their parts; otherwise they hand them back.
        pieces: the pieces to embed.
        done: the names of the parts that are already stored, by the key of their piece.
    """

    target: str
    run: str
    model: str | Path | None
    backend: str | None
    fingerprint: str
    fields: Fields
    part_rows: int
    stores: bool
    pieces: Sequence[Piece]
    done: Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class Part:
    """An embedded part.

    Args:
        name: the part's name.
        note: the store's record of the part: the numbers of ``rows``, of ``unknown`` texts and of ``bad`` rows, the
            reasons for some bad rows (``named``), whether any row has an id of its own (``own_ids``), and whether this
            is the piece's ``last``.
        rows: the rows to store; None if they are already stored.
    """

    name: str
    note: dict[str, Any] = field(default_factory=dict)
    rows: Batch | None = None


@contextmanager
def one_thread_each() -> Iterator[None]:
    """Give each worker of this process one thread, and leave warnings about unknown texts to the end of the run."""
    with warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter("ignore", UnknownTextsWarning)
        yield


class Worker:
    """Embeds pieces, with one thread, by a model that it loads, or that another worker of the process has loaded.

    Raises:
        InputError: the model is not the run's, or the store cannot be opened.
    """

    def __init__(self, work: Work, embedder: IndexModel | None = None) -> None:
        self.work = work
        self.embedder = embedder or IndexModel.of(work.model, work.backend)
        if self.embedder.fingerprint != work.fingerprint:
            raise InputError(
                f"the model {work.model} must have the fingerprint {work.fingerprint[:12]} on every machine, got "
                f"{self.embedder.fingerprint[:12]}; copy the same folder to all"
            )
        self.store = open_store(work.target) if work.stores else None

    def close(self) -> None:
        """Close the store."""
        if self.store is not None:
            self.store.close()

    def run(self, piece: Piece) -> Iterator[Part]:
        """Yield the parts of a piece that are not yet stored, each once it is stored."""
        done = self.work.done.get(piece.key, ())
        with piece.opened(self.work.fields) as table:
            following = next(table.raw, None)
            number = 0
            while following is not None or not number:
                rows: list[tuple[int, Raw]] = []
                size = 0
                while following is not None and len(rows) < self.work.part_rows and size < PART_BYTES:
                    rows.append(following)
                    raw = following[1]
                    cells = [raw] if isinstance(raw, str) else raw.values() if isinstance(raw, dict) else ()
                    size += sum(len(cell) for cell in cells if isinstance(cell, str))
                    following = next(table.raw, None)
                name = f"{self.work.run}-{piece.key}-{number:05d}"
                if name not in done:
                    part = self._part(piece, name, table, rows, last=following is None)
                    if self.store is not None and part.rows is not None:
                        self.store.upsert(part.rows, name, part.note)
                        part = Part(name, part.note)
                    yield part
                number += 1

    def _part(self, piece: Piece, name: str, table: Table, raw: list[tuple[int, Raw]], *, last: bool) -> Part:
        found, errors = [], []
        own_ids = False
        for number, row in raw:
            try:
                read = piece.document(table, number, row, self.work.fields)
            except InputError as error:
                errors.append(str(error))
                continue
            if read is not None:
                found.append(read)
                own_ids = own_ids or read.id != piece.derived_id(number)
        texts = [each.text for each in found]
        vectors = self.embedder.documents(texts)
        rows = Batch([str(each.id) for each in found], texts, [each.metadata for each in found], vectors)
        note = {"rows": len(rows), "bad": len(errors), "named": errors[:NAMED], "own_ids": own_ids, "last": last}
        note["unknown"] = int((~vectors.any(axis=1)).sum())
        return Part(name, note, rows)


def run(work: Work, workers: int | None, finished: Callable[[Part], None]) -> None:
    """Embed the pieces in threads (by default as many as may work at once), each of which takes the next piece.

    ``finished`` is called with each part, in the thread of the caller.
    """
    count = max(min(workers or available_threads(), len(work.pieces)), 1)
    parts: Queue[Part | None] = Queue(count)
    stopped = threading.Event()
    waiting: Queue[Piece] = Queue()
    for piece in work.pieces:
        waiting.put(piece)

    def embed(worker: Worker) -> None:
        try:
            while not stopped.is_set():
                for part in worker.run(waiting.get_nowait()):
                    parts.put(part)
                    if stopped.is_set():
                        return
        except Empty:
            return
        finally:
            parts.put(None)

    with ExitStack() as stack:
        stack.enter_context(one_thread_each())
        at_hand: list[Worker] = []
        for _ in range(count):
            embedder = at_hand[0].embedder if at_hand else None
            at_hand.append(stack.enter_context(closing(Worker(work, embedder))))
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
