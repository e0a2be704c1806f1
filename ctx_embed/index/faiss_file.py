"""FAISS's file of an index: derived from the vectors, listed in the database, and missed by nobody if it is deleted."""

from __future__ import annotations

import re
import stat
import threading
import time
import uuid
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import faiss as _faiss
import numpy as np

from ctx_embed.deadlines import require_time
from ctx_embed.errors import InputError, OtherModelError, described, quoted
from ctx_embed.files import fsync_file, fsync_folder, open_regular
from ctx_embed.index.database import FAISS_SUFFIX, Database, Record, Settings, ranges_of, rows_of
from ctx_embed.index.vectors import Mask, Rows, Vectors, spread
from ctx_embed.progress import INTERVAL, Meter, duration, say

if TYPE_CHECKING:
    from ctx_embed.index.folder import View
    from ctx_embed.model import Model

# FAISS's type stubs lack its limits on reading, the keyword arguments of its Python layer and array arguments.
faiss: Any = _faiss
_LIMITS = ("deserialization_vector_byte_limit", "deserialization_loop_limit")
_LIMITED = threading.Lock()
# Kinds that compare all vectors; they stay on disk.
COMPARING_ALL = ("Flat", "SQfp16", "SQ8")
# Candidates beyond k whose cosines are computed again from the stored vectors; this corrects ties and rounding.
SPARE_CANDIDATES = 16
# Queries between two looks at the deadline.
QUERIES_AT_ONCE = 64
AUTO = "auto"
# `auto` searches exactly up to this number of rows.
EXACT_ROWS = 50_000
# Training takes at most MOST_TRAINING vectors for each centroid, and starts once there are LEAST_TRAINING for each.
MOST_TRAINING, LEAST_TRAINING = 64, 39
# Vectors of fewer dimensions are too small to be worth compressing.
LEAST_COMPRESSED = 64
LARGEST_LISTS = 65_536
# The kinds of indexes. FAISS would divide by a size of 0, and allocate any size that a folder from elsewhere names.
_KIND = re.compile(
    r"(?:IVF[1-9]\d{0,4},)?(?:Flat|SQ8|SQfp16)"
    r"|IVF[1-9]\d{0,4},PQ\d{1,5}(?:x4(?:fs)?)?"
    r"|HNSW(?:[2-9]|[1-9]\d\d?)(?:,Flat|,SQ8|,SQfp16)?"
)
# The file is extended when it lacks this number of rows, or this share of them; one that compares all, only when it
# lacks more than these rows.
STALE_ROWS, STALE_PART, STALE_FLAT = 25_000, 0.1, 4096
# The recall@10 that `auto` must reach, for passages and for words, and how many queries of each measure it.
AUTO_RECALL, NEIGHBOURS = 0.98, 10
PASSAGE_QUERIES, WORD_QUERIES, MOST_QUERY_WORDS = 64, 128, 8
# What `auto` tries in turn: lists to look into, and candidates beyond those wanted. Words need many lists, as they lie
# far from all passages; the codes are exact enough for few candidates.
LEVELS = (
    *((lists, 50) for lists in (8, 12, 16, 24)),
    *((lists, 100) for lists in (32, 48, 64, 96, 128, 160, 192)),
    *((lists, spare) for lists in (256, 384, 512, 768, 1024, 1536, 2048, 4096) for spare in (100, 200)),
)
# Spare candidates for kinds with product quantization.
COARSE_SPARE = 300


