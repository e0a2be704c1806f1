"""The vectors of an index: a table with a row for each passage, in the data type of the index, each with a checksum.

Unit vectors are stored as float32, float16 or int8, by the name of the data type.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from itertools import compress
from operator import lt, ne
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ctx_embed.errors import InputError

if TYPE_CHECKING:
    from ctx_embed.index.storage.database import Database, Settings

Vectors: TypeAlias = NDArray[np.float32]
Rows: TypeAlias = NDArray[np.int64]
Mask: TypeAlias = NDArray[np.bool_]

DEFAULT = "float32"
LARGEST_CODE, BEND = 127, 64


class DType(NamedTuple):
    """A data type: its NumPy scalar, and functions to and from float32 (n, d)."""

    scalar: Any
    encode: Callable[[Vectors], NDArray[Any]]
    decode: Callable[[NDArray[Any]], Vectors]


def _to_float32(vectors: NDArray[Any]) -> Vectors:
    return np.ascontiguousarray(vectors, np.float32)


def _to_int8(vectors: Vectors) -> NDArray[np.int8]:
    """Return codes (n, d) in [-127, 127]: a code c stands for c (64 + |c|), which is finer near 0 than a linear scale.

    Only directions are stored, scaled so that the largest component of each vector has the code 127 or -127. Encoding
    a decoded vector gives the same codes again.
    """
    sizes = np.abs(vectors)
    largest = sizes.max(axis=1, keepdims=True, initial=0)
    np.divide(sizes, largest, out=sizes, where=largest > 0)
    # The positive solution c of c (64 + c) = size * 127 (64 + 127).
    half = BEND / 2
    codes = np.rint(np.sqrt(half**2 + sizes * (LARGEST_CODE * (BEND + LARGEST_CODE))) - half)
    return np.copysign(codes, vectors).astype(np.int8)


def _from_int8(codes: NDArray[np.int8]) -> Vectors:
    """Return unit vectors (n, d); a zero vector stays zero."""
    values = codes.astype(np.int16)
    sizes = np.abs(values)
    sizes += BEND
    values *= sizes
    vectors = values.astype(np.float32)
    lengths = np.sqrt(np.einsum("ij,ij->i", vectors, vectors))
    vectors /= np.where(lengths > 0, lengths, 1)[:, None]
    return vectors


def _from_float16(halves: NDArray[np.float16]) -> Vectors:
    """Return numbers, all finite, as float32, five times as fast as NumPy's cast."""
    # Shift the sign, exponent and mantissa to their places in float32, and change the exponent's bias from 15 to 127.
    bits = np.ascontiguousarray(halves).view(np.int16).astype(np.int32)
    bits <<= 13
    bits &= ~0x70000000
    vectors = bits.view(np.float32)
    vectors *= np.float32(2.0 ** (127 - 15))
    return vectors


DTYPES = {
    DEFAULT: DType(np.float32, _to_float32, _to_float32),
    "float16": DType(np.float16, lambda vectors: vectors.astype(np.float16), _from_float16),
    "int8": DType(np.int8, _to_int8, _from_int8),
}


def checked_dtype(dtype: Any) -> str:
    """Return the name of a data type, or raise InputError if there is no such type."""
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise InputError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")
    return dtype


# Number of rows to read at a time.
READ_ROWS = 2048
# Sizes of SQLite's pages to choose from, and the largest part of a page that may stay empty.
PAGE_SIZES, LARGEST_WASTE = (4096, 8192, 16384, 32768), 0.15
# Bytes that SQLite stores for a row besides its code, and for a page besides its rows.
_ROW_BYTES, _PAGE_BYTES = 16, 12


def page_size(dimension: int, dtype: str) -> int:
    """Return the smallest page size of SQLite that vectors fill well, or the smallest of all if they fill none."""
    row = dimension * DTYPES[dtype].scalar().itemsize + _ROW_BYTES
    rooms = {size: size - _PAGE_BYTES for size in PAGE_SIZES}
    return next((size for size, room in rooms.items() if room % row <= LARGEST_WASTE * room), PAGE_SIZES[0])


def schema(number: int) -> tuple[str, str]:
    """Return the statements that create a table of vectors, and the index of its zero vectors.

    Zero vectors belong to texts that the model cannot read.
    """
    return (
        f"CREATE TABLE vectors_{number} (row INTEGER PRIMARY KEY, code BLOB NOT NULL, checksum INTEGER NOT NULL)",
        f"CREATE INDEX zeros_{number} ON vectors_{number} (row) WHERE code = x''",
    )


