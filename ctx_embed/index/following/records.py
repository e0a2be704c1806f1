"""Records of the folders that an index follows: their files, the documents of each, and the place of a passage."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ctx_embed.index.storage.documents import DocumentStore, Id, metadata_json
from ctx_embed.texts import Document

if TYPE_CHECKING:
    from ctx_embed.documents.walking import File

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
    if not store.run("SELECT 1 FROM sqlite_master WHERE name = 'folders'"):
        return []
    found = []
    for number, path, prefix, written in store.run("SELECT folder, path, prefix, options FROM folders ORDER BY folder"):
        options = json.loads(written)
        globs = {name: tuple(options[name]) for name in ("include", "exclude")}
        found.append(FollowedFolder(number, path, prefix, FolderOptions(**{**options, **globs})))
    return found


def follow(store: DocumentStore, path: str, prefix: str, options: FolderOptions) -> FollowedFolder:
    """Record a folder, or its new options if it is known; call it inside :meth:`Database.writing`."""
    for statement in _SCHEMA:
        store.run(statement)
    store.run(
        "INSERT INTO folders (path, prefix, options) VALUES (?, ?, ?) "
        "ON CONFLICT (path) DO UPDATE SET options = excluded.options",
        (path, prefix, json.dumps(asdict(options))),
    )
    return next(folder for folder in folders(store) if folder.path == path)


def recorded(store: DocumentStore, folder: FollowedFolder) -> Iterator[RecordedFile]:
    """Yield the files of a folder sorted by source; the caller may change records that were already yielded."""
    select = (
        "SELECT file, source, size, modified, hash, problem, counted FROM files "
        f"WHERE folder = ? AND source > ? ORDER BY source LIMIT {_PAGE}"
    )
    after = ""
    while found := [RecordedFile(*row) for row in store.run(select, (folder.number, after))]:
        yield from found
        if found[-1].source <= after:
            raise store.damaged("its files are out of order")
        after = found[-1].source


def record(
    store: DocumentStore,
    folder: FollowedFolder,
    file: File,
    modified: int,
    digest: bytes,
    problem: str | None = None,
    counted: bool = False,
) -> int:
    """Record a file as it was read, and return its number; call it inside :meth:`Database.writing`."""
    found = store.run(
        "INSERT INTO files (folder, source, size, modified, hash, problem, counted) VALUES (?, ?, ?, ?, ?, ?, ?) "
        "ON CONFLICT (folder, source) DO UPDATE SET size = excluded.size, modified = excluded.modified, "
        "hash = excluded.hash, problem = excluded.problem, counted = excluded.counted RETURNING file",
        (folder.number, file.source, file.size, modified, digest, problem, int(counted)),
    )
    return int(found[0][0])


def ids_of(store: DocumentStore, file: int) -> list[Id]:
    """Return the ids of the documents of a file."""
    return [identifier for (identifier,) in store.run("SELECT id FROM origins WHERE file = ?", (file,))]


def add_origins(store: DocumentStore, file: int, written: Mapping[Id, dict[str, Any]]) -> None:
    """Record that documents come from a file, with the metadata by id that it gave them."""
    store.run_many(
        "INSERT INTO origins VALUES (?, ?, ?) "
        "ON CONFLICT (id) DO UPDATE SET file = excluded.file, written = excluded.written",
        ((identifier, file, metadata_json(metadata, 1)) for identifier, metadata in written.items()),
    )


def with_changes(store: DocumentStore, documents: Sequence[Document]) -> list[Document]:
    """Return new documents of files with what people changed in the metadata of the stored documents of these ids."""
    ids = [document.id for document in documents if document.id is not None]
    stored = store.find(ids)
    written = dict(store.run_among("SELECT id, written FROM origins WHERE id IN ({})", ids))
    found = []
    for document in documents:
        if document.id in stored and document.id in written:
            before, now = json.loads(written[document.id]), stored[document.id].metadata
            changed = {name: value for name, value in now.items() if name not in before or before[name] != value}
            kept = {name: value for name, value in document.metadata.items() if name in now or name not in before}
            document = replace(document, metadata={**kept, **changed})
        found.append(document)
    return found


def remove_origins(store: DocumentStore, ids: Iterable[Id]) -> None:
    """Forget where documents come from; call it inside :meth:`Database.writing`."""
    store.run_many("DELETE FROM origins WHERE id = ?", ((identifier,) for identifier in ids))


def taken(store: DocumentStore, ids: Sequence[Id], file: int | None) -> Id | None:
    """Return an id that belongs to a document of another origin than ``file``; None if there is none."""
    found = store.run_among(
        "SELECT d.id, o.file FROM documents d LEFT JOIN origins o ON o.id = d.id WHERE d.id IN ({})", ids
    )
    return next((identifier for identifier, other in found if other is None or other != file), None)


class Location(NamedTuple):
    """The place of a passage.

    Args:
        name: the metadata field ``source``: a path, relative to the followed folder if there is one.
        path: the file, if it is found.
        line: the number of the passage's first line in the file, from 1, if known.
        page: the number of its page, from 1, if known.
    """

    name: str
    path: Path | None
    line: int | None
    page: int | None

    @property
    def label(self) -> str:
        """The place as text, such as ``notes/a.md:12`` or ``report.pdf, page 3``."""
        if self.line is not None:
            return f"{self.name}:{self.line}"
        return self.name if self.page is None else f"{self.name}, page {self.page}"

    @property
    def url(self) -> str | None:
        """The file's URL with its line or page, for terminals and PDF readers; None if the file was not found."""
        if self.path is None:
            return None
        place = f"#page={self.page}" if self.page is not None else "" if self.line is None else f"#{self.line}"
        return f"{self.path.as_uri()}{place}"


def location_of(store: DocumentStore, metadata: dict[str, Any], line: int | None, page: int | None) -> Location | None:
    """Return the location of a passage, given its document's metadata; None if these have no field ``source``."""
    found = named_location(metadata, line, page)
    if found is None:
        return None
    followed = [folder for folder in folders(store) if found.name.startswith(folder.prefix)]
    candidates = [Path(folder.path) / found.name.removeprefix(folder.prefix) for folder in followed]
    # If the name is absolute, pathlib drops the folder.
    candidates += [Path.cwd() / found.name, store.path.parent.parent / found.name]
    for path in candidates:
        with suppress(OSError, ValueError):
            if path.is_file():
                return found._replace(path=path)
    return found


def named_location(metadata: dict[str, Any], line: int | None, page: int | None) -> Location | None:
    """Return the location of a passage as :func:`location_of` does, without looking for the file."""
    name = metadata.get("source")
    return Location(name, None, line, page) if isinstance(name, str) and name and "\0" not in name else None