@dataclass(frozen=True)
class Loaded:
    """FAISS's index, its rows by position (m,), its search effort (nprobe, efSearch, None), and if it compares all."""

    token: str
    index: Any
    rows: Rows
    effort: int | None
    spare: int
    exact: bool

    def proposed(self, queries: Vectors, wanted: int, measured: int, mask: Mask | None, part: float) -> list[Rows]:
        """Return rows that are probably nearest to each query, more than wanted, from those that a mask allows.

        The first ``measured`` have the measured recall. ``part`` is the ratio of all rows to those that may be found.
        """
        asked, effort = max(min(measured, wanted) + self.spare, wanted + SPARE_CANDIDATES), None
        asked = min(asked, len(self.rows))
        if (usual := effort_of(self.index)) is not None:
            # efSearch is the number of candidates that a graph search tracks.
            least = asked if usual[0] == "efSearch" else 1
            effort = max(least, min(round((self.effort or 1) * part), usual[2]))
        # FAISS does not keep the selector alive.
        selector = None if mask is None else faiss.IDSelectorBitmap(np.packbits(mask, bitorder="little"))
        # If FAISS's file is damaged, the caller compares the queries with every vector.
        answers: list[Any] = [np.full(1, -1)] * len(queries)
        with suppress(RuntimeError):
            parameters = search_parameters(self.index, effort, selector)
            for first in range(0, len(queries), QUERIES_AT_ONCE):
                require_time()
                some = slice(first, first + QUERIES_AT_ONCE)
                answers[some] = self.index.search(queries[some], asked, params=parameters)[1]
        # -1 means that there is no row; a damaged file may also propose rows that it does not have.
        return [self.rows[of_query[(of_query >= 0) & (of_query < len(self.rows))]] for of_query in answers]


def loaded(folder: Path, record: Record, settings: Settings, memory_map: bool = False) -> Loaded | None:
    """Return FAISS's index, or None if its file is missing or does not fit its record."""
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


def effort_of(index: Any) -> tuple[str, int, int] | None:
    """Return the name, default and largest value of the search parameter of ``index``; None if it has none."""
    if hasattr(index, "nlist"):
        # FAISS's own default searches only one list.
        return "nprobe", max(1, round(index.nlist**0.5)), index.nlist
    return ("efSearch", 64, 4096) if hasattr(index, "hnsw") else None


def search_parameters(index: Any, effort: int | None, selector: Any) -> Any:
    """Return FAISS's parameters for one search with an effort and a selector of the rows that may be found, or None."""
    options = {} if selector is None else {"sel": selector}
    if hasattr(index, "nlist"):
        return faiss.SearchParametersIVF(nprobe=effort or 1, **options)
    if hasattr(index, "hnsw"):
        return faiss.SearchParametersHNSW(efSearch=effort or 64, **options)
    return faiss.SearchParameters(**options) if options else None


def reason(error: Exception) -> str:
    """Return FAISS's error message without its position in the C++ source."""
    return re.split(r"failed: |cpp:\d+: (?:Error: )?", " ".join(str(error).split()))[-1] or type(error).__name__


def factory_for(rows: int, settings: Settings) -> str:
    """Return the factory string for a number of rows: `auto` is exact, then takes about sqrt(rows) inverted lists."""
    if settings.factory not in (AUTO, "Flat"):
        return settings.factory
    if settings.factory == "Flat" or rows <= EXACT_ROWS:
        return flat(settings.dtype)
    lists = min(2 ** round(np.log2(rows**0.5)), LARGEST_LISTS)
    dimension = settings.dimension
    # Two bits a dimension suffice, since the candidates are scored again from the stored vectors.
    codes = "SQ8" if dimension < LEAST_COMPRESSED or dimension % 2 else f"PQ{dimension // 2}x4fs"
    return f"IVF{lists},{codes}"


def searched(facts: dict[str, Any] | None) -> str:
    """Return in words how vectors are searched, from the facts of FAISS's file; few passages need no file."""
    kind, wanted = (facts["kind"], facts["for"]) if facts else ("Flat", "Flat")
    if facts and kind not in COMPARING_ALL:
        names = {"words": "short queries", "passages": "passages"}
        recalls = [f"{recall:g} of {names[name]}" for name, recall in sorted(facts["recall"].items())]
        return f"{kind}, effort {facts['effort']}, recall@10 {', '.join(recalls) or 'not measured'}"
    said = "exact: every vector is compared"
    return said if wanted in COMPARING_ALL else f"{said}, as {wanted} did not reach a recall@10 of {AUTO_RECALL}"


def flat(dtype: str) -> str:
    """Return the kind that compares all vectors of a data type."""
    return {"float16": "SQfp16", "int8": "SQ8"}.get(dtype, "Flat")


