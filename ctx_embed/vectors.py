"""Embeddings as rows of an array, scaled to unit length."""

from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ctx_embed.errors import InputError

BLOCK_ROWS = 256
# Zero vectors are divided by this, and stay zero; the length of every other vector is greater.
SMALLEST = np.finfo(np.float64).smallest_subnormal

Float = TypeVar("Float", np.float32, np.float64)


def unit_rows(vectors: NDArray[Float]) -> NDArray[Float]:
    """Return vectors scaled to length 1. A zero vector stays zero, so that its cosine with every vector is 0."""
    result = np.empty_like(vectors)
    # Blocks of rows stay in cache; a single vector is one block.
    for start in range(0, len(vectors), BLOCK_ROWS) if vectors.ndim > 1 else (0,):
        block = slice(start, start + BLOCK_ROWS) if vectors.ndim > 1 else ...
        precise = vectors[block].astype(np.float64)
        # The same as np.linalg.norm, which takes three times as long for one vector.
        lengths = np.sqrt(np.einsum("...m,...m->...", precise, precise))[..., None]
        np.divide(precise, np.maximum(lengths, SMALLEST), out=result[block], casting="same_kind")
    return result


def comparable(embeddings: NDArray[Any], kept: int, dimension: int, *, signed_bits: bool = False) -> NDArray[Any]:
    """Return embeddings (..., width) as floats: int8 is converted, packed bits become -1 and 1, and floats stay.

    The model keeps ``kept`` features of its ``dimension``. ``signed_bits``: int8 of an eighth of that width is packed
    bits, too, which sentence-transformers calls ``binary``.
    """
    if embeddings.dtype.kind == "f":
        return embeddings
    if embeddings.dtype not in (np.int8, np.uint8):
        raise InputError(f"embeddings must be floats, int8 or packed bits, got {embeddings.dtype}")
    width, signed = embeddings.shape[-1], embeddings.dtype == np.int8
    packed = width == -(-kept // 8) and (signed_bits or not signed)
    widest = dimension if signed else -(-dimension // 8)
    if width > widest:
        name = "int8 features" if signed else "bytes of packed bits"
        raise InputError(f"embeddings must have at most {widest} {name}, got {width}")
    if signed and not packed:
        return embeddings.astype(np.float32)
    octets = (embeddings.astype(np.int16) + 128).astype(np.uint8) if signed else embeddings
    return 2 * np.unpackbits(octets, -1)[..., : kept if packed else None].astype(np.float32) - 1


def unit_vector(embedding: Any, dimension: int, name: str) -> NDArray[np.float32]:
    """Return a given embedding (dimension,) scaled to unit length; if it is none, the error begins with ``name``."""
    try:
        vector = np.asarray(embedding)
        if vector.dtype.kind not in "fiu":
            raise TypeError
        vector = vector.astype(np.float64)
    except (TypeError, ValueError, RuntimeError):  # torch raises RuntimeError for a tensor with a gradient.
        raise InputError(f"{name} must be a list of numbers") from None
    if vector.shape != (dimension,):
        raise InputError(f"{name} must have shape ({dimension},), got {vector.shape}")
    with np.errstate(over="ignore"):
        length = float(np.linalg.norm(vector))
    if not np.isfinite(length):
        raise InputError(f"{name} must have a finite length, got {length}")
    return (vector / (length or 1)).astype(np.float32)
