"""The search index: documents, their vectors and the model that makes them, in one folder."""

from __future__ import annotations

import math
import numbers
import sqlite3
import threading
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ctx_embed.errors import InputError, unknown_name
from ctx_embed.files import replaced_folder
from ctx_embed.index import chunks, kinds
from ctx_embed.index.documents import DocumentStore, Id, checked_id
from ctx_embed.index.edit import Edit, as_list, documents_of
from ctx_embed.index.embedder import Embedder
from ctx_embed.index.folder import IndexFolder
from ctx_embed.index.manifest import CACHE, DOCUMENTS, VECTORS, Manifest, read_manifest, write_manifest
from ctx_embed.index.ranking import MODES, Searched
from ctx_embed.index.shards import Vectors
from ctx_embed.index.snapshot import LiveRows, Snapshot
from ctx_embed.index.vectors import Ranking, VectorIndex
from ctx_embed.texts import Document, well_formed

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from ctx_embed.index.tuning import Tuning

# Documents embedded and stored at a time while an addition streams through.
CHUNK_DOCUMENTS = 2048


@dataclass(frozen=True)
class Hit:
    """A passage found.

    Args:
        id: of its document.
        score: the cosine of its vector and the query's, whatever the order of the hits.
        text: of the passage, which is the whole document unless the index cuts documents into passages.
        metadata: of its document.
        document: the whole text of its document.
        start: the character of the document that the passage begins with.
    """

    id: str | int
    score: float
    text: str
    metadata: dict[str, Any]
    document: str
    start: int = 0


