"""Changes to an index: an edit is one transaction; FAISS's file follows it, and compaction if that is due."""

from __future__ import annotations

import hashlib
import logging
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from ctx_embed.errors import InputError, UnwritableError, described, quoted
from ctx_embed.index import faiss_file
from ctx_embed.index.chunking import Cut, chunker
from ctx_embed.index.database import FAISS_SUFFIX, NEXT, Database, checksum, expanded, ranges_of
from ctx_embed.index.documents import (
    LARGEST_ID,
    LAST_IDS,
    Id,
    Span,
    checked_id,
    embedded_texts,
    forms_of,
    integer_of,
    metadata_json,
)
from ctx_embed.index.folder import IndexFolder, View
from ctx_embed.index.hits import unrelated_cosines
from ctx_embed.index.nearest import VectorTable
from ctx_embed.index.vectors import DTYPES, Vectors, schema
from ctx_embed.model import Model
from ctx_embed.progress import Meter
from ctx_embed.reading.decoding import UnreadableFileError
from ctx_embed.text.normalisation import indexed
from ctx_embed.texts import Document, Embedded, well_formed
from ctx_embed.vectors import unit_vector

_LOG = logging.getLogger(__name__)
# Number of documents that are embedded and written at a time.
BATCH_DOCUMENTS = 2048
# A long job commits after this number of documents, or of seconds.
STEP_DOCUMENTS, STEP_SECONDS = 16_384, 5.0
# Vectors whose data type changes, or that are removed, in one commit.
ROWS_AT_ONCE = 8192


class TakenIdError(InputError):
    """The id of a document already belongs to another one."""

    def __init__(self, number: int, identifier: Id, owner: str = "is already in the index") -> None:
        super().__init__(f"document {number}: the id {quoted(identifier)} {owner}; ids must be unique")
        self.identifier = identifier


class _NewDocument(NamedTuple):
    """A document to store: what is embedded for each of its passages, and its vectors, None if not yet embedded."""

    id: Id
    metadata: str
    text: str
    spans: Sequence[Span]
    embedded: list[str]
    vectors: Sequence[Vectors | None]


