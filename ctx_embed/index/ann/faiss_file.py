"""FAISS's file of an index: derived from the vectors, listed in the database, and missed by nobody if it is deleted.

A writer makes it after a commit, under a name with a random token, and lists the token with the rows that the file
holds. A reader uses the file only if its own transaction lists the token, so a file from elsewhere is never used.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ctx_embed.errors import InputError, OtherModelError, described
from ctx_embed.files import fsync_file, fsync_folder
from ctx_embed.index.ann import nearest
from ctx_embed.index.ann.nearest import Record, crc32_of, faiss, inner, loaded, recorded
from ctx_embed.index.storage.database import FAISS_SUFFIX, ranges_of
from ctx_embed.index.storage.vectors import Rows, Vectors

if TYPE_CHECKING:
    from collections.abc import Callable

    from ctx_embed.index.model import IndexModel
    from ctx_embed.index.storage.database import Database, Settings
    from ctx_embed.index.storage.documents import DocumentStore
    from ctx_embed.index.storage.folder import View

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
# The file is extended when it lacks this number of rows, or this share of them; one that compares all, only when it
# lacks more than these rows.
STALE_ROWS, STALE_PART, STALE_FLAT = 25_000, 0.1, 4096
# The recall@10 that `auto` reaches, for passages and for words, and the numbers of queries that measure it.
AUTO_RECALL, NEIGHBOURS = 0.98, 10
PASSAGE_QUERIES, WORD_QUERIES, MOST_QUERY_WORDS = 64, 128, 8
# What `auto` tries in turn: lists to look into, and candidates beyond those wanted. Words need many lists, as they lie
# far from all passages; the codes are exact enough for few candidates.
LEVELS = (
    *((lists, 50) for lists in (8, 12, 16, 24)),
    *((lists, 100) for lists in (32, 48, 64, 96, 128, 160, 192)),
    *((lists, 200) for lists in (256, 384, 512, 768, 1024, 1536, 2048, 4096)),
)
# Candidates beyond those wanted, for other coarse kinds.
COARSE_SPARE = 300


def reason(error: Exception) -> str:
    """Return FAISS's error message without its position in the C++ source."""
    return re.split(r"failed: |cpp:\d+: (?:Error: )?", " ".join(str(error).split()))[-1] or type(error).__name__


def factory_for(rows: int, settings: Settings) -> str:
    """Return the factory string for a number of rows; Flat depends on the data type of the vectors.

    `auto` is exact, then takes about sqrt(rows) inverted lists of compressed vectors. Two bits a dimension suffice,
    since the candidates are scored again from the stored vectors; vectors of few dimensions take eight bits.
    """
    if settings.factory not in (AUTO, "Flat"):
        return settings.factory
    if settings.factory == "Flat" or rows <= EXACT_ROWS:
        return flat(settings.dtype)
    lists = min(2 ** round(np.log2(rows**0.5)), LARGEST_LISTS)
    dimension = settings.dimension
    codes = "SQ8" if dimension < LEAST_COMPRESSED or dimension % 2 else f"PQ{dimension // 2}x4fs"
    return f"IVF{lists},{codes}"


def flat(dtype: str) -> str:
    """Return the kind that compares all vectors of a data type."""
    return {"float16": "SQfp16", "int8": "SQ8"}.get(dtype, "Flat")


def checked_factory(factory: Any, dimension: int) -> str:
    """Return ``factory``, such as ``auto``, ``Flat`` or ``IVF256,PQ32``, if an index of this dimension can use it.

    Raises:
        InputError: FAISS does not know it, or it cannot add vectors step by step or compare by inner products.
    """
    if not isinstance(factory, str):
        raise InputError(f"the FAISS factory must be a string, e.g. 'Flat', got {described(factory)}")
    if factory != AUTO:
        new_index(factory, dimension)
    return factory


def new_index(factory: str, dimension: int) -> Any:
    """Return an empty FAISS index that compares by inner products; InputError as :func:`checked_factory`."""
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


