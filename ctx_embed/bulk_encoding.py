"""Embed data sets of any size into a store; runs can be resumed, and the store has each id exactly once.

Called by ``ctx-embed encode --to``; writes into :mod:`ctx_embed.stores`.

The rows of each input are cut into parts, which depend on the inputs alone. Several threads run at once, since the
kernel lets them: each takes a part, embeds its rows, upserts them by id and then writes a note that the part is done.
After an interruption only parts without a note are repeated, and repeating a part does no harm.
"""

import hashlib
import json
import os
import warnings
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import chain, count, islice
from pathlib import Path
from queue import SimpleQueue
from typing import TypeAlias

import numpy as np
from threadpoolctl import threadpool_limits

from ctx_embed.errors import MOST_EXAMPLES, InputError, UnknownTextsWarning, examples
from ctx_embed.model import Model
from ctx_embed.numpy_model.embedder import available_threads
from ctx_embed.options import require_size
from ctx_embed.progress import Meter
from ctx_embed.reading.opening import is_remote
from ctx_embed.reading.rows import Fields, Named, document_of, estimated_count
from ctx_embed.reading.sources import Report, Source, find_sources
from ctx_embed.reading.tables import Raw, ReadingWarning, Table, open_rows
from ctx_embed.stores import Batch, Collection, Store, open as open_store
from ctx_embed.stores.columns import fields_of
from ctx_embed.stores.store import RUN
from ctx_embed.texts import Document, well_formed

__all__ = ["Encoded", "encode_dataset"]

# A row with its table and number, and what yields the rows of a file.
TableRow: TypeAlias = tuple[Table, int, Raw]
RowsOf: TypeAlias = Callable[[Source], Iterator[TableRow]]
PART = "part-"
# A part is stored in one step. It ends after this many rows or characters, whichever comes first.
PART_ROWS = 16_384
PART_CHARACTERS = 1 << 24
# The metadata's columns are chosen from a sample: at most this many files, and this many rows of each.
SAMPLED_FILES, SAMPLED_ROWS = 50, 1000
# Number of bad rows that a part describes; the rest are only counted.
NAMED = 20


@dataclass(frozen=True)
class Encoded:
    """The result of a run.

    Args:
        rows: the number of rows embedded, including those before an interruption.
        count: the number of documents now in the store, including those of earlier runs.
        bad: the number of rows that could not be embedded.
        named: why some of these rows could not be embedded.
        dimension: the dimension of the embeddings.
        was_complete: whether an earlier run had already done everything.
        report: which files of folders were left out.
    """

    rows: int
    count: int
    bad: int
    named: list[str] = field(default_factory=list)
    dimension: int = 0
    was_complete: bool = False
    report: Report = field(default_factory=Report, repr=False)


