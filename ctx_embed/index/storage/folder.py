"""The folder of an index, without its model: open it, check it, and read one unchanging state of it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from ctx_embed.errors import DamagedError, InputError
from ctx_embed.index.storage.database import Snapshot
from ctx_embed.index.storage.documents import DocumentStore
from ctx_embed.index.storage.manifest import DOCUMENTS, REMEDY, VECTORS, read_manifest
from ctx_embed.index.storage.shards import ShardFolder

Result = TypeVar("Result")

# A writer may merge and remove a listed shard before a reader opens it; the reader then reads the new list.
ATTEMPTS = 20


class IndexFolder:
    """The manifest, documents and vectors of an index, checked to belong together.

    Args:
        path: the folder.

    Raises:
        InputError: the folder is not an index, or it is damaged or of another format.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).absolute()
        self.manifest = read_manifest(self.path)
        self.vectors = ShardFolder(self.path / VECTORS, self.manifest.dimension, self.manifest.dtype)
        self.documents = DocumentStore(self.path / DOCUMENTS)
        self._opened = self._file()
        try:
            self.read(self._check)
        except BaseException:
            self.documents.close()
            raise

    def _file(self) -> tuple[int, int] | None:
        """Return device and inode of the database that is in the folder now; None if there is none."""
        try:
            found = os.stat(self.path / DOCUMENTS)
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def _check(self, snapshot: Snapshot) -> None:
        state = self.documents.state()
        if state.index_id != self.manifest.index_id or state.generation < self.manifest.generation:
            raise DamagedError(f"{self.path}: manifest and documents come from different states of the index; {REMEDY}")
        self.vectors.check(snapshot.shards)
        listed = sum(shard.rows for shard in snapshot.shards)
        rows = self.documents.last_row()
        if not rows == snapshot.rows == listed:
            raise DamagedError(f"{self.path}: lists {rows} passages but {listed} vectors; {REMEDY}")

    def read(self, work: Callable[[Snapshot], Result]) -> Result:
        """Return the result of ``work`` on the newest state, which stays the same while ``work`` runs.

        Raises:
            InputError: a listed file is missing, or the folder now holds another index.
        """
        for _ in range(ATTEMPTS):
            with self.documents.reading():
                snapshot = self.documents.snapshot()
                try:
                    return work(snapshot)
                except FileNotFoundError as error:
                    missing = error.filename
        self.require_in_place()
        raise DamagedError(f"{missing}: missing; {REMEDY}")

    def require_no_copy(self) -> None:
        """Raise an error if a copy of this index, such as a backup, is in the folder now.

        After another index has taken the folder, the opened one still answers. Beside a copy it must not: the files of
        both have the same names.

        Raises:
            InputError: a copy is in the folder.
        """
        if self._file() not in (None, self._opened) and read_manifest(self.path).index_id == self.manifest.index_id:
            raise self._replaced()

    def require_in_place(self) -> None:
        """Raise an error if the index that was opened has been replaced or removed; otherwise update the manifest.

        Raises:
            InputError: the folder holds another index, or none.
        """
        manifest = read_manifest(self.path)
        if manifest.index_id != self.manifest.index_id or self._file() != self._opened:
            raise self._replaced()
        # Another process may have changed the data type.
        self.manifest = manifest
        self.vectors.dtype = manifest.dtype

    def _replaced(self) -> InputError:
        return InputError(f"{self.path}: another index has replaced it; open it again")

    def passages(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the number and the fields of each passage in the order of rows, inside :meth:`read`.

        Fields are id, text and metadata, and start if the document has several passages.
        """
        for document in self.documents.all():
            for row, (start, stop) in enumerate(self.documents.spans(document), document.row):
                passage: dict[str, Any] = {"id": document.id, "text": document.text[start:stop]}
                if document.passages > 1:
                    passage["start"] = start
                yield row, {**passage, "metadata": document.metadata}

    def count(self) -> int:
        """Return the number of documents."""
        return self.documents.state().documents

    def describe(self) -> dict[str, Any]:
        """Return the properties of the index as JSON values, without loading its model."""
        size = 0
        for file in self.path.rglob("*"):
            # A writer may remove files meanwhile.
            with suppress(OSError):
                size += file.stat().st_size if file.is_file() else 0
        state = self.documents.state()
        return {
            "path": str(self.path),
            "documents": state.documents,
            "vectors": state.rows,
            "vectors_of_deleted": self.documents.deleted_rows(),
            "dimension": self.manifest.dimension,
            "dtype": self.manifest.dtype,
            "factory": self.manifest.factory,
            "chunk": self.manifest.chunk,
            "tuned": json.loads(state.tuned),
            "model": self.manifest.model,
            "model_fingerprint": self.manifest.model_fingerprint,
            "generation": state.generation,
            "format_version": self.manifest.format_version,
            "bytes": size,
        }
