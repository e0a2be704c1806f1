"""Kinds of FAISS index: valid factory strings, what `auto` means, and the parameters of a search."""

from __future__ import annotations

import re
from typing import Any

import faiss as _faiss
import numpy as np

from ctx_embed.errors import InputError, described
from ctx_embed.index.ann.nearest import inner
from ctx_embed.index.storage.database import Settings

# FAISS's type stubs lack the keyword arguments of its Python layer and the types of array arguments.
faiss: Any = _faiss

AUTO = "auto"
# `auto` searches exactly up to this number of rows.
EXACT_ROWS = 50_000
# Training takes at most MOST_TRAINING vectors for each centroid, and starts once there are LEAST_TRAINING for each.
MOST_TRAINING, LEAST_TRAINING = 64, 39
OPQ_CENTROIDS = 256
# Vectors of fewer dimensions are too small to be worth compressing.
LEAST_COMPRESSED = 64
LARGEST_LISTS = 65_536
LONGEST_FACTORY, MOST_LINKS = 100, 512
_ADVICE = "try auto, Flat, HNSW32 or IVF256,SQ8"


def reason(error: Exception) -> str:
    """Return FAISS's error message without its position in the C++ source."""
    return re.split(r"failed: |cpp:\d+: (?:Error: )?", " ".join(str(error).split()))[-1] or type(error).__name__


def auto_factory(rows: int, dimension: int) -> str:
    """Return the factory for a number of vectors: exact, then about sqrt(rows) inverted lists of compressed vectors.

    Two bits a dimension suffice, since the candidates are scored again from the stored vectors; vectors of few
    dimensions take eight bits.
    """
    if rows <= EXACT_ROWS:
        return "Flat"
    lists = min(2 ** round(np.log2(rows**0.5)), LARGEST_LISTS)
    codes = "SQ8" if dimension < LEAST_COMPRESSED or dimension % 2 else f"PQ{dimension // 2}x4fs"
    return f"IVF{lists},{codes}"


def factory_for(factory: str, rows: int, settings: Settings) -> str:
    """Return the factory string for a number of rows, of which Flat depends on the data type of the vectors."""
    found = auto_factory(rows, settings.dimension) if factory == AUTO else factory
    return flat(settings.dtype) if found == "Flat" else found


def flat(dtype: str) -> str:
    """Return the kind that compares all vectors of a data type."""
    return {"float16": "SQfp16", "int8": "SQ8"}.get(dtype, "Flat")


def checked_factory(factory: Any, dimension: int) -> str:
    """Return ``factory`` if an index can use it.

    Args:
        factory: ``auto`` or a FAISS factory string, e.g. ``Flat``, ``HNSW32`` or ``IVF256,PQ32``.
        dimension: the dimension of the vectors.

    Raises:
        InputError: FAISS does not know it, or it cannot add vectors step by step or compare by inner products.
    """
    if not isinstance(factory, str):
        raise InputError(f"the FAISS factory must be a string, e.g. 'Flat', got {described(factory)}")
    if factory != AUTO:
        new_index(factory, dimension)
    return factory


def new_index(factory: str, dimension: int) -> Any:
    """Return an empty FAISS index that compares by inner products.

    Raises:
        InputError: as :func:`checked_factory`.
    """
    # A folder from elsewhere names its factory, too: FAISS recurses for parentheses, and allocates what sizes say.
    sizes = [int(size) for size in re.findall(r"\d+", factory[:LONGEST_FACTORY])]
    if len(factory) > LONGEST_FACTORY or max(sizes, default=0) > LARGEST_LISTS:
        raise InputError(
            f"FAISS factory {factory!r:.{LONGEST_FACTORY}}: must have at most {LONGEST_FACTORY} characters, and sizes "
            f"up to {LARGEST_LISTS:,}; {_ADVICE}"
        )
    try:
        index = faiss.index_factory(dimension, factory, faiss.METRIC_INNER_PRODUCT)
    except (RuntimeError, MemoryError) as error:
        raise InputError(f"FAISS factory {factory!r}: {reason(error)}; {_ADVICE}") from None
    kind = type(index).__name__
    problem = ""
    # FAISS accepts sizes of 0, but then crashes in a division or never returns.
    if any(int(size) == 0 for size in re.findall(r"\d+", factory)) or re.search(r"HNSW0*1(?!\d)", factory):
        problem = "a size in it is too small"
    elif any(int(links) > MOST_LINKS for links in re.findall(r"HNSW(\d+)", factory)):
        problem = f"a graph may have at most {MOST_LINKS} links"
    elif "IDMap" in kind:
        problem = "the index stores ids itself, so leave IDMap out"
    elif "NSG" in kind or "NNDescent" in kind:
        problem = "its graph cannot grow, so use HNSW instead"
    elif index.metric_type != faiss.METRIC_INNER_PRODUCT:
        problem = "it cannot compare by inner products"
    if problem:
        raise InputError(f"FAISS factory {factory!r}: {problem}; {_ADVICE}")
    return index


def centroids(index: Any) -> int:
    """Return the number of centroids that training must learn, the highest of any part; 0 if nothing is trained.

    FAISS's warning about too few training vectors is silenced: :data:`LEAST_TRAINING` already heeds it.
    """
    needed = 0 if index.is_trained else 1
    for part in ("rq", "lsq", "prq", "plsq"):
        if hasattr(index, part):
            bits = faiss.vector_to_array(getattr(index, part).nbits)
            needed = max(needed, 2 ** int(bits.max()))
    if hasattr(index, "nlist"):
        needed = max(needed, index.nlist)
        index.cp.min_points_per_centroid = 1
    if hasattr(index, "pq"):
        needed = max(needed, index.pq.ksub)
        index.pq.cp.min_points_per_centroid = 1
    if hasattr(index, "chain"):
        for place in range(index.chain.size()):
            transform = faiss.downcast_VectorTransform(index.chain.at(place))
            if isinstance(transform, faiss.OPQMatrix):
                # OPQ fits its rotation to a product quantizer with this many centroids.
                needed = max(needed, OPQ_CENTROIDS)
    for part in ("index", "base_index", "storage"):
        if hasattr(index, part):
            needed = max(needed, centroids(faiss.downcast_index(getattr(index, part))))
    return needed


def is_coarse(index: Any) -> bool:
    """Return whether vectors are stored so coarsely (e.g. product quantization) that many need a second scoring."""
    part = faiss.downcast_index(index)
    names = [type(part).__name__, type(inner(part)).__name__]
    names += [
        type(faiss.downcast_index(owner.storage)).__name__ for owner in (inner(part),) if hasattr(owner, "storage")
    ]
    return any(word in name for name in names for word in ("PQ", "RaBitQ", "FastScan", "Residual", "PreTransform"))
