"""The nearest passages: FAISS proposes rows, or all are compared; the cosines are computed from the stored vectors."""

from __future__ import annotations

import json
import re
import stat
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import faiss as _faiss
import numpy as np

from ctx_embed.files import open_regular
from ctx_embed.index.storage.database import FAISS_SUFFIX, Database, Settings, require_time, rows_of
from ctx_embed.index.storage.vectors import Rows, Vectors

if TYPE_CHECKING:
    from ctx_embed.index.storage.folder import Mask, View

Ranking: TypeAlias = list[tuple[float, int]]

# FAISS's type stubs lack its limits on reading, the keyword arguments of its Python layer and array arguments.
faiss: Any = _faiss
_LIMITS = ("deserialization_vector_byte_limit", "deserialization_loop_limit")
_LIMITED = threading.Lock()
# The kinds that compare all vectors, which stay on disk.
COMPARING_ALL = ("Flat", "SQfp16", "SQ8")
_TOKEN = re.compile(r"[0-9a-f]{32}")
# float32 scores that differ by less are ties until the cosines are computed in float64.
ROUNDING = 2e-6
# Candidates beyond k whose cosines are computed again from the stored vectors; this corrects ties and rounding.
SPARE_CANDIDATES = 16
# Vectors that FAISS's file lacks are cached up to this number; more are read anew in each search.
CACHED_ROWS = 32_768
# If a filter allows at most this share of the rows, each of these rows is compared with the query.
FEW_PART = 0.02


def search(
    view: View, queries: Vectors, k: int, allowed: Mask | None = None, effort: int | None = None
) -> list[Ranking]:
    """Return the k nearest rows to each of the queries (Q, dimension), nearest first; ties go to the row added first.

    Args:
        view: the generation to search.
        queries: l2-normalised.
        k: at least 1.
        allowed: which positions may be found; None allows all.
        effort: nprobe or efSearch; None takes the recorded one.

    Returns:
        Q lists of min(k, rows that may be found) pairs (cosine, row), without zero vectors. Cosines and order are
        computed from the stored vectors, so they do not depend on the kind of index or on the batch.
    """
    # Most searches may find all passages, which needs no masks.
    mask = None if allowed is None or allowed is view.live else view.readable & allowed
    found = view.readable_count if mask is None else int(mask.sum())
    wanted = min(k, found)
    if not wanted:
        return [[] for _ in queries]
    faiss = view.faiss
    if faiss is None or (not faiss.exact and (found <= view.few_rows or found <= FEW_PART * view.count)):
        proposed = compared(view, queries, wanted + SPARE_CANDIDATES, mask)
    else:
        # The fewer rows may be found, the more lists are looked into for each.
        harder = round((effort or faiss.effort or 1) * view.count / found)
        there = view.faiss_there
        if mask is not None:
            there = mask[view.faiss_positions] if there is None else there & mask[view.faiss_positions]
        asked = min(wanted + faiss.spare, len(faiss.rows))
        usual = effort_of(faiss.index)
        if usual is not None:
            # efSearch is the number of candidates that a graph search tracks.
            harder = max(asked if usual[0] == "efSearch" else 1, min(harder, usual[2]))
        answers = _asked(faiss.index, queries, asked, there, harder if usual else None)
        # -1 stands for no row, and a damaged file may propose rows that it does not have.
        places = [of_query[(of_query >= 0) & (of_query < len(faiss.rows))] for of_query in answers]
        proposed = [faiss.rows[of_query if there is None else of_query[there[of_query]]] for of_query in places]
        # The best of the rows that its file lacks join them.
        if view.rest_count and (rest := view.rest if mask is None else mask & view.rest).any():
            more = compared(view, queries, wanted + SPARE_CANDIDATES, rest)
            proposed = [np.concatenate(pair) for pair in zip(proposed, more, strict=True)]
    ranked = [ranking(view, query, rows, wanted) for query, rows in zip(queries, proposed, strict=True)]
    short = [place for place, of in enumerate(ranked) if len(of) < wanted and queries[place].any()]
    if short:
        # An approximate index may return fewer rows than there are.
        whole = compared(view, queries[short], wanted + SPARE_CANDIDATES, mask)
        for place, rows in zip(short, whole, strict=True):
            ranked[place] = ranking(view, queries[place], rows, wanted)
    return ranked


