"""Records of the folders that an index follows: their files, and the documents of each file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from ctx_embed.errors import REMEDY, DamagedError
from ctx_embed.index.storage.documents import VALUES_A_QUERY, DocumentStore, Id, metadata_json
from ctx_embed.texts import Document

# These tables are made with the first folder of an index. `id` has no type, as in `documents`.
_SCHEMA = (
    """CREATE TABLE IF NOT EXISTS folders (
        folder INTEGER PRIMARY KEY, path TEXT NOT NULL UNIQUE, prefix TEXT NOT NULL, options TEXT NOT NULL
    )""",
    """CREATE TABLE IF NOT EXISTS files (
        file INTEGER PRIMARY KEY, folder INTEGER NOT NULL, source TEXT NOT NULL, size INTEGER NOT NULL,
        modified INTEGER NOT NULL, hash BLOB NOT NULL, problem TEXT, counted INTEGER NOT NULL, UNIQUE (folder, source)
    )""",
    "CREATE TABLE IF NOT EXISTS origins (id NOT NULL UNIQUE, file INTEGER NOT NULL, written TEXT NOT NULL)",
    "CREATE INDEX IF NOT EXISTS origins_file ON origins (file)",
)
# Number of files that are read from the database at a time.
_PAGE = 2048
# Recorded in place of a file's time, this makes the next run read the file again; no file has this time.
READ_AGAIN = -1


@dataclass(frozen=True)
class FolderOptions:
    """How the files of a folder become documents.

    Args:
        include: globs, one of which a file must match; if empty, all files are read.
        exclude: globs of files and folders to leave out.
        documents: a unit of :data:`ctx_embed.documents.units.UNITS`; None: files, and records that have a text.
        text_field: the field of records that holds the text; None: ``text``.
        follow_links: whether to read files outside the folder to which links in it point.
    """

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    documents: str | None = None
    text_field: str | None = None
    follow_links: bool = False


class FollowedFolder(NamedTuple):
    """A folder that an index follows: its number, absolute path, the prefix of its sources, and its options."""

    number: int
    path: str
    prefix: str
    options: FolderOptions


class RecordedFile(NamedTuple):
    """A file as it was last read; ``problem`` says why it has no documents (None if it has)."""

    number: int
    source: str
    size: int
    modified: int
    hash: bytes
    problem: str | None
    counted: bool


def folders(store: DocumentStore) -> list[FollowedFolder]:
    """Return the folders that an index follows, in the order in which they were added."""
    with store.reporting_errors():
        if not store.connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'folders'").fetchone():
            return []
        rows = store.connection.execute("SELECT folder, path, prefix, options FROM folders ORDER BY folder").fetchall()
    return [FollowedFolder(number, path, prefix, _options(options)) for number, path, prefix, options in rows]


def _options(written: str) -> FolderOptions:
    fields = json.loads(written)
    return FolderOptions(
        tuple(fields["include"]),
        tuple(fields["exclude"]),
        fields["documents"],
        fields["text_field"],
        # Older versions did not store this option.
        fields.get("follow_links", False),
    )


def follow(store: DocumentStore, path: str, prefix: str, options: FolderOptions) -> FollowedFolder:
    """Record a folder, or its new options if it is known; call it inside :meth:`Database.writing`."""
    with store.reporting_errors():
        for statement in _SCHEMA:
            store.connection.execute(statement)
        store.connection.execute(
            "INSERT INTO folders (path, prefix, options) VALUES (?, ?, ?) "
            "ON CONFLICT (path) DO UPDATE SET options = excluded.options",
            (path, prefix, json.dumps(asdict(options))),
        )
    return next(folder for folder in folders(store) if folder.path == path)


def recorded(store: DocumentStore, folder: FollowedFolder) -> Iterator[RecordedFile]:
    """Yield the files of a folder sorted by source; the caller may change records that were already yielded."""
    after = ""
    while True:
        with store.reporting_errors():
            rows = store.connection.execute(
                "SELECT file, source, size, modified, hash, problem, counted FROM files "
                "WHERE folder = ? AND source > ? ORDER BY source LIMIT ?",
                (folder.number, after, _PAGE),
            ).fetchall()
        for number, source, size, modified, digest, problem, counted in rows:
            yield RecordedFile(number, source, size, modified, digest, problem, bool(counted))
        if len(rows) < _PAGE:
            return
        if rows[-1][1] <= after:
            raise DamagedError(f"{store.path}: damaged (its files are out of order); {REMEDY}")
        after = rows[-1][1]


def record(
    store: DocumentStore,
    folder: FollowedFolder,
    source: str,
    size: int,
    modified: int,
    digest: bytes,
    problem: str | None = None,
    counted: bool = False,
) -> int:
    """Record a file as it was read, and return its number; call it inside :meth:`Database.writing`."""
    with store.reporting_errors():
        values = (folder.number, source, size, modified, digest, problem, int(counted))
        row = store.connection.execute(
            "INSERT INTO files (folder, source, size, modified, hash, problem, counted) VALUES (?, ?, ?, ?, ?, ?, ?) "
            "ON CONFLICT (folder, source) DO UPDATE SET size = excluded.size, modified = excluded.modified, "
            "hash = excluded.hash, problem = excluded.problem, counted = excluded.counted RETURNING file",
            values,
        ).fetchone()
    return int(row[0])


def forget_contents(store: DocumentStore, folder: FollowedFolder) -> None:
    """Make the next run read every file of a folder again; call it inside :meth:`Database.writing`."""
    with store.reporting_errors():
        statement = "UPDATE files SET modified = ?, hash = x'' WHERE folder = ?"
        store.connection.execute(statement, (READ_AGAIN, folder.number))


def forget(store: DocumentStore, file: int) -> None:
    """Remove the record of a file whose documents are gone; call it inside :meth:`Database.writing`."""
    with store.reporting_errors():
        store.connection.execute("DELETE FROM files WHERE file = ?", (file,))


def ids_of(store: DocumentStore, file: int) -> list[Id]:
    """Return the ids of the documents of a file."""
    with store.reporting_errors():
        return [row[0] for row in store.connection.execute("SELECT id FROM origins WHERE file = ?", (file,))]


def add_origins(store: DocumentStore, file: int, written: Mapping[Id, dict[str, Any]]) -> None:
    """Record that documents come from a file, with the metadata it gave them; call it inside :meth:`Database.writing`.

    Args:
        store: the index.
        file: the number of the file.
        written: the metadata by id.
    """
    with store.reporting_errors():
        store.connection.executemany(
            "INSERT INTO origins VALUES (?, ?, ?) "
            "ON CONFLICT (id) DO UPDATE SET file = excluded.file, written = excluded.written",
            ((identifier, file, metadata_json(metadata, 1)) for identifier, metadata in written.items()),
        )


def with_changes(store: DocumentStore, documents: Sequence[Document]) -> list[Document]:
    """Return new documents of files with what people changed in the metadata of the stored documents of these ids."""
    ids = [document.id for document in documents if document.id is not None]
    stored = store.find(ids)
    written: dict[Id, dict[str, Any]] = {}
    for start in range(0, len(ids), VALUES_A_QUERY):
        part = ids[start : start + VALUES_A_QUERY]
        marks = ",".join("?" * len(part))
        with store.reporting_errors():
            rows = store.connection.execute(f"SELECT id, written FROM origins WHERE id IN ({marks})", part).fetchall()
        written |= {identifier: json.loads(text) for identifier, text in rows}
    found = []
    for document in documents:
        before = None if document.id is None else written.get(document.id)
        if document.id in stored and before is not None:
            now = stored[document.id].metadata
            changed = {name: value for name, value in now.items() if name not in before or before[name] != value}
            kept = {name: value for name, value in document.metadata.items() if name in now or name not in before}
            document = replace(document, metadata={**kept, **changed})
        found.append(document)
    return found


def remove_origins(store: DocumentStore, ids: Iterable[Id]) -> None:
    """Forget where documents come from; call it inside :meth:`Database.writing`."""
    with store.reporting_errors():
        store.connection.executemany("DELETE FROM origins WHERE id = ?", ((identifier,) for identifier in ids))


def taken(store: DocumentStore, ids: Sequence[Id], file: int | None) -> Id | None:
    """Return an id that belongs to a document of another origin than ``file``; None if there is none."""
    for start in range(0, len(ids), VALUES_A_QUERY):
        part = ids[start : start + VALUES_A_QUERY]
        marks = ",".join("?" * len(part))
        with store.reporting_errors():
            found = store.connection.execute(
                f"SELECT d.id FROM documents d LEFT JOIN origins o ON o.id = d.id "
                f"WHERE d.id IN ({marks}) AND (o.file IS NULL OR o.file IS NOT ?) LIMIT 1",
                (*part, file),
            ).fetchone()
        if found is not None:
            identifier: Id = found[0]
            return identifier
    return None


def set_modified(store: DocumentStore, file: int, modified: str) -> None:
    """Set the field ``modified`` of the documents of a file; call it inside :meth:`Database.writing`."""
    with store.reporting_errors():
        store.connection.execute(
            "UPDATE documents SET metadata = json_set(metadata, '$.modified', ?) "
            "WHERE id IN (SELECT id FROM origins WHERE file = ?)",
            (modified, file),
        )
        store.connection.execute(
            "UPDATE origins SET written = json_set(written, '$.modified', ?) WHERE file = ?", (modified, file)
        )
    store.store_checksums("id IN (SELECT id FROM origins WHERE file = ?)", file)
