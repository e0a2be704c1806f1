"""The records of folders that an index follows: their files, the documents of each, and the places of passages."""

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ctx_embed.errors import InputError
from ctx_embed.files import PathInside, on_disk
from ctx_embed.index.database import ROWS_AT_ONCE, Database
from ctx_embed.index.following import FolderOptions
from ctx_embed.reading.sources import Report
from ctx_embed.reading.walking import File

# These tables are created when an index gets its first folder. `id` has no type, as in `documents`.
_SCHEMA = (
    """CREATE TABLE IF NOT EXISTS folders (
        folder INTEGER PRIMARY KEY, path TEXT NOT NULL UNIQUE, prefix TEXT NOT NULL, options TEXT NOT NULL
    )""",
    """CREATE TABLE IF NOT EXISTS files (
        file INTEGER PRIMARY KEY, folder INTEGER NOT NULL, source TEXT NOT NULL, size INTEGER NOT NULL,
        modified INTEGER NOT NULL, inode INTEGER NOT NULL, changed INTEGER NOT NULL, hash BLOB NOT NULL, problem TEXT,
        counted INTEGER NOT NULL, UNIQUE (folder, source)
    )""",
    "CREATE TABLE IF NOT EXISTS origins (id NOT NULL UNIQUE, file INTEGER NOT NULL, written TEXT NOT NULL)",
    "CREATE INDEX IF NOT EXISTS origins_file ON origins (file)",
)
# Recorded in place of a file's time, this makes the next run read the file again; no file has this time.
READ_AGAIN = -1
# How many files of each kind of change a report names.
FEW = 10


@dataclass
class Synced(Report):
    """The report of a synchronisation: numbers of files, and of the documents and passages added or replaced.

    Files are removed if they are gone or left out now.
    """

    added: int = 0
    changed: int = 0
    removed: int = 0
    unchanged: int = 0
    documents: int = 0
    passages: int = 0
    # The first files that were added, changed or removed.
    files: dict[str, list[str]] = field(default_factory=dict)

    def count(self, change: str, source: str) -> None:
        """Count a file that was ``added``, ``changed`` or ``removed``."""
        setattr(self, change, getattr(self, change) + 1)
        self.files.setdefault(change, []).extend([source] * (getattr(self, change) <= FEW))


class FollowedFolder(NamedTuple):
    """A folder that an index follows: its number, absolute path, the prefix of its sources, and its options."""

    number: int
    path: str
    prefix: str
    options: FolderOptions


class RecordedFile(NamedTuple):
    """A file as it was last read; ``problem`` says why it has no documents (None if it has some)."""

    number: int
    source: str
    size: int
    modified: int
    inode: int
    changed: int
    hash: bytes
    problem: str | None
    counted: bool


def folders(store: Database) -> list[FollowedFolder]:
    """Return the folders that an index follows, in the order in which they were added."""
    if not store.run("SELECT 1 FROM sqlite_master WHERE name = 'folders'"):
        return []
    rows = store.run("SELECT folder, path, prefix, options FROM folders ORDER BY folder")
    return [
        FollowedFolder(number, path, prefix, FolderOptions(**json.loads(options)))
        for number, path, prefix, options in rows
    ]


def known_folder(store: Database, folder: str | Path) -> FollowedFolder | None:
    """Return the record of a folder; None if the index does not follow it."""
    path = os.path.realpath(folder)
    return next((followed for followed in folders(store) if followed.path == path), None)


def moved_folder(store: Database, path: str) -> FollowedFolder | None:
    """Return the followed folder that is gone and most of whose files are in a new one; None if there is none."""
    for folder in folders(store):
        if os.path.isdir(folder.path):
            continue
        files = [file for file in recorded(store, folder) if file.problem is None]
        there = 0
        for file in files:
            with suppress(OSError):
                there += os.stat(on_disk(path, file.source)).st_size == file.size
        if 2 * there > len(files):
            return folder
    return None