def checked_factory(factory: Any, dimension: int) -> str:
    """Return a factory if it is ``auto`` or an index of this dimension can use it, see :func:`new_index`."""
    if not isinstance(factory, str):
        raise InputError(f"the FAISS factory must be a string, e.g. 'Flat', got {described(factory)}")
    if factory != AUTO:
        new_index(factory, dimension)
    return factory


def new_index(factory: str, dimension: int) -> Any:
    """Return an empty FAISS index that compares by inner products; raise InputError if there is no such kind."""
    try:
        if _KIND.fullmatch(factory):
            return faiss.index_factory(dimension, factory, faiss.METRIC_INNER_PRODUCT)
        said = "no such kind"
    except (RuntimeError, MemoryError) as error:
        said = reason(error)
    raise InputError(f"FAISS factory {quoted(factory)}: {said}; try auto, Flat, SQ8, HNSW32, IVF256,SQ8 or IVF256,PQ32")


def is_stale(store: Database) -> bool:
    """Return whether FAISS's file is missing or lacks so many rows that it is due again, without reading it."""
    settings, record, next_row = store.present(), store.record(), store.state().next_row
    held, covered, kind = 0, 0, ""
    if record is not None:
        with suppress(KeyError, TypeError, ValueError, OSError):
            facts = record.facts
            if record.path(store.folder).stat().st_size == facts["bytes"]:
                held, covered, kind = int(facts["rows"]), int(facts["next_row"]), str(facts["for"])
    missing = next_row - (covered or store.deleted_rows())
    rows = held + missing
    wanted = factory_for(rows, settings)
    if kind and settings.factory == AUTO and outgrown(kind, wanted):
        return True
    if wanted in COMPARING_ALL:
        return missing > max(STALE_FLAT, STALE_PART * rows)
    return missing > min(STALE_PART * rows, max(STALE_ROWS, 0.02 * rows))


def outgrown(kind: str, wanted: str) -> bool:
    """Return whether `auto` would now choose another kind, or at least twice as many lists."""
    lists, wanted_lists = (int(found[1]) if (found := re.match(r"IVF(\d+),", name)) else 0 for name in (kind, wanted))
    return (not lists) != (not wanted_lists) or wanted_lists >= 2 * max(lists, 1)


def write(view: View, embedder: Callable[[], Model], *, anew: bool = False, progress: bool = False) -> Record | None:
    """Write FAISS's file for the newest view, and return its record, not yet listed; None if there are too few rows.

    ``anew`` starts a new index instead of extending the present one.
    """
    settings, rows, record = view.settings, view.rows[view.readable], view.record
    wanted = kind = factory_for(len(rows), settings)
    meter = partial(Meter, unit="vectors", shown=progress and wanted not in COMPARING_ALL)
    index, held = None, rows[:0]
    if not anew and record is not None and wanted not in COMPARING_ALL:
        found = loaded(view.store.folder, record, settings)
        if found is not None and not found.exact and not outgrown(record.facts["for"], wanted):
            index, held = found.index, found.rows
    measured = None
    while measured is None:
        if index is None:
            index, held = new_index(kind, settings.dimension), rows[:0]
            if not index.is_trained:
                # The number of centroids to learn. FAISS's warning about too few vectors is silenced.
                needed = 1
                if hasattr(index, "nlist"):
                    needed, index.cp.min_points_per_centroid = index.nlist, 1
                if hasattr(index, "pq"):
                    needed, index.pq.cp.min_points_per_centroid = max(needed, index.pq.ksub), 1
                if len(rows) < LEAST_TRAINING * needed:
                    return None
                sample = view.vectors.get(spread(rows, max(MOST_TRAINING * needed, 10_000)))
                try:
                    with meter(f"training {kind}", len(sample)) as trained:
                        # FAISS does not say how far it is: each of its passes compares the vectors with all centroids.
                        began, few = time.perf_counter(), sample[:1024]
                        _ = few @ sample[:needed].T
                        passes = index.cp.niter * len(sample) / len(few) if hasattr(index, "cp") else 0
                        if progress and (seconds := passes * (time.perf_counter() - began)) > INTERVAL:
                            say(f"training {kind}: about {duration(seconds)} left")
                        index.train(sample)
                        trained.update(len(sample))
                except RuntimeError as error:
                    raise InputError(f"FAISS factory {quoted(kind)} on {len(rows)} vectors: {reason(error)}") from None
        with meter(f"filling {kind}", len(rows), done=len(held)) as filled:
            for of_block, vectors in view.vectors.blocks(int(held[-1]) if len(held) else -1):
                index.add(vectors)
                held = np.concatenate([held, of_block])
                filled.update(len(of_block))
        measured = _measured(view, index, held, kind, embedder, meter)
        if measured is None:
            # Searching enough lists would take longer than comparing all vectors.
            kind, index = flat(settings.dtype), None
    token = uuid.uuid4().hex
    path = view.store.folder / f"{token}{FAISS_SUFFIX}"
    try:
        # No reader uses the file before it is listed.
        with meter(f"writing {kind}", len(held)) as written:
            faiss.write_index(index, str(path))
            fsync_file(path)
            fsync_folder(path.parent)
            written.update(len(held))
        of_file = {"bytes": path.stat().st_size, "crc32": crc32_of(path)}
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    facts = {"kind": kind, "for": wanted, "rows": len(held), "next_row": view.state.next_row}
    return Record(token, {**facts, **of_file, **measured}, ranges_of(held))


