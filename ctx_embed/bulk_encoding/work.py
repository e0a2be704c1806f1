"""The work of a run, and its workers: each reads a piece, embeds it part by part, and stores each part.

Lines of uncompressed text and JSONL are cut into pieces by bytes, Parquet by row groups; any other file is one piece.
Workers are threads of this process, which the kernel lets run at once, or actors of a Ray cluster (``on_ray.py``).
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from queue import Empty, Queue
from typing import Any

from threadpoolctl import threadpool_limits

from ctx_embed.errors import InputError, UnknownTextsWarning
from ctx_embed.index.model import IndexModel
from ctx_embed.numpy_model.embedder import available_threads
from ctx_embed.rows.encodings import SAMPLE_BYTES, UTF_8, has_byte_lines, marked, require_encoding, settled
from ctx_embed.rows.opening import Source, is_packed, opened, said
from ctx_embed.rows.reading import Fields, document_of
from ctx_embed.rows.table import JSONL, PARQUET, TEXT, Raw, Table, kind_of, open_parquet, open_rows
from ctx_embed.stores import Batch
from ctx_embed.stores import open as open_store
from ctx_embed.texts import Document, well_formed

# A part is stored in one step. It ends after this many rows or bytes, whichever comes first.
PART_ROWS = 16_384
PART_BYTES = 1 << 24
ANY_FIELDS = Fields()


@dataclass(frozen=True)
class Piece:
    """A stretch of a file that one worker reads."""

    source: Source
    # The prefix of its parts' names.
    key: str
    # Its first byte, and the one after its last; in Parquet row groups. None: the end of the file.
    start: int = 0
    stop: int | None = None
    # The number of its first line or row, and its approximate number of rows; None if unknown.
    first: int = 1
    rows: int | None = None
    # The encoding of its lines, None: UTF-8, or still to be detected; their format, None: that of the whole file.
    encoding: str | None = None
    kind: str | None = None

    def opened(self, fields: Fields) -> AbstractContextManager[Table]:
        """Open the rows of the piece, see :func:`ctx_embed.rows.table.open_rows`."""
        return open_rows(
            self.source.name,
            kind=self.kind,
            needed=fields.needed,
            encoding=self.encoding,
            start=self.start,
            stop=self.stop,
            first=self.first,
        )

    def document(self, table: Table, number: int, raw: Raw, fields: Fields) -> Document | None:
        """Return the document of a row, with an id as a string; None for a blank line."""
        found = document_of(table, number, raw, fields)
        if found is None:
            return None
        identifier = self.derived_id(number) if found.id in (None, "") else well_formed(str(found.id))
        return Document(well_formed(found.text), identifier, found.metadata)

    def derived_id(self, number: int) -> str:
        """Return an id for a row that has none, made of its file and number."""
        return f"{self.source.name}:{number}"


def pieces(
    source: Source,
    number: int,
    part_rows: int = PART_ROWS,
    *,
    fields: Fields = ANY_FIELDS,
    encoding: str | None = None,
    part_bytes: int = PART_BYTES,
) -> Iterator[Piece]:
    """Yield the pieces of a file, the input with this number. A piece ends when it has enough rows or bytes."""
    require_encoding(encoding)
    keys = (f"{number:05d}-{place:05d}" for place in count())
    whole = Piece(source, f"{number:05d}-00000", encoding=encoding)
    start = stop = rows = 0
    first = 1
    kind = kind_of(source.name)
    if kind in (TEXT, JSONL):
        with open_rows(source.name, needed=fields.needed, encoding=encoding) as table:
            kind = table.kind
    try:
        with opened(source.name) as stream:
            named = encoding or marked(stream.peek(4)[:4])
            if kind == PARQUET:
                with open_parquet(source.name, stream) as table:
                    groups = table.metadata.num_row_groups
                    for group in range(groups):
                        rows += table.metadata.row_group(group).num_rows
                        if rows >= part_rows or group == groups - 1:
                            yield replace(whole, key=next(keys), start=start, stop=group + 1, first=first, rows=rows)
                            start, first, rows = group + 1, first + rows, 0
            elif kind in (TEXT, JSONL) and not is_packed(stream) and has_byte_lines(named or UTF_8):
                whole = replace(whole, kind=kind)
                for line in stream:
                    if encoding is None and not line.isascii():
                        # One encoding for all pieces. They expect UTF-8, in which a few wrong bytes are repaired.
                        encoding = settled(line + stream.peek(SAMPLE_BYTES)[:SAMPLE_BYTES])
                        whole = replace(whole, encoding=None if encoding == UTF_8 else encoding)
                    stop, rows = stop + len(line), rows + 1
                    # Each piece ends where a line ends.
                    if rows >= part_rows or stop - start >= part_bytes:
                        yield replace(whole, key=next(keys), start=start, stop=stop, first=first, rows=rows)
                        start, first, rows = stop, first + rows, 0
                if rows:
                    yield replace(whole, key=next(keys), start=start, stop=stop, first=first, rows=rows)
            else:
                yield whole
    except OSError as error:
        raise InputError(f"{source.name}: cannot be read ({said(error)})") from None


# Number of bad rows that a part describes; the rest are only counted.
NAMED = 20


@dataclass(frozen=True)
class Work:
    """A run. Every worker gets a copy."""

    # The address of the store, and the run's number, with which the names of its parts begin.
    target: str
    run: str
    model: str | Path | None
    backend: str | None
    fingerprint: str
    fields: Fields
    part_rows: int
    # Whether workers store their parts; otherwise they hand them back.
    stores: bool
    pieces: Sequence[Piece]
    # The names of the parts that are already stored, by the key of their piece.
    done: Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class Part:
    """An embedded part, the store's note of it, and its rows; None if they are already stored."""

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
    """Embeds pieces in one thread. It loads the model, or shares that of another worker of the process."""

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
    """Embed the pieces in threads, and call ``finished`` with each part in the thread of the caller."""
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
            # Take the parts that threads still wait to hand over; otherwise these threads would never end.
            stopped.set()
            while at_work:
                at_work -= parts.get() is None
        for each in running:
            each.result()
