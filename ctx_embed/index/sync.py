"""Bring an index in step with a folder: read what is new or changed, remove what is gone, leave the rest alone.

Both the files of the folder and the files that the index has recorded come sorted by their path, so one pass over the
two finds the differences in bounded memory. Changes are committed in steps of a few seconds. A file's documents and its
record change in one commit: after a kill, the next run continues with the files that are left.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

from ctx_embed.errors import InputError, examples, quoted
from ctx_embed.files import on_disk
from ctx_embed.index import records, writer
from ctx_embed.index.database import Database
from ctx_embed.index.documents import Id, checked_id, forms_of, metadata_json
from ctx_embed.index.following import FolderOptions
from ctx_embed.index.records import FollowedFolder, RecordedFile, Synced, known_folder
from ctx_embed.index.writer import Edit
from ctx_embed.progress import Meter
from ctx_embed.reading.decoding import MOST_BYTES, Extracted, UnreadableFileError
from ctx_embed.reading.formats import Format, extract, format_of
from ctx_embed.reading.opening import suffix_of
from ctx_embed.reading.rows import in_blocks
from ctx_embed.reading.units import documents_of, modified, record_documents, records_of
from ctx_embed.reading.walking import File, Skipped, is_index, walk
from ctx_embed.reading.workers import Extraction
from ctx_embed.texts import Document, well_formed

if TYPE_CHECKING:
    from ctx_embed.index.search_index import SearchIndex

# Documents are embedded in batches of about this many characters in all.
BATCH_CHARACTERS = 8_000_000
EMPTY = "empty"
# A folder that has lost this many files, and more than half of all, is synchronised only if the caller insists.
MANY_FILES = 20


class Change(NamedTuple):
    """A change: a file to read (``file`` is set), to remove (only ``record``) or to mark as touched (``digest``)."""

    file: File | None
    record: RecordedFile | None
    digest: bytes | None = None
    # Whether it waited until all others were made, since another file had an id of its documents.
    late: bool = False

    @property
    def path(self) -> str | None:
        """The path of the file whose text is needed; None if no text is, or if the file has records."""
        file = self.file
        if file is None or not file.size or self.digest is not None or format_of(file.path).rows:
            return None
        return file.path


# A change with the texts of its file, or with the reason why there are none.
Read: TypeAlias = tuple[Change, list[Extracted] | Exception]


class _Waiting(NamedTuple):
    """Documents that are embedded together later, and the number of passages stored before them."""

    documents: tuple[Document, ...] = ()
    characters: int = 0
    passages: int = 0


class _TryAgainError(UnreadableFileError):
    """A file cannot be read now, but perhaps in the next run."""


class _TakenIdError(_TryAgainError):
    """A document from elsewhere has an id."""


def sync_folder(
    index: SearchIndex,
    folder: str | Path,
    given: Mapping[str, Any],
    *,
    result: Synced | None = None,
    prefixed: bool = False,
    allow_empty: bool = False,
    dry_run: bool = False,
    checksum: bool = False,
    progress: bool = False,
) -> Synced:
    """Bring an index in step with a folder, see :meth:`SearchIndex.sync`, and return the report (``result`` continued).

    ``given`` are values of :class:`FolderOptions` by name; None and () stand for those of the last run. ``prefixed``:
    sources begin with the folder's name even if it is the first folder of the index.
    """
    # Documents of a followed folder that is gone can be dropped.
    is_gone = allow_empty and not os.path.lexists(folder)
    path = os.path.realpath(folder) if is_gone else require_source_folder(folder)
    inside = os.path.realpath(index.path)
    if path == inside or path.startswith(inside + os.sep):
        raise InputError(f"{path}: lies in the index itself; name the folder of the documents")
    result = Synced() if result is None else result
    with closing(Database(index.path)) as store:
        former = known_folder(store, path)
        if is_gone and former is None:
            raise InputError(f"{folder}: no such folder, and {index.path} does not follow it")
        if former is None and (former := records.moved_folder(store, path)) is not None:
            result.remarks.append(f"{path} takes the place of {former.path}, which is gone")
        last = former.options if former else FolderOptions()
        options = replace(last, **{name: value for name, value in given.items() if value not in (None, ())})
        makes_others = former is not None and (options.documents, options.fields) != (last.documents, last.fields)
        followed = (former or records.new_folder(store, path, prefixed, options))._replace(path=path, options=options)
        result.remarks += [
            f"the followed folder {other.path} is gone; drop its documents with `ctx-embed index sync {other.path} "
            f"{index.path} --allow-empty`"
            for other in records.folders(store)
            if other.number != followed.number and not os.path.isdir(other.path)
        ]
        # Listing the first file raises an error for invalid globs before anything is written.
        globs = options.include, options.exclude
        files = iter(()) if is_gone else walk(path, *globs, bool(options.follow_links), result.remarks)
        entries = chain(list(islice(files, 1)), files)
        if former is not None and not allow_empty:
            _require_files(
                followed, [record.source for record in records.recorded(store, former) if not record.problem]
            )
        before = records.recorded(store, followed) if former is not None or not dry_run else iter(())
        if dry_run and makes_others:
            before = (record._replace(modified=records.READ_AGAIN, hash=b"") for record in before)
        elif not dry_run and followed != former:
            with store.writing():
                records.follow(store, followed)
                if makes_others:
                    # The files become other documents: read all of them again.
                    statement = "UPDATE files SET modified = ?, hash = x'' WHERE folder = ?"
                    store.run(statement, (records.READ_AGAIN, followed.number))
        with Extraction() as extraction, Meter("reading", unit="files", shown=progress) as meter:
            differences = _changes(entries, before, result, meter, checksum)
            later: list[Read] = []
            changes = chain(extraction.read((change, change.path) for change in differences), later)
            more = True
            while more:
                with nullcontext() if dry_run else index.writer.editing(tidy=False) as edit:
                    step = _Step(store if edit is None else edit.store, edit, index, followed, result, later)
                    while more and (edit is None or not edit.is_long):
                        change, texts = next(changes, (None, list[Extracted]()))
                        more = change is not None
                        if change is not None:
                            step.take(change, texts)
                    step.store()
                    result.passages += step.waiting.passages
        if dry_run:
            return result
        if is_gone:
            with store.writing():
                store.run("DELETE FROM folders WHERE folder = ?", (followed.number,))
    # Updates FAISS's file, and compacts if most vectors belong to deleted documents.
    with index.writer.editing(progress=progress):
        pass
    return result


def _require_files(folder: FollowedFolder, sources: list[str]) -> None:
    """Refuse a folder that lacks the files of these sources, or most of many, and does not have as many others."""
    lost = [source for source in sources if not os.path.lexists(on_disk(folder.path, source))]
    gone = len(lost)
    if gone and (gone == len(sources) or (gone >= MANY_FILES and 2 * gone > len(sources))):
        entries = walk(folder.path, folder.options.include, folder.options.exclude, bool(folder.options.follow_links))
        if 2 * sum(isinstance(entry, File) for entry in entries) < len(sources):
            raise InputError(
                f"{folder.path}: {gone} of its {len(sources)} files are gone ({examples(lost, gone)}); is its disk "
                "mounted? Nothing was changed; repeat the command with --allow-empty to remove their documents"
            )


def require_source_folder(folder: str | Path) -> str:
    """Return a folder's absolute path, without links; raise InputError if its files cannot be followed."""
    if not os.path.isdir(folder):
        missing = "no such folder; if an index follows it, `index sync --allow-empty` drops its documents"
        raise InputError(f"{folder}: {'must be a folder, got a file' if os.path.exists(folder) else missing}")
    if is_index(folder):
        raise InputError(f"{folder}: must be a folder of documents, got a search index")
    path = os.path.realpath(folder)
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        raise InputError(f"{folder}: the path of the folder must be UTF-8; rename it") from None
    return path


