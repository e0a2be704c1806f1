"""Embed data sets of any size into a store; runs can be resumed, and the store has each id exactly once.

Called by ``ctx-embed encode --to``; writes into :mod:`ctx_embed.stores`.

The inputs are cut into pieces, and the rows of a piece into parts; both depend on the inputs alone. Lines of
uncompressed text and JSONL are cut into pieces by bytes, Parquet by row groups; any other file is one piece. Threads,
which the kernel lets run at once, take a piece each. To store a part, a thread upserts its rows by id and then writes a
note that the part is done. After an interruption only parts without a note are repeated, and repeating a part does no
harm.
"""

from __future__ import annotations

import hashlib
import json
import threading
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import asdict, dataclass, field, replace
from itertools import count, islice
from pathlib import Path
from queue import SimpleQueue

from threadpoolctl import threadpool_limits

from ctx_embed.errors import InputError, UnknownTextsWarning, require_size
from ctx_embed.index.model import IndexModel
from ctx_embed.numpy_model.embedder import available_threads
from ctx_embed.progress import Meter
from ctx_embed.rows.encodings import SAMPLE_BYTES, UTF_8, has_byte_lines, marked, require_encoding, settled
from ctx_embed.rows.opening import Source, find_sources, is_inside, is_packed, opened, said
from ctx_embed.rows.reading import Fields, document_of
from ctx_embed.rows.table import JSONL, PARQUET, TEXT, Raw, Table, kind_of, open_parquet, open_rows
from ctx_embed.stores import Batch, Collection, Store
from ctx_embed.stores import open as open_store
from ctx_embed.stores.columns import fields_of
from ctx_embed.stores.store import RUN
from ctx_embed.texts import Document, well_formed

__all__ = ["Encoded", "encode_dataset"]

