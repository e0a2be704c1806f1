"""How vectors are stored: as float32, float16 or int8, by the name of the data type, in pages that fit them."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ctx_embed.errors import InputError, quoted
from ctx_embed.options import DTYPE_NAMES

Vectors: TypeAlias = NDArray[np.float32]
Rows: TypeAlias = NDArray[np.int64]
Mask: TypeAlias = NDArray[np.bool_]

LARGEST_CODE, BEND = 127, 64


class DType(NamedTuple):
    """A data type: its NumPy scalar, and functions to and from float32 (n, d)."""

    scalar: Any
    encode: Callable[[Vectors], NDArray[Any]]
    decode: Callable[[NDArray[Any]], Vectors]


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


_FLOAT32 = partial(np.ascontiguousarray, dtype=np.float32)
_KINDS = (
    DType(np.float32, _FLOAT32, _FLOAT32),
    DType(np.float16, lambda vectors: vectors.astype(np.float16), _from_float16),
    DType(np.int8, _to_int8, _from_int8),
)
DTYPES = dict(zip(DTYPE_NAMES, _KINDS, strict=True))
FLOAT32, *_ = DTYPE_NAMES


def checked_dtype(dtype: Any) -> str:
    """Return the name of a data type, or raise InputError if there is no such type."""
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise InputError(f"dtype must be one of {', '.join(DTYPES)}, got {quoted(dtype)}")
    return dtype


def spread(rows: Rows, most: int) -> Rows:
    """Return at most ``most`` of some rows, evenly spaced."""
    # Not np.unique, which imports NumPy's masked arrays.
    return rows[np.linspace(0, len(rows) - 1, min(most, len(rows)), dtype=np.int64)]


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
    """Return the statements that create a table of vectors, and the index of its zero vectors (unreadable texts)."""
    return (
        f"CREATE TABLE vectors_{number} (row INTEGER PRIMARY KEY, code BLOB NOT NULL, checksum INTEGER NOT NULL)",
        f"CREATE INDEX zeros_{number} ON vectors_{number} (row) WHERE code = x''",
    )
