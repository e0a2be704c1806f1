"""The writer of an index: its edits, and the files that are updated after a commit."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from typing import Any

from ctx_embed.documents.blocks import Block
from ctx_embed.errors import InputError
from ctx_embed.index.ann import factories
from ctx_embed.index.ann.tuning import AUTO_RECALL, tune
from ctx_embed.index.ann.vector_index import VectorIndex
from ctx_embed.index.model import IndexModel
from ctx_embed.index.storage.database import Snapshot
from ctx_embed.index.storage.documents import DocumentStore, Span
from ctx_embed.index.storage.folder import IndexFolder
from ctx_embed.index.storage.manifest import DOCUMENTS, remove_leftovers, write_manifest
from ctx_embed.index.storage.shards import SHARD_ROWS, Vectors
from ctx_embed.index.writing import chunking
from ctx_embed.index.writing.compaction import LEAST_DEAD_ROWS, compact, dead_rows
from ctx_embed.index.writing.transaction import Edit

_LOG = logging.getLogger(__name__)


class Writer:
    """Changes an index, one thread and one process at a time.

    Args:
        folder: the index.
        index: its vector search, which takes over a newly built FAISS index.
        embedder: returns the model when it is needed.
        changing: the lock to hold while documents change.
        searching: the lock to hold while ``index`` changes.

    Attributes:
        least_dead_rows: a change compacts the index if at least this number of vectors, and more than half of all,
            belong to deleted documents.
    """

    def __init__(
        self,
        folder: IndexFolder,
        index: VectorIndex,
        embedder: Callable[[], IndexModel],
        changing: Any,
        searching: Any,
    ) -> None:
        self.folder = folder
        self.index = index
        self.least_dead_rows = LEAST_DEAD_ROWS
        self._embedder = embedder
        self._changing = changing
        self._searching = searching
        self._chunker: chunking.Chunker | chunking.Passages | None = None
        self._reported = False
        # A failed compaction is tried again when twice as many vectors are dead.
        self._compact_from = 0

    @contextmanager
    def editing(self, *, tidy: bool = True, counted: int = 0, shard_rows: int = SHARD_ROWS) -> Iterator[Edit]:
        """Let the block change the index: one commit when it ends, undone if it raises.

        Args:
            tidy: whether to update the manifest and FAISS's file, and to compact if most vectors belong to deleted
                documents.
            counted: see :class:`Edit`.
            shard_rows: see :class:`Edit`.

        Raises:
            InputError: another process is writing, or the disk is full.
        """
        with self._changing, closing(DocumentStore(self.folder.path / DOCUMENTS)) as store:
            committed = False
            try:
                with store.writing():
                    self.folder.require_in_place()
                    titled = self.folder.manifest.titled
                    edit = Edit(
                        store,
                        self.folder.vectors,
                        self._embed,
                        self._chunk,
                        counted,
                        titled=titled,
                        shard_rows=shard_rows,
                    )
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
            chunk = self.folder.manifest.chunk
            # Whole documents need no tokenizer, so the model is not loaded if all documents come with embeddings.
            self._chunker = chunking.whole if chunk == "none" else chunking.chunker(chunk, self._embedder().model)
        if isinstance(self._chunker, chunking.Passages):
            return self._chunker.of_all(texts)
        return [self._chunker(text) for text, _ in texts]

    def tidy(self, store: DocumentStore) -> None:
        """Update the manifest and FAISS's file to the newest commit, and remove files that it does not list.

        The next writer can do all of this, so a failure here does not fail the change. An index that ``auto`` chose is
        tuned as soon as it is trained.
        """
        with suppress(InputError, OSError, RuntimeError), store.writing(patience=0):
            self.folder.require_in_place()
            snapshot = store.snapshot()
            if self.folder.manifest.generation != snapshot.generation:
                write_manifest(self.folder.path, replace(self.folder.manifest, generation=snapshot.generation))
            self.folder.vectors.remove_unlisted(snapshot.shards)
            remove_leftovers(self.folder.path)
            with self._searching:
                self.folder.vectors.forget_unlisted(snapshot.shards)
                self.index.cache.remove_other_numberings(snapshot)
                if self.index.is_stale(snapshot) and self._built(snapshot) and self.index.factory == factories.AUTO:
                    tune(self.index, snapshot, AUTO_RECALL, store)

    def _built(self, snapshot: Snapshot) -> bool:
        """Return whether FAISS started a new index; if it cannot build one, warn once, and search stays exact."""
        try:
            return self.index.build(snapshot)
        except RuntimeError as error:
            if not self._reported:
                # FAISS puts its source file and line before the reason.
                reason = str(error).strip().rsplit("\n", 1)[-1].rsplit("Error: ", 1)[-1]
                _LOG.warning(
                    "%s: FAISS cannot build %s; search compares every vector (%s)",
                    self.folder.path,
                    self.index.factory,
                    reason,
                )
                self._reported = True
            return False

    def compact(self, dtype: str | None = None) -> int:
        """Compact the index, see :meth:`SearchIndex.compact`."""
        with self._changing:
            return compact(self.folder, self.tidy, dtype)