def is_stale(folder: Path, store: DocumentStore) -> bool:
    """Return whether FAISS's file is missing or lacks enough rows to be written again, without reading it."""
    settings, record, next_row = store.present(), recorded(store), store.state().next_row
    held, covered, kind = 0, 0, ""
    if record is not None:
        with suppress(KeyError, TypeError, ValueError, OSError):
            if record.path(folder).stat().st_size != record.facts["bytes"]:
                raise ValueError
            held, covered, kind = int(record.facts["rows"]), int(record.facts["next_row"]), str(record.facts["for"])
    missing = next_row - covered
    if not covered:
        missing -= store.deleted_rows()
    rows = held + missing
    wanted = factory_for(rows, settings)
    if kind and settings.factory == AUTO and outgrown(kind, wanted):
        return True
    if wanted in nearest.COMPARING_ALL:
        return missing > max(STALE_FLAT, STALE_PART * rows)
    return missing > min(STALE_PART * rows, max(STALE_ROWS, 0.02 * rows))


def outgrown(kind: str, wanted: str) -> bool:
    """Return whether `auto` wants another kind than it did, or at least twice as many lists."""
    lists, wanted_lists = (int(found[1]) if (found := re.match(r"IVF(\d+),", of)) else 0 for of in (kind, wanted))
    return (not lists) != (not wanted_lists) or wanted_lists >= 2 * max(lists, 1)


def write(view: View, embedder: Callable[[], IndexModel], *, anew: bool = False) -> Record | None:
    """Write FAISS's file for a view, and return its record, which is not yet listed; None if there are too few rows.

    Args:
        view: the newest generation, in a writing transaction.
        embedder: returns the model, which embeds the words that measure recall.
        anew: whether to start a new index rather than extend that of the file.

    Raises:
        InputError: the index cannot be trained.
        OSError, RuntimeError: the file cannot be written.
    """
    settings, rows = view.settings, view.rows[view.readable]
    wanted = kind = factory_for(len(rows), settings)
    index, held = None, rows[:0]
    if not anew and view.record is not None and wanted not in nearest.COMPARING_ALL:
        found = loaded(view.folder.path, view.record, settings)
        if found is not None and not found.exact and not outgrown(view.record.facts["for"], wanted):
            index, held = found.index, found.rows
    measured = None
    while measured is None:
        if index is None:
            index, held = trained(view, kind, rows), rows[:0]
            if index is None:
                return None
        for of_block, vectors in view.vectors.blocks(int(held[-1]) if len(held) else -1):
            index.add(vectors)
            held = np.concatenate([held, of_block])
        measured = _measured(view, index, held, kind, embedder)
        if measured is None:
            # Finding enough costs more than comparing all.
            kind, index = flat(settings.dtype), None
    token = uuid.uuid4().hex
    path = view.folder.path / f"{token}{FAISS_SUFFIX}"
    beside = path.with_suffix(f"{FAISS_SUFFIX}.tmp")
    try:
        faiss.write_index(index, str(beside))
        fsync_file(beside)
        size, checksum = beside.stat().st_size, crc32_of(beside)
        beside.replace(path)
        fsync_folder(path.parent)
    finally:
        beside.unlink(missing_ok=True)
    facts = {"kind": kind, "for": wanted, "rows": len(held), "next_row": view.state.next_row}
    return Record(token, {**facts, "bytes": size, "crc32": checksum, **measured}, ranges_of(held))


def listed(database: Database, record: Record | None) -> None:
    """List a file in place of the one before, inside :meth:`Database.writing`."""
    database.run("DELETE FROM faiss")
    if record is not None:
        database.run("INSERT INTO faiss VALUES (?, ?, ?)", (record.token, json.dumps(record.facts), record.ranges))


def remove_unlisted(folder: Path, record: Record | None) -> None:
    """Remove FAISS's files that are not listed, and those of killed writers; call it with the writer's lock."""
    for pattern in (f"*{FAISS_SUFFIX}", f"*{FAISS_SUFFIX}.tmp"):
        for path in folder.glob(pattern):
            if record is None or path != record.path(folder):
                # If the system does not delete open files (Windows), a later writer will.
                with suppress(OSError):
                    path.unlink()


