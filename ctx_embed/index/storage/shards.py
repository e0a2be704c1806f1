"""Raw vectors on disk, the source of truth: shards of consecutive rows, one safetensors file each."""

from __future__ import annotations

import json
import os
import stat
import uuid
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ctx_embed.errors import DamagedError, UnwritableError
from ctx_embed.files import fsync_folder
from ctx_embed.index.storage import dtypes
from ctx_embed.index.storage.dtypes import DTYPES
from ctx_embed.index.storage.manifest import REMEDY

Vectors: TypeAlias = dtypes.Vectors

TENSOR = "vectors"
# Number of bytes that are read to get a shard's header, which is much shorter.
_HEADER_BYTES = 4096
# Maximum number of rows in a shard, which bounds a writer's memory.
SHARD_ROWS = 65_536
# Number of rows in memory at a time while a shard is read sequentially.
READ_ROWS = 8192
# The first times that so few rows are wanted they are read one by one, since a memory map brings 64 kB of neighbours
# with each into memory. Who goes on asking gets the map, which is faster once it is filled.
FEW_ROWS, FEW_TIMES = 1024, 8
# safetensors pads a header with spaces to a multiple of this number of bytes.
_ALIGNED = 8
# Number of rows decoded at a time when all are compared; so many stay in the processor's cache.
DECODED_ROWS = 1024
_DTYPE_OF = {dtype.safetensors: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True)
class Shard:
    """One file of vectors: its name, the number of its first row, its number of rows, its size and its checksum."""

    name: str
    first: int
    rows: int
    bytes: int
    crc32: int


def crc32_of(path: Path) -> int:
    """Return the CRC-32 checksum of a file, read in chunks."""
    checksum = 0
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            checksum = zlib.crc32(chunk, checksum)
    return checksum


