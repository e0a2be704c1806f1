"""The search index: documents, their vectors and the model that makes them, in one folder."""

from __future__ import annotations

import errno
import numbers
import shlex
import shutil
import sqlite3
import threading
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, overload

from ctx_embed.deadlines import within
from ctx_embed.errors import InputError, OtherModelError, UnknownFieldsWarning, quoted, unknown_name, warn
from ctx_embed.files import replaced_folder
from ctx_embed.index import faiss_file
from ctx_embed.index.chunking import checked_chunk
from ctx_embed.index.database import DATABASE, Database, Settings
from ctx_embed.index.documents import LARGEST_ID, Id, checked_id, documents_of
from ctx_embed.index.filters import ALL, Condition, field_path, parse_filter, unknown_fields_message
from ctx_embed.index.folder import IndexFolder, read_settings, require_free
from ctx_embed.index.following import FolderOptions
from ctx_embed.index.hits import Hit, Hits, counted, unrelated_cosines
from ctx_embed.index.query import Options, parse_query
from ctx_embed.index.search import Candidates, Reranker, Search, embedded
from ctx_embed.index.vectors import FLOAT32, checked_dtype
from ctx_embed.model import Model
from ctx_embed.numpy_model import Embedder as NumpyEmbedder
from ctx_embed.options import DEFAULT, takes
from ctx_embed.texts import Document, composed, listed, require_explainable

if TYPE_CHECKING:
    from ctx_embed.index.exploring import Field, Pair, Similarity, Topic
    from ctx_embed.index.records import Location, Synced
    from ctx_embed.index.verify import Problems
    from ctx_embed.index.writer import Writer
    from ctx_embed.model import Given

# Pages that SQLite copies at a time.
COPIED_PAGES = 4096