class Edit:
    """Changes to an index in one transaction and in bounded memory, see :meth:`Writer.editing`.

    ``state`` is what the commit will publish, and ``counted`` the documents that the same job has added so far. No
    document of a row before ``first_row`` is replaced; None: any is if asked for.
    """

    first_row: int | None = None

    def __init__(self, store: Database, writer: Writer, counted: int) -> None:
        self.store = store
        self.state = store.state()
        self.counted, self._writer = counted, writer
        self._begun = counted, time.monotonic()
        settings, following = store.present(), store.settings_named(NEXT)
        self._vectors = VectorTable(store, settings)
        # A reembedding fills a second table at the same time.
        self._tables = [self._vectors, *([] if following is None else [VectorTable(store, following)])]
        self._start = self.state.next_row

    @property
    def is_long(self) -> bool:
        """Whether a long job should commit this edit, and continue with another one."""
        counted, began = self._begun
        return self.counted - counted >= STEP_DOCUMENTS or time.monotonic() - began >= STEP_SECONDS

    def add_all(self, documents: Iterable[Document], *, replacing: bool) -> list[Id]:
        """Add a stream of documents in batches, and return their ids; see :meth:`add`."""
        stream = iter(documents)
        ids: list[Id] = []
        while some := list(islice(stream, BATCH_DOCUMENTS)):
            ids += self.add(some, replacing=replacing)
        return ids

    def add(self, documents: Sequence[Document], *, replacing: bool) -> list[Id]:
        """Add a batch of documents and return their ids; automatic ids are larger than all used below ``LAST_IDS``.

        ``replacing``: a document replaces one with its id; if several in a batch have one id, the last is stored.
        """
        if not documents:
            return []
        first = self.counted + 1
        given = {n: checked_id(one.id, n) for n, one in enumerate(documents, first) if one.id is not None}
        integers = {number for number in map(integer_of, given.values()) if number is not None}
        next_id = max(self.state.next_id, *(identifier + 1 for identifier in integers if identifier < LAST_IDS), 0)
        if next_id + len(documents) > LAST_IDS:
            numbers = "SELECT CAST(id AS INTEGER) AS number FROM documents WHERE number BETWEEN ? AND ?"
            last = self.store.run(numbers, (next_id, LARGEST_ID))
            integers.update(identifier for (identifier,) in last)
        # An id stays as it was first given. No document has an automatic id yet.
        taken = self.store.rows_of_ids(given.values())
        first_given = {text: identifier for text, (identifier, _, _) in taken.items()}
        ids, automatic = list[Id](), list[Id]()
        for number in range(first, first + len(documents)):
            if number not in given:
                while next_id in integers:
                    next_id += 1
                # The largest integer is never an automatic id, so the next id can always be stored.
                if next_id >= LARGEST_ID:
                    raise InputError(f"document {number}: no larger integer is left for its id; give it an id")
                automatic.append(next_id)
                next_id += 1
            identifier = given[number] if number in given else automatic[-1]
            ids.append(first_given.setdefault(str(identifier), identifier))
        self._require_new(ids, first, {text: row for text, (_, row, _) in taken.items()}, replacing)
        texts, whole = [], []
        for number, document in enumerate(documents, first):
            if not isinstance(document.text, str):
                raise InputError(f"document {number}: the text must be a string, got {described(document.text)}")
            texts.append(well_formed(str(document.text)))
            # A document that comes with its embedding or its passages is not cut.
            if not isinstance(document, Embedded) or (document.embedding is None and document.spans is None):
                whole.append((texts[-1], getattr(document, "blocks", ())))
        cut = iter(self._writer.passages(whole))
        prepared: dict[str, _NewDocument] = {}
        for number, (identifier, document, text) in enumerate(zip(ids, documents, texts, strict=True), first):
            metadata = metadata_json(document.metadata, number)
            vectors: Any = None
            if isinstance(document, Embedded) and document.spans is not None:
                spans, vectors = document.spans, document.embedding
            elif isinstance(document, Embedded) and document.embedding is not None:
                spans, name = [(0, len(text))], f"document {number}: the embedding"
                vectors = [unit_vector(document.embedding, self._vectors.settings.dimension, name)]
            else:
                spans = next(cut)
            embedded = embedded_texts(text, document.metadata, spans, self._vectors.settings.titled)
            vectors = [None] * len(spans) if vectors is None else vectors
            prepared.pop(str(identifier), None)
            prepared[str(identifier)] = _NewDocument(identifier, metadata, text, spans, embedded, vectors)
        self._store(list(prepared.values()), taken)
        self.store.record_automatic(automatic, given.values())
        self.state = replace(self.state, next_id=next_id)
        self.counted += len(documents)
        return ids

    @contextmanager
    def undoing_unread(self) -> Iterator[None]:
        """Undo what the block has changed if it cannot read a file."""
        state, counted = self.state, self.counted
        self.store.run("SAVEPOINT file")
        try:
            yield
        except (UnreadableFileError, OSError):
            self.store.run("ROLLBACK TO file")
            self.store.run("RELEASE file")
            self.state, self.counted = state, counted
            raise
        self.store.run("RELEASE file")

    def _require_new(self, ids: Sequence[Id], first: int, taken: Mapping[str, int], replacing: bool) -> None:
        """Raise an error if an id belongs to a document that is not replaced, stored or in the same batch."""
        numbers: dict[str, int] = {}
        first_row = self.first_row if self.first_row is not None else 0 if replacing else self._start
        for number, identifier in enumerate(ids, first):
            row = taken.get(str(identifier))
            if row is not None and row < first_row:
                raise TakenIdError(number, identifier)
            if replacing:
                continue
            other = numbers.setdefault(str(identifier), number)
            if row is not None:
                between = "SELECT count(*) FROM documents WHERE row BETWEEN ? AND ?"
                ((other,),) = self.store.run(between, (first_row, row))
            if other != number:
                raise TakenIdError(number, identifier, f"is also that of document {other}")

    def _store(self, documents: Sequence[_NewDocument], replaced: Iterable[Id]) -> None:
        """Write documents, their passages, words and vectors, which another thread embeds unless the text is known."""
        embedded = [text for document in documents for text in document.embedded]
        given = [vector for document in documents for vector in document.vectors]
        passages = [document.text[start:stop] for document in documents for start, stop in document.spans]
        rows: dict[str, int] = {}
        for row, (text, passage) in enumerate(zip(embedded, passages, strict=True), self.state.next_row):
            if text == passage:
                rows.setdefault(text, row)
        digests = {text: hashlib.blake2b(text.encode(), digest_size=8).digest() for text in rows}
        # Signed integers of 64 bits, for SQLite.
        hashes = {text: int.from_bytes(digest, "big", signed=True) for text, digest in digests.items()}
        # Vectors are copied before their documents are replaced. The row of a hash may belong to a deleted document.
        stored = f"SELECT row FROM vectors_{self._vectors.settings.table}"
        there = f"SELECT row FROM hashes WHERE hash IN ({{}}) AND row IN ({stored})"
        alike = self.store.fetch(row for (row,) in self.store.run_among(there, sorted(hashes.values())))
        row_of = {passage.text: row for row, passage in alike.items()}
        wanted = dict.fromkeys(text for text, vector in zip(embedded, given, strict=True) if vector is None)
        old = [text for text in wanted if text in row_of]
        new = [text for text in wanted if text not in row_of]
        vector_of = dict(zip(old, self._vectors.get(np.array([row_of[text] for text in old], np.int64)), strict=True))
        with ThreadPoolExecutor(1) as pool:
            embedding = pool.submit(lambda: self._writer.embedder().documents(new)) if new else None
            self._delete(replaced)
            records, cut, first = [], [], self.state.next_row
            for document in documents:
                spans = document.spans
                is_cut = list(spans) != [(0, len(document.text))]
                joined = ",".join(f"{start} {stop}" for start, stop in spans) if is_cut else None
                check = checksum(len(spans), document.id, document.metadata, document.text, joined)
                records.append((first, len(spans), check, document.id, document.metadata, document.text))
                if is_cut:
                    cut += [(row, start, stop) for row, (start, stop) in enumerate(spans, first)]
                first += len(spans)
            words = [(row, indexed(passage)) for row, passage in enumerate(passages, self.state.next_row)]
            self.store.run_many("INSERT INTO documents VALUES (?, ?, ?, ?, ?, ?)", records)
            self.store.run_many("INSERT INTO passages VALUES (?, ?, ?)", cut)
            self.store.run_many("INSERT INTO words (rowid, text) VALUES (?, ?)", words)
            # Use the new row from now on: the old one's document may be about to be replaced.
            pairs = sorted((hashes[text], row) for text, row in rows.items())
            self.store.run_many("INSERT OR REPLACE INTO hashes VALUES (?, ?)", pairs)
            if embedding is not None:
                vector_of |= zip(new, embedding.result(), strict=True)
        vectors = [vector_of[text] if vector is None else vector for text, vector in zip(embedded, given, strict=True)]
        next_row = self.state.next_row + len(vectors)
        self._vectors.put(range(self.state.next_row, next_row), np.stack(vectors))
        self.state = replace(self.state, next_row=next_row, documents=self.state.documents + len(documents))

    def update_metadata(self, ids: Sequence[Id], changes: dict[str, Any]) -> int:
        """Change metadata fields of documents, and remove fields set to None; return the number of documents."""
        metadata_json(changes, 1)
        checked = [checked_id(identifier, number) for number, identifier in enumerate(ids, 1)]
        documents = self.store.find(checked)
        for identifier in checked:
            if str(identifier) not in documents:
                raise InputError(f"no document has the id {quoted(identifier)}")
        again, titled = list[Document](), self._vectors.settings.titled
        for number, document in enumerate(documents.values(), 1):
            fields = {name: value for name, value in {**document.metadata, **changes}.items() if value is not None}
            if fields == document.metadata:
                continue
            written = metadata_json(fields, number)
            if document.embedded(titled) == document._replace(metadata=fields).embedded(titled):
                self.store.run("UPDATE documents SET metadata = ? WHERE row = ?", (written, document.row))
                self.store.store_checksums("row = ?", document.row)
                self.edited()
            else:
                again.append(Embedded(document.text, document.id, fields, spans=document.spans))
        automatic = self.store.automatic([document.id for document in again if document.id is not None])
        self.add_all(again, replacing=True)
        self.store.record_automatic(automatic, [])
        return len(documents)

    def delete(self, ids: Sequence[Id]) -> int:
        """Delete the documents with the given ids and return their number; ids that do not exist are skipped."""
        checked = [checked_id(identifier, number) for number, identifier in enumerate(ids, 1)]
        if self.store.run("SELECT 1 FROM sqlite_master WHERE name = 'origins'"):
            # A document of a followed folder comes back when its file changes.
            self.store.run_many("DELETE FROM origins WHERE id = ?", ((identifier,) for identifier in forms_of(checked)))
        return self._delete(checked)

    def _delete(self, ids: Iterable[Id]) -> int:
        """Delete documents and their vectors; their rows are never used again."""
        documents = self.store.find(ids).values()
        if not documents:
            return 0
        words = [(row, indexed(text)) for document in documents for row, text in document.texts()]
        rows = [(document.row, document.passages) for document in documents]
        ranges = [(row, row, count) for row, count in rows]
        self.store.run_many("INSERT INTO words (words, rowid, text) VALUES ('delete', ?, ?)", words)
        for table in ("passages", *(f"vectors_{table.settings.table}" for table in self._tables)):
            self.store.run_many(f"DELETE FROM {table} WHERE row >= ? AND row < ? + ?", ranges)
        self.store.run_many("DELETE FROM documents WHERE row = ? AND passages = ?", rows)
        self.store.run_many("INSERT INTO deleted (row, passages) VALUES (?, ?)", rows)
        self.state = replace(self.state, documents=self.state.documents - len(documents))
        return len(documents)

    def edited(self) -> None:
        """Note that metadata were changed in place, so that cached results of filters are dropped."""
        self.state = replace(self.state, edited=self.state.generation + 1)


