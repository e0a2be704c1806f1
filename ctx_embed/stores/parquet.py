"""A directory of Parquet files: ``part-*.parquet`` with the rows. The names of all other files begin with ``_``.

The directory lies on a disk or in an object store that pyarrow can reach. DuckDB, Polars and Lance read its parts as
they are, and :func:`ctx_embed.stores.indexing.index_parquet` makes a search index of them.
"""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ctx_embed.errors import InputError
from ctx_embed.files import fsync_file, fsync_folder, locked
from ctx_embed.reading.opening import filesystem, said
from ctx_embed.stores.columns import EMBEDDING, ID, METADATA, TEXT, arrow_table, metadata_of, vectors_of
from ctx_embed.stores.store import COLLECTION, Batch, Store
from ctx_embed.texts import Embedded

if TYPE_CHECKING:
    import pyarrow
    from pyarrow import parquet

PART, SUFFIX = "part-", ".parquet"
# Rows in a row group, and rows read at a time: 21 MB of vectors with 320 dimensions.
ROWS_AT_ONCE = 16_384


class Parquet(Store):
    """A directory of Parquet files: a folder, or a URI that pyarrow reads; it need not exist."""

    def __init__(self, path: str | Path) -> None:
        super().__init__(str(path))
        self.fs, self.folder = filesystem(str(path))

    @cached_property
    def _is_local(self) -> bool:
        from pyarrow import fs

        return isinstance(self.fs, fs.LocalFileSystem)

    def _require_free(self) -> None:
        if not self._is_local:
            return
        folder, parent = Path(self.folder), Path(self.folder).parent
        if not parent.is_dir():
            raise InputError(f"cannot write {self.name}: the folder {parent} does not exist; create it first")
        if folder.is_dir() and any(not path.name.startswith("_") for path in folder.iterdir()):
            raise InputError(f"cannot write {self.name}: the folder holds other things; choose another name")

    def _files(self, prefix: str = PART, suffix: str = SUFFIX) -> list[str]:
        """Return the paths of files that match a pattern, sorted; rows of later files replace rows of earlier ones."""
        from pyarrow import fs

        selector = fs.FileSelector(self.folder, allow_not_found=True)
        try:
            paths = [info.path for info in self.fs.get_file_info(selector) if info.type == fs.FileType.File]
        except OSError as error:
            if self._is_local and os.path.isfile(self.folder):
                raise InputError(f"{self.name}: must be a folder, got a file; choose another name") from None
            raise InputError(f"{self.name}: cannot be read ({said(error)})") from None
        names = ((path.rpartition("/")[2], path) for path in paths)
        return [path for name, path in sorted(names) if name.startswith(prefix) and name.endswith(suffix)]

    def notes(self, prefix: str) -> dict[str, dict[str, Any]]:
        """Return the notes whose names begin with ``prefix``: the files ``_NAME.json``."""
        notes = {}
        for path in self._files(f"_{prefix}", ".json"):
            try:
                with self.fs.open_input_stream(path) as stream:
                    notes[path.rpartition("/")[2][1:].removesuffix(".json")] = json.loads(stream.read())
            except OSError as error:  # noqa: PERF203
                raise InputError(f"{path}: cannot be read ({said(error)})") from None
            except ValueError as error:
                raise InputError(f"{path}: damaged ({error}); delete it and repeat the run") from None
        return notes

    def write_note(self, name: str, note: Mapping[str, Any]) -> None:
        """Write the file ``_NAME.json``."""
        if name == COLLECTION:
            try:
                self.fs.create_dir(self.folder, recursive=True)
                if self._is_local:
                    fsync_folder(Path(self.folder).parent)
            except OSError as error:
                raise InputError(f"cannot write {self.name}: {said(error)}") from None
        self._write(f"_{name}.json", json.dumps(note, ensure_ascii=False).encode("utf-8", "replace"))

    def _write(self, name: str, content: bytes | pyarrow.Table) -> None:
        """Write a file durably and atomically."""
        target = f"{self.folder}/{name}"
        # An object store shows a file only when it is closed; on a disk, rename the finished file.
        path = f"{self.folder}/_{uuid.uuid4().hex}.tmp" if self._is_local else target
        try:
            with self.fs.open_output_stream(path) as stream:
                if isinstance(content, bytes):
                    stream.write(content)
                else:
                    from pyarrow import parquet

                    # Vectors look like random numbers: compression or a dictionary would take time and save nothing.
                    others = [column for column in content.column_names if column != EMBEDDING]
                    compression = dict.fromkeys(others, "zstd") | {f"{EMBEDDING}.list.element": "none"}
                    layout: dict[str, Any] = {"use_dictionary": others, "row_group_size": ROWS_AT_ONCE}
                    parquet.write_table(content, stream, compression=compression, **layout)
            if self._is_local:
                fsync_file(Path(path))
                os.replace(path, target)
                fsync_folder(Path(self.folder))
        except OSError as error:
            raise InputError(f"cannot write {self.name}: {error.strerror or error}") from None
        finally:
            if self._is_local:
                with suppress(OSError):
                    os.unlink(path)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Keep other runs out of a folder, and remove the half-written files that killed processes left in it."""
        if not self._is_local:
            yield
            return
        with locked(Path(self.folder) / "_lock", wait=False) as free:
            if not free:
                raise InputError(f"{self.name}: another run is writing; try again when it has finished")
            for path in self._files("_", ".tmp"):
                self.fs.delete_file(path)
            yield

    def upsert(self, rows: Batch, part: str | None = None, note: Mapping[str, Any] | None = None) -> None:
        """Write the rows as one file; outside of an encoding run, also remove earlier rows with the same ids."""
        collection = self.require_collection()
        if len(rows):
            name = part or f"z{len(self._files()):08d}-{uuid.uuid4().hex[:8]}"
            self._write(f"{PART}{name}{SUFFIX}", arrow_table(rows.latest(), collection))
        if part is None:
            self.finish()
        else:
            self.write_note(f"{PART}{part}", note or {})

    def count(self) -> int:
        """Return the number of rows of all parts."""
        self.require_collection()
        total = 0
        for path in self._files():
            with self._opened(path) as file:
                total += file.metadata.num_rows
        return total

    @contextmanager
    def _opened(self, path: str) -> Iterator[parquet.ParquetFile]:
        """Yield a Parquet file; report errors of reading it in one line."""
        import pyarrow
        from pyarrow import parquet

        try:
            with self.fs.open_input_file(path) as stream:
                file = parquet.ParquetFile(stream)
                if absent := {ID, TEXT, EMBEDDING, METADATA}.difference(file.schema_arrow.names):
                    raise pyarrow.ArrowInvalid(f"it lacks the column {min(absent)}")
                yield file
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({said(error)})") from None
        except pyarrow.ArrowException as error:
            raise InputError(f"{path}: damaged ({said(error)}); delete it and encode its texts again") from None

    def _batches(self, columns: list[str]) -> Iterator[tuple[str, int, pyarrow.RecordBatch]]:
        """Yield each batch of rows, with its file and the number of its first row in the file."""
        for path in self._files():
            with self._opened(path) as file:
                first = 0
                for batch in file.iter_batches(ROWS_AT_ONCE, columns=columns):
                    batch.validate(full=True)
                    yield path, first, batch
                    first += batch.num_rows

    def documents(self) -> Iterator[Embedded]:
        """Yield every row as a document with its vector, part by part."""
        fields = list(self.require_collection().fields)
        for _, _, batch in self._batches([ID, TEXT, METADATA, EMBEDDING, *fields]):
            vectors = vectors_of(batch.column(EMBEDDING))
            rows = batch.drop_columns([EMBEDDING]).to_pylist()
            for row, vector in zip(rows, vectors, strict=True):
                yield Embedded(row[TEXT], row[ID], metadata_of(row, fields), vector)

    def finish(self, *, unique: bool = False) -> None:
        """Remove each row whose id a later row has too, unless all ids are known to be unique."""
        if unique:
            return
        # Find equal hashes, then compare the ids themselves.
        hashes = (_hash(each) for _, _, batch in self._batches([ID]) for each in batch.column(0).to_pylist())
        values, counts = np.unique(np.fromiter(hashes, np.uint64), return_counts=True)
        repeated = set(values[counts > 1].tolist())
        last: dict[str, tuple[str, int]] = {}
        dropped: dict[str, list[int]] = {}
        for path, first, batch in self._batches([ID]) if repeated else ():
            for row, identifier in enumerate(batch.column(0).to_pylist(), first):
                if _hash(identifier) in repeated:
                    if identifier in last:
                        earlier, place = last[identifier]
                        dropped.setdefault(earlier, []).append(place)
                    last[identifier] = (path, row)
        for path, rows in dropped.items():
            with self._opened(path) as file:
                table = file.read()
            keep = np.ones(table.num_rows, bool)
            keep[rows] = False
            if keep.any():
                self._write(path.rpartition("/")[2], table.filter(keep))
            else:
                self.fs.delete_file(path)
        if dropped and self._is_local:
            fsync_folder(Path(self.folder))

    def search(self, *query: Any, **options: Any) -> Any:
        """Raise an error that names the command for making a search index of the directory."""
        raise InputError(
            f"{self.name}: a directory of Parquet files is not searched; make an index of it with "
            f"`ctx-embed index build --from-parquet {self.name} INDEX`"
        )


def _hash(identifier: str) -> int:
    return int.from_bytes(hashlib.blake2b(identifier.encode(), digest_size=8).digest(), "little")