class SearchIndex(AbstractContextManager["SearchIndex"]):
    """A searchable collection of documents; get one from :meth:`create` or :meth:`open`. It is a context manager.

    An index has one writer at a time and any number of readers, in threads and processes. A reader sees a change
    completely or not at all, from its next search on. Texts and metadata are stored as UTF-8: lone surrogates become
    U+FFFD. An argument ``where`` is a metadata filter, see :mod:`ctx_embed.index.filters`.

    Methods raise :class:`ctx_embed.InputError`, whose message is one line, if an argument cannot be used, the index is
    closed or damaged, or a file cannot be written; those that change the index also if it was not their turn within 30
    seconds. All but :meth:`sync`, which works in steps, have then changed nothing.

    Example:
        >>> with SearchIndex.create("notes.index") as index:
        ...     index.add(["the cat sat on the mat", "prices rise faster than wages"])
        ...     index.search("inflation", k=1)[0].text
        'prices rise faster than wages'
    """

    warns_of_fields = True
    """Whether a filter that compares a field which no document has is warned of, once for each field."""

    def __init__(self, folder: IndexFolder, embedder: Model | None = None, backend: str | None = None) -> None:
        if not isinstance(folder, IndexFolder):
            raise InputError(f"open an index with SearchIndex.open({str(folder)!r}) or make one: SearchIndex.create")
        self._embedder = embedder
        # Why the model cannot be loaded, once that was tried.
        self._other_model = ""
        self._backend = backend
        self._reranker: tuple[Any, Reranker | None] = None, None
        self._changing = threading.Lock()
        self._asked_fields: set[tuple[str, bool]] = set()
        self._opened = folder
        self._writer: Writer | None = None

    @property
    def _folder(self) -> IndexFolder:
        """The folder; an error is raised if the index is closed, or a copy has taken its place."""
        if self._opened.closed:
            raise InputError(f"{self.path}: this index is closed; open it again")
        self._opened.require_in_place(no_copy=True)
        return self._opened

    @classmethod
    def create(
        cls,
        path: str | Path,
        model: Given = None,
        factory: str = faiss_file.AUTO,
        chunk: str = "none",
        backend: str | None = None,
        dtype: str = FLOAT32,
        exist_ok: bool = False,
    ) -> SearchIndex:
        """Create an empty index in a folder that does not exist yet or is empty.

        Args:
            path: the folder; its parent must exist.
            model: None (the default model), a folder or name, or a loaded :class:`ctx_embed.numpy_model.Embedder` or
                SentenceTransformer.
            factory: the kind of FAISS index: ``auto`` searches exactly up to about 50,000 vectors and then uses
                inverted lists; ``Flat``, ``SQ8``, ``HNSW32``, ``IVF256,SQ8`` and ``IVF256,PQ32`` are fixed kinds. Kinds
                that need training search exactly until there are enough vectors.
            chunk: ``none`` embeds a document whole; ``sentences``, ``tokens:N`` and ``passages:N`` cut it. Passages end
                between sections, paragraphs and sentences; without ``:N`` they have at most 256 tokens.
            backend: ``numpy`` or ``torch``, for a model given by name; None: numpy if it can run the model.
            dtype: how vectors are stored: ``float32``, ``float16`` (half the size, the same hits) or ``int8`` (a
                quarter, recall@10 above 0.99).
            exist_ok: open the index if there is one; it must have these options, or raises an InputError.
        """
        folder = Path(path).absolute()
        taken = f"{folder}: already exists and is not empty; open it with SearchIndex.open, or choose another folder"
        if folder.is_dir() and any(folder.iterdir()):
            if not exist_ok:
                raise InputError(taken)
            there = read_settings(folder)
            for name, given in (("factory", factory), ("chunk", chunk), ("dtype", dtype)):
                if given != (found := getattr(there, name)):
                    raise InputError(
                        f"{folder}: {name} must be that of the index, {quoted(found)}, got {quoted(given)}"
                    )
            return cls.open(folder, model, backend=backend)
        checked_chunk(chunk)
        checked_dtype(dtype)
        embedder = Model.of(model, backend)
        faiss_file.checked_factory(factory, embedder.dimension)
        of_model = embedder.fingerprint, embedder.reference, embedder.dimension
        settings = Settings(
            uuid.uuid4().hex, *of_model, factory, chunk, dtype, unrelated_cosines(embedder.quiet_queries)
        )
        try:
            with replaced_folder(folder, new=True) as beside:
                Database.create(beside, settings)
        except (OSError, sqlite3.OperationalError) as error:
            # Another process may have created the folder meanwhile.
            anothers = getattr(error, "errno", None) in (errno.ENOTEMPTY, errno.EEXIST)
            if anothers and exist_ok:
                return cls.create(folder, model, factory, chunk, backend, dtype, exist_ok)
            raise InputError(taken if anothers else f"cannot write {folder}: {error}") from None
        return cls(IndexFolder(folder), embedder)

    @classmethod
    def open(
        cls, path: str | Path, model: Given = None, memory_map: bool = False, backend: str | None = None
    ) -> SearchIndex:
        """Open an index to search or change it; InputError if it is damaged, or of another format or model.

        Args:
            path: the folder of the index.
            model: the model that it was built with, if it is no longer where the index recorded it. None loads the
                recorded model when a text is first embedded.
            memory_map: leave FAISS's vectors on disk and read only what a search needs, if the kind of index allows it.
            backend: as for :meth:`create`.
        """
        folder = IndexFolder(path, memory_map)
        try:
            embedder = None if model is None else model_for(folder.folder, folder.settings, model, backend)
            return cls(folder, embedder, backend)
        except BaseException:
            folder.close()
            raise

    @property
    def path(self) -> Path:
        """The folder of the index."""
        return self._opened.folder

    @property
    def factory(self) -> str:
        """The FAISS factory string, or ``auto``."""
        return self._opened.settings.factory

    @property
    def embedder(self) -> Model:
        """The model; if the index was opened without one, it is loaded when first used."""
        if self._other_model:
            raise OtherModelError(self._other_model)
        opened = self._opened
        try:
            model = self._embedder or model_for(opened.folder, opened.settings, None, self._backend)
        except OtherModelError as error:
            self._other_model = str(error)
            raise
        self._embedder = model
        return model

    @property
    def writer(self) -> Writer:
        """The writer, which makes all changes; it is created at first use."""
        from ctx_embed.index.writer import Writer

        folder = self._folder
        self._writer = self._writer or Writer(folder, lambda: self.embedder, self._changing)
        return self._writer

    def count(self, where: str | None = None) -> int:
        """Return the number of documents, or of those whose metadata match the filter ``where`` if given."""
        if where is None:
            return self._folder.state().documents
        # Not by ids, whose warning would name this line.
        condition = self._condition(where)
        return len(self._folder.read(lambda view: view.store.ids_matching(condition)))

    def ids(self, where: str | None = None) -> list[Id]:
        """Return the ids of the documents, or of those that match a filter, in the order they were added."""
        condition = self._condition(where)
        return self._folder.read(lambda view: view.store.ids_matching(condition))

    def documents(self, where: str | None = None, *, offset: int = 0, limit: int | None = None) -> Iterator[Document]:
        """Return an iterator over at most ``limit`` documents in the order they were added, in bounded memory.

        It reads the state of the index at its first document; later changes do not affect it.
        """
        checked_count("offset", offset, 0)
        checked_count("limit", limit, 0, optional=True)
        path, condition = self._folder.folder, self._condition(where)
        most = LARGEST_ID if limit is None else min(limit, LARGEST_ID)

        def documents() -> Iterator[Document]:
            # A separate connection keeps reading the same state, even if the caller changes the index meanwhile.
            with closing(Database(path)) as store, store.reading():
                for found in store.all(condition, min(offset, LARGEST_ID), most):
                    yield Document(found.text, found.id, found.metadata)

        return documents()

    def facets(
        self, field: str, where: str | None = None, *, limit: int | None = None
    ) -> list[tuple[str | int | float | bool, int]]:
        """Return at most ``limit`` values of a metadata field with their numbers of documents, most frequent first.

        ``field`` is written as in a filter: ``year``, ``author.name``, ```any name```. Elements of lists count one by
        one; missing fields, null and objects do not count.
        """
        path, condition = field_path(field), self._condition(where)
        checked_count("limit", limit, 1, optional=True)
        self._condition(f"{field} contains 0")
        most = -1 if limit is None else min(limit, LARGEST_ID)
        select = (
            "SELECT element.type, element.value, count(DISTINCT documents.row) AS count "
            "FROM documents, json_each(documents.metadata, ?) AS element "
            f"WHERE json_type(documents.metadata, ?) != 'object' AND {condition.sql} "
            "AND element.type NOT IN ('null', 'object', 'array') "
            "GROUP BY element.type, element.value ORDER BY count DESC, element.value, element.type LIMIT ?"
        )
        found = self._folder.read(lambda view: view.store.run(select, (path, path, *condition.values, most)))
        return [(value == 1 if kind in ("true", "false") else value, count) for kind, value, count in found]

    def unknown_fields(self, where: str) -> dict[str, list[str]]:
        """Return the fields that a filter compares and no document has, each mapped to the fields of documents.

        A field that a filter compares with numbers, but that has only strings, is returned too.
        """
        fields = parse_filter(where).fields
        return self._folder.read(lambda view: view.store.unknown_fields(fields))

    def _condition(self, where: str | Condition | None) -> Condition:
        """Parse a filter; raise InputError, or warn the caller of a public method, where it compares in vain."""
        if where is None:
            return ALL
        condition = where if isinstance(where, Condition) else parse_filter(where)
        if condition.texts:
            self._folder.read(lambda view: view.require_texts(condition))
        new = [field for field in condition.fields if field not in self._asked_fields]
        if new and self.warns_of_fields and self.count():
            self._asked_fields.update(new)
            if unknown := self._folder.read(lambda view: view.store.unknown_fields(new)):
                warn(UnknownFieldsWarning(unknown_fields_message(unknown)))
        return condition

    def get(self, identifier: Id) -> Document | None:
        """Return the document with an id, or None if there is none. Names of files may be in any Unicode form."""
        wanted = checked_id(identifier)
        named = composed(wanted) if isinstance(wanted, str) else wanted
        both = self._folder.find([wanted, named])
        found = both.get(str(wanted), both.get(str(named)))
        return None if found is None else Document(found.text, found.id, found.metadata)

    def source(self, hit: Hit | Id) -> Location | None:
        """Return the file that a hit, or the document with an id, comes from, with the line or page of the passage.

        None if there is no such document, or if it has no metadata field ``source``.
        """
        found = hit if isinstance(hit, Hit) else self.get(hit)
        if found is None or "source" not in found.metadata:
            return None
        from ctx_embed.index.records import location_of

        of_hit = vars(found) if isinstance(found, Hit) else found.metadata
        line, page = (counted(of_hit.get(name), "", "\n", 0) for name in ("line", "page"))
        return location_of(self._folder, found.metadata, line, page)

    def add(
        self,
        texts: Iterable[str],
        ids: Sequence[Id | None] | None = None,
        metadata: Sequence[dict[str, Any] | None] | None = None,
        embeddings: Any = None,
    ) -> list[Id]:
        """Add documents: all are on disk when this returns, and none if it raises.

        A text that the index already holds is not embedded again.

        Args:
            texts: any strings, in a list, a series of any library, or a generator.
            ids: one for each text, a string or a 64-bit integer; 1 and "1" are one id, which stays as first given.
                None numbers the documents from the first integer above those ever used (not the last 2**32 that fit).
                The ids are returned.
            metadata: one for each text, None or a dictionary of JSON values; scalars of NumPy and times are converted,
                and fields that are NaN are left out.
            embeddings: vectors (documents, dimension) of the index's model; such documents are not cut into passages.
        """
        return self.add_documents(documents_of(texts, ids, metadata, embeddings))

    def upsert(
        self,
        texts: Iterable[str],
        ids: Sequence[Id | None] | None = None,
        metadata: Sequence[dict[str, Any] | None] | None = None,
        embeddings: Any = None,
    ) -> list[Id]:
        """Add documents as :meth:`add` does, but replace stored documents with the same ids."""
        return self.add_documents(documents_of(texts, ids, metadata, embeddings), replacing=True)

    def add_documents(self, documents: Iterable[Document], *, replacing: bool = False) -> list[Id]:
        """Add a stream of documents in bounded memory; as with :meth:`add`, all or none, also if the stream raises.

        A document whose id is None gets the next integer. ``replacing``: a document replaces one with the same id.
        """
        with self.writer.editing() as edit:
            return edit.add_all(documents, replacing=replacing)

    @takes(FolderOptions)
    def sync(
        self,
        folder: str | Path,
        *,
        allow_empty: bool = False,
        dry_run: bool = False,
        checksum: bool = False,
        progress: bool = False,
        **options: Any,
    ) -> Synced:
        """Bring the index in step with a folder of files: add what is new, replace what changed, remove what is gone.

        Files whose size, times and inode are those of the last run are not read. Only documents that came from this
        folder are replaced or removed; metadata that people have set stays. Files are committed in steps of a few
        seconds, each file as a whole, so another run continues after an interruption.

        Args:
            folder: the folder; hidden files and those that its .gitignore files name are left out.
            allow_empty: remove the documents of all files, or of most of many, even if that many are gone.
            dry_run: read the files and report what would be done, but change nothing.
            checksum: read and hash every file, even if its size, times and inode are as before.
            progress: show a bar on standard error, if that is a terminal.
            **options: see :class:`ctx_embed.index.following.FolderOptions`; options that are left out or None are
                those of the last run.
        """
        from ctx_embed.index.sync import sync_folder

        if unknown := options.keys() - FolderOptions.__dataclass_fields__.keys():
            raise unknown_name("option", min(unknown), FolderOptions.__dataclass_fields__)
        return sync_folder(
            self, folder, options, allow_empty=allow_empty, dry_run=dry_run, checksum=checksum, progress=progress
        )

    def delete(self, ids: Id | Sequence[Id] | None = None, *, where: str | None = None) -> int:
        """Delete documents, by one id or several or by a filter, and return their number; unknown ids are skipped.

        A document of a followed folder comes back when its file has changed.
        """
        if (ids is None) == (where is None):
            raise InputError("give delete either ids or where")
        condition = self._condition(where)
        given = [] if ids is None else listed(ids, "ids", "an id or a list of ids")
        with self.writer.editing() as edit:
            return edit.delete(given if where is None else edit.store.ids_matching(condition))

    def update_metadata(self, ids: Id | Sequence[Id], changes: dict[str, Any]) -> int:
        """Change metadata fields of documents, given by one id or several, and return the number of documents.

        ``changes`` are new values by name; other fields stay, and None removes a field. A new ``title`` embeds the
        passages of its document again; nothing else is embedded.
        """
        given = listed(ids, "ids", "an id or a list of ids")
        with self.writer.editing() as edit:
            return edit.update_metadata(given, changes)

    @overload
    def search(self, query: str | None = None, k: int = 10, **options: Any) -> Hits: ...

    @overload
    def search(self, query: Iterable[Any], k: int = 10, **options: Any) -> Any: ...

    @takes(Options)
    def search(
        self,
        query: str | Iterable[str | Iterable[float]] | Iterable[float] | None = None,
        k: int = Options.k,
        *,
        like: Id | Sequence[Id] | None = None,
        **options: Any,
    ) -> Hits | list[Hits]:
        """Return the best passages for a query; if scores are equal, the passage added first comes first.

        Args:
            query: a text, a vector (dimension,) of the index's model, or a list of texts or vectors. Words in
                ``"quotation marks"`` must occur in the modes ``words`` and ``hybrid``, several as a phrase, if any
                passage has all that is quoted and the query has at most 32 words.
            k: the number of hits for each query, at least 1; there may be fewer.
            like: instead of a query, one or several ids: find passages similar to these documents, which are left out.
            **options: see :class:`ctx_embed.index.query.Options`.

        Returns:
            A list of hits for a single or fused query; a list of such lists for several queries. Scores are cosines in
            [-1, 1] in every mode. If the model knows fewer than half of the words of a query or passage, ``dense``
            finds nothing, and ``hybrid`` goes by words alone.

        Raises:
            LateError: the deadline has passed.
        """
        if unknown := options.keys() - Options.__dataclass_fields__.keys():
            raise unknown_name("option", min(unknown), Options.__dataclass_fields__)
        folder, chosen = self._folder, Options(k, **options)
        # A reranker stays loaded until a search needs another one.
        wanted, (known, reranker) = chosen.rerank, self._reranker
        if wanted is not None and known is not wanted and known != wanted:
            reranker = wanted if isinstance(wanted, Reranker) else Reranker(wanted)
            self._reranker = wanted, reranker
        candidates = list[Candidates]()
        with within(chosen.deadline):
            asked = parse_query(chosen, query, like, folder.settings.dimension)
            self._condition(chosen.condition)
            search = Search(asked, lambda: self.embedder)
            if asked.texts and (folder.state().documents or asked.like):
                search.query = embedded(asked, search.model, folder.settings.dimension)
                candidates = folder.read(search.candidates)
            lists = search.hits(candidates, None if wanted is None else reranker)
        return lists[0] if asked.single or chosen.fuse else lists

    def compact(self, dtype: str | None = None) -> int:
        """Remove the vectors of deleted documents and return their number; free disk space and rebuild FAISS's file.

        ``dtype`` is the data type of all vectors from now on, as for :meth:`create`; None keeps the present one.
        """
        return self.writer.compact(None if dtype is None else checked_dtype(dtype))

    def reembed(self, model: Given = None, *, backend: str | None = None, progress: bool = False) -> int:
        """Embed all stored texts again with another model; documents, ids, metadata and passages stay as they are.

        Until everything is ready, others search the old vectors, and may also change the index. After an interruption,
        another call with the same model resumes. Other processes that had the index open must then open it again.

        ``model`` and ``backend`` are as for :meth:`create`. Return the number of documents embedded; 0 if the index
        already has this model.
        """
        from ctx_embed.index.writer import reembed

        embedder = Model.of(model, backend)
        with self._changing:
            if not reembed(self._folder, embedder, progress=progress):
                return 0
            old = self._opened
            old.close()
            self._embedder, self._other_model = embedder, ""
            self._opened = IndexFolder(self.path, old.memory_map)
            self._writer = None
            with closing(Database(self.path)) as store:
                self.writer.tidy(store, progress=progress)
        return self.count()

    @property
    def embedded_again(self) -> bool:
        """Whether the index has got another model since it was opened, so that it must be opened again."""
        opened = self._opened
        # A search that is already running checks this itself.
        if opened.closed or not opened.lock.acquire(blocking=False):
            return False
        try:
            return opened.present().table != opened.settings.table
        finally:
            opened.lock.release()

    def backup(self, target: str | Path) -> None:
        """Copy the newest generation to a folder that does not exist or is empty, while others may read and write."""
        target, path = Path(target).absolute(), self._folder.folder
        require_free(target)
        try:
            with replaced_folder(target, new=True) as beside:
                with closing(Database(path)) as store, store.reading():
                    # In one transaction, because a commit of a writer would otherwise start the copy again.
                    record = store.record()
                    with closing(sqlite3.connect(beside / DATABASE)) as copy, store.reporting_errors():
                        store.connection.backup(copy, pages=COPIED_PAGES)
                if record is not None:
                    with suppress(OSError):
                        shutil.copyfile(record.path(self.path), record.path(beside))
        except (OSError, sqlite3.Error) as error:
            raise InputError(f"cannot write {target}: {error}") from None

    def verify(self, embed: bool = True) -> Problems:
        """Check the index for damage and return a line for each problem: checksums, counts, words, vectors.

        ``embed`` also embeds some passages again and compares them with their stored vectors. The attribute
        ``unchecked`` of the list says what could not be checked.
        """
        from ctx_embed.index.verify import verify

        return verify(self._folder.folder, (lambda: self.embedder) if embed else None)

    def describe(self) -> dict[str, Any]:
        """Return properties of the index as JSON values, such as documents, model, dimension and bytes on disk."""
        size = 0
        for file in self.path.iterdir():
            # A writer may remove files meanwhile.
            with suppress(OSError):
                size += file.stat().st_size

        view = self._folder.read(lambda view: view)
        names = ("dimension", "dtype", "factory", "chunk", "model", "model_fingerprint", "format_version")
        return {
            "path": str(self.path),
            "documents": view.state.documents,
            "vectors": len(view.rows),
            "vectors_of_deleted": len(view.rows) - view.count,
            **{name: getattr(view.settings, name) for name in names},
            "faiss": None if view.record is None else view.record.facts,
            "generation": view.state.generation,
            "bytes": size,
        }

    def duplicates(self, threshold: float = 0.9, most: int = 100, *, progress: bool = False) -> list[Pair]:
        """Return at most ``most`` pairs of documents with a cosine of at least ``threshold``, most similar first."""
        from ctx_embed.index.exploring import find_duplicates

        checked_count("most", most, 1)
        return self._folder.read(lambda view: find_duplicates(view, threshold, most, progress))

    def topics(self, count: int | None = None, seed: int = 0) -> list[Topic]:
        """Cluster the documents and return the clusters with their typical words and their documents, largest first.

        ``count`` is the number of clusters; None: 2 to 50, by the number of documents.
        """
        checked_count("count", count, 1, optional=True)
        from ctx_embed.index.exploring import find_topics

        return self._folder.read(lambda view: find_topics(view, count, seed))

    def fields(self, most: int = 50) -> list[Field]:
        """Return the metadata fields of documents, the most frequent first, with at most ``most`` values of each."""
        from ctx_embed.index.exploring import find_fields

        return self._folder.read(lambda view: find_fields(view, most))

    def explain(self, query: str, text: str) -> Similarity:
        """Return what each token of a query, and of a text such as that of a hit, adds to their cosine."""
        from ctx_embed.index.exploring import Similarity

        for name, value in (("query", query), ("text", text)):
            require_explainable(value, f"the {name}")
        embedder, model = self.embedder, self.embedder.backend
        if not isinstance(model, NumpyEmbedder):
            raise InputError("only a Contextualizer explains similarities; this index has a model of another kind")
        (of_query,), (of_text,) = embedder.queries([query]), embedder.documents([text])
        cosine = float(of_query @ of_text)
        return Similarity(cosine, model.explain(query, of_text, "query"), model.explain(text, of_query, "document"))

    def export(self, output: str | Path) -> int:
        """Write the vectors (rows, dimension) to ``output`` + ``.npy`` and the passages to ``output`` + ``.jsonl``.

        Line i is that of row i of the array, which is float32. Return the number of rows.
        """
        from ctx_embed.index.exploring import export_index

        return self._folder.read(lambda view: export_index(view, Path(output)))

    def close(self) -> None:
        """Release files and memory; a closed index cannot be used any more."""
        with self._changing:
            self._opened.close()

    def __len__(self) -> int:
        return self.count()

    def __contains__(self, identifier: object) -> bool:
        return isinstance(identifier, str | numbers.Integral) and self.get(cast(Id, identifier)) is not None

    def __getitem__(self, identifier: Id) -> Document:
        """Return the document with an id; raise KeyError if there is none."""
        found = self.get(identifier)
        if found is None:
            raise KeyError(identifier)
        return found

    def __iter__(self) -> Iterator[Document]:
        return self.documents()

    def __bool__(self) -> bool:
        """Return True, even for an index without documents."""
        return True

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        if self._opened.closed:
            return f"SearchIndex({str(self.path)!r}, closed)"
        settings = self._folder.settings
        model = settings.model_fingerprint[:12] if settings.model is None else repr(settings.model)
        return f"SearchIndex({str(self.path)!r}, {self.count()} documents, model {model}, {settings.factory})"