def encode_dataset(
    inputs: str | Path | Sequence[str | Path],
    to: str | Path,
    *,
    workers: int | None = None,
    text_field: Named = None,
    id_field: str | None = None,
    title_field: str | None = None,
    encoding: str | None = None,
    model: str | Path | None = None,
    backend: str | None = None,
    part_rows: int = PART_ROWS,
    progress: bool = False,
) -> Encoded:
    """Embed the texts of files into a store; to resume an interrupted call, repeat it.

    A row without an id gets ``FILE:NUMBER``, with the number of its line or row, in a workbook of several sheets
    ``FILE:SHEET:NUMBER``. A row replaces the stored row with the same id. If several input rows have the same id, a
    directory of Parquet keeps the last one, and other stores keep whichever was stored last. Rows that cannot be
    embedded, such as rows without a text, are counted and skipped.

    Args:
        inputs: files, folders, globs and URIs such as ``s3://bucket/folder``: text (one text per line), JSONL, CSV and
            TSV, plain or gzip, Parquet and spreadsheets. Of folders and globs, files that cannot be read are reported.
        to: the address of a store, see :func:`ctx_embed.stores.open`; a directory need not exist.
        workers: the number of threads; None: one for each core, or ``OMP_NUM_THREADS``.
        text_field: the field with the text, or several; None: ``text``.
        id_field: the field with the id; None: ``id`` or ``_id``, if a row has one of them.
        title_field: the field that becomes the metadata ``title``; None: ``title``, if there is one.
        encoding: the encoding of all files but Parquet; None: UTF-8, or detected.
        model: a name or a folder; None: the default model.
        backend: what runs the model, see :meth:`ctx_embed.model.Model.of`.
        part_rows: the maximum number of rows in a part.
        progress: whether to show a bar on standard error, if that is a terminal.

    Raises:
        InputError: an input, the model or the store cannot be used, or none of the rows can be embedded.
    """
    for name, value in (("workers", workers), ("part_rows", part_rows)):
        if value is not None:
            require_size(name, value)
    fields = text_field if isinstance(text_field, Fields) else Fields(text_field, id_field, title_field)
    report = Report()
    with ExitStack() as stack:
        store = stack.enter_context(closing(open_store(to)))
        listed = [inputs] if isinstance(inputs, str | Path) else list(inputs)
        if "-" in map(str, listed):
            raise InputError("standard input cannot be read twice, so encoding to a store needs files")
        # The target may lie inside an input folder; its own files are not inputs.
        own = f"{str(to).rstrip('/')}/" if is_remote(to) else os.path.join(os.path.abspath(to), "")
        found = {source.name: source for source in find_sources(listed, report)}
        paths = {name: name if is_remote(name) else os.path.abspath(name) for name in found}
        sources = [source for name, source in found.items() if not paths[name].startswith(own)]
        report.failed = {
            name: said for name, said in report.failed.items() if not os.path.abspath(name).startswith(own)
        }
        if not sources:
            raise InputError(f"{', '.join(map(str, listed))}: lies in the target {store.name}; choose another target")
        given = set(map(str, listed))
        rows_of = partial(_rows, fields=fields, encoding=encoding, given=given, report=report)
        with warnings.catch_warnings():
            # Encoding the rows will warn.
            warnings.simplefilter("ignore")
            sampled = _sample(sources, rows_of, fields)
        embedder = Model.of(model, backend)
        store.ensure(Collection.of(embedder, fields_of(each.metadata for each in sampled)))
        stack.enter_context(store.writing())
        made_by = [embedder.fingerprint, embedder.dimension]
        content = [[asdict(source) for source in sources], asdict(fields), encoding, made_by, part_rows]
        run = _Run(store, hashlib.sha256(json.dumps(content).encode("utf-8", "replace")).hexdigest())
        if not run.was_complete:
            threads = workers or available_threads()
            # Each thread takes a store to write to. If only one thread may write at a time, there is only one store.
            stores: SimpleQueue[Store] = SimpleQueue()
            stores.put(store)
            for _ in range(threads - 1 if store.parallel else 0):
                stores.put(stack.enter_context(closing(open_store(to))))

            def encoded(name: str, rows: Sequence[TableRow]) -> int:
                """Embed and store a part; return its number of documents."""
                batch, note = _embedded(rows, fields, embedder)
                free = stores.get()
                try:
                    free.upsert(batch, name, note)
                finally:
                    stores.put(free)
                return len(batch)

            running: deque[Future[int]] = deque()
            total = estimated_count([source.name for source in sources]) if progress else None
            with Meter("encoding", total, "rows", done=run.total("rows"), shown=progress) as meter:
                # Each thread computes on one core. Warnings about unknown texts wait for the end of the run.
                with warnings.catch_warnings(), threadpool_limits(1), ThreadPoolExecutor(threads) as pool:
                    warnings.simplefilter("ignore", UnknownTextsWarning)
                    try:
                        for name, part in _parts(sources, run.name, rows_of, part_rows):
                            if f"{PART}{name}" in run.parts:
                                continue
                            running.append(pool.submit(encoded, name, part))
                            # Read two parts ahead, and no more, since parts take memory.
                            if len(running) > threads + 1:
                                meter.update(running.popleft().result())
                        while running:
                            meter.update(running.popleft().result())
                    finally:
                        pool.shutdown(cancel_futures=True)
                meter.now("finishing")
                run.parts = store.notes(f"{PART}{run.name}-")
                store.finish(unique=run.name == "0000" and not run.total("own_ids"))
                store.write_note(f"{RUN}{run.name}", {"signature": run.signature, "finished": True})
        rows = run.total("rows")
        if not run.was_complete and (texts := run.total("unknown")):
            first = [name for note in run.parts.values() for name in note["unread"]]
            warnings.warn(UnknownTextsWarning(first, texts, rows), stacklevel=2)
        stored = store.count()
        if not run.was_complete and run.name == "0000" and stored < rows:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                shared = _repeated(sources, rows_of, fields)
            named = f" ({examples(shared, len(shared))})" if shared else ""
            said = f"{rows - stored:,} of {rows:,} rows share an id with another one{named}: one of each id is stored"
            warnings.warn(ReadingWarning(f"{said}; name a field of different ids with --id-field"), stacklevel=2)
        lines = [line for note in run.parts.values() for line in note["named"]][:NAMED]
        return Encoded(rows, stored, run.total("bad"), lines, embedder.dimension, run.was_complete, report)