def trained(view: View, kind: str, rows: Rows) -> Any:
    """Return an empty index of a kind, trained on a sample of the rows, or None if there are too few."""
    index = new_index(kind, view.settings.dimension)
    if index.is_trained:
        return index
    needed = centroids(index)
    if len(rows) < LEAST_TRAINING * needed:
        return None
    size = min(len(rows), max(MOST_TRAINING * needed, 10_000))
    sample = view.vectors.get(rows[np.linspace(0, len(rows) - 1, size, dtype=np.int64)])
    try:
        index.train(sample)
    except RuntimeError as error:
        raise InputError(f"FAISS factory {kind!r} on {len(rows)} vectors: {reason(error)}") from None
    return index


def _measured(
    view: View, index: Any, rows: Rows, kind: str, embedder: Callable[[], IndexModel]
) -> dict[str, Any] | None:
    """Return search effort, spare candidates and the recall@10 of both kinds of queries.

    With `auto` they are raised until both recalls are reached, or None is returned.
    """
    effort = nearest.effort_of(index)
    searched = inner(index)
    parts = [faiss.downcast_index(index), searched]
    if hasattr(searched, "storage"):
        parts.append(faiss.downcast_index(searched.storage))
    # These store vectors so coarsely (e.g. product quantization) that many need a second scoring.
    coarse = ("PQ", "RaBitQ", "FastScan", "Residual", "PreTransform")
    is_coarse = any(word in type(part).__name__ for part in parts for word in coarse)
    spare = COARSE_SPARE if is_coarse else nearest.SPARE_CANDIDATES
    if type(searched).__name__ == "IndexFlat" or not len(rows):
        return {"effort": None, "spare": spare, "recall": {}}
    queries = _queries(view, rows, embedder)
    truth = {name: nearest.compared(view, vectors, NEIGHBOURS, view.readable) for name, vectors in queries.items()}
    auto = view.settings.factory == AUTO and kind not in nearest.COMPARING_ALL
    usual = None if effort is None else effort[1]
    levels: Sequence[tuple[int | None, int]] = LEVELS if auto else [(usual, spare)]
    for value, more in levels:
        value = value if effort is None or value is None else min(value, effort[2])
        parameters = nearest.search_parameters(index, value, None)
        recall = {}
        for name, vectors in queries.items():
            # The share of the true neighbours that FAISS proposes.
            proposed = np.asarray(index.search(vectors, min(NEIGHBOURS + more, index.ntotal), params=parameters)[1])
            found = sum(
                len(set(rows[of[of >= 0]].tolist()) & set(true.tolist()))
                for of, true in zip(proposed, truth[name], strict=True)
            )
            recall[name] = round(found / max(sum(map(len, truth[name])), 1), 4)
        if not auto or all(of >= AUTO_RECALL for of in recall.values()):
            return {"effort": value, "spare": more, "recall": recall}
        if effort is not None and value == effort[2]:
            break
    return None


def _queries(view: View, rows: Rows, embedder: Callable[[], IndexModel]) -> dict[str, Vectors]:
    """Return some passages and some of their words as queries."""
    some = rows[np.linspace(0, len(rows) - 1, min(PASSAGE_QUERIES, len(rows)), dtype=np.int64)]
    found = {"passages": view.vectors.get(some)}
    with suppress(OtherModelError):
        texts = []
        for number, row in enumerate(rows[np.linspace(0, len(rows) - 1, WORD_QUERIES, dtype=np.int64)].tolist()):
            words = view.store.fetch([row])[row].text.split()
            count = 1 + number % MOST_QUERY_WORDS
            # Any place in the passage, but always the same one.
            start = row * 7919 % max(len(words) - count + 1, 1)
            texts.append(" ".join(words[start : start + count]))
        vectors = embedder().quiet_queries(texts)
        if (readable := vectors.any(axis=1)).any():
            found["words"] = vectors[readable]
    return found
