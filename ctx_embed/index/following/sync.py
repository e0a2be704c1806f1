"""Bring an index in step with a folder: read what is new or changed, remove what is gone, leave the rest alone.

Both the files of the folder and the files that the index has recorded come sorted by their path, so that one pass over
the two finds the differences in bounded memory. Changes are committed in steps of a few seconds. A file's documents and
the record of the file change in one commit: after a kill, the next run continues with the files that are left.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ctx_embed.documents.extracted import Extracted, UnreadableFileError
from ctx_embed.documents.extraction import Extraction
from ctx_embed.documents.formats import EXTRA, extract, format_of, suffix_of
from ctx_embed.documents.units import (
    RECORD_SUFFIXES,
    checked_unit,
    chunks,
    documents_of,
    holds_records,
    modified,
    record_documents,
)
from ctx_embed.documents.walking import File, Skipped, is_index, walk
from ctx_embed.errors import InputError, missing_extra
from ctx_embed.index.following import folders as sources
from ctx_embed.index.following.folders import Folder, Options, Recorded
from ctx_embed.index.storage.documents import DocumentStore, Id, checked_id, metadata_json
from ctx_embed.index.storage.manifest import DOCUMENTS
from ctx_embed.index.writing.transaction import Edit
from ctx_embed.progress import Meter
from ctx_embed.texts import Document

if TYPE_CHECKING:
    from ctx_embed.index.search_index import SearchIndex

# A step is committed after this number of documents or seconds.
STEP_DOCUMENTS, STEP_SECONDS = 16_384, 5.0
# Documents that are embedded at a time: at most this number, with about this number of characters.
BATCH_DOCUMENTS, BATCH_CHARACTERS = 2048, 8_000_000
EMPTY = "empty"
CHANGED = "changed while it was read"
# Files that could not be read are named, up to this number.
NAMED = 10
# A folder that is gone counts as moved to where most of its first files are; at most this number is compared.
MOVED_FILES = 256
# Characters of a file's path in a message; a longer one loses its middle.
SHOWN = 160
# The recorded time of a file that the next run reads again, as no file has it: what hinders reading may have gone.
_AGAIN = -1


@dataclass
class Synced:
    """What a synchronisation did and found.

    Args:
        added: the number of files that are new in the index.
        changed: of files whose documents were replaced.
        removed: of files whose documents were removed, as the files are gone or left out now.
        unchanged: of files that are in the index as they were.
        documents: the number of documents added or replaced.
        passages: the number of their passages.
        skipped: how many files and folders were left out, by reason.
        lacking: the number of files that need the extra ``documents``, by suffix.
        failed: why a file could not be read, by its path within the folder.
    """

    added: int = 0
    changed: int = 0
    removed: int = 0
    unchanged: int = 0
    documents: int = 0
    passages: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    lacking: Counter[str] = field(default_factory=Counter)
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def files(self) -> int:
        """The number of files whose documents are in the index now."""
        return self.added + self.changed + self.unchanged

    def __iadd__(self, other: Synced) -> Synced:
        """Add what another synchronisation did and found."""
        for name in ("added", "changed", "removed", "unchanged", "documents", "passages"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.skipped += other.skipped
        self.lacking += other.lacking
        self.failed |= other.failed
        return self

    @property
    def left_out(self) -> str:
        """What was not read and why, for a message; empty if everything was."""
        said = [f"{count} {reason}" for reason, count in self.skipped.most_common()]
        named = [f"{_shortened(source)} ({reason})" for source, reason in islice(self.failed.items(), NAMED)]
        if len(self.failed) > NAMED:
            named.append(f"{len(self.failed) - NAMED} more")
        parts = [f"skipped {', '.join(said)}"] if said else []
        if named:
            parts.append(f"could not read {', '.join(named)}")
        if self.lacking:
            lacking = ", ".join(f"{count} {suffix}" for suffix, count in self.lacking.most_common())
            parts.append(str(missing_extra(f"left out {lacking}, which", EXTRA)))
        # Names of files may contain line ends, escape sequences and bytes that are not UTF-8.
        return "".join(character if character.isprintable() else "?" for character in "; ".join(parts))

    def skip(self, source: str, reason: str, counted: bool) -> None:
        """Count a file that was left out, or name it."""
        if counted:
            self.skipped[reason] += 1
        else:
            self.failed[source] = reason


def _shortened(source: str) -> str:
    return source if len(source) <= SHOWN else f"{source[: SHOWN // 2]}…{source[-(SHOWN // 2) :]}"


class _Change(NamedTuple):
    """A difference: a file to read (``file``), to remove (only ``record``), or to mark as touched (``digest``)."""

    file: File | None
    record: Recorded | None
    digest: bytes | None = None


def require_source_folder(folder: str | Path) -> str:
    """Return the absolute path of a folder without links in it.

    Raises:
        InputError: there is no such folder, it is a search index, or its path is not UTF-8.
    """
    if not os.path.isdir(folder):
        raise InputError(f"{folder}: {'must be a folder, got a file' if os.path.exists(folder) else 'no such folder'}")
    if is_index(folder):
        raise InputError(f"{folder}: must be a folder of documents, got a search index")
    path = os.path.realpath(folder)
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        raise InputError(f"{folder}: the path of the folder must be UTF-8; rename it") from None
    return path


def known_folder(store: DocumentStore, folder: str | Path) -> Folder | None:
    """Return the record of a folder that an index follows, perhaps from where it was before it was moved, or None."""
    path = os.path.realpath(folder)
    followed = sources.folders(store)
    known = next((known for known in followed if known.path == path), None)
    return known or next((known for known in followed if _has_moved(store, known, path)), None)


def _has_moved(store: DocumentStore, known: Folder, path: str) -> bool:
    """Return whether a folder is gone and most of its first files are in another."""
    if os.path.lexists(known.path):
        return False
    files = list(islice(sources.recorded(store, known), MOVED_FILES))
    return 2 * sum(_size(os.path.join(path, file.source)) == file.size for file in files) > len(files)


def _size(path: str) -> int | None:
    try:
        return os.stat(path).st_size
    except OSError:
        return None


def merged_options(
    index: SearchIndex,
    folder: str | Path,
    include: Sequence[str] | None = None,
    exclude: Sequence[str] | None = None,
    documents: str | None = None,
    text_field: str | None = None,
) -> Options:
    """Return the given options, and those of the last run where None is given.

    Raises:
        InputError: an option is not what it should be.
    """
    with closing(DocumentStore(index.path / DOCUMENTS)) as store:
        known = known_folder(store, folder)
    last = known.options if known else Options()
    return Options(
        last.include if include is None else _globs("include", include),
        last.exclude if exclude is None else _globs("exclude", exclude),
        last.documents if documents is None else documents,
        last.text_field if text_field is None else text_field,
    )


def _globs(name: str, given: Sequence[str]) -> tuple[str, ...]:
    if isinstance(given, str) or not all(isinstance(glob, str) for glob in given):
        raise InputError(f"{name} must be a list of globs, got {given!r}")
    return tuple(given)


def sync_folder(
    index: SearchIndex,
    folder: str | Path,
    options: Options,
    *,
    prefixed: bool = False,
    committing: Callable[[Edit, int], None] | None = None,
    progress: bool = False,
) -> Synced:
    """Bring an index in step with a folder, see :meth:`SearchIndex.sync`.

    Args:
        index: the index.
        folder: the folder.
        options: how files become documents.
        prefixed: whether sources begin with the folder's name even if it is the first folder of the index.
        committing: is called before each commit with the number of documents of the step.
        progress: whether to show a bar on standard error, if that is a terminal.
    """
    path = require_source_folder(folder)
    _refuse_nesting(index, path)
    with closing(DocumentStore(index.path / DOCUMENTS)) as store:
        known = known_folder(store, path)
        checked_unit(options.documents)
        # Fails on globs that cannot be understood before anything is written.
        files = walk(path, options.include, options.exclude)
        first = next(files, None)
        anew = known is not None and replace(options, include=(), exclude=()) != replace(
            known.options, include=(), exclude=()
        )
        if known is None or known.path != path or known.options != options:
            prefix = known.prefix if known else _prefix(store, path, prefixed)
            with store.writing():
                if known is not None and known.path != path:
                    sources.move(store, known, path)
                followed = sources.follow(store, path, prefix, options)
                if anew:
                    _forget_hashes(store, followed)
        else:
            followed = known
        run = _Run(index, followed, committing)
        with (
            Extraction() as extraction,
            Meter("reading", unit="files", shown=progress) as meter,
        ):
            found = _chained(first, files)
            changes = run.changes(store, found, meter)
            run.apply(extraction.read((change, run.path_to_read(change)) for change in changes))
    # Updates FAISS's file, and compacts if most vectors belong to deleted documents.
    with index.writer.editing():
        pass
    return run.result


def _chained(first: File | Skipped | None, others: Iterator[File | Skipped]) -> Iterator[File | Skipped]:
    if first is not None:
        yield first
        yield from others


def _refuse_nesting(index: SearchIndex, path: str) -> None:
    inside = os.path.realpath(index.path)
    if path == inside or path.startswith(inside + os.sep):
        raise InputError(f"{path}: lies in the index itself; name the folder of the documents")


def _prefix(store: DocumentStore, path: str, prefixed: bool) -> str:
    """Return what the sources of a new folder begin with: nothing for the first one, else its name.

    Raises:
        InputError: another folder of the index has the same name.
    """
    others = sources.folders(store)
    if not others and not prefixed:
        return ""
    prefix = f"{os.path.basename(path)}/"
    if any(other.prefix == prefix for other in others):
        other = next(other.path for other in others if other.prefix == prefix)
        raise InputError(f"{path}: the index follows another folder of this name, {other}; rename one of them")
    return prefix


def _forget_hashes(store: DocumentStore, folder: Folder) -> None:
    """Let every file of a folder be read again: other options make other documents of it."""
    with store.reporting_errors():
        store.connection.execute("UPDATE files SET modified = ?, hash = x'' WHERE folder = ?", (_AGAIN, folder.number))


class _Run:
    """One synchronisation of one folder."""

    def __init__(self, index: SearchIndex, folder: Folder, committing: Callable[[Edit, int], None] | None) -> None:
        self.index = index
        self.folder = folder
        self.committing = committing
        self.result = Synced()
        self._text_field = folder.options.text_field
        self._unit = folder.options.documents

    def changes(self, store: DocumentStore, found: Iterator[File | Skipped], meter: Meter) -> Iterator[_Change]:
        """Yield the differences between the folder and the index, in the order of paths."""
        old = sources.recorded(store, self.folder)
        record = next(old, None)
        for entry in found:
            source = entry.source
            # What could not be listed may still be there.
            passed = f"{source}/" if isinstance(entry, Skipped) and entry.unreadable else source
            while record is not None and record.source < passed:
                yield _Change(None, record)
                record = next(old, None)
            if isinstance(entry, Skipped):
                self._skipped(entry)
                while entry.unreadable and record is not None and record.source.startswith(f"{source}/"):
                    self._kept(record)
                    record = next(old, None)
                continue
            meter.update()
            same = record if record is not None and record.source == source else None
            if same is not None:
                record = next(old, None)
            change = self._change(entry, same)
            if change is not None:
                yield change
        while record is not None:
            yield _Change(None, record)
            record = next(old, None)

    def _change(self, file: File, record: Recorded | None) -> _Change | None:
        """Return what is to be done for a file, or None if it is in the index as it is."""
        if record is None:
            return _Change(file, None)
        if (record.size, record.modified) == (file.size, file.modified):
            self._kept(record)
            return None
        if record.size == file.size and record.hash:
            try:
                digest = content_hash(file.path)
            except OSError:
                return _Change(file, record)
            if digest == record.hash:
                self._kept(record)
                return _Change(file, record, digest)
        return _Change(file, record)

    def _kept(self, record: Recorded) -> None:
        if record.problem is None:
            self.result.unchanged += 1
        else:
            self.result.skip(record.source, record.problem, record.counted)

    def _skipped(self, entry: Skipped) -> None:
        counted = not (entry.unreadable or entry.reason.startswith("cannot") or "UTF-8" in entry.reason)
        self.result.skip(entry.source, entry.reason, counted)

    def path_to_read(self, change: _Change) -> str | None:
        """Return the file that a change needs the texts of; None if it needs none, or if it may hold records."""
        if change.file is None or change.digest is not None or suffix_of(change.file.path) in RECORD_SUFFIXES:
            return None
        return change.file.path

    def apply(self, read: Iterator[tuple[_Change, list[Extracted] | Exception]]) -> None:
        """Make the changes, step by step."""
        more = True
        while more:
            begun, documents = time.monotonic(), self.result.documents
            with self.index.writer.editing(tidy=False) as edit:
                batch = _Batch(self, edit)
                while True:
                    change, texts = next(read, (None, []))
                    if change is None:
                        more = False
                        break
                    batch.take(change, texts)
                    if self.result.documents - documents >= STEP_DOCUMENTS or time.monotonic() - begun >= STEP_SECONDS:
                        break
                batch.store()
                if self.committing is not None:
                    self.committing(edit, self.result.documents - documents)
            edit.vectors.remove_unlisted(edit.shards)

    def documents(self, file: File, texts: list[Extracted] | Exception) -> Callable[[], Iterator[Document]]:
        """Return a function that yields the documents of a file.

        Raises:
            UnreadableFileError: it has none.
        """
        if isinstance(texts, Exception):
            raise texts
        named = file._replace(source=f"{self.folder.prefix}{file.source}")
        if suffix_of(file.path) in RECORD_SUFFIXES:
            if holds_records(file.path, self._unit, self._text_field):
                return record_documents(named, self._text_field)
            texts = list(extract(file.path))
        if not texts:
            raise UnreadableFileError(EMPTY, counted=True)
        found = list(documents_of(named, texts, self._unit))
        return lambda: iter(found)


class _Batch:
    """Documents of several files, embedded together."""

    def __init__(self, run: _Run, edit: Edit) -> None:
        self.run = run
        self.edit = edit
        self._documents: list[Document] = []
        self._waiting: set[Id | None] = set()
        self._characters = 0

    def take(self, change: _Change, texts: list[Extracted] | Exception) -> None:
        """Make one change; its documents are stored with those of others."""
        store, folder, file = self.edit.store, self.run.folder, change.file
        if file is None:
            assert change.record is not None
            self._remove(sources.ids_of(store, change.record.number))
            sources.forget(store, change.record.number)
            self.run.result.removed += change.record.problem is None
            return
        if change.digest is not None:
            assert change.record is not None
            number, problem, counted = change.record.number, change.record.problem, change.record.counted
            sources.record(store, folder, file.source, file.size, file.modified, change.digest, problem, counted)
            sources.set_modified(store, number, modified(file.modified))
            # Readers keep the answers of filters until the next generation.
            self.edit.changed = True
            return
        self._read(change, file, texts)

    def _read(self, change: _Change, file: File, texts: list[Extracted] | Exception) -> None:
        store, folder, result = self.edit.store, self.run.folder, self.run.result
        if not format_of(file.path).installed:
            # Not recorded: the extra may be installed by the next time.
            result.lacking[suffix_of(file.path)] += 1
            if change.record is not None:
                self._remove(sources.ids_of(store, change.record.number))
                sources.forget(store, change.record.number)
            return
        old: list[Id] = [] if change.record is None else sources.ids_of(store, change.record.number)
        problem: UnreadableFileError | None = None
        digest, seen = b"", file.modified
        new: list[Id] = []
        try:
            digest = content_hash(file.path)
            documents = self.run.documents(file, texts)
            # Reading all ids first keeps a file whole: it is stored completely or not at all.
            new = [_checked_id(document, number) for number, document in enumerate(documents(), 1)]
            if not new:
                raise UnreadableFileError(EMPTY, counted=True)
            if len(set(new)) < len(new):
                twice = next(identifier for identifier, count in Counter(new).items() if count > 1)
                raise UnreadableFileError(f"the id {twice!r} comes twice")
            other = next((identifier for identifier in new if identifier in self._waiting), None)
            if other is None:
                other = sources.taken(store, new, None if change.record is None else change.record.number)
            if other is not None:
                seen = _AGAIN
                raise UnreadableFileError(f"the id {other!r} belongs to a document from elsewhere")
            seen = _AGAIN
            self._add_all(documents(), new)
            # Of a file that has changed meanwhile, the next run reads what is there then.
            seen = _AGAIN if _has_changed(file) else file.modified
        except UnreadableFileError as error:
            problem = error
        except OSError as error:
            seen = _AGAIN
            problem = UnreadableFileError(f"cannot be read ({error.strerror})")
        said, counted = (None, False) if problem is None else (str(problem), problem.counted)
        if seen == _AGAIN:
            digest = b""
        number = sources.record(store, folder, file.source, file.size, seen, digest, said, counted)
        if problem is not None:
            new = []
            result.skip(file.source, said or "", counted)
        else:
            sources.add_origins(store, number, new)
            result.documents += len(new)
            if change.record is None or change.record.problem is not None:
                result.added += 1
            else:
                result.changed += 1
        kept = set(new)
        self._remove([identifier for identifier in old if identifier not in kept])

    def _add_all(self, documents: Iterator[Document], ids: list[Id]) -> None:
        """Add the documents of a file that have these ids.

        Raises:
            UnreadableFileError: the file has changed since its ids were read; none of its documents is there then.
        """
        added = 0
        try:
            for part in _read_again(documents, ids):
                self._add(part)
                added += len(part)
        except UnreadableFileError:
            self.store()
            self._remove(ids[:added])
            raise

    def _add(self, documents: list[Document]) -> None:
        self._documents += documents
        self._waiting |= {document.id for document in documents}
        self._characters += sum(len(document.text) for document in documents)
        if len(self._documents) >= BATCH_DOCUMENTS or self._characters >= BATCH_CHARACTERS:
            self.store()

    def _remove(self, ids: list[Id]) -> None:
        if ids:
            self.edit.delete(ids)
            sources.remove_origins(self.edit.store, ids)

    def store(self) -> None:
        """Embed and store the documents that wait."""
        if self._documents:
            before = self.edit.state.rows
            self.edit.add(self._documents, replacing=True)
            self.run.result.passages += self.edit.state.rows - before
            self._documents, self._characters = [], 0
            self._waiting.clear()


def _checked_id(document: Document, number: int) -> Id:
    """Return the id of a document, the ``number``-th of its file, that can be stored.

    Raises:
        UnreadableFileError: its id or metadata cannot be stored.
    """
    try:
        metadata_json(document.metadata, number)
        return checked_id(document.id, number)
    except InputError as error:
        raise UnreadableFileError(str(error)) from None


def _read_again(documents: Iterator[Document], ids: Sequence[Id]) -> Iterator[list[Document]]:
    """Yield the documents of a file, some at a time.

    Raises:
        UnreadableFileError: the file has changed: it cannot be read now, or its documents do not have these ids.
    """
    parts = chunks(documents, BATCH_DOCUMENTS)
    read = 0
    while read < len(ids):
        try:
            part = next(parts, [])
        except (InputError, OSError):
            raise UnreadableFileError(CHANGED) from None
        if not part or [document.id for document in part] != list(ids[read : read + len(part)]):
            raise UnreadableFileError(CHANGED)
        yield part
        read += len(part)


def _has_changed(file: File) -> bool:
    """Return whether a file is no longer as it was when it was listed."""
    try:
        found = os.stat(file.path)
    except OSError:
        return True
    return (found.st_size, found.st_mtime_ns) != (file.size, file.modified)


def content_hash(path: str) -> bytes:
    """Return 16 bytes of the BLAKE2 hash of a file's bytes.

    Raises:
        OSError: it cannot be read.
    """
    digest = hashlib.blake2b(digest_size=16)
    with open(path, "rb") as file:
        while part := file.read(1 << 20):
            digest.update(part)
    return digest.digest()