class VectorTable:
    """The vectors of one model. Codes say their data type by their length; a zero vector has an empty code.

    Call the methods inside a transaction of the database; all of them raise DamagedError if a vector is damaged.
    """

    def __init__(self, database: Database, settings: Settings) -> None:
        self.database = database
        self.dimension = settings.dimension
        self.dtype = settings.dtype
        self.name = f"vectors_{settings.table}"
        self._types = {
            self.dimension * dtype.scalar().itemsize: (dtype.scalar, dtype.decode) for dtype in DTYPES.values()
        }

    def put(self, rows: Sequence[int] | range, vectors: Vectors) -> None:
        """Store the vectors (n, dimension) of n new rows, or of rows whose data type changes."""
        codes = np.ascontiguousarray(DTYPES[self.dtype].encode(vectors))
        width = codes.itemsize * self.dimension
        content = codes.tobytes()
        parts = (content[start : start + width] for start in range(0, len(content), width))
        filled = (part if there else b"" for part, there in zip(parts, np.any(vectors, axis=1), strict=True))
        self.database.run_many(
            f"INSERT OR REPLACE INTO {self.name} VALUES (?, ?, ?)",
            ((row, code, zlib.crc32(code)) for row, code in zip(rows, filled, strict=True)),
        )

    def get(self, rows: Rows) -> Vectors:
        """Return the vectors (n, dimension) of rows, in their order."""
        # Not np.unique, which imports NumPy's masked arrays. One statement for any number of rows is prepared once.
        wanted = sorted(set(rows.tolist()))
        among = "row IN (SELECT value FROM json_each(?)) ORDER BY row"
        found = self.database.run(f"SELECT row, code, checksum FROM {self.name} WHERE {among}", (str(wanted),))
        if len(found) < len(wanted):
            raise self.database.damaged("vectors are missing")
        vectors = self._decoded(found)
        return vectors[np.searchsorted(wanted, rows)] if len(wanted) else vectors

    def blocks(self, after: int = -1) -> Iterator[tuple[Rows, Vectors]]:
        """Yield rows beyond ``after`` and their vectors, a few thousand at a time, without zero vectors."""
        select = f"SELECT row, code, checksum FROM {self.name} WHERE row > ? ORDER BY row LIMIT {READ_ROWS}"
        while found := self.database.run(select, (after,)):
            if found[0][0] <= after:
                raise self.database.damaged("its vectors are out of order")
            after = found[-1][0]
            vectors = self._decoded(found)
            kept = np.array([bool(code) for _, code, _ in found])
            if kept.any():
                rows = np.array([row for row, _, _ in found], np.int64)
                yield (rows, vectors) if kept.all() else (rows[kept], vectors[kept])

    def zeros(self, first: int = 0) -> Rows:
        """Return the rows from ``first`` on whose vectors are zero."""
        select = f"SELECT row FROM {self.name} WHERE code = x'' AND row >= ?"
        return np.array(self.database.run(select, (first,)), np.int64).ravel()

    def other_types(self, count: int) -> list[int]:
        """Return at most ``count`` rows whose vectors have another data type than new ones."""
        width = self.dimension * DTYPES[self.dtype].scalar().itemsize
        select = f"SELECT row FROM {self.name} WHERE length(code) NOT IN (0, ?) LIMIT ?"
        return [row for (row,) in self.database.run(select, (width, count))]

    def _decoded(self, found: Sequence[tuple[Any, ...]]) -> Vectors:
        """Return the vectors of rows, codes and checksums, after checking them."""
        if not found:
            return np.zeros((0, self.dimension), np.float32)
        rows, codes, checksums = zip(*found, strict=True)
        if set(map(type, codes)) != {bytes} or any(map(ne, map(zlib.crc32, codes), checksums)):
            raise self.database.damaged("the checksum of a vector is wrong")
        # A damaged table may repeat rows without end.
        if not all(map(lt, rows, rows[1:])):
            raise self.database.damaged("its vectors are out of order")
        widths = np.array(list(map(len, codes)))
        vectors = np.zeros((len(codes), self.dimension), np.float32)
        for width in set(widths.tolist()) - {0}:
            if width not in self._types:
                raise self.database.damaged("a vector has a wrong size")
            scalar, decode = self._types[width]
            chosen = widths == width
            decoded = decode(np.frombuffer(b"".join(compress(codes, chosen)), scalar).reshape(-1, self.dimension))
            if chosen.all():
                return decoded
            vectors[chosen] = decoded
        return vectors