def _measured(
    view: View, index: Any, rows: Rows, kind: str, embedder: Callable[[], Model], meter: Callable[..., Meter]
) -> dict[str, Any] | None:
    """Return effort, spare candidates and recall@10; for `auto` those that suffice, or None if none of them do."""
    effort = effort_of(index)
    # Product quantization stores vectors so coarsely that many must be scored again.
    spare = COARSE_SPARE if "PQ" in kind else SPARE_CANDIDATES
    if kind == "Flat" or not len(rows):
        return {"effort": None, "spare": spare, "recall": {}}
    # Some passages and some of their words are the queries.
    queries = {"passages": view.vectors.get(spread(rows, PASSAGE_QUERIES))}
    with suppress(OtherModelError):
        texts = []
        for number, row in enumerate(rows[np.linspace(0, len(rows) - 1, WORD_QUERIES, dtype=np.int64)].tolist()):
            words = view.store.fetch([row])[row].text.split()
            count = 1 + number % MOST_QUERY_WORDS
            # Choose a place in the passage that is the same each time.
            start = row * 7919 % max(len(words) - count + 1, 1)
            texts.append(" ".join(words[start : start + count]))
        vectors = embedder().quiet_queries(texts)
        if (readable := vectors.any(axis=1)).any():
            queries["words"] = vectors[readable]
    with meter("measuring recall", len(rows)) as read:
        truth = view.nearest.compared(np.concatenate(list(queries.values())), NEIGHBOURS, None, read.update)
    auto = view.settings.factory == AUTO and kind not in COMPARING_ALL
    usual = None if effort is None else effort[1]
    levels: Sequence[tuple[int | None, int]] = LEVELS if auto else [(usual, spare)]
    for value, more in levels:
        if effort is not None and value is not None and value > effort[2]:
            break
        parameters = search_parameters(index, value, None)
        recall, others = {}, iter(truth)
        for name, vectors in queries.items():
            # The share of the true neighbours that FAISS proposes.
            proposed = np.asarray(index.search(vectors, min(NEIGHBOURS + more, index.ntotal), params=parameters)[1])
            true = list(islice(others, len(vectors)))
            pairs = zip(proposed, true, strict=True)
            found = sum(len(set(rows[row[row >= 0]].tolist()) & set(nearest.tolist())) for row, nearest in pairs)
            recall[name] = round(found / max(sum(map(len, true)), 1), 4)
        if not auto or all(share >= AUTO_RECALL for share in recall.values()):
            return {"effort": value, "spare": more, "recall": recall}
    return None
