"""The writer of an index: its edits, FAISS's file, which follows a commit, and the steps of long jobs."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

from ctx_embed.documents.blocks import Block
from ctx_embed.errors import InputError
from ctx_embed.index.ann import factories, faiss_file, nearest
from ctx_embed.index.model import IndexModel
from ctx_embed.index.storage.documents import DocumentStore, Span
from ctx_embed.index.storage.folder import IndexFolder
from ctx_embed.index.storage.vectors import Vectors
from ctx_embed.index.view import View
from ctx_embed.index.writing import chunking
from ctx_embed.index.writing.compaction import LEAST_DEAD_ROWS, compact, dead_rows, require_space
from ctx_embed.index.writing.transaction import Edit

_LOG = logging.getLogger(__name__)


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
        factories.checked_factory(folder.settings.factory, folder.settings.dimension)
        self.folder = folder
        self.least_dead_rows = LEAST_DEAD_ROWS
        self._embedder = embedder
        self._changing = changing
        self._chunker: chunking.Chunker | chunking.Passages | None = None
        self._reported = False
        # A failed compaction is tried again when twice as many vectors are dead.
        self._compact_from = 0

    @contextmanager
    def editing(self, *, tidy: bool = True, counted: int = 0) -> Iterator[Edit]:
        """Let the block change the index: one commit when it ends, undone if it raises.

        Args:
            tidy: whether to update FAISS's file, and to compact if most vectors belonged to deleted documents.
            counted: see :class:`Edit`.

        Raises:
            InputError: another process is writing, the disk is full, or the index has another model by now.
        """
        with self._changing, closing(DocumentStore(self.folder.documents.path)) as store:
            committed = False
            try:
                with store.writing():
                    self.folder.require_in_place()
                    if store.present().table != self.folder.settings.table:
                        raise self.folder.embedded_again()
                    edit = Edit(store, self._embed, self._chunk, counted)
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
            dead = dead_rows(store, self.least_dead_rows)
            if not dead or dead < self._compact_from:
                return False
            compact(self.folder, self.tidy)
        except (InputError, OSError) as error:
            self._compact_from = 2 * dead
            _LOG.warning("%s: was not compacted (%s)", self.folder.path, error)
        return True

    def _embed(self, texts: Sequence[str]) -> Vectors:
        return self._embedder().documents(texts)

    def _chunk(self, texts: Sequence[tuple[str, Sequence[Block]]]) -> Sequence[Sequence[Span]]:
        if self._chunker is None:
            chunk = self.folder.settings.chunk
            # Whole documents need no tokenizer, so the model is not loaded if all documents come with embeddings.
            self._chunker = chunking.whole if chunk == "none" else chunking.chunker(chunk, self._embedder().model)
        if isinstance(self._chunker, chunking.Passages):
            return self._chunker.of_all(texts)
        return [self._chunker(text) for text, _ in texts]

    def tidy(self, store: DocumentStore, anew: bool = False) -> None:
        """Bring FAISS's file up to date with the newest commit if it lacks too much of it.

        The next writer can do this, so a failure here does not fail the change.

        Args:
            store: a connection of this writer.
            anew: whether to write the file in any case, without extending it.
        """
        with suppress(InputError, OSError, RuntimeError):
            with store.writing(patience=0):
                self.folder.require_in_place()
                old = nearest.recorded(store)
                faiss_file.remove_unlisted(self.folder.path, old)
                if not (anew and old) and not faiss_file.is_stale(self.folder.path, store):
                    return
                new = self._written(View(self.folder, store), anew)
                if new is None and old is None:
                    return
                faiss_file.listed(store, new)
                state = store.state()
                store.finish(replace(state, generation=state.generation + 1))
            # Readers know the new file now; only a writer may remove the old one.
            with store.writing(patience=0):
                faiss_file.remove_unlisted(self.folder.path, nearest.recorded(store))

    def _written(self, view: View, anew: bool) -> nearest.Record | None:
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
        with self._changing:
            removed = compact(self.folder, self.tidy, dtype)
            with closing(DocumentStore(self.folder.documents.path)) as store:
                require_space(store)
                # The index is compact already; a later call can free the space.
                with suppress(InputError):
                    store.vacuum()
            return removed


@dataclass(frozen=True)
class Steps:
    """The amount of work between two commits of a long job, limited by both numbers below.

    Args:
        documents: the number of documents after which to commit.
        seconds: the time after which to commit.
        batch: the maximum number of documents that are embedded at a time.
    """

    documents: int = 16_384
    seconds: float = 5.0
    batch: int = 2048

    def ends(self, documents: int, began: float) -> bool:
        """Return whether a step with this number of documents, begun at this time (monotonic), should end."""
        return documents >= self.documents or time.monotonic() - began >= self.seconds


STEPS = Steps()
