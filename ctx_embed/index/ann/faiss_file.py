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

import faiss as _faiss
import numpy as np

from ctx_embed.errors import InputError, OtherModelError
from ctx_embed.files import fsync_file, fsync_folder
from ctx_embed.index.ann import factories, nearest
from ctx_embed.index.ann.nearest import Record, crc32_of, loaded, recorded
from ctx_embed.index.storage.database import FAISS_SUFFIX, ranges_of
from ctx_embed.index.storage.vectors import Rows, Vectors

if TYPE_CHECKING:
    from collections.abc import Callable

    from ctx_embed.index.model import IndexModel
    from ctx_embed.index.storage.database import Database
    from ctx_embed.index.storage.documents import DocumentStore
    from ctx_embed.index.view import View

# FAISS's type stubs lack its limits on reading.
faiss: Any = _faiss

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
    wanted = factories.factory_for(settings.factory, rows, settings)
    if kind and settings.factory == factories.AUTO and outgrown(kind, wanted):
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
    wanted = factories.factory_for(settings.factory, len(rows), settings)
    index, held = None, rows[:0]
    if not anew and view.record is not None and wanted not in nearest.COMPARING_ALL:
        found = loaded(view.folder.path, view.record, settings)
        if found is not None and not found.exact and not outgrown(view.record.facts["for"], wanted):
            index, held = found.index, found.rows
    kind = wanted
    if index is None:
        index = trained(view, kind, rows)
        if index is None:
            return None
    for of_block, vectors in view.vectors.blocks(int(held[-1]) if len(held) else -1):
        index.add(vectors)
        held = np.concatenate([held, of_block])
    measured = _measured(view, index, held, kind, embedder)
    if measured is None:
        # Finding enough costs more than comparing all.
        kind = factories.flat(settings.dtype)
        index, held = trained(view, kind, rows), rows[:0]
        for of_block, vectors in view.vectors.blocks():
            index.add(vectors)
            held = np.concatenate([held, of_block])
        measured = _measured(view, index, held, kind, embedder)
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
    assert measured is not None
    next_row = view.state.next_row
    facts = {
        "kind": kind,
        "for": wanted,
        "rows": len(held),
        "next_row": next_row,
        "bytes": size,
        "crc32": checksum,
        **measured,
    }
    return Record(token, facts, ranges_of(held))


def listed(database: Database, record: Record | None) -> None:
    """List a file in place of the one before, inside :meth:`Database.writing`."""
    with database.reporting_errors():
        database.connection.execute("DELETE FROM faiss")
        if record is not None:
            values = (record.token, json.dumps(record.facts), record.ranges)
            database.connection.execute("INSERT INTO faiss VALUES (?, ?, ?)", values)


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
    index = factories.new_index(kind, view.settings.dimension)
    if index.is_trained:
        return index
    centroids = factories.centroids(index)
    if len(rows) < factories.LEAST_TRAINING * centroids:
        return None
    size = min(len(rows), max(factories.MOST_TRAINING * centroids, 10_000))
    sample = view.vectors.get(rows[np.linspace(0, len(rows) - 1, size, dtype=np.int64)])
    try:
        index.train(sample)
    except RuntimeError as error:
        raise InputError(f"FAISS factory {kind!r} on {len(rows)} vectors: {factories.reason(error)}") from None
    return index


def _measured(
    view: View, index: Any, rows: Rows, kind: str, embedder: Callable[[], IndexModel]
) -> dict[str, Any] | None:
    """Return search effort, spare candidates and the recall@10 of both kinds of queries.

    With `auto` they are raised until both recalls are reached, or None is returned.
    """
    effort = nearest.effort_of(index)
    spare = COARSE_SPARE if factories.is_coarse(index) else nearest.SPARE_CANDIDATES
    if type(nearest.inner(index)).__name__ == "IndexFlat" or not len(rows):
        return {"effort": None, "spare": spare, "recall": {}}
    queries = _queries(view, rows, embedder)
    truth = {name: nearest.compared(view, vectors, NEIGHBOURS, view.readable) for name, vectors in queries.items()}
    auto = view.settings.factory == factories.AUTO and kind not in nearest.COMPARING_ALL
    usual = None if effort is None else effort[1]
    levels: Sequence[tuple[int | None, int]] = LEVELS if auto else [(usual, spare)]
    for value, more in levels:
        value = value if effort is None or value is None else min(value, effort[2])
        recall = {
            name: round(_recall(index, rows, vectors, truth[name], NEIGHBOURS + more, value), 4)
            for name, vectors in queries.items()
        }
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


def _recall(index: Any, rows: Rows, queries: Vectors, truth: Sequence[Rows], asked: int, effort: int | None) -> float:
    """Return the share of the true neighbours that FAISS proposes."""
    parameters = nearest.search_parameters(index, effort, None)
    proposed = np.asarray(index.search(queries, min(asked, index.ntotal), params=parameters)[1])
    found = sum(
        len(set(rows[of[of >= 0]].tolist()) & set(true.tolist())) for of, true in zip(proposed, truth, strict=True)
    )
    return found / max(sum(map(len, truth)), 1)