def _changes(
    entries: Iterator[File | Skipped], recorded: Iterator[RecordedFile], result: Synced, meter: Meter, checksum: bool
) -> Iterator[Change]:
    """Yield the differences between a folder and its records, both sorted by source, and count all other files.

    A file is hashed if anything of it but its size has changed, or with ``checksum``.
    """
    record = next(recorded, None)
    for entry in entries:
        source = entry.source
        unlisted = isinstance(entry, Skipped) and entry.unreadable
        # A folder that cannot be listed may still have its files.
        while record is not None and record.source < (f"{source}/" if unlisted else source):
            yield Change(None, record)
            record = next(recorded, None)
        if isinstance(entry, Skipped):
            result.leave_out(source, entry.reason, named=entry.failed)
            while unlisted and record is not None and record.source.startswith(f"{source}/"):
                _unchanged(record, result)
                record = next(recorded, None)
            continue
        meter.update()
        if record is None or record.source != source:
            yield Change(entry, None)
            continue
        same, record = record, next(recorded, None)
        is_same, digest = same[2:6] == entry[2:], None
        if (checksum or not is_same) and same.size == entry.size and same.hash:
            # A file that cannot be read fails when its text is read.
            with suppress(OSError):
                digest = content_hash(entry)
        touched = digest is not None and digest == same.hash
        is_same = is_same and (digest is None or touched)
        if is_same or touched:
            _unchanged(same, result)
        if not is_same:
            yield Change(entry, same, digest if touched else None)
    while record is not None:
        yield Change(None, record)
        record = next(recorded, None)