PART = "part-"
# A part is stored in one step. It ends after this many rows or bytes, whichever comes first.
PART_ROWS = 16_384
PART_BYTES = 1 << 24
# The metadata's columns are chosen from a sample: at most this many files, and this many rows of each.
SAMPLED_FILES, SAMPLED_ROWS = 50, 1000
# Number of bad rows that a part describes; the rest are only counted.
NAMED = 20
ANY_FIELDS = Fields()


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
    workers: int | None = None,
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
        workers: the number of threads; None: one for each core, or ``OMP_NUM_THREADS``.
        text_field: the field with the text; None: ``text``.
        id_field: the field with the id; None: ``id`` or ``_id``, if a row has one of them.
        encoding: the encoding of all files but Parquet; None: UTF-8, or detected.
        model: a name or a folder; None: the default model.
        backend: what runs the model, see :func:`ctx_embed.loading.load_embedder`.
        part_rows: the maximum number of rows in a part.
        progress: whether to show a bar on standard error, if that is a terminal.

    Raises:
        InputError: an input, the model or the store cannot be used, or none of the rows can be embedded.
    """
    for name, value in (("workers", workers), ("part_rows", part_rows)):
        if value is not None:
            require_size(name, value)
    fields = Fields(text_field, id_field)
    with ExitStack() as stack:
        store = stack.enter_context(closing(open_store(to)))
        listed = [inputs] if isinstance(inputs, str | Path) else list(inputs)
        if "-" in map(str, listed):
            raise InputError("standard input cannot be read twice, so encoding to a store needs files")
        # The target may lie inside an input folder; its own files are not inputs.
        found = {source.name: source for source in find_sources(listed)}
        sources = [source for name, source in found.items() if not is_inside(name, str(to))]
        if not sources:
            raise InputError(f"{', '.join(map(str, listed))}: lies in the target {store.name}; choose another target")
        sampled = _sample(sources, fields, part_rows, encoding)
        embedder = IndexModel.of(model, backend)
        store.ensure(Collection.of(embedder, fields_of(each.metadata for each in sampled)))
        stack.enter_context(store.writing())
        made_by = [embedder.fingerprint, embedder.dimension]
        content = [[asdict(source) for source in sources], asdict(fields), made_by, part_rows, encoding]
        run = _Run(store, hashlib.sha256(json.dumps(content).encode("utf-8", "replace")).hexdigest())
        if not run.was_complete:
            planned = [
                piece
                for number, source in enumerate(sources)
                for piece in pieces(source, number, part_rows, fields=fields, encoding=encoding)
            ]
            left = [piece for piece in planned if not run.has_all(piece)]
            threads = max(min(workers or available_threads(), len(left)), 1)
            # A thread takes a store to write to; one that only one thread may use is the only one.
            stores: SimpleQueue[Store] = SimpleQueue()
            stores.put(store)
            for _ in range(threads - 1 if store.parallel else 0):
                stores.put(stack.enter_context(closing(open_store(to))))
            total = None if any(piece.rows is None for piece in planned) else sum(piece.rows or 0 for piece in planned)
            with Meter("encoding", total, "rows", done=run.total("rows"), shown=progress) as meter:
                # Each thread computes on one core. Warnings about unknown texts wait for the end of the run.
                with warnings.catch_warnings(), threadpool_limits(1), ThreadPoolExecutor(threads) as pool:
                    warnings.simplefilter("ignore", UnknownTextsWarning)
                    given = (fields, part_rows, embedder, stores, meter)
                    running = [pool.submit(run.encode, piece, *given) for piece in left]
                    try:
                        for each in as_completed(running):
                            each.result()
                    finally:
                        run.stopped.set()
                        pool.shutdown(cancel_futures=True)
                meter.now("finishing")
                run.parts = store.notes(f"{PART}{run.name}-")
                store.finish(unique=run.name == "0000" and not run.total("own_ids"))
                store.write_note(f"{RUN}{run.name}", {"signature": run.signature, "finished": True})
        rows = run.total("rows")
        if not run.was_complete and (texts := run.total("unknown")):
            warnings.warn(UnknownTextsWarning(texts, rows), stacklevel=2)
        named = [line for note in run.parts.values() for line in note["named"]][:NAMED]
        return Encoded(rows, store.count(), run.total("bad"), named, embedder.dimension, run.was_complete)


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


@dataclass(frozen=True)
class Piece:
    """A stretch of a file that one thread reads."""

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


class _Run:
    """A run over some inputs, with its state in the store's notes."""

    def __init__(self, store: Store, signature: str) -> None:
        self.signature = signature
        # Set when the threads have to end, after the parts that they are storing.
        self.stopped = threading.Event()
        self._lock = threading.Lock()
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

    def part_name(self, piece: Piece, number: int) -> str:
        """Return the name of a part of a piece."""
        return f"{self.name}-{piece.key}-{number:05d}"

    def has_all(self, piece: Piece) -> bool:
        """Return whether all parts of a piece are stored."""
        notes = (self.parts.get(f"{PART}{self.part_name(piece, number)}") for number in count())
        return next(note is not None for note in notes if note is None or note["last"])

    def encode(
        self,
        piece: Piece,
        fields: Fields,
        part_rows: int,
        embedder: IndexModel,
        stores: SimpleQueue[Store],
        meter: Meter,
    ) -> None:
        """Embed and store the parts of a piece that are not yet stored."""
        with piece.opened(fields) as table:
            following = next(table.raw, None)
            for part in count():
                rows: list[tuple[int, Raw]] = []
                size = 0
                while following is not None and len(rows) < part_rows and size < PART_BYTES:
                    rows.append(following)
                    raw = following[1]
                    cells = [raw] if isinstance(raw, str) else raw.values() if isinstance(raw, dict) else ()
                    size += sum(len(cell) for cell in cells if isinstance(cell, str))
                    following = next(table.raw, None)
                if self.stopped.is_set():
                    return
                name = self.part_name(piece, part)
                if f"{PART}{name}" not in self.parts:
                    batch, note = embedded(piece, table, rows, fields, embedder)
                    store = stores.get()
                    try:
                        store.upsert(batch, name, {**note, "last": following is None})
                    finally:
                        stores.put(store)
                    with self._lock:
                        meter.update(len(batch))
                if following is None:
                    return


def embedded(
    piece: Piece, table: Table, rows: Sequence[tuple[int, Raw]], fields: Fields, embedder: IndexModel
) -> tuple[Batch, dict[str, object]]:
    """Return the documents of some rows with their vectors, and the note of a part with these rows."""
    found, errors = [], []
    own_ids = False
    for number, row in rows:
        try:
            read = piece.document(table, number, row, fields)
        except InputError as error:
            errors.append(str(error))
            continue
        if read is not None:
            found.append(read)
            own_ids = own_ids or read.id != piece.derived_id(number)
    texts = [each.text for each in found]
    vectors = embedder.documents(texts)
    unknown = int((~vectors.any(axis=1)).sum())
    note = {"rows": len(found), "bad": len(errors), "named": errors[:NAMED], "own_ids": own_ids, "unknown": unknown}
    return Batch([str(each.id) for each in found], texts, [each.metadata for each in found], vectors), note
