"""The cached FAISS files: each holds the rows of some generation and is ignored if it does not fit the index."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import faiss as _faiss

from ctx_embed.files import fsync_file
from ctx_embed.index.storage.database import Snapshot
from ctx_embed.index.storage.shards import crc32_of

# FAISS's type stubs lack its limits on reading.
faiss: Any = _faiss

_LIMITS = ("deserialization_vector_byte_limit", "deserialization_loop_limit")
_LIMITED = threading.Lock()
_NAME = re.compile(r"n(\d+)-g(\d+)-r(\d+)-([0-9a-f]{8})\.faiss")


class _Cached(NamedTuple):
    generation: int
    rows: int
    numbering: int
    crc32: int
    path: Path


class Cache:
    """The cache files of an index, named by the numbering of their rows, generation, number of rows and checksum.

    Within one numbering, rows are only ever added, so a file holds the first rows of every later state.

    Args:
        folder: the folder of the files.
        dimension: the dimension of the vectors.
    """

    def __init__(self, folder: Path, dimension: int) -> None:
        self.folder = folder
        self.dimension = dimension

    def fitting(self, snapshot: Snapshot) -> list[_Cached]:
        """Return the files that hold the first rows of a snapshot, newest first."""
        # Reading a pipe would wait for its writer.
        files = [path for path in self.folder.glob("*.faiss") if path.is_file()]
        matches = [(_NAME.fullmatch(path.name), path) for path in files]
        found = [_Cached(int(m[2]), int(m[3]), int(m[1]), int(m[4], 16), path) for m, path in matches if m]
        return sorted(
            (
                cached
                for cached in found
                if cached.numbering == snapshot.numbering
                and cached.generation <= snapshot.generation
                and cached.rows <= snapshot.rows
            ),
            reverse=True,
        )

    def load(self, snapshot: Snapshot, flags: int, more_than: int = 0) -> Any:
        """Return the newest intact index that fits a snapshot and has more than ``more_than`` rows, or None.

        Args:
            snapshot: the state that it must fit.
            flags: flags of FAISS's reader; 0 reads the whole file into memory.
            more_than: the number of rows it must exceed.
        """
        for cached in self.fitting(snapshot):
            # Another process may remove the file at any time; whatever is wrong with it, the raw vectors are intact.
            with suppress(OSError, RuntimeError, MemoryError):
                if cached.rows <= more_than or crc32_of(cached.path) != cached.crc32:
                    continue
                with _limits(cached.path.stat().st_size):
                    index = faiss.read_index(str(cached.path), flags)
                if index.ntotal == cached.rows and index.d == self.dimension:
                    return index
        return None

    def remove_other_numberings(self, snapshot: Snapshot) -> None:
        """Remove files whose rows have since been renumbered."""
        fitting = {cached.path for cached in self.fitting(snapshot)}
        for path in set(self.folder.glob("*.faiss")) - fitting:
            with suppress(OSError):
                path.unlink()

    def write(self, index: Any, snapshot: Snapshot) -> None:
        """Write ``index`` as the only file, replacing all others; only one process at a time may call this.

        Raises:
            OSError, RuntimeError: the file cannot be written.
        """
        beside = self.folder / "next.tmp"
        try:
            faiss.write_index(index, str(beside))
            fsync_file(beside)
            name = f"n{snapshot.numbering}-g{snapshot.generation}-r{index.ntotal}-{crc32_of(beside):08x}.faiss"
            beside.replace(self.folder / name)
        finally:
            beside.unlink(missing_ok=True)
        for path in self.folder.glob("*.faiss"):
            if path.name != name:
                with suppress(OSError):
                    path.unlink()


@contextmanager
def _limits(size: int) -> Iterator[None]:
    """Let FAISS allocate no more than the size of a file, which may declare any size; 1.10 has no such limits."""
    with _LIMITED:
        before = {name: getattr(faiss, f"get_{name}")() for name in _LIMITS if hasattr(faiss, f"get_{name}")}
        try:
            for name in before:
                getattr(faiss, f"set_{name}")(size)
            yield
        finally:
            for name, value in before.items():
                getattr(faiss, f"set_{name}")(value)