def _unchanged(record: RecordedFile, result: Synced) -> None:
    if record.problem is None:
        result.unchanged += 1
    else:
        result.leave_out(record.source, record.problem, named=not record.counted)


def content_hash(file: File) -> bytes:
    """Return a BLAKE2 hash (16 bytes) of a file, of as many bytes as it had when it was listed."""
    digest = hashlib.blake2b(digest_size=16)
    left = file.size
    with open(file.path, "rb") as content:
        while left and (part := content.read(min(left, 1 << 20))):
            digest.update(part)
            left -= len(part)
    return digest.digest()


def _is_as_listed(file: File) -> bool:
    with suppress(OSError):
        return File.of(file.path, file.source, os.stat(file.path)) == file
    return False


@dataclass
class _Step:
    """The changes of one commit; documents of several files are embedded together.

    Without ``edit`` nothing is changed: the report says what would be. ``later`` gets the files that have an id of
    another file, which may lose it in this run.
    """

    database: Database
    edit: Edit | None
    index: SearchIndex
    folder: FollowedFolder
    result: Synced
    later: list[Read]
    waiting: _Waiting = field(default_factory=_Waiting)
    # Without edit: for ids of the files so far, whether a document has them now.
    _ids: dict[str, bool] = field(default_factory=dict)

    def take(self, change: Change, texts: list[Extracted] | Exception) -> None:
        """Make one change; new documents are stored when a batch of them is full."""
        file, record, digest, _ = change
        if file is not None and digest is not None:
            assert record is not None
            if self.edit is None:
                return
            # The file has changed, but not its text.
            store = self.database
            records.record(store, self.folder, file, digest, record.problem, record.counted)
            if file.modified != record.modified:
                own, values = "id IN (SELECT id FROM origins WHERE file = ?)", (modified(file.modified), record.number)
                store.run(f"UPDATE documents SET metadata = json_set(metadata, '$.modified', ?) WHERE {own}", values)
                store.run("UPDATE origins SET written = json_set(written, '$.modified', ?) WHERE file = ?", values)
                store.store_checksums(own, record.number)
                self.edit.edited()
        elif file is not None and (kind := format_of(file.path)).installed:
            self._read(change, file, kind, texts)
        else:
            if record is not None:
                self._delete(self._ids_of(record))
                if self.edit is not None:
                    self.database.run("DELETE FROM files WHERE file = ?", (record.number,))
            if file is not None:
                # The file is not recorded, since the extra may be installed before the next run.
                self.result.lacking[suffix_of(file.path)] += 1
            elif record is not None and record.problem is None:
                self.result.count("removed", record.source)

    def _ids_of(self, record: RecordedFile | None) -> list[Id]:
        if record is None:
            return []
        return [each for (each,) in self.database.run("SELECT id FROM origins WHERE file = ?", (record.number,))]

    def _delete(self, ids: list[Id]) -> None:
        if self.edit is None:
            self._ids |= dict.fromkeys(map(str, ids), False)
        elif ids:
            self.edit.delete(ids)

    def _read(self, change: Change, file: File, kind: Format, texts: list[Extracted] | Exception) -> None:
        """Replace a file's documents with those that it now contains, and record the file."""
        record = change.record
        store, edit, old, options = self.database, self.edit, self._ids_of(record), self.folder.options
        # The ids of the file's documents, by their texts, with the metadata that the file gives them.
        new: dict[str, tuple[Id, dict[str, Any]]] = {}
        problem: UnreadableFileError | None = None
        digest, notes, before = b"", list[str](), self.waiting
        try:
            # A table is stored as it is read, but as a whole or not at all.
            with nullcontext() if edit is None else edit.undoing_unread():
                if not file.size:
                    # Empty files are not opened: some virtual files, as in /proc, have size 0 but block or never end.
                    raise UnreadableFileError(EMPTY, counted=not kind.apart)
                digest = b"" if isinstance(texts, Exception) and file.size > MOST_BYTES else content_hash(file)
                if isinstance(texts, Exception):
                    raise texts
                named = file._replace(source=f"{self.folder.prefix}{file.source}")
                is_table = kind.rows is not None
                records_now = records_of(file.path, options.documents, options.fields) if is_table else None
                if records_now is not None:
                    fields, notes = records_now
                    parts = in_blocks(record_documents(named, fields, notes), writer.BATCH_DOCUMENTS)
                else:
                    texts = list(extract(file.path)) if is_table else texts
                    parts = iter([list(documents_of(named, texts, options.documents))])
                for part in parts:
                    self._add(part, change, new)
                if records_now is not None and not _is_as_listed(file):
                    raise _TryAgainError("changed while it was read")
                if not new:
                    raise UnreadableFileError(EMPTY, counted=True)
        except (UnreadableFileError, OSError) as error:
            self.waiting = before
            if isinstance(error, OSError):
                error = _TryAgainError(f"cannot be read ({error.strerror})")
            problem = error
        if isinstance(problem, _TakenIdError) and not change.late:
            self.later.append((change._replace(late=True), texts))
            return
        if old and problem is not None and not (problem.counted and str(problem) == EMPTY):
            # Perhaps a download that was cut short: what the file said before stays until it can be read.
            if edit is not None:
                records.record(store, self.folder, file._replace(modified=records.READ_AGAIN), b"", None, False)
            self.result.leave_out(file.source, f"{problem}; its former text stays in the index", named=True)
            return
        number = 0
        if edit is not None:
            seen = file
            if isinstance(problem, _TryAgainError) or (problem is None and not _is_as_listed(file)):
                seen, digest = file._replace(modified=records.READ_AGAIN), b""
            reason = (None, False) if problem is None else (str(problem), problem.counted)
            number = records.record(store, self.folder, seen, digest, *reason)
        self._delete([identifier for identifier in old if str(identifier) not in new])
        if problem is not None:
            self.result.leave_out(file.source, str(problem), named=not problem.counted)
            if old:
                self.result.count("removed", file.source)
            return
        if edit is None:
            self._ids |= dict.fromkeys(new, True)
        else:
            store.run_many(
                "INSERT INTO origins VALUES (?, ?, ?) "
                "ON CONFLICT (id) DO UPDATE SET file = excluded.file, written = excluded.written",
                ((identifier, number, metadata_json(metadata, 1)) for identifier, metadata in new.values()),
            )
        self.result.notes |= {file.source: "; ".join(notes)} if notes else {}
        self.result.documents += len(new)
        is_new = record is None or record.problem is not None
        self.result.count("added" if is_new else "changed", file.source)

    def _add(self, documents: list[Document], change: Change, new: dict[str, tuple[Id, dict[str, Any]]]) -> None:
        """Add documents of a file to those that wait, and to ``new``, unless one of them cannot be stored.

        If a document from elsewhere has a record's id, the record's begins with the name of its file, and stays so.
        """
        ids: list[tuple[str, str]] = []
        for number, document in enumerate(documents, len(new) + 1):
            try:
                metadata_json(document.metadata, number)
                identifier = str(checked_id(document.id, number))
            except InputError as error:
                raise UnreadableFileError(str(error)) from None
            source = str(document.metadata["source"])
            ids.append((identifier, identifier if identifier.startswith(source) else f"{source}:{identifier}"))
        # A dry run may come before the first folder of the index.
        has_origins = self.edit is not None or records.folders(self.database)
        origins = "origins" if has_origins else "(SELECT 0 AS id, 0 AS file, 0 AS written)"
        select = (
            f"SELECT d.id, file, written FROM documents d LEFT JOIN {origins} o ON o.id = d.id WHERE d.id IN ({{}})"
        )
        rows = self.database.run_among(select, forms_of(chain.from_iterable(ids)))
        stored = {str(identifier): row for identifier, *row in rows}
        waiting = {str(document.id) for document in self.waiting.documents}
        own = change.record and change.record.number

        def is_of_others(identifier: str) -> bool:
            is_stored = identifier in stored and (own is None or stored[identifier][0] != own)
            return identifier in waiting or self._ids.get(identifier, is_stored)

        by_id: dict[str, Document] = {}
        for document, (identifier, longer) in zip(documents, ids, strict=True):
            if identifier not in new and (longer in stored or (change.late and is_of_others(identifier))):
                identifier, document = longer, replace(document, id=longer)
            if identifier in by_id or identifier in new:
                place = f"line {document.metadata['line']}: " if "line" in document.metadata else ""
                raise UnreadableFileError(f"{place}the id {quoted(identifier)} comes twice")
            if is_of_others(identifier):
                raise _TakenIdError(f"the id {quoted(identifier)} belongs to a document from elsewhere")
            by_id[identifier] = document
        stored = {identifier: row for identifier, row in stored.items() if identifier in by_id}
        given = {identifier: document.metadata for identifier, document in by_id.items()}
        if self.edit is not None:
            for identifier, now_stored in self.edit.store.find(stored).items():
                # Metadata that people have changed in the stored documents stay.
                written, now, fields = json.loads(stored[identifier][1]), now_stored.metadata, given[identifier]
                changed = {name: value for name, value in now.items() if (name, value) not in written.items()}
                kept = {name: value for name, value in fields.items() if name in now or name not in written}
                by_id[identifier] = replace(by_id[identifier], id=now_stored.id, metadata={**kept, **changed})
        new |= {identifier: (cast(Id, by_id[identifier].id), fields) for identifier, fields in given.items()}
        every = *self.waiting.documents, *by_id.values()
        characters = self.waiting.characters + sum(len(document.text) for document in by_id.values())
        self.waiting = self.waiting._replace(documents=every, characters=characters)
        if len(every) >= writer.BATCH_DOCUMENTS or characters >= BATCH_CHARACTERS:
            self.store()

    def store(self) -> None:
        """Embed and store the waiting documents."""
        documents, _, passages = self.waiting
        if self.edit is None:
            texts = [(well_formed(document.text), getattr(document, "blocks", ())) for document in documents]
            passages += sum(map(len, self.index.writer.passages(texts)))
        else:
            before = self.edit.state.next_row
            self.edit.add(documents, replacing=True)
            passages += self.edit.state.next_row - before
        self.waiting = _Waiting(passages=passages)