class Writer:
    """Changes an index, one thread and one process at a time; ``embedder`` returns the model when it is needed."""

    def __init__(self, folder: IndexFolder, embedder: Callable[[], Model], changing: Any) -> None:
        # The folder, and so its options, may come from elsewhere.
        faiss_file.checked_factory(folder.settings.factory, folder.settings.dimension)
        self.folder = folder
        # A change compacts the index if at least this number of vectors, and more than half of all, are of deleted
        # documents. After a failure it is tried again when twice as many are.
        self.least_dead_rows = 20_000
        self.embedder, self._changing = embedder, changing
        self._reported = False

    @cached_property
    def passages(self) -> Cut:
        """What returns the passages of texts, given with their blocks."""
        chunk = self.folder.settings.chunk
        # Whole documents need no tokenizer, so the model is not loaded if all documents come with embeddings.
        return chunker(chunk, None if chunk == "none" else self.embedder())

    @contextmanager
    def editing(self, *, tidy: bool = True, counted: int = 0, progress: bool = False) -> Iterator[Edit]:
        """Let the block change the index: one commit when it ends, undone if it raises.

        ``tidy`` then updates FAISS's file, and compacts if that is due. ``counted``: documents that the job has added.
        """
        with self._changing, closing(Database(self.folder.folder)) as store:
            with store.writing():
                self.folder.require_in_place()
                if store.present().table != self.folder.settings.table:
                    raise self.folder.embedded_again()
                edit = Edit(store, self, counted)
                yield edit
                if edit.state != store.state():
                    store.finish(edit.state)
            if not tidy:
                return
            dead = 0
            try:
                dead = store.deleted_rows()
                if dead >= max(self.least_dead_rows, store.state().documents + 1):
                    self._compact(store)
                    return
            except (InputError, OSError) as error:
                self.least_dead_rows = 2 * dead
                _LOG.warning("%s: was not compacted (%s)", self.folder.folder, error)
            self.tidy(store, progress=progress)

    def tidy(self, store: Database, anew: bool = False, progress: bool = False) -> None:
        """Bring FAISS's file up to date if it lacks too much, or ``anew``; if it fails, the next writer tries again."""
        with suppress(InputError, OSError, RuntimeError):
            with store.writing(patience=0):
                self.folder.require_in_place()
                old, new = store.record(), None
                # Only a writer knows that nobody is writing files that are not listed.
                for path in store.folder.glob(f"*{FAISS_SUFFIX}"):
                    # Windows does not delete open files; a later writer will delete them.
                    with suppress(OSError):
                        if old is None or path != old.path(store.folder):
                            path.unlink()
                if not (anew and old) and not faiss_file.is_stale(store):
                    return
                try:
                    new = faiss_file.write(View(store), self.embedder, anew=anew, progress=progress)
                except RuntimeError as error:
                    if not self._reported:
                        said = "%s: FAISS cannot build %s; search compares every vector (%s)"
                        _LOG.warning(said, store.folder, store.present().factory, faiss_file.reason(error))
                    self._reported = True
                if new is None and old is None:
                    return
                store.store_record(new)
                store.finish(store.state())
            # Readers know the new file now.
            with suppress(OSError):
                if old is not None:
                    old.path(store.folder).unlink()

    def compact(self, dtype: str | None = None) -> int:
        """Compact the index and give its space back, see :meth:`SearchIndex.compact`."""
        with self._changing, closing(Database(self.folder.folder)) as store:
            removed = self._compact(store, dtype)
            # VACUUM writes a copy of the database.
            needed = 2 * store.path.stat().st_size
            if (free := shutil.disk_usage(store.path.parent).free) < needed:
                space = f"{needed >> 20} MiB of free space, got {free >> 20} MiB"
                raise UnwritableError(f"{store.path}: giving deleted space back needs {space}")
            # The index is compact already; a later call can free the space.
            with suppress(InputError):
                store.run("VACUUM")
                store.run("PRAGMA wal_checkpoint(TRUNCATE)")
            return removed

    def _compact(self, store: Database, dtype: str | None = None) -> int:
        """Remove rows of deleted documents (return how many), rewrite vectors of other data types, and FAISS's file."""
        with store.writing():
            self.folder.require_in_place()
            settings = store.present()
            if dtype not in (None, settings.dtype):
                store.store_settings(replace(settings, dtype=str(dtype)))
            removed = store.deleted_rows()
            if removed:
                if store.damaged_rows():
                    raise store.damaged("`ctx-embed index verify` lists the problems")
                state, firsts = store.state(), store.firsts()
                left = state.generation + 1, state.next_row, ranges_of(expanded(firsts[:, 0], firsts[:, 1]))
                store.run("DELETE FROM deleted")
                store.run("UPDATE compaction SET generation = ?, stop = ?, ranges = ?", left)
                store.run(f"DELETE FROM hashes WHERE row NOT IN (SELECT row FROM vectors_{settings.table})")
                store.finish(state)
        changed = bool(removed)
        while True:
            with store.writing():
                settings = store.present()
                vectors = VectorTable(store, settings)
                select = (
                    f"SELECT row FROM vectors_{settings.table} WHERE length(code) NOT IN (0, ?) LIMIT {ROWS_AT_ONCE}"
                )
                width = settings.dimension * DTYPES[settings.dtype].scalar().itemsize
                rows = np.array(store.run(select, (width,)), np.int64).ravel()
                if not len(rows):
                    break
                vectors.put(rows.tolist(), vectors.get(rows))
                store.finish(store.state())
                changed = True
        self.tidy(store, changed)
        return removed