def _asked(index: Any, queries: Vectors, asked: int, mask: Mask | None, effort: int | None) -> Rows:
    # FAISS does not keep the selector alive.
    selector = None if mask is None else faiss.IDSelectorBitmap(np.packbits(mask, bitorder="little"))
    parameters = search_parameters(index, effort, selector)
    with suppress(RuntimeError):
        return np.asarray(index.search(queries, asked, params=parameters)[1])
    # Some kinds take no selector. They return more rows, and the caller drops the rows that are not allowed.
    part = 1.0 if mask is None else max(float(mask.mean()), 1 / max(len(mask), 1))
    with suppress(RuntimeError):
        return np.asarray(index.search(queries, min(index.ntotal, round(2 * asked / part)))[1])
    # Its file is damaged; the caller compares the queries with every vector.
    return np.full((len(queries), 1), -1)


def ranking(view: View, query: Vectors, rows: Rows, most: int | None = None, *, alike: bool = True) -> Ranking:
    """Return the ``most`` rows (None: all) nearest to one query (dimension,), nearest first, ties by row.

    ``alike`` leaves out zero vectors, which resemble no vector; a zero query then finds no rows.
    """
    vectors = view.vectors.get(rows)
    if alike:
        kept = np.flatnonzero(vectors.any(axis=1)) if query.any() else np.empty(0, np.int64)
        rows, vectors = rows[kept], vectors[kept]
    if most is not None and len(rows) > most:
        kept = highest(vectors @ query, most)
        rows, vectors = rows[kept], vectors[kept]
    scores = np.clip(vectors.astype(np.float64) @ query.astype(np.float64), -1.0, 1.0).astype(np.float32)
    order = np.lexsort((rows, -scores))[:most]
    return [(float(scores[place]), int(rows[place])) for place in order]


def compared(view: View, queries: Vectors, k: int, mask: Mask | None) -> list[Rows]:
    """Return the k rows nearest to each query by inner product, and rows tied with the k-th, of all that a mask has.

    The mask (n,) has positions with vectors that are not zero; None: all of them.
    """
    mask = view.readable if mask is None else mask
    best: list[tuple[Rows, Vectors]] = [(np.empty(0, np.int64), np.empty(0, np.float32)) for _ in queries]
    blocks: Any
    wanted = view.rows[mask]
    if view.rest_count <= CACHED_ROWS and not (mask & ~view.rest).any():
        chosen = mask[view.rest]
        blocks = [(wanted, view.rest_vectors if chosen.all() else view.rest_vectors[chosen])]
    elif len(wanted) <= view.few_rows:
        blocks = [(wanted, view.vectors.get(wanted))]
    else:
        blocks = view.vectors.blocks(int(wanted[0]) - 1)
    for rows, vectors in blocks:
        require_time()
        kept = mask[view.positions(rows)]
        if not kept.all():
            rows, vectors = rows[kept], vectors[kept]
        if not len(rows):
            continue
        for number, scores in enumerate(queries @ vectors.T):
            places = highest(scores, k)
            old_rows, old_scores = best[number]
            of_rows, of_scores = np.concatenate([old_rows, rows[places]]), np.concatenate([old_scores, scores[places]])
            still = highest(of_scores, k)
            best[number] = (of_rows[still], of_scores[still])
    return [rows for rows, _ in best]


def highest(scores: Vectors, k: int) -> Rows:
    """Return the positions, in order, of the k highest scores and of up to 64 more within rounding of the k-th."""
    if len(scores) <= k:
        return np.arange(len(scores))
    lowest = np.partition(scores, -k)[-k]
    surely = np.flatnonzero(scores > lowest + ROUNDING)
    ties = np.flatnonzero((scores <= lowest + ROUNDING) & (scores >= lowest - ROUNDING))
    return np.sort(np.concatenate([surely, ties[: k - len(surely) + 64]]))


class Record(NamedTuple):
    """What the database says about FAISS's file: its name without the suffix, its rows as ranges, and more facts.

    The facts are its kind, number of rows, size, checksum, search effort, spare candidates and measured recall.
    """

    token: str
    facts: dict[str, Any]
    ranges: bytes

    def path(self, folder: Path) -> Path:
        """Return the file."""
        return folder / f"{self.token}{FAISS_SUFFIX}"


