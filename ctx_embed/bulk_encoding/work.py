"""The work of each worker on any engine: read a piece, embed it part by part, and store each part."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits

from ctx_embed.errors import InputError, UnknownTextsWarning
from ctx_embed.index.model import IndexModel
from ctx_embed.rows.pieces import PART_BYTES, Piece
from ctx_embed.rows.reading import Fields
from ctx_embed.rows.table import Raw, Table
from ctx_embed.stores import Batch
from ctx_embed.stores import open as open_store

# Number of bad rows that a part describes; it counts all of them.
NAMED = 20


@dataclass(frozen=True)
class Job:
    """The description of a run. Every worker gets a copy.

    Args:
        target: the address of the store.
        run: the run's number, the prefix of the names of its parts.
        model: the name or path that loads the model.
        backend: "numpy" or "torch"; None chooses.
        fingerprint: the model's fingerprint.
        fields: the fields with text and id.
        part_rows: maximum number of rows in a part.
        stores: whether workers store their parts; otherwise they hand them back.
    """

    target: str
    run: str
    model: str | Path | None
    backend: str | None
    fingerprint: str
    fields: Fields
    part_rows: int
    stores: bool


@dataclass(frozen=True)
class Work:
    """The work of an engine.

    Args:
        job: the run.
        pieces: the pieces to embed.
        done: the names of the parts that are already stored, by the key of their piece.
    """

    job: Job
    pieces: Sequence[Piece]
    done: Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class Part:
    """An embedded part.

    Args:
        name: the part's name.
        note: the store's record of the part: the numbers of ``rows`` and ``bad`` rows, the reasons for some bad rows
            (``named``), whether any row has an id of its own (``own_ids``), and whether this is the piece's ``last``.
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
    """Embeds pieces, with one thread.

    Args:
        job: the run.
        embedder: the run's model, if another worker of this process has loaded it.

    Raises:
        InputError: the model is not the run's, or the store cannot be opened.
    """

    def __init__(self, job: Job, embedder: IndexModel | None = None) -> None:
        self.job = job
        self.embedder = embedder or IndexModel.of(job.model, job.backend)
        if self.embedder.fingerprint != job.fingerprint:
            raise InputError(
                f"the model {job.model} must have the fingerprint {job.fingerprint[:12]} on every machine, got "
                f"{self.embedder.fingerprint[:12]}; copy the same folder to all"
            )
        self.store = open_store(job.target) if job.stores else None

    def close(self) -> None:
        """Close the store."""
        if self.store is not None:
            self.store.close()

    def run(self, piece: Piece, done: Collection[str] = ()) -> Iterator[Part]:
        """Yield the parts of a piece, each once it is stored.

        Args:
            piece: the piece.
            done: the names of the parts that are already stored.

        Raises:
            InputError: the file cannot be read, or the store cannot be written to.
        """
        with piece.opened(self.job.fields) as table:
            following = next(table.raw, None)
            number = 0
            while following is not None or not number:
                rows: list[tuple[int, Raw]] = []
                size = 0
                while following is not None and len(rows) < self.job.part_rows and size < PART_BYTES:
                    rows.append(following)
                    size += _size_of(following[1])
                    following = next(table.raw, None)
                name = f"{self.job.run}-{piece.key}-{number:05d}"
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
                read = piece.document(table, number, row, self.job.fields)
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


def _size_of(raw: Raw) -> int:
    """Return the approximate number of characters in a row."""
    if isinstance(raw, str):
        return len(raw)
    return sum(len(value) for value in raw.values() if isinstance(value, str)) if isinstance(raw, dict) else 0