class ShardFolder:
    """The shards of one index. Each file names the data type of its vectors; all are returned as float32.

    Args:
        folder: the folder of the files.
        dimension: the dimension of the vectors.
        dtype: the data type of the files that are written, see :mod:`ctx_embed.index.storage.dtypes`.
    """

    def __init__(self, folder: Path, dimension: int, dtype: str = dtypes.DEFAULT) -> None:
        self.folder = folder
        self.dimension = dimension
        self.dtype = dtype
        self._mapped: dict[str, tuple[str, NDArray[Any]]] = {}
        self._times = 0
        self._verified: set[str] = set()

    def write(self, first: int, blocks: Iterable[Vectors], rows: int) -> Shard:
        """Write vectors as the rows from ``first`` on: they are on disk when this returns, but unlisted.

        Args:
            first: the number of the first row.
            blocks: the vectors as consecutive blocks (n, dimension).
            rows: the number of rows in all blocks.

        Raises:
            UnwritableError: they cannot be written.
        """
        dtype = DTYPES[self.dtype]
        size = rows * self._width(self.dtype)
        tensor = {"dtype": dtype.safetensors, "shape": [rows, self.dimension], "data_offsets": [0, size]}
        header = json.dumps({TENSOR: tensor}, separators=(",", ":")).encode()
        header += b" " * (-len(header) % _ALIGNED)
        start = len(header).to_bytes(8, "little") + header
        # The random part prevents a name clash for a reader whose index is replaced while it reads.
        name = f"{first:012d}-{uuid.uuid4().hex[:12]}.safetensors"
        path = self.folder / name
        beside = path.with_suffix(".tmp")
        try:
            with beside.open("wb") as file:
                file.write(start)
                checksum = zlib.crc32(start)
                for block in blocks:
                    content = np.ascontiguousarray(dtype.encode(block)).data
                    file.write(content)
                    checksum = zlib.crc32(content, checksum)
                file.flush()
                os.fsync(file.fileno())
            beside.replace(path)
            fsync_folder(self.folder)
        except OSError as error:
            raise UnwritableError(f"cannot write to {self.folder}: {error.strerror}") from None
        return Shard(name, first, rows, len(start) + size, checksum)

    def _width(self, name: str) -> int:
        """Return the bytes of a row of a data type."""
        return int(self.dimension * DTYPES[name].scalar().itemsize)

    def append(self, shards: Sequence[Shard], vectors: Vectors, shard_rows: int = SHARD_ROWS) -> list[Shard]:
        """Write ``vectors`` after the rows of ``shards``, merged with the small shards at their end.

        Each shard stays at least twice as large as the next. So even many small additions leave few files, and a row is
        rewritten only when its shard has doubled.

        Args:
            shards: the shards of the rows so far.
            vectors: (n, dimension).
            shard_rows: the maximum number of rows in a shard.

        Returns:
            The new list of shards; once it is committed, old shards that are not in it are no longer needed.
        """
        kept = list(shards)
        for start in range(0, len(vectors), shard_rows):
            part = vectors[start : start + shard_rows]
            rows = len(part)
            joined: list[Shard] = []
            while kept and kept[-1].rows < 2 * rows and kept[-1].rows + rows <= shard_rows:
                joined.insert(0, kept.pop())
                rows += joined[0].rows
            first = kept[-1].first + kept[-1].rows if kept else 0
            kept.append(self.write(first, chain(self.blocks(joined), [part]), rows))
        return kept

    def blocks(self, shards: Sequence[Shard], start: int = 0) -> Iterator[Vectors]:
        """Yield the vectors from row ``start`` on, a few thousand at a time, and verify the shards' checksums.

        Raises:
            DamagedError: a file is damaged; its rows may have been yielded before.
            FileNotFoundError: a file is gone, as happens if the reader's list of shards is out of date.
        """
        for shard in shards:
            if start < shard.first + shard.rows:
                row = shard.first
                for block in self._read(shard):
                    if start < row + len(block):
                        yield block[max(start - row, 0) :]
                    row += len(block)

    def _read(self, shard: Shard) -> Iterator[Vectors]:
        with self._file(shard).open("rb") as file:
            content = file.read(_HEADER_BYTES)
            name, offset = self._layout(shard, content)
            checksum = zlib.crc32(content[:offset])
            file.seek(offset)
            size = offset
            while content := file.read(READ_ROWS * self._width(name)):
                checksum = zlib.crc32(content, checksum)
                size += len(content)
                if len(content) % self._width(name):
                    break
                codes = np.frombuffer(content, DTYPES[name].scalar)
                yield DTYPES[name].decode(codes.reshape(-1, self.dimension))
        if checksum != shard.crc32 or size != shard.bytes:
            raise self.damaged(shard, "its checksum is wrong")

    def _file(self, shard: Shard) -> Path:
        """Return the file of a shard.

        Raises:
            DamagedError: it is not a regular file: reading a pipe could wait for ever, and a link may lead anywhere.
            FileNotFoundError: it is gone.
        """
        path = self.folder / shard.name
        if not stat.S_ISREG(path.lstat().st_mode):
            raise self.damaged(shard, "it is not a regular file")
        return path

    def _layout(self, shard: Shard, content: bytes) -> tuple[str, int]:
        """Return the data type of a shard and the offset of its vectors, from the first bytes of its file.

        Raises:
            DamagedError: the file is damaged.
        """
        # A safetensors file starts with the length of its header, a JSON object, and continues with the tensors.
        size = int.from_bytes(content[:8], "little")
        try:
            header = json.loads(content[8 : 8 + size])[TENSOR]
            name, shape = _DTYPE_OF[header["dtype"]], header["shape"]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise self.damaged(shard, "its header cannot be read") from None
        if shape != [shard.rows, self.dimension]:
            raise self.damaged(shard, f"it holds {name} {tuple(shape)}")
        if shard.bytes != 8 + size + shard.rows * self._width(name):
            raise self.damaged(shard, "its size is wrong")
        return name, 8 + size

    def check(self, shards: Sequence[Shard]) -> None:
        """Check the files' sizes against the list, without reading them.

        Raises:
            DamagedError: a file is truncated, or the list has a gap.
            FileNotFoundError: a file is gone.
        """
        row = 0
        for shard in shards:
            size = self._file(shard).stat().st_size
            if size != shard.bytes:
                raise self.damaged(shard, f"it has {size} bytes, not {shard.bytes}")
            if shard.first != row:
                raise self.damaged(shard, f"it starts at row {shard.first}, not {row}")
            row += shard.rows

    def dtype_of(self, shard: Shard) -> str:
        """Return the data type of a shard's vectors."""
        return self._map(shard)[0]

    def _map(self, shard: Shard) -> tuple[str, NDArray[Any]]:
        """Return a shard's data type and a memory map of its rows (rows, dimension), which reads only the rows used."""
        if shard.name not in self._mapped:
            path = self._file(shard)
            with path.open("rb") as file:
                name, offset = self._layout(shard, file.read(_HEADER_BYTES))
            shape = (shard.rows, self.dimension)
            try:
                # A plain array is much faster to index than a memmap.
                rows = np.asarray(np.memmap(path, DTYPES[name].scalar, "r", offset, shape))
            except ValueError as error:
                raise self.damaged(shard, str(error)) from None
            self._mapped[shard.name] = name, rows
        return self._mapped[shard.name]

    def verify(self, shard: Shard) -> None:
        """Verify the checksum of a shard, once.

        Raises:
            DamagedError: the file is damaged.
            FileNotFoundError: the file is gone.
        """
        if shard.name not in self._verified:
            if crc32_of(self._file(shard)) != shard.crc32:
                raise self.damaged(shard, "its checksum is wrong")
            self._verified.add(shard.name)

    def scores(self, shard: Shard, queries: Vectors, rows: NDArray[np.int64] | slice = slice(None)) -> Vectors:
        """Return the inner products (Q, n) of queries (Q, dimension) with rows of a shard, counted from its first.

        Raises:
            DamagedError: the file is damaged.
            FileNotFoundError: the file is gone.
        """
        self.verify(shard)
        name, stored = self._map(shard)
        stored = stored[rows]
        if name == dtypes.DEFAULT:
            return np.asarray(queries @ stored.T)
        scores = np.empty((len(queries), len(stored)), np.float32)
        for first in range(0, len(stored), DECODED_ROWS):
            part = slice(first, first + DECODED_ROWS)
            scores[:, part] = queries @ DTYPES[name].decode(stored[part]).T
        return scores

    def gather(self, shards: Sequence[Shard], rows: NDArray[np.int64]) -> Vectors:
        """Return the vectors (len(rows), dimension) of the given rows, in their order."""
        vectors = np.empty((len(rows), self.dimension), np.float32)
        homes = np.searchsorted([shard.first for shard in shards], rows, side="right") - 1
        # Not np.unique, which imports NumPy's masked arrays.
        for home in np.flatnonzero(np.bincount(homes)).tolist():
            chosen = homes == home
            places = rows[chosen] - shards[home].first
            name, stored = self._map(shards[home])
            self._times += 1
            if self._times <= FEW_TIMES and len(places) <= FEW_ROWS:
                codes = self._read_rows(shards[home], places)
            else:
                codes = stored[places]
            vectors[chosen] = DTYPES[name].decode(codes)
        return vectors

    def _read_rows(self, shard: Shard, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Return a few rows of a shard (n, dimension), read one by one."""
        name, stored = self._map(shard)
        content = np.empty((len(rows), self._width(name)), np.uint8)
        try:
            with self._file(shard).open("rb", buffering=0) as file:
                for row, number in zip(content, rows.tolist(), strict=True):
                    file.seek(shard.bytes - stored.nbytes + number * len(row))
                    if file.readinto(row.data) != len(row):
                        raise self.damaged(shard, "its size is wrong")
        # The map of a file that a writer has removed goes on.
        except FileNotFoundError:
            return np.asarray(stored[rows])
        return content.view(DTYPES[name].scalar)

    def forget_unlisted(self, shards: Sequence[Shard]) -> None:
        """Close the memory maps of shards that are no longer listed."""
        names = {shard.name for shard in shards}
        self._mapped = {name: view for name, view in self._mapped.items() if name in names}
        self._verified &= names

    def remove_unlisted(self, shards: Sequence[Shard]) -> None:
        """Remove the files that are not listed: leftovers of killed writers, and shards that were merged."""
        names = {shard.name for shard in shards}
        for path in self.folder.iterdir():
            if path.suffix in (".safetensors", ".tmp") and path.name not in names:
                # If the system does not delete open files (Windows), a later writer will.
                with suppress(OSError):
                    path.unlink()

    def damaged(self, shard: Shard, what: str) -> DamagedError:
        """Return the error for a damaged file."""
        return DamagedError(f"{self.folder / shard.name}: damaged ({what}); {REMEDY}")