def new_folder(store: Database, path: str, prefixed: bool, options: FolderOptions) -> FollowedFolder:
    """Return the record of a folder to follow; its sources begin with its name if others are followed."""
    others = folders(store)
    prefix = f"{os.path.basename(path)}/" if others or prefixed else ""
    for other in others:
        if other.prefix == prefix:
            raise InputError(f"{path}: the index follows another folder of this name, {other.path}; rename one of them")
    return FollowedFolder(1 + max((other.number for other in others), default=0), path, prefix, options)


def follow(store: Database, folder: FollowedFolder) -> None:
    """Record a folder, or its new path and options."""
    for statement in _SCHEMA:
        store.run(statement)
    values = folder.number, folder.path, folder.prefix, json.dumps(asdict(folder.options))
    store.run("INSERT OR REPLACE INTO folders (folder, path, prefix, options) VALUES (?, ?, ?, ?)", values)


def recorded(store: Database, folder: FollowedFolder) -> Iterator[RecordedFile]:
    """Yield the files of a folder sorted by source; the caller may change records that were already yielded."""
    select = (
        "SELECT file, source, size, modified, inode, changed, hash, problem, counted FROM files "
        f"WHERE folder = ? AND source > ? ORDER BY source LIMIT {ROWS_AT_ONCE}"
    )
    after = ""
    while files := [RecordedFile(*row) for row in store.run(select, (folder.number, after))]:
        yield from files
        if files[-1].source <= after:
            raise store.damaged("its files are out of order")
        after = files[-1].source


def record(store: Database, folder: FollowedFolder, file: File, *values: Any) -> int:
    """Record a file with the values of :class:`RecordedFile` from ``hash`` on, and return its number."""
    rows = store.run(
        "INSERT INTO files (folder, source, size, modified, inode, changed, hash, problem, counted) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (folder, source) DO UPDATE SET size = excluded.size, "
        "modified = excluded.modified, inode = excluded.inode, changed = excluded.changed, hash = excluded.hash, "
        "problem = excluded.problem, counted = excluded.counted RETURNING file",
        (folder.number, *file[1:], *values),
    )
    return int(rows[0][0])


class Location(NamedTuple):
    """The place of a passage: ``name``, the metadata field ``source``; the file, if it is found; line and page from 1.

    The name is a path relative to the followed folder if there is one; line and page are None if unknown.
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


def location_of(store: Database, metadata: dict[str, Any], line: int | None, page: int | None) -> Location | None:
    """Return the location of a passage, given its document's metadata; None if these have no field ``source``."""
    location = named_location(metadata, line, page)
    if location is None:
        return None
    followed = [folder for folder in folders(store) if location.name.startswith(folder.prefix)]
    candidates = [Path(on_disk(folder.path, location.name.removeprefix(folder.prefix))) for folder in followed]
    # If the name is absolute, pathlib drops the folder.
    candidates += [Path.cwd() / location.name, store.folder.parent / location.name]
    for path in candidates:
        with suppress(OSError, ValueError):
            if path.is_file():
                return location._replace(path=path)
    return location


def recorded_file(store: Database, source: str) -> PathInside | None:
    """Return the file that ``source`` names, or the archive that holds it, if the index has read it from a folder."""
    for folder in folders(store):
        name = source.removeprefix(folder.prefix) if source.startswith(folder.prefix) else ""
        while name:
            read = "SELECT 1 FROM files WHERE folder = ? AND source = ? AND problem IS NULL"
            if store.run(read, (folder.number, name)):
                return PathInside(on_disk(folder.path, name), os.path.join(folder.path, ""))
            name = name.rpartition("/")[0]
    return None


def named_location(metadata: dict[str, Any], line: int | None, page: int | None) -> Location | None:
    """Return the location of a passage as :func:`location_of` does, without looking for the file."""
    name = metadata.get("source")
    return Location(name, None, line, page) if isinstance(name, str) and name and "\0" not in name else None