class Loaded(NamedTuple):
    """FAISS's index, its rows by position (m,), and how thoroughly it is searched.

    ``effort`` is nprobe or efSearch, None if it has neither, and ``spare`` the candidates to ask for beyond those
    wanted; ``exact`` says whether it compares all vectors.
    """

    token: str
    index: Any
    rows: Rows
    effort: int | None
    spare: int
    exact: bool


def recorded(database: Database) -> Record | None:
    """Return what the database says about FAISS's file; None if nothing that can be used."""
    for token, written, ranges in database.run("SELECT token, facts, ranges FROM faiss"):
        with suppress(ValueError, TypeError, RecursionError):
            if _TOKEN.fullmatch(token) and isinstance(facts := json.loads(written), dict):
                return Record(token, facts, bytes(ranges))
    return None


def loaded(folder: Path, record: Record, settings: Settings, memory_map: bool = False) -> Loaded | None:
    """Return FAISS's index, or None if its file is missing or does not fit its record.

    ``memory_map`` leaves the vectors on disk whatever the kind.
    """
    path = record.path(folder)
    # Another process may remove the file at any time; whatever is wrong with it, the stored vectors are there.
    with suppress(OSError, RuntimeError, MemoryError, ValueError, KeyError, TypeError):
        rows, facts = rows_of(record.ranges), record.facts
        found = path.lstat()
        flat = facts["kind"] in COMPARING_ALL
        # Reading a pipe would wait for its writer.
        if not stat.S_ISREG(found.st_mode) or found.st_size != facts["bytes"]:
            return None
        if not flat and crc32_of(path) != facts["crc32"]:
            return None
        lists = int(faiss.IO_FLAG_MMAP)
        flags = int(getattr(faiss, "IO_FLAG_MMAP_IFC", 0)) if flat or memory_map else 0
        with _limits(found.st_size):
            try:
                index = faiss.read_index(str(path), lists if memory_map and "IVF" in facts["kind"] else flags)
            except RuntimeError:
                index = faiss.read_index(str(path))
        effort, spare = facts["effort"], facts["spare"]
        if type(spare) is not int or (effort is not None and type(effort) is not int):
            return None
        if (index.ntotal, index.d, index.metric_type) == (len(rows), settings.dimension, faiss.METRIC_INNER_PRODUCT):
            return Loaded(record.token, index, rows, effort, spare, flat)
    return None


def crc32_of(path: Path) -> int:
    """Return the CRC-32 checksum of a regular file, read in chunks."""
    checksum = 0
    with open_regular(path) as file:
        while chunk := file.read(1 << 20):
            checksum = zlib.crc32(chunk, checksum)
    return checksum


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


def inner(index: Any) -> Any:
    """Return the part of ``index`` that decides how thoroughly it searches: inverted lists, a graph, or itself."""
    index = faiss.downcast_index(index)
    for part in ("base_index", "index"):
        if hasattr(index, part) and not hasattr(index, "nlist"):
            return inner(getattr(index, part))
    return index


def effort_of(index: Any) -> tuple[str, int, int] | None:
    """Return the name, default and largest value of the search parameter of ``index``; None if it has none."""
    part = inner(index)
    if hasattr(part, "nlist"):
        # FAISS's own default searches only one list.
        return "nprobe", max(1, round(part.nlist**0.5)), part.nlist
    if hasattr(part, "hnsw"):
        return "efSearch", 64, 4096
    return None


def search_parameters(index: Any, effort: int | None, selector: Any) -> Any:
    """Return FAISS's parameters for one search with an effort and a selector of the rows that may be found, or None."""
    index = faiss.downcast_index(index)
    if isinstance(index, faiss.IndexPreTransform):
        return faiss.SearchParametersPreTransform(index_params=search_parameters(index.index, effort, selector))
    if isinstance(index, faiss.IndexRefine):
        return faiss.IndexRefineSearchParameters(
            k_factor=4, base_index_params=search_parameters(index.base_index, effort, selector)
        )
    options = {} if selector is None else {"sel": selector}
    if isinstance(index, faiss.IndexIVF):
        return faiss.SearchParametersIVF(nprobe=effort or 1, **options)
    if isinstance(index, faiss.IndexHNSW):
        return faiss.SearchParametersHNSW(efSearch=effort or 64, **options)
    return faiss.SearchParameters(**options) if options else None
