"""The search index: documents, their vectors and the model that makes them, in one folder."""

from __future__ import annotations

import numbers
import sqlite3
import threading
import uuid
from collections.abc import Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ctx_embed.errors import InputError
from ctx_embed.files import replaced_folder
from ctx_embed.index.addition import Addition, as_list, documents_of
from ctx_embed.index.documents import DocumentStore, Id
from ctx_embed.index.embedder import Embedder
from ctx_embed.index.folder import IndexFolder
from ctx_embed.index.manifest import CACHE, DOCUMENTS, VECTORS, Manifest, read_manifest, write_manifest
from ctx_embed.index.shards import Vectors
from ctx_embed.index.vectors import Snapshot, VectorIndex, new_index
from ctx_embed.texts import Document, well_formed

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

# Documents embedded and stored at a time while an addition streams through.
CHUNK_DOCUMENTS = 2048


@dataclass(frozen=True)
class Hit:
    """A document found: its id, the cosine of its vector and the query's, its text and its metadata."""

    id: str | int
    score: float
    text: str
    metadata: dict[str, Any]


class SearchIndex:
    """Documents that are found by meaning; made by :meth:`create` or :meth:`open`, used as a context manager.

    An index has one writer at a time and any number of readers, in threads and processes. A reader sees whole
    additions, each from the next search on. Texts and metadata are stored as UTF-8: lone surrogates become U+FFFD.

    Example:
        >>> with SearchIndex.create("notes.index") as index:
        ...     index.add(["the cat sat on the mat", "prices rise faster than wages"])
        ...     index.search("inflation", k=1)[0][0].text
    """

    def __init__(self, folder: IndexFolder, embedder: Embedder) -> None:
        self._folder = folder
        self._embedder = embedder
        self._index = VectorIndex(folder.path / CACHE, folder.vectors, folder.manifest.factory)
        self._searching = threading.RLock()
        self._adding = threading.Lock()
        self._closed = False

    @classmethod
    def create(
        cls, path: str | Path, model: str | Path | SentenceTransformer | None = None, factory: str = "Flat"
    ) -> SearchIndex:
        """Make an empty index in a folder that does not exist yet or is empty.

        Args:
            path: the folder; its parent exists.
            model: what embeds documents and queries: None (the default model), a folder or name, or a loaded model.
            factory: the kind of FAISS index: ``Flat`` compares with every document; ``HNSW32``, ``IVF256,PQ32`` and
                others are faster and approximate. Kinds that are trained are trained on the first addition.

        Raises:
            InputError: the folder is not empty, there is no such model, or the factory does not fit.
        """
        folder = Path(path).absolute()
        if folder.is_dir() and any(folder.iterdir()):
            raise InputError(f"{folder}: exists already and is not empty, open it or choose another folder")
        embedder = Embedder.of(model)
        new_index(factory, embedder.dimension)
        manifest = Manifest(uuid.uuid4().hex, embedder.fingerprint, embedder.reference, embedder.dimension, factory)
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
    def open(cls, path: str | Path, model: str | Path | SentenceTransformer | None = None) -> SearchIndex:
        """Open an index to search it and to add to it.

        Args:
            path: its folder.
            model: the model that it was built with, where that is not found under the name the index recorded.

        Raises:
            InputError: no index, a damaged one, a newer format, or another model.
        """
        folder = IndexFolder(path)
        try:
            return cls(folder, Embedder.for_index(folder.path, folder.manifest, model))
        except BaseException:
            folder.documents.close()
            raise

    @property
    def path(self) -> Path:
        """The folder."""
        return self._folder.path

    @property
    def factory(self) -> str:
        """The FAISS factory string."""
        return self._folder.manifest.factory

    def count(self) -> int:
        """The number of documents."""
        self._require_open()
        return self._folder.count()

    def add(
        self,
        texts: Iterable[str],
        ids: Sequence[str | int] | None = None,
        metadata: Sequence[dict[str, Any] | None] | None = None,
    ) -> list[Id]:
        """Add documents: all of them, durably, when this returns, and none when it raises.

        Args:
            texts: any strings, the empty one among them.
            ids: one for each text, a string or an integer of 64 bits (1 and "1" differ); None gives them the integers
                above all that are in use.
            metadata: one for each text, None or a dictionary of JSON values.

        Returns:
            The ids.

        Raises:
            InputError: something cannot be stored, an id is taken, a model gives NaN, the kind of index needs more
                documents to be trained on, or another process is writing.
        """
        return self.add_documents(documents_of(texts, ids, metadata))

    def add_documents(self, documents: Iterable[Document]) -> list[Id]:
        """Add a stream of documents as :meth:`add` does, all or none, in bounded memory.

        Args:
            documents: an id of None gives the next integer. An error that the stream raises undoes the addition.
        """
        self._require_open()
        stream = iter(documents)
        with self._adding, closing(DocumentStore(self.path / DOCUMENTS)) as store:
            try:
                with store.writing():
                    self._folder.require_in_place()
                    addition = Addition(store, self._folder.vectors, self._embedder.documents)
                    while chunk := list(islice(stream, CHUNK_DOCUMENTS)):
                        addition.extend(chunk)
                    if addition.ids:
                        snapshot = addition.finish()
                        if addition.first_row == 0:
                            with self._searching:
                                self._index.train(snapshot)
            except BaseException:
                with self._searching:
                    self._index.forget_if_empty()
                raise
            finally:
                self._tidy(store)
        return addition.ids

    def _tidy(self, store: DocumentStore) -> None:
        """Let the manifest and the cache follow the newest commit, and remove files that it does not list.

        All of it can be left to the next writer, so a failure here does not fail the addition.
        """
        with suppress(InputError, OSError), store.writing(patience=0):
            self._folder.require_in_place()
            snapshot = Snapshot(store.state().generation, store.shards())
            if read_manifest(self.path).generation != snapshot.generation:
                write_manifest(self.path, replace(self._folder.manifest, generation=snapshot.generation))
            self._folder.vectors.remove_unlisted(snapshot.shards)
            with self._searching:
                self._folder.vectors.forget_unlisted(snapshot.shards)
                self._index.save(snapshot)

    def search(self, query: str | Iterable[str], k: int = 10) -> list[list[Hit]]:
        """The documents nearest to each query, the nearest first; among equal ones, those added first come first.

        Args:
            query: a text or several.
            k: hits for each query, at least 1; all documents where there are fewer.

        Returns:
            A list of hits for each query (one list for a single text). Scores are cosines in [-1, 1].

        Raises:
            InputError: a query is no string, k is below 1, or the model gives NaN.
        """
        self._require_open()
        if isinstance(k, bool) or not isinstance(k, numbers.Integral) or k < 1:
            raise InputError(f"k is {k!r}, an integer of at least 1 is needed")
        texts = [query] if isinstance(query, str) else as_list(query, "the query", "a string or a list of them")
        for place, text in enumerate(texts, 1):
            if not isinstance(text, str):
                raise InputError(f"query {place} is a {type(text).__name__}, a string is needed")
        if not texts or not self.count():
            return [[] for _ in texts]
        vectors = self._embedder.queries([well_formed(text) for text in texts])
        with self._searching:
            return self._folder.read(lambda snapshot: self._hits(vectors, int(k), snapshot))

    def _hits(self, vectors: Vectors, k: int, snapshot: Snapshot) -> list[list[Hit]]:
        self._folder.vectors.forget_unlisted(snapshot.shards)
        self._index.refresh(snapshot)
        found = self._index.search(vectors, k, snapshot)
        documents = self._folder.documents.fetch({row for pairs in found for _, row in pairs})
        hits = []
        for pairs in found:
            stored = [(score, *documents[row]) for score, row in pairs]
            hits.append([Hit(identifier, score, text, dict(notes)) for score, identifier, text, notes in stored])
        return hits

    def close(self) -> None:
        """Let go of files and memory; a closed index can do nothing more."""
        with self._adding, self._searching:
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
