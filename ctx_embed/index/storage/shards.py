"""Raw vectors on disk, the truth of an index: shards of consecutive rows, one safetensors file each."""

from __future__ import annotations

import os
import uuid
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from ctx_embed.errors import InputError
from ctx_embed.files import sync_folder
from ctx_embed.index.storage.manifest import REMEDY

Vectors = NDArray[np.float32]

TENSOR = "vectors"
# No shard grows beyond so many rows, so that a writer's memory is bounded.
SHARD_ROWS = 65_536


@dataclass(frozen=True)
class Shard:
    """One file of vectors: its name, the index's row it begins with, its number of rows, and its size and checksum."""

    name: str
    first: int
    rows: int
    bytes: int
    crc32: int


def crc32_of(path: Path) -> int:
    """The checksum of a file, read piece by piece."""
    checksum = 0
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            checksum = zlib.crc32(chunk, checksum)
    return checksum


class ShardFolder:
    """The shards of one index.

    Args:
        folder: where they lie.
        dimension: numbers in a vector.
    """

    def __init__(self, folder: Path, dimension: int) -> None:
        self.folder = folder
        self.dimension = dimension
        self._mapped: dict[str, Vectors] = {}
        self._verified: set[str] = set()

    def write(self, first: int, vectors: Vectors) -> Shard:
        """Store rows (n, dimension) that begin at row ``first``; durable when this returns, but listed nowhere yet.

        Raises:
            InputError: the disk does not take them.
        """
        content = save({TENSOR: np.ascontiguousarray(vectors)})
        # The random part keeps a reader of an index that was replaced meanwhile from taking a namesake for its own.
        name = f"{first:012d}-{uuid.uuid4().hex[:12]}.safetensors"
        path = self.folder / name
        beside = path.with_suffix(".tmp")
        try:
            with beside.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            beside.replace(path)
            sync_folder(self.folder)
        except OSError as error:
            raise InputError(f"cannot write to {self.folder}: {error.strerror}") from None
        return Shard(name, first, len(vectors), len(content), zlib.crc32(content))

    def append(self, shards: Sequence[Shard], vectors: Vectors) -> list[Shard]:
        """Store ``vectors`` after the rows of ``shards``, joined with the small shards at their end.

        Each shard is kept at least twice as large as the next, so that many small additions leave few files, and a
        row is written again only when its shard has doubled.

        Returns:
            The new list of shards; those that it lacks are no longer needed once it is committed.
        """
        kept = list(shards)
        rows = len(vectors)
        joined: list[Shard] = []
        while kept and kept[-1].rows < 2 * rows and kept[-1].rows + rows <= SHARD_ROWS:
            joined.append(kept.pop())
            rows += joined[-1].rows
        parts = [self.read(shard) for shard in reversed(joined)]
        first = kept[-1].first + kept[-1].rows if kept else 0
        kept.append(self.write(first, np.concatenate([*parts, vectors]) if parts else vectors))
        return kept

    def read(self, shard: Shard) -> Vectors:
        """All rows of a shard (rows, dimension), verified.

        Raises:
            InputError: the file is damaged.
            FileNotFoundError: it is gone, as a reader finds whose list of shards is no longer the newest.
        """
        path = self.folder / shard.name
        content = path.read_bytes()
        if zlib.crc32(content) != shard.crc32 or len(content) != shard.bytes:
            raise self.damaged(shard, "its checksum is wrong")
        try:
            vectors = load(content)[TENSOR]
        except (SafetensorError, KeyError) as error:
            raise self.damaged(shard, str(error)) from None
        if vectors.shape != (shard.rows, self.dimension) or vectors.dtype != np.float32:
            raise self.damaged(shard, f"it holds {vectors.dtype} {vectors.shape}")
        return vectors

    def check(self, shards: Sequence[Shard]) -> None:
        """Compare the files' sizes with the list, without reading them.

        Raises:
            InputError: a file was cut off, or the list has a gap.
            FileNotFoundError: a file is gone.
        """
        row = 0
        for shard in shards:
            size = (self.folder / shard.name).stat().st_size
            if size != shard.bytes:
                raise self.damaged(shard, f"{size} bytes, {shard.bytes} expected")
            if shard.first != row:
                raise self.damaged(shard, f"it begins at row {shard.first}, {row} expected")
            row += shard.rows

    def map(self, shard: Shard) -> Vectors:
        """The rows of a shard as a view of the file: only what is touched is read, and nothing is verified."""
        if shard.name not in self._mapped:
            path = self.folder / shard.name
            # A safetensors file of one tensor ends with its bytes.
            offset = shard.bytes - shard.rows * self.dimension * 4
            shape = (shard.rows, self.dimension)
            try:
                self._mapped[shard.name] = np.memmap(path, np.float32, "r", offset, shape)
            except ValueError as error:
                raise self.damaged(shard, str(error)) from None
        return self._mapped[shard.name]

    def scan(self, shard: Shard) -> Vectors:
        """All rows of a shard as a view of the file, whose checksum is looked at once.

        Raises:
            InputError: the file is damaged.
            FileNotFoundError: it is gone.
        """
        if shard.name not in self._verified:
            if crc32_of(self.folder / shard.name) != shard.crc32:
                raise self.damaged(shard, "its checksum is wrong")
            self._verified.add(shard.name)
        return self.map(shard)

    def blocks(self, shards: Sequence[Shard], start: int = 0) -> Iterator[Vectors]:
        """The vectors from row ``start`` on, shard by shard; whole shards are verified."""
        for shard in shards:
            skip = start - shard.first
            if skip <= 0:
                yield self.read(shard)
            elif skip < shard.rows:
                yield np.array(self.map(shard)[skip:])

    def gather(self, shards: Sequence[Shard], rows: NDArray[np.int64]) -> Vectors:
        """The vectors (len(rows), dimension) of any rows, in their order."""
        vectors = np.empty((len(rows), self.dimension), np.float32)
        homes = np.searchsorted([shard.first for shard in shards], rows, side="right") - 1
        for home in np.unique(homes):
            chosen = homes == home
            vectors[chosen] = self.map(shards[home])[rows[chosen] - shards[home].first]
        return vectors

    def forget_unlisted(self, shards: Sequence[Shard]) -> None:
        """Close the views of shards that are no longer listed."""
        names = {shard.name for shard in shards}
        self._mapped = {name: view for name, view in self._mapped.items() if name in names}
        self._verified &= names

    def remove_unlisted(self, shards: Sequence[Shard]) -> None:
        """Remove the files that no list names: leftovers of killed writers and shards that were joined."""
        names = {shard.name for shard in shards}
        for path in self.folder.iterdir():
            if path.suffix in (".safetensors", ".tmp") and path.name not in names:
                # A system that keeps open files (Windows) leaves it to a later writer.
                with suppress(OSError):
                    path.unlink()

    def damaged(self, shard: Shard, what: str) -> InputError:
        """The error for a file that is not as it was written."""
        return InputError(f"{self.folder / shard.name}: damaged ({what}), {REMEDY}")
