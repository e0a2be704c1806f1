"""Embed data sets of any size into a store; runs can be resumed, and the store has each id exactly once.

The inputs are cut into pieces, and the rows of a piece into parts; both depend on the inputs alone. To store a part, a
worker upserts its rows by id and then writes a note that the part is done. After an interruption, or the death of a
worker, only parts without a note are repeated, and repeating a part does no harm.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path

from ctx_embed.bulk_encoding.work import NAMED, PART_ROWS, Part, Work, pieces, run
from ctx_embed.errors import InputError, UnknownTextsWarning, unknown_name
from ctx_embed.index.model import IndexModel
from ctx_embed.progress import Meter
from ctx_embed.rows.opening import Source, find_sources, is_inside
from ctx_embed.rows.reading import Fields
from ctx_embed.stores import Collection, Store
from ctx_embed.stores import open as open_store
from ctx_embed.stores.columns import fields_of
from ctx_embed.stores.store import RUN
from ctx_embed.texts import Document

ENGINES = ("local", "ray")
PART = "part-"
# The metadata's columns are chosen from a sample: at most this many files, and this many rows of each.
SAMPLED_FILES, SAMPLED_ROWS = 50, 1000


@dataclass(frozen=True)
class Encoded:
    """The result of a run.

    Args:
        rows: the number of rows embedded, also before an interruption.
        count: the number of documents now in the store, including those of earlier runs.
        bad: the number of rows that could not be embedded.
        named: why some of these rows could not be embedded.
        dimension: the dimension of the embeddings.
        was_complete: whether an earlier run had already done everything.
    """

    rows: int
    count: int
    bad: int
    named: list[str] = field(default_factory=list)
    dimension: int = 0
    was_complete: bool = False


def encode_dataset(
    inputs: str | Path | Sequence[str | Path],
    to: str | Path,
    *,
    engine: str = "local",
    workers: int | None = None,
    ray_address: str | None = None,
    text_field: str | None = None,
    id_field: str | None = None,
    encoding: str | None = None,
    model: str | Path | None = None,
    backend: str | None = None,
    part_rows: int = PART_ROWS,
    progress: bool = False,
) -> Encoded:
    """Embed the texts of files into a store; to resume an interrupted call, repeat it.

    A row without an id gets ``FILE:NUMBER``, with the number of its line or row. A row replaces the stored row with the
    same id. If several input rows have the same id, a directory of Parquet keeps the last one, and other stores keep
    whichever was stored last. Rows that cannot be embedded, such as rows without a text, are counted and skipped.

    Args:
        inputs: files, folders, globs and URIs such as ``s3://bucket/folder``: text (a text a line), JSONL, CSV, TSV and
            Parquet; the first four also as gzip.
        to: the address of a store, see :func:`ctx_embed.stores.open`; a directory need not exist.
        engine: ``local`` uses threads of this process, ``ray`` the actors of a Ray cluster.
        workers: the number of threads, or of actors with one thread each; None: one for each core, or
            ``OMP_NUM_THREADS`` threads.
        ray_address: the cluster's address, or ``auto``; None: Ray is started on this machine for this run.
        text_field: the field with the text; None: ``text``.
        id_field: the field with the id; None: ``id`` or ``_id``, if a row has one of them.
        encoding: the encoding of all files but Parquet; None: UTF-8, or detected.
        model: a name or a folder; None: the default model. The folder must have the same path on every machine.
        backend: what runs the model, see :func:`ctx_embed.loading.load_embedder`.
        part_rows: the maximum number of rows in a part.
        progress: whether to show a bar on standard error, if that is a terminal.

    Raises:
        InputError: an input, the model or the store cannot be used, or none of the rows can be embedded.
    """
    if engine not in ENGINES:
        raise unknown_name("engine", engine, ENGINES)
    for name, value in (("workers", workers), ("part_rows", part_rows)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise InputError(f"{name} must be a positive integer, got {value!r}")
    if ray_address is not None and engine != "ray":
        raise InputError(f"ray_address is for the engine ray, got the engine {engine!r}")
    fields = Fields(text_field, id_field)
    with ExitStack() as stack:
        store = stack.enter_context(closing(open_store(to)))
        listed = [inputs] if isinstance(inputs, str | Path) else list(inputs)
        # The target may lie inside an input folder; its own files are not inputs.
        sources = [source for source in find_sources(listed) if not is_inside(source.name, str(to))]
        if not sources:
            raise InputError(f"{', '.join(map(str, listed))}: lies in the target {store.name}; choose another target")
        sampled = _sample(sources, fields, part_rows, encoding)
        embedder = IndexModel.of(model, backend)
        work_on = run
        if engine == "ray":
            from ctx_embed.bulk_encoding import on_ray

            stack.enter_context(on_ray.cluster(ray_address))
            work_on = on_ray.run
        store.ensure(Collection.of(embedder, fields_of(each.metadata for each in sampled)))
        stack.enter_context(store.writing())
        known = embedder.fingerprint
        content = [[asdict(source) for source in sources], asdict(fields), [known, embedder.dimension]]
        signature = json.dumps([*content, part_rows, encoding]).encode("utf-8", "replace")
        state = _Run(store, hashlib.sha256(signature).hexdigest())
        if not state.was_complete:
            planned = [
                piece
                for number, source in enumerate(sources)
                for piece in pieces(source, number, part_rows, fields=fields, encoding=encoding)
            ]
            done, complete = state.done()
            left = [piece for piece in planned if piece.key not in complete]
            reference, parallel = embedder.reference, store.parallel
            work = Work(str(to), state.name, reference, backend, known, fields, part_rows, parallel, left, done)
            total = None if any(piece.rows is None for piece in planned) else sum(piece.rows or 0 for piece in planned)
            with Meter("encoding", total, "rows", done=state.total("rows"), shown=progress) as meter:
                work_on(work, workers, partial(state.take, meter))
                meter.now("finishing")
                state.parts = store.notes(f"{PART}{state.name}-")
                store.finish(unique=state.name == "0000" and not state.total("own_ids"))
                store.write_note(f"{RUN}{state.name}", {"signature": state.signature, "finished": True})
        rows = state.total("rows")
        if not state.was_complete and (texts := state.total("unknown")):
            warnings.warn(UnknownTextsWarning(texts, rows), stacklevel=2)
        named = [line for note in state.parts.values() for line in note["named"]][:NAMED]
        stored, bad = store.count(), state.total("bad")
        return Encoded(rows, stored, bad, named, embedder.dimension, state.was_complete)


def _sample(sources: Sequence[Source], fields: Fields, part_rows: int, encoding: str | None) -> list[Document]:
    """Return some documents from files spread over the inputs; raise an InputError if no row can be embedded."""
    found: list[Document] = []
    first: str | None = None
    step = -(-len(sources) // SAMPLED_FILES)
    for number, source in enumerate(sources):
        if number % step and found:
            continue
        piece = next(pieces(source, number, part_rows, fields=fields, encoding=encoding), None)
        if piece is None:
            continue
        with piece.opened(fields) as table:
            for place, raw in islice(table.raw, SAMPLED_ROWS):
                try:
                    each = piece.document(table, place, raw, fields)
                    found += [] if each is None else [each]
                except InputError as error:  # noqa: PERF203
                    first = first or str(error)
    if not found:
        names = ", ".join(source.name for source in sources[:3]) + (", ..." if len(sources) > 3 else "")
        raise InputError(
            f"{names}: no texts to embed" + ("" if first is None else f"; the first row was left out: {first}")
        )
    return found


class _Run:
    """A run over some inputs, with its state in the store's notes."""

    def __init__(self, store: Store, signature: str) -> None:
        self.store, self.signature = store, signature
        runs = store.notes(RUN)
        last = list(runs)[-1].removeprefix(RUN) if runs else "none"
        parts = store.notes(f"{PART}{last}-")
        # If the store has been emptied since, ignore its notes.
        is_there = not any(note["rows"] for note in parts.values()) or store.count() > 0
        if runs and runs[f"{RUN}{last}"]["signature"] == signature and is_there:
            self.name, self.parts, self.was_complete = last, parts, bool(runs[f"{RUN}{last}"]["finished"])
        else:
            self.name, self.parts, self.was_complete = f"{len(runs):04d}", {}, False
            store.write_note(f"{RUN}{self.name}", {"signature": signature, "finished": False})
        self.seen = {noted.removeprefix(PART) for noted in self.parts}

    def total(self, what: str) -> int:
        """Return the sum of a number in the notes of all parts."""
        return sum(note[what] for note in self.parts.values())

    def done(self) -> tuple[dict[str, list[str]], set[str]]:
        """Return the names of the stored parts by the key of their piece, and the keys of the complete pieces."""
        of_piece: dict[str, list[str]] = {}
        last: dict[str, int] = {}
        for noted, note in self.parts.items():
            name = noted.removeprefix(PART)
            key, _, number = name.removeprefix(f"{self.name}-").rpartition("-")
            of_piece.setdefault(key, []).append(name)
            if note["last"]:
                last[key] = int(number)
        return of_piece, {key for key, number in last.items() if len(of_piece[key]) == number + 1}

    def take(self, meter: Meter, part: Part) -> None:
        """Store a part, if its worker has not done so, and count its rows once."""
        if part.rows is not None:
            self.store.upsert(part.rows, part.name, part.note)
        if part.name not in self.seen:
            self.seen.add(part.name)
            meter.update(part.note["rows"])
