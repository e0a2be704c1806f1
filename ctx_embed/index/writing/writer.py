"""The writer of an index: its edits, compaction, FAISS's file, which follows a commit, and the steps of long jobs."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ctx_embed.documents.blocks import Block
from ctx_embed.errors import InputError, UnwritableError
from ctx_embed.index.ann import faiss_file
from ctx_embed.index.ann.nearest import Record, recorded
from ctx_embed.index.model import IndexModel
from ctx_embed.index.storage.database import expanded, ranges_of
from ctx_embed.index.storage.documents import DocumentStore, Span
from ctx_embed.index.storage.folder import IndexFolder, View
from ctx_embed.index.storage.vectors import VectorTable
from ctx_embed.index.writing import chunking
from ctx_embed.index.writing.transaction import Edit

_LOG = logging.getLogger(__name__)
# Vectors whose data type changes in one commit.
ROWS_AT_ONCE = 8192


class Writer:
    """Changes an index, one thread and one process at a time.

    Args:
        folder: the index.
        embedder: returns the model when it is needed.
        changing: the lock to hold while documents change.

    Attributes:
        least_dead_rows: a change compacts the index if at least this number of vectors, and more than half of all,
            belonged to deleted documents.
    """

    def __init__(self, folder: IndexFolder, embedder: Callable[[], IndexModel], changing: Any) -> None:
        # The folder may come from elsewhere.
        faiss_file.checked_factory(folder.settings.factory, folder.settings.dimension)
        self.folder = folder
        self.least_dead_rows = 20_000
        self._embedder = embedder
        self._changing = changing
        self._chunker: chunking.Chunker | chunking.Passages | None = None
        self._reported = False
        # A failed compaction is tried again when twice as many vectors are dead.
        self._compact_from = 0

    @contextmanager
    def editing(self, *, tidy: bool = True, counted: int = 0) -> Iterator[Edit]:
        """Let the block change the index: one commit when it ends, undone if it raises.

        ``tidy`` then updates FAISS's file, and compacts if most vectors belonged to deleted documents. ``counted`` is
        that of :class:`Edit`.
        """
        with self._changing, closing(DocumentStore(self.folder.documents.path)) as store:
            committed = False
            try:
                with store.writing():
                    self.folder.require_in_place()
                    if store.present().table != self.folder.settings.table:
                        raise self.folder.embedded_again()
                    edit = Edit(store, lambda texts: self._embedder().documents(texts), self._chunk, counted)
                    yield edit
                    if edit.changed:
                        edit.finish()
                committed = True
            finally:
                if tidy and not (committed and self._compacted(store)):
                    self.tidy(store)

    def _compacted(self, store: DocumentStore) -> bool:
        """Compact if it is due, and return whether it was; a failure is logged and leaves the index as it is."""
        dead = 0
        try:
            dead = store.deleted_rows()
            if dead < max(self.least_dead_rows, self._compact_from, store.state().documents + 1):
                return False
            self._compact(store)
        except (InputError, OSError) as error:
            self._compact_from = 2 * dead
            _LOG.warning("%s: was not compacted (%s)", self.folder.path, error)
        return True

    def _chunk(self, texts: Sequence[tuple[str, Sequence[Block]]]) -> Sequence[Sequence[Span]]:
        if self._chunker is None:
            chunk = self.folder.settings.chunk
            # Whole documents need no tokenizer, so the model is not loaded if all documents come with embeddings.
            self._chunker = chunking.whole if chunk == "none" else chunking.chunker(chunk, self._embedder().model)
        if isinstance(self._chunker, chunking.Passages):
            return self._chunker.of_all(texts)
        return [self._chunker(text) for text, _ in texts]

    def tidy(self, store: DocumentStore, anew: bool = False) -> None:
        """Bring FAISS's file up to date with the newest commit if it lacks too much of it; ``anew``: in any case.

        The next writer can do this, so a failure here does not fail the change.
        """
        with suppress(InputError, OSError, RuntimeError):
            with store.writing(patience=0):
                self.folder.require_in_place()
                old = recorded(store)
                faiss_file.remove_unlisted(self.folder.path, old)
                if not (anew and old) and not faiss_file.is_stale(self.folder.path, store):
                    return
                new = self._written(View(self.folder, store), anew)
                if new is None and old is None:
                    return
                faiss_file.listed(store, new)
                store.finish(store.state())
            # Readers know the new file now; only a writer may remove the old one.
            with store.writing(patience=0):
                faiss_file.remove_unlisted(self.folder.path, recorded(store))

    def _written(self, view: View, anew: bool) -> Record | None:
        """Write FAISS's file; if it cannot be built, warn once, and search compares all."""
        try:
            return faiss_file.write(view, self._embedder, anew=anew)
        except RuntimeError as error:
            if not self._reported:
                # FAISS puts its source file and line before the reason.
                reason = str(error).strip().rsplit("\n", 1)[-1].rsplit("Error: ", 1)[-1]
                _LOG.warning(
                    "%s: FAISS cannot build %s; search compares every vector (%s)",
                    self.folder.path,
                    self.folder.settings.factory,
                    reason,
                )
                self._reported = True
            return None

    def compact(self, dtype: str | None = None) -> int:
        """Compact the index and give its space back, see :meth:`SearchIndex.compact`."""
        with self._changing, closing(DocumentStore(self.folder.documents.path)) as store:
            removed = self._compact(store, dtype)
            # VACUUM writes a copy of the database.
            needed = 2 * store.path.stat().st_size
            if (free := shutil.disk_usage(store.path.parent).free) < needed:
                raise UnwritableError(
                    f"{store.path}: giving deleted space back needs {needed >> 20} MiB of free space, "
                    f"got {free >> 20} MiB"
                )
            # The index is compact already; a later call can free the space.
            with suppress(InputError):
                store.run("VACUUM")
                store.run("PRAGMA wal_checkpoint(TRUNCATE)")
            return removed

    def _compact(self, store: DocumentStore, dtype: str | None = None) -> int:
        """Forget the rows of deleted documents, and rewrite FAISS's file; return the number of rows forgotten.

        Readers are not interrupted. Vectors of a data type that the index no longer uses are rewritten in small
        commits.
        """
        with store.writing():
            self.folder.require_in_place()
            settings = store.present()
            if dtype not in (None, settings.dtype):
                store.store_settings(replace(settings, dtype=str(dtype)))
            removed = store.deleted_rows()
            if removed:
                if store.damaged_rows():
                    raise store.damaged("`ctx-embed index verify` lists the problems")
                state, firsts = store.state(), np.array(store.firsts(), np.int64).reshape(-1, 2)
                left = state.generation + 1, state.next_row, ranges_of(expanded(firsts[:, 0], firsts[:, 1]))
                store.run("DELETE FROM deleted")
                store.run("UPDATE compaction SET generation = ?, stop = ?, ranges = ?", left)
                store.run(f"DELETE FROM hashes WHERE row NOT IN (SELECT row FROM {VectorTable(store, settings).name})")
                store.finish(state)
        changed = bool(removed)
        while True:
            with store.writing():
                vectors = VectorTable(store, store.present())
                rows = vectors.other_types(ROWS_AT_ONCE)
                if not rows:
                    break
                vectors.put(rows, vectors.get(np.array(rows, np.int64)))
                store.finish(store.state())
                changed = True
        self.tidy(store, changed)
        return removed


@dataclass(frozen=True)
class Steps:
    """The work between two commits of a long job: it ends after a number of documents or of seconds.

    At most ``batch`` documents are embedded at a time.
    """

    documents: int = 16_384
    seconds: float = 5.0
    batch: int = 2048

    def ends(self, documents: int, began: float) -> bool:
        """Return whether a step with this number of documents, begun at this time (monotonic), should end."""
        return documents >= self.documents or time.monotonic() - began >= self.seconds


STEPS = Steps()