def _rows(
    source: Source, fields: Fields, encoding: str | None, given: Container[str], report: Report
) -> Iterator[TableRow]:
    """Yield the rows of a file; one that cannot be read is reported, unless its name is among those that were given."""
    try:
        with open_rows(source.name, needed=fields.needed, encoding=encoding) as table:
            for number, raw in table.raw:
                yield table, number, raw
            table.warn()
    except InputError as error:
        if source.name in given:
            raise
        report.failed[source.name] = str(error).removeprefix(source.name).lstrip(":, ")


def _documents(rows: Iterable[TableRow], fields: Fields, errors: list[str]) -> Iterator[tuple[str, Document]]:
    """Yield the documents of rows with their ids, or the file and number of their rows; append why others are none."""
    for table, number, raw in rows:
        try:
            document = document_of(table, number, raw, fields)
        except InputError as error:
            errors.append(str(error))
            continue
        if document is not None:
            row, sheet = table.in_sheet(number)
            place = f"{table.name}:{sheet}:{row}" if sheet else f"{table.name}:{row}"
            yield well_formed(place if document.id in (None, "") else str(document.id)), document


def _sample(sources: Sequence[Source], rows_of: RowsOf, fields: Fields) -> list[Document]:
    """Return some documents from files spread over the inputs; raise an InputError if no row can be embedded."""
    found: list[Document] = []
    errors: list[str] = []
    step = -(-len(sources) // SAMPLED_FILES)
    for number, source in enumerate(sources):
        if number % step == 0 or not found:
            found += [each for _, each in _documents(islice(rows_of(source), SAMPLED_ROWS), fields, errors)]
    if not found:
        names = ", ".join(source.name for source in sources[:3]) + (", ..." if len(sources) > 3 else "")
        first = f"; the first row was left out: {errors[0]}" if errors else ""
        raise InputError(f"{names}: no texts to embed{first}")
    return found


def _parts(
    sources: Sequence[Source], run: str, rows_of: RowsOf, part_rows: int
) -> Iterator[tuple[str, list[TableRow]]]:
    """Yield the parts of all files: the name of each and its rows."""
    for place, source in enumerate(sources):
        stream = rows_of(source)
        for part in count():
            rows: list[TableRow] = []
            characters = 0
            for row in stream:
                rows.append(row)
                raw = row[-1]
                values = raw.values() if isinstance(raw, dict) else ()
                cells = [raw] if isinstance(raw, str) else raw if isinstance(raw, list) else values
                characters += sum(len(cell) for cell in cells if isinstance(cell, str))
                if len(rows) >= part_rows or characters >= PART_CHARACTERS:
                    break
            if not rows:
                break
            yield f"{run}-{place:05d}-{part:05d}", rows


def _embedded(rows: Sequence[TableRow], fields: Fields, embedder: Model) -> tuple[Batch, dict[str, object]]:
    """Return the documents of some rows with their vectors, and the note of a part with these rows."""
    errors: list[str] = []
    found = list(_documents(rows, fields, errors))
    ids, documents = [identifier for identifier, _ in found], [document for _, document in found]
    texts = [well_formed(document.text) for document in documents]
    vectors = embedder.documents(texts)
    unread = [ids[place] for place in (~vectors.any(axis=1)).nonzero()[0]]
    own_ids = any(document.id not in (None, "") for document in documents)
    note = {"rows": len(ids), "bad": len(errors), "named": errors[:NAMED], "own_ids": own_ids}
    note |= {"unknown": len(unread), "unread": unread[:MOST_EXAMPLES]}
    return Batch(ids, texts, [document.metadata for document in documents], vectors), note


def _repeated(sources: Sequence[Source], rows_of: RowsOf, fields: Fields) -> list[str]:
    """Return the first ids that occur again, one more than are named, in 16 bytes of memory for each row."""

    def ids() -> Iterator[str]:
        rows = chain.from_iterable(map(rows_of, sources))
        return (identifier for identifier, _ in _documents(rows, fields, []))

    hashes, counts = np.unique(np.fromiter(map(hash, ids()), np.int64), return_counts=True)
    several, seen, repeated = set(hashes[counts > 1].tolist()), set[str](), dict[str, None]()
    for identifier in ids():
        if hash(identifier) in several:
            repeated |= {identifier: None} if identifier in seen else {}
            seen.add(identifier)
            if len(repeated) > MOST_EXAMPLES:
                break
    return list(repeated)


class _Run:
    """A run over some inputs, with its state in the store's notes."""

    def __init__(self, store: Store, signature: str) -> None:
        self.signature = signature
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

    def total(self, what: str) -> int:
        """Return the sum of a number in the notes of all parts."""
        return sum(note[what] for note in self.parts.values())