class SearchIndex:
    """Documents that are found by meaning and by words; made by :meth:`create` or :meth:`open`, a context manager.

    An index has one writer at a time and any number of readers, in threads and processes. A reader sees whole
    changes, each from the next search on. Texts and metadata are stored as UTF-8: lone surrogates become U+FFFD.

    Example:
        >>> with SearchIndex.create("notes.index") as index:
        ...     index.add(["the cat sat on the mat", "prices rise faster than wages"])
        ...     index.search("inflation", k=1)[0][0].text
    """

    def __init__(self, folder: IndexFolder, embedder: Embedder | None = None, memory_map: bool = False) -> None:
        self._folder = folder
        self._embedder = embedder
        self._index = VectorIndex(folder.path / CACHE, folder.vectors, folder.manifest.factory, memory_map)
        self._live = LiveRows(folder.documents)
        self._searching = threading.RLock()
        self._changing = threading.Lock()
        self._closed = False

    @classmethod
    def create(
        cls,
        path: str | Path,
        model: str | Path | SentenceTransformer | None = None,
        factory: str = kinds.AUTO,
        chunk: str = "none",
    ) -> SearchIndex:
        """Make an empty index in a folder that does not exist yet or is empty.

        Args:
            path: the folder; its parent exists.
            model: what embeds documents and queries: None (the default model), a folder or name, or a loaded model.
            factory: the kind of FAISS index: ``auto`` compares with every vector up to about 50,000 and then takes
                inverted lists of vectors in bytes; ``Flat``, ``HNSW32``, ``IVF256,PQ32`` and others are fixed kinds.
                Those that are trained compare with every vector as long as there are too few to train on.
            chunk: ``none`` embeds a document whole, ``sentences`` and ``tokens:N`` cut it into passages.

        Raises:
            InputError: the folder is not empty, there is no such model, or the factory does not fit.
        """
        folder = Path(path).absolute()
        if folder.is_dir() and any(folder.iterdir()):
            raise InputError(f"{folder}: exists already and is not empty, open it or choose another folder")
        chunks.checked_chunk(chunk)
        embedder = Embedder.of(model)
        kinds.checked_factory(factory, embedder.dimension)
        manifest = Manifest(
            uuid.uuid4().hex, embedder.fingerprint, embedder.reference, embedder.dimension, factory, chunk
        )
        try:
            with replaced_folder(folder) as beside:
                (beside / VECTORS).mkdir()
                (beside / CACHE).mkdir()
                DocumentStore.create(beside / DOCUMENTS, manifest.index_id)
                write_manifest(beside, manifest)
        except (OSError, sqlite3.OperationalError) as error:
            raise InputError(f"cannot write {folder}: {error}") from None
        return cls(IndexFolder(folder), embedder)

    @classmethod
    def open(
        cls, path: str | Path, model: str | Path | SentenceTransformer | None = None, memory_map: bool = False
    ) -> SearchIndex:
        """Open an index to search it and to change it.

        Args:
            path: its folder.
            model: the model that it was built with, where that is not found under the name the index recorded.
            memory_map: leave FAISS's vectors on disk and read what a search touches, where the kind of index allows it.

        Raises:
            InputError: no index, a damaged one, another format, or another model.
        """
        folder = IndexFolder(path)
        try:
            return cls(folder, Embedder.for_index(folder.path, folder.manifest, model), memory_map)
        except BaseException:
            folder.documents.close()
            raise

    @property
    def path(self) -> Path:
        """The folder."""
        return self._folder.path

    @property
    def factory(self) -> str:
        """The FAISS factory string, or ``auto``."""
        return self._folder.manifest.factory

    @property
    def embedder(self) -> Embedder:
        """The model, loaded at its first use where the index was opened without one."""
        if self._embedder is None:
            self._embedder = Embedder.for_index(self.path, self._folder.manifest, None)
        return self._embedder

    def count(self) -> int:
        """The number of documents."""
        self._require_open()
        return self._folder.count()

    def get(self, identifier: Id) -> Document | None:
        """The document of an id, None where there is none.

        Raises:
            InputError: the id is neither a string nor an integer of 64 bits.
        """
        self._require_open()
        wanted = checked_id(identifier, 1)
        found = self._folder.documents.find([wanted]).get(wanted)
        return None if found is None else Document(found.text, found.id, found.metadata)

    def add(
        self,
        texts: Iterable[str],
        ids: Sequence[str | int] | None = None,
        metadata: Sequence[dict[str, Any] | None] | None = None,
        embeddings: Any = None,
    ) -> list[Id]:
        """Add documents: all of them, durably, when this returns, and none when it raises.

        A text that the index holds already is not embedded again.

        Args:
            texts: any strings, the empty one among them.
            ids: one for each text, a string or an integer of 64 bits (1 and "1" differ); None gives them the integers
                above all that were ever in use.
            metadata: one for each text, None or a dictionary of JSON values.
            embeddings: one for each text (documents, dimension), where the model of the index has embedded them
                already; such documents stay whole.

        Returns:
            The ids.

        Raises:
            InputError: something cannot be stored, an id is taken, a model gives NaN, or another process is writing.
        """
        return self.add_documents(documents_of(texts, ids, metadata, embeddings))

    def upsert(
        self,
        texts: Iterable[str],
        ids: Sequence[str | int] | None = None,
        metadata: Sequence[dict[str, Any] | None] | None = None,
        embeddings: Any = None,
    ) -> list[Id]:
        """Add documents as :meth:`add` does; those whose ids are taken replace the documents that have them."""
        return self.add_documents(documents_of(texts, ids, metadata, embeddings), replacing=True)

    def add_documents(self, documents: Iterable[Document], *, replacing: bool = False) -> list[Id]:
        """Add a stream of documents as :meth:`add` does, all or none, in bounded memory.

        Args:
            documents: an id of None gives the next integer. An error that the stream raises undoes the addition.
            replacing: whether a document takes the place of the one that has its id.
        """
        stream = iter(documents)
        ids: list[Id] = []
        with self.editing() as edit:
            while chunk := list(islice(stream, CHUNK_DOCUMENTS)):
                ids += edit.add(chunk, replacing=replacing)
        return ids

    def delete(self, ids: Id | Sequence[Id]) -> int:
        """Delete the documents of some ids, durably when this returns; ids that there are not are passed over.

        Returns:
            The number of documents deleted.

        Raises:
            InputError: an id is neither a string nor an integer of 64 bits, or another process is writing.
        """
        single = isinstance(ids, str | numbers.Integral)
        listed: Sequence[Any] = [ids] if single else as_list(ids, "ids", "an id or a list of ids")
        with self.editing() as edit:
            return edit.delete(listed)

    @contextmanager
    def editing(self, *, tidy: bool = True, counted: int = 0) -> Iterator[Edit]:
        """Be the writer; what the block changes is committed as one when it ends, and undone when it raises.

        Args:
            tidy: let the manifest and FAISS's file follow.
            counted: see :class:`Edit`.
        """
        self._require_open()
        with self._changing, closing(DocumentStore(self.path / DOCUMENTS)) as store:
            try:
                with store.writing():
                    self._folder.require_in_place()
                    edit = Edit(store, self._folder.vectors, self._embed, self._chunk, counted)
                    yield edit
                    if edit.changed:
                        edit.finish()
            finally:
                if tidy:
                    self.tidy(store)

    def _embed(self, texts: Sequence[str]) -> Vectors:
        return self.embedder.documents(texts)

    def _chunk(self, text: str) -> list[tuple[int, int]]:
        return self._chunker(text)

    @property
    def _chunker(self) -> chunks.Chunker:
        chunk = self._folder.manifest.chunk
        if chunk == "none":
            return chunks.whole
        if not hasattr(self, "_made_chunker"):
            self._made_chunker = chunks.chunker(chunk, getattr(self.embedder, "model", None))
        return self._made_chunker

    def tidy(self, store: DocumentStore) -> None:
        """Let the manifest and FAISS's file follow the newest commit, and remove files that it does not list.

        All of it can be left to the next writer, so a failure here does not fail the change.
        """
        with suppress(InputError, OSError, RuntimeError), store.writing(patience=0):
            self._folder.require_in_place()
            snapshot = Snapshot.of(store.state(), store.shards())
            if read_manifest(self.path).generation != snapshot.generation:
                write_manifest(self.path, replace(self._folder.manifest, generation=snapshot.generation))
            self._folder.vectors.remove_unlisted(snapshot.shards)
            with self._searching:
                self._folder.vectors.forget_unlisted(snapshot.shards)
                self.build_faiss(store, snapshot)

    def build_faiss(self, store: DocumentStore, snapshot: Snapshot) -> None:
        """Write FAISS's file anew where a good part of the rows is missing from it; inside ``store.writing()``.

        A kind that ``auto`` has chosen is tuned as soon as it is trained.
        """
        from ctx_embed.index.tuning import AUTO_RECALL, tune

        self._index.cache.remove_other_numberings(snapshot)
        if self._index.is_stale(snapshot) and self._index.build(snapshot) and self.factory == kinds.AUTO:
            tune(self._index, snapshot, AUTO_RECALL, store)

    def search(
        self,
        query: str | Iterable[str],
        k: int = 10,
        *,
        mode: str = "dense",
        where: str | None = None,
        threshold: float | None = None,
    ) -> list[list[Hit]]:
        """The best passages for each query; among equal ones, those added first come first.

        Args:
            query: a text or several.
            k: hits for each query, at least 1; all that may be found where there are fewer.
            mode: ``dense`` by the cosines of embeddings, ``words`` by BM25 over the query's words, ``hybrid`` by both,
                fused by reciprocal ranks.
            where: what the metadata must meet, e.g. ``'year >= 2020 and lang = "en"'``; applied before ranking. The
                grammar stands in :mod:`ctx_embed.index.filters`.
            threshold: the lowest cosine of a hit.

        Returns:
            A list of hits for each query (one list for a single text). Scores are cosines in [-1, 1] in every mode.

        Raises:
            InputError: a query is no string, k is below 1, the mode is unknown, the filter cannot be understood, or
                the model gives NaN.
        """
        self._require_open()
        texts = _checked_queries(query, k, mode, threshold)
        if where is not None:
            from ctx_embed.index.filters import parse_filter

            parse_filter(where)
        if not texts or not self.count():
            return [[] for _ in texts]
        vectors = self.embedder.queries(texts)
        with self._searching:
            return self._folder.read(
                lambda snapshot: self._hits(texts, vectors, int(k), mode, where, threshold, snapshot)
            )

    def _hits(
        self,
        texts: list[str],
        vectors: Vectors,
        k: int,
        mode: str,
        where: str | None,
        threshold: float | None,
        snapshot: Snapshot,
    ) -> list[list[Hit]]:
        self._folder.vectors.forget_unlisted(snapshot.shards)
        store = self._folder.documents
        searched = Searched(store, self._index, snapshot, self._live.allowed(snapshot, where))
        rankings = MODES[mode](searched, texts, vectors, k)
        if threshold is not None:
            rankings = [[pair for pair in ranking if pair[0] >= threshold] for ranking in rankings]
        return self._as_hits(rankings)

    def _as_hits(self, rankings: list[Ranking]) -> list[list[Hit]]:
        passages = self._folder.documents.fetch({row for ranking in rankings for _, row in ranking})
        found = []
        for ranking in rankings:
            hits = []
            for score, row in ranking:
                document, start, _ = passages[row]
                text = passages[row].text
                hits.append(Hit(document.id, score, text, dict(document.metadata), document.text, start))
            found.append(hits)
        return found

    def tune(self, recall: float = 0.95) -> Tuning:
        """Measure recall@10 of FAISS's index against exact search, and set the smallest search effort that reaches it.

        Args:
            recall: wanted, above 0 and at most 1.

        Returns:
            What was measured; where even the greatest effort falls short, that is set.

        Raises:
            InputError: every vector is compared anyway, the kind has nothing to set, or another process is writing.
        """
        from ctx_embed.index.tuning import tune

        self._require_open()
        if isinstance(recall, bool) or not isinstance(recall, numbers.Real) or not 0 < recall <= 1:
            raise InputError(f"the recall is {recall!r}, a number above 0 and at most 1 is needed")
        with self._changing, self._searching, closing(DocumentStore(self.path / DOCUMENTS)) as store, store.writing():
            return tune(self._index, Snapshot.of(store.state(), store.shards()), float(recall), store)

    def compact(self) -> int:
        """Remove what deleted documents leave behind, as one commit; give their space back and build FAISS's file anew.

        Returns:
            The number of vectors removed.
        """
        from ctx_embed.index.compaction import compact

        self._require_open()
        with self._changing:
            return compact(self._folder, self.tidy)

    def verify(self, embed: bool = True) -> list[str]:
        """Look for everything that can be wrong: checksums, counts, words, and vectors against documents.

        Args:
            embed: embed some passages again and compare them with their vectors.

        Returns:
            A line for each problem; none means that the index is whole.
        """
        from ctx_embed.index.verification import problems

        self._require_open()
        return problems(self._folder, self.embedder if embed else None)

    def close(self) -> None:
        """Let go of files and memory; a closed index can do nothing more."""
        with self._changing, self._searching:
            self._closed = True
            self._folder.documents.close()
            self._folder.vectors.forget_unlisted([])
            self._index.forget()

    def _require_open(self) -> None:
        if self._closed:
            raise InputError(f"{self.path}: this index is closed, open it again")

    def __enter__(self) -> SearchIndex:
        """The index itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()


def _checked_queries(query: Any, k: Any, mode: Any, threshold: Any) -> list[str]:
    """The queries as a list of texts that can be stored; the other arguments are looked at."""
    if isinstance(k, bool) or not isinstance(k, numbers.Integral) or k < 1:
        raise InputError(f"k is {k!r}, an integer of at least 1 is needed")
    if mode not in MODES:
        raise unknown_name("mode", mode, MODES)
    if threshold is not None and (
        isinstance(threshold, bool) or not isinstance(threshold, numbers.Real) or math.isnan(threshold)
    ):
        raise InputError(f"the threshold is {threshold!r}, a cosine is needed, a number from -1 to 1")
    texts = [query] if isinstance(query, str) else as_list(query, "the query", "a string or a list of them")
    for place, text in enumerate(texts, 1):
        if not isinstance(text, str):
            raise InputError(f"query {place} is a {type(text).__name__}, a string is needed")
    return [well_formed(text) for text in texts]
