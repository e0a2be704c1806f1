"""The folder of an index, without its model: create it, open it, check it, and read one generation of it."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, TypeVar

from ctx_embed.errors import REMEDY, DamagedError, InputError
from ctx_embed.index.storage.database import (
    DATABASE,
    DATABASE_FILES,
    FAISS_SUFFIX,
    OLD_FILES,
    ChangedError,
    Settings,
)
from ctx_embed.index.storage.documents import DocumentStore
from ctx_embed.index.view import View

Result = TypeVar("Result")

# A process without write permission reads again what others changed while it read.
ATTEMPTS = 20


def read_settings(path: str | Path) -> Settings:
    """Return the settings of the index in a folder; InputError if it has none that can be read."""
    with closing(DocumentStore(database_of(Path(path).absolute()))) as store:
        return store.present()


def holds_only_an_index(folder: Path, *others: str) -> bool:
    """Return whether a folder has nothing but the files of an index, and some others."""
    return all(
        entry.name in (*DATABASE_FILES, *others) or entry.name.endswith((FAISS_SUFFIX, f"{FAISS_SUFFIX}.tmp"))
        for entry in folder.iterdir()
    )


def database_of(folder: Path) -> Path:
    """Return the database of the index in a folder; InputError if there is none."""
    path = folder / DATABASE
    try:
        # Opening a pipe would wait for its writer, and a link may lead anywhere.
        if not stat.S_ISREG(path.lstat().st_mode):
            raise DamagedError(f"{path}: damaged (not a regular file); {REMEDY}")
        return path
    except (FileNotFoundError, NotADirectoryError):
        if folder.is_dir() and all((folder / name).exists() for name in OLD_FILES):
            reason = "made by an earlier development version; build the index again"
        elif folder.is_dir():
            reason = f"a folder but not an index (it has no {DATABASE})"
        elif folder.exists():
            reason = "must be the folder of an index, got a file"
        else:
            reason = "no such index; make one with `ctx-embed index build` or SearchIndex.create"
        raise InputError(f"{folder}: {reason}") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None


class IndexFolder:
    """An index: its documents, its settings, and its newest generation.

    ``memory_map`` leaves FAISS's vectors on disk, whatever its kind; ``few_rows`` is that of :class:`View`.
    """

    def __init__(self, path: str | Path, memory_map: bool = False, few_rows: int | None = None) -> None:
        self.path = Path(path).absolute()
        self.memory_map = memory_map
        self.few_rows = few_rows
        self.documents = DocumentStore(database_of(self.path))
        self._opened = self._file()
        self._view: View | None = None
        try:
            self.settings = self.documents.present()
            self.read(self._require_rows)
        except BaseException:
            self.documents.close()
            raise

    def close(self) -> None:
        """Release files and memory."""
        self.documents.close()
        self._view = None

    def _file(self) -> tuple[int, int] | None:
        """Return device and inode of the database that is in the folder now; None if there is none."""
        try:
            found = os.stat(self.path / DATABASE)
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def _require_rows(self, view: View) -> None:
        rows = self.documents.next_row()
        if rows != view.state.next_row:
            raise DamagedError(f"{self.path}: has {rows} rows, but its count is {view.state.next_row}; {REMEDY}")

    def read(self, work: Callable[[View], Result]) -> Result:
        """Return the result of ``work`` on the newest generation, which stays the same while ``work`` runs."""
        for _ in range(ATTEMPTS):
            with suppress(ChangedError), self.documents.reading():
                return work(self.view())
        raise ChangedError(f"{self.path}: was changed while it was read; try again")

    def view(self) -> View:
        """Return the generation of the current transaction, which takes over what the last one knew."""
        before = self._view
        if before is None or before.state != self.documents.state():
            before = View(self, self.documents, before)
            if before.settings.table != self.settings.table:
                raise self.embedded_again()
            self.settings, self._view = before.settings, before
        return before

    def embedded_again(self) -> InputError:
        """Return the error for an index that has another model than it had when it was opened."""
        return InputError(f"{self.path}: was embedded again with another model meanwhile; open it again")

    def require_no_copy(self) -> None:
        """Raise InputError if a copy of this index, such as a backup, is in the folder now.

        After another index has taken the folder, the opened one still answers. Beside a copy it must not: both are
        known by the same name.
        """
        if self._file() not in (None, self._opened) and read_settings(self.path).index_id == self.settings.index_id:
            raise self._replaced()

    def require_in_place(self) -> None:
        """Raise InputError if the index that was opened has been replaced or removed."""
        if self._file() != self._opened:
            database_of(self.path)
            raise self._replaced()

    def _replaced(self) -> InputError:
        return InputError(f"{self.path}: another index has replaced it; open it again")

    def passages(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the number and the fields of each passage in the order of rows, inside :meth:`read`.

        Fields are id, text and metadata, and start if the document has several passages.
        """
        for document in self.documents.all():
            for (row, text), (start, _) in zip(document.texts(), document.spans, strict=True):
                place = {"start": start} if document.passages > 1 else {}
                yield row, {"id": document.id, "text": text, **place, "metadata": document.metadata}

    def count(self) -> int:
        """Return the number of documents."""
        return self.documents.state().documents

    def describe(self) -> dict[str, Any]:
        """Return the properties of the index as JSON values, without loading its model."""
        size = 0
        for file in self.path.iterdir():
            # A writer may remove files meanwhile.
            with suppress(OSError):
                size += file.stat().st_size

        def facts(view: View) -> dict[str, Any]:
            settings = view.settings
            return {
                "path": str(self.path),
                "documents": view.state.documents,
                "vectors": len(view.rows),
                "vectors_of_deleted": len(view.rows) - view.count,
                "dimension": settings.dimension,
                "dtype": settings.dtype,
                "factory": settings.factory,
                "chunk": settings.chunk,
                "faiss": None if view.record is None else view.record.facts,
                "model": settings.model,
                "model_fingerprint": settings.model_fingerprint,
                "generation": view.state.generation,
                "format_version": settings.format_version,
                "bytes": size,
            }

        return self.read(facts)