def checked_count(name: str, value: Any, least: int, optional: bool = False) -> None:
    """Check that the value of an argument is an integer of at least ``least``; ``optional``: or None."""
    is_count = isinstance(value, numbers.Integral) and not isinstance(value, bool) and int(value) >= least
    if not is_count and not (optional and value is None):
        raise InputError(f"{name} must be an integer of at least {least}, got {quoted(value)}")


def model_for(folder: Path, settings: Settings, given: Given, backend: str | None = None) -> Model:
    """Return the model of an index, by default where the settings say that it is.

    Raise OtherModelError if it is a different one, or cannot be loaded.
    """
    try:
        model = Model.of(settings.model if given is None else given, backend, local_files_only=given is None)
    except InputError as error:
        if given is not None:
            raise
        raise OtherModelError(
            f"{_built(folder, settings)}, which cannot be loaded ({error}): put it back, say where it is now "
            "(`index query --model PATH`, in Python model=PATH), or embed the documents with another model: "
            f"{_reembed(folder, None)}"
        ) from None
    if (fingerprint := model.fingerprint, model.dimension) != (settings.model_fingerprint, settings.dimension):
        given = "this one" if model.reference is None else f"the model {quoted(model.reference)}"
        raise OtherModelError(
            f"{_built(folder, settings)}, dimension {settings.dimension}; {given} has the fingerprint "
            f"{fingerprint[:12]}, dimension {model.dimension}: open it with the model it was built "
            f"with, or embed its documents again: {_reembed(folder, model.reference)}"
        )
    return model


def _built(folder: Path, settings: Settings) -> str:
    recorded = "a model of unknown origin" if settings.model is None else f"the model {quoted(settings.model)}"
    return f"{folder}: built with {recorded}, fingerprint {settings.model_fingerprint[:12]}"


def _reembed(folder: Path, reference: str | None) -> str:
    """Return the command that embeds the documents of an index again, with a model or the default one."""
    option = "" if reference in (None, DEFAULT) else f" --model {shlex.quote(str(reference))}"
    return f"ctx-embed index reembed {shlex.quote(str(folder))}{option}"