def reembed(folder: IndexFolder, embedder: Model, *, progress: bool = False) -> bool:
    """Embed all passages of an index again, see :meth:`SearchIndex.reembed`; return whether it needed that.

    Finished batches are stored in the index, where another call with the same model resumes.
    """
    faiss_file.checked_factory(folder.settings.factory, embedder.dimension)
    with closing(Database(folder.folder)) as store:
        _remove_old_tables(store)
        present, wanted = store.present(), (embedder.fingerprint, embedder.dimension)
        if wanted == (present.model_fingerprint, present.dimension):
            return False
        with store.writing():
            folder.require_in_place()
            present, following = store.present(), store.settings_named(NEXT)
            if following is None or (following.model_fingerprint, following.dimension) != wanted:
                table = present.table + 1
                if following is not None:
                    # A run for another model was interrupted.
                    store.run(f"DROP TABLE vectors_{following.table}")
                    table = max(table, following.table + 1)
                for statement in schema(table):
                    store.run(statement)
                of_model: Any = {"model_fingerprint": embedder.fingerprint, "model": embedder.reference, "table": table}
                following = replace(
                    present,
                    **of_model,
                    dimension=embedder.dimension,
                    unrelated=unrelated_cosines(embedder.quiet_queries),
                )
                store.store_settings(following, NEXT)
        vectors = VectorTable(store, following)
        ((last,),) = store.run(f"SELECT ifnull(max(row), -1) FROM vectors_{following.table}")
        with Meter("embedding", store.state().next_row, "passages", done=last + 1, shown=progress) as meter:
            while True:
                with store.reading():
                    documents = store.after(last, BATCH_DOCUMENTS)
                passages = [
                    (document.row, row, text)
                    for document in documents
                    for row, text in enumerate(document.embedded(present.titled), document.row)
                ]
                # Equal texts are embedded once.
                place_of = {text: place for place, text in enumerate(dict.fromkeys(text for *_, text in passages))}
                distinct = embedder.documents(list(place_of))
                with store.writing():
                    folder.require_in_place()
                    if passages:
                        # Others may have deleted some of the documents meanwhile.
                        firsts = [document.row for document in documents]
                        there = set(store.run_among("SELECT row FROM documents WHERE row IN ({})", firsts))
                        kept = [(row, place_of[text]) for first, row, text in passages if (first,) in there]
                        vectors.put([row for row, _ in kept], distinct[[place for _, place in kept]])
                        meter.update(passages[-1][1] - last)
                        last = passages[-1][1]
                    elif not store.after(last, 1):
                        # The new vectors become the index's, with its present settings.
                        store.store_settings(replace(following, dtype=store.present().dtype))
                        store.store_settings(None, NEXT)
                        store.store_record(None)
                        store.finish(store.state())
                        break
        _remove_old_tables(store)
    return True


def _remove_old_tables(store: Database) -> None:
    """Remove tables of vectors that no settings name, in small commits."""
    with store.reading():
        used = {f"vectors_{settings.table}" for settings in (store.present(), store.settings_named(NEXT)) if settings}
        tables = store.run("SELECT name FROM sqlite_master WHERE type = 'table' AND name GLOB 'vectors_[0-9]*'")
    for name in {name for (name,) in tables} - used:
        while True:
            with store.writing():
                store.run(f"DELETE FROM {name} WHERE row IN (SELECT row FROM {name} ORDER BY row LIMIT {ROWS_AT_ONCE})")
                if not store.run(f"SELECT 1 FROM {name} LIMIT 1"):
                    store.run(f"DROP TABLE {name}")
                    break
