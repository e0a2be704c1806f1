"""Build an index from files and folders, or from other indexes."""

import dataclasses
import hashlib
import json
import os
import stat
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import astuple, dataclass, replace
from functools import cached_property
from itertools import chain, count, islice, takewhile
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from ctx_embed.errors import InputError, listed_names, missing_extra, quoted
from ctx_embed.files import (
    keep_permissions,
    locked,
    put_in_place,
    remove_folder,
    remove_leftovers,
    replaced_folder,
    require_folder,
)
from ctx_embed.index import writer
from ctx_embed.index.database import DATABASE, FAISS_SUFFIX, Database
from ctx_embed.index.documents import LAST_IDS
from ctx_embed.index.faiss_file import AUTO
from ctx_embed.index.folder import IndexFolder, is_free, read_settings, require_free
from ctx_embed.index.following import FolderOptions
from ctx_embed.index.nearest import VectorTable
from ctx_embed.index.records import Synced, known_folder
from ctx_embed.index.search_index import SearchIndex, model_for
from ctx_embed.index.sync import require_source_folder, sync_folder
from ctx_embed.index.vectors import FLOAT32, checked_dtype
from ctx_embed.index.writer import TakenIdError
from ctx_embed.options import declared
from ctx_embed.progress import Meter
from ctx_embed.reading.decoding import UnreadableFileError, reasons
from ctx_embed.reading.formats import EXTRA, extract, format_of
from ctx_embed.reading.opening import suffix_of
from ctx_embed.reading.rows import Fields, estimated_count, read_documents
from ctx_embed.reading.units import FILES, PARAGRAPHS, RECORDS, documents_of
from ctx_embed.reading.walking import File
from ctx_embed.reading.workers import Worker
from ctx_embed.texts import Document, Embedded

# The file in INDEX.partial that a build locks.
LOCK = "lock"
_JSON = json.JSONEncoder(sort_keys=True, default=str)


@dataclass(frozen=True)
class Built:
    """The result of a build: the number of documents read from the sources."""

    documents: int
    # Whether an earlier run had already finished the build.
    was_complete: bool = False
    # What the build read in folders and what it left out.
    folders: Synced | None = None


@dataclass(frozen=True, kw_only=True)
class Plan(FolderOptions):
    """What a build reads (``sources``), and the index that it makes (``target``), or adds to if ``adds``.

    Options of the index are those of :meth:`SearchIndex.create`; None: as in the index that is added to.

    Args:
        mode: ``create`` makes a new index and fails if there is one; ``append`` adds to an index; ``upsert`` adds to
            it and replaces documents with the same ids; ``overwrite`` replaces the index. If there is no index yet, all
            make one.
        resume: continue an interrupted build of the same sources and options, or start it; a finished one is left.
        embedding_field: the field with embeddings made by the model; None embeds the texts.
        chunk: by default ``none`` for lines and records, ``passages`` if there are folders or whole files.
        encoding: the encoding of named files of plain text; None: UTF-8. In folders encodings are detected.
        stores: the directories of embeddings that the sources name; the last row with an id is stored.
        progress: show progress on standard error.
    """

    sources: list[str]
    target: Path
    adds: bool
    mode: str = "create"
    resume: bool = False
    embedding_field: str | None = None
    model: Any = None
    factory: str | None = None
    chunk: str | None = None
    backend: str | None = None
    dtype: str | None = None
    encoding: str | None = None
    stores: Sequence[Any] = ()
    progress: bool = False

    @cached_property
    def folders(self) -> list[str]:
        """The sources that are folders of files to read."""
        return [name for name in self.sources if not self.stores and name != "-" and os.path.isdir(name)]

    @cached_property
    def files(self) -> list[str]:
        """The other sources."""
        return [name for name in self.sources if name not in self.folders]

    @property
    def partial(self) -> Path:
        """The folder of the unfinished index."""
        return self.target.with_name(f"{self.target.name}.partial")

    @property
    def reads_whole_files(self) -> bool:
        """Whether a named file is read as a whole rather than line by line or record by record."""
        return not self.stores and any(is_structured(file, self.documents) for file in self.files)

    @cached_property
    def signature(self) -> str:
        """A hash that is equal for two runs of the same build."""
        names = [name if name == "-" else os.path.realpath(name) for name in self.sources]
        # For files of lines, "lines" is what no option means.
        documents = self.documents if self.folders or self.reads_whole_files else None
        fields: list[Any] = [names, self.mode, *astuple(self.fields), self.embedding_field, self.factory]
        fields += [self.chunk, self.dtype, documents, list(self.include), list(self.exclude), self.encoding]
        fields += [bool(self.follow_links), bool(self.stores)]
        return hashlib.sha256(json.dumps(fields).encode()).hexdigest()


def build_index(sources: str | Path | Sequence[str | Path], path: str | Path, **options: Any) -> Built:
    """Read documents, embed them and store them in an index.

    A new index takes its place when it is complete; until then, finished work is stored in ``path`` + ``.partial``, in
    steps of a few seconds. An addition commits such steps to the index itself: after an interruption it has the first
    documents, each as a whole. An index follows the folders among its sources: a build of a folder that the index
    knows, and any addition of a folder, changes the index in place, see :meth:`SearchIndex.sync`. ``sources`` are
    folders, and files or ``-``, see :func:`ctx_embed.rows.reading.read_documents`; the options are those of
    :class:`Plan`.

    Raises:
        InputError: an input or the index cannot be used, the sources have no documents or have changed since the build
            started, or an interrupted build exists and ``resume`` is not set.
    """
    listed = [sources] if isinstance(sources, str | Path) else list(sources)
    # A link to an index stays; what it points to is replaced.
    target = Path(os.path.realpath(path) if Path(path).is_symlink() else path).absolute()
    adds = options.get("mode") in ("append", "upsert") and not is_free(target)
    plan = Plan(sources=[str(name) for name in listed], target=target, adds=adds, **options)
    if plan.adds:
        settings = read_settings(target)
        require_folder(target / DATABASE)
        for name in ("factory", "chunk", "dtype"):
            given, there = getattr(plan, name), getattr(settings, name)
            if given not in (None, there):
                raise InputError(f"{target}: {name} must be {quoted(there)}, got {quoted(given)}; leave --{name} out")
        model = settings.model if plan.model is None else plan.model
        plan = replace(plan, model=model, factory=settings.factory, chunk=settings.chunk, dtype=settings.dtype)
    else:
        chunk = plan.chunk or ("passages" if plan.folders or plan.reads_whole_files else "none")
        plan = replace(plan, factory=plan.factory or AUTO, chunk=chunk, dtype=checked_dtype(plan.dtype or FLOAT32))
    if not plan.sources:
        raise InputError("no source of documents: give a file, a folder or - (standard input)")
    if plan.files.count("-") > 1:
        raise InputError("standard input is named twice, but can be read only once")
    if plan.folders and plan.embedding_field is not None:
        raise InputError(f"{plan.folders[0]}: --embedding-field needs files, got a folder; name its files")
    for folder in plan.folders:
        require_source_folder(folder)
    if not plan.folders and (plan.include or plan.exclude or plan.follow_links is not None):
        raise InputError("--include, --exclude and --follow-links choose files of a folder; name one")
    if plan.folders and not plan.files:
        in_place = plan.adds
        if plan.mode == "create" and (target / DATABASE).is_file():
            with closing(Database(target)) as store:
                in_place = all(known_folder(store, folder) is not None for folder in plan.folders)
        if in_place:
            with SearchIndex.open(target, plan.model, backend=plan.backend) as index:
                synced = _sync(plan, index)
            return Built(synced.documents, folders=synced)
    require_folder(target)
    _remove_stale(plan)
    if plan.resume and not plan.partial.exists() and (target / DATABASE).is_file():
        with closing(Database(target)) as store:
            last = last_run(store, plan.signature)
        if last is not None and last.finished:
            return Built(last.documents, was_complete=True)
    # An index that a killed build had moved away is in its place again.
    if not plan.adds and not is_free(target):
        if not target.is_dir():
            raise InputError(f"{target}: is a file; choose a new or empty folder for the index")
        if not _holds_only_an_index(target):
            raise InputError(f"{target}: has files that do not belong to an index; choose another folder")
        if plan.mode != "overwrite":
            raise InputError(f"{target}: already exists; add to it (--append, --upsert) or replace it (--overwrite)")
    return _build(plan)


@dataclass(frozen=True)
class Run:
    """A build's random id, its plan's signature, and the number and sha256 of the documents that it has read."""

    run: str
    signature: str
    documents: int = 0
    digest: str = ""
    finished: bool = False


def last_run(store: Database, signature: str | None = None, finished: bool = True) -> Run | None:
    """Return the last run in an index, of any plan or of one; without ``finished`` only one that is unfinished."""
    found = store.run(
        "SELECT run, signature, documents, digest, finished FROM builds "
        "WHERE ifnull(?, signature) = signature AND finished <= ? ORDER BY rowid DESC LIMIT 1",
        (signature, finished),
    )
    return Run(*found[0]) if found else None


def record(store: Database, run: Run) -> None:
    """Store a run, replacing its earlier record."""
    store.run("INSERT OR REPLACE INTO builds VALUES (?, ?, ?, ?, ?)", astuple(run))


@contextmanager
def _only_build(partial: Path) -> Iterator[None]:
    """Hold the lock of INDEX.partial inside the block; the system also releases it when the process ends."""
    with locked(partial / LOCK, wait=False) as free:
        if not free:
            raise InputError(f"{partial}: another build is running; try again when it has finished")
        yield


@contextmanager
def _without_writers(target: Path) -> Iterator[None]:
    """Hold the writer's lock of an index that is about to be replaced, so that no change is lost."""
    try:
        read_settings(target)
    except InputError:
        # There is no index, or it is damaged and nobody can write to it.
        yield
        return
    with closing(Database(target)) as store, store.writing():
        yield


def _holds_only_an_index(folder: Path) -> bool:
    files = {LOCK, DATABASE, *(f"{DATABASE}{suffix}" for suffix in ("-journal", "-shm", "-wal"))}
    return all(entry.name in files or entry.name.endswith(FAISS_SUFFIX) for entry in folder.iterdir())


def _remove_stale(plan: Plan) -> None:
    """Remove an INDEX.partial that is no longer needed; raise InputError if it is still needed, or not one."""
    for folder in (plan.partial, plan.target):
        remove_leftovers(folder)
    if not plan.partial.exists():
        return
    if not plan.partial.is_dir() or not _holds_only_an_index(plan.partial):
        raise InputError(f"{plan.partial}: exists but is no interrupted build; delete it or choose another index name")
    # A folder without a lock file is a replaced index, or a build that never started.
    if (plan.partial / LOCK).is_file():
        if plan.resume:
            return
        with _only_build(plan.partial):
            if plan.mode != "overwrite":
                raise InputError(f"{plan.partial}: holds an interrupted build; continue it with --resume or delete it")
    remove_folder(plan.partial)


def _build(plan: Plan) -> Built:
    """Fill INDEX, or INDEX.partial to put in its place, resuming an earlier run if there is one."""
    documents: Iterator[Document] = chain.from_iterable(store.documents() for store in plan.stores)
    if not plan.stores:
        documents = read_sources(plan.files, plan.fields, plan.embedding_field, plan.documents, plan.encoding)
    if plan.files:
        # Fail on empty sources before anything is written or a model is loaded.
        first = next(documents, None)
        if first is None:
            raise InputError(f"{', '.join(plan.sources)}: no documents; give at least one line of text")
        documents = chain([first], documents)
    if plan.adds:
        with SearchIndex.open(plan.target, plan.model, backend=plan.backend) as index:
            return _fill(index, plan, documents)
    # Set once INDEX.partial is locked, so that the work of another build is never removed.
    ours = False
    try:
        with ExitStack() as stack:
            if plan.partial.exists():
                index = SearchIndex.open(plan.partial, plan.model, backend=plan.backend)
            else:
                # Another build may start at the same moment, but only one gets the lock.
                options: list[Any] = [plan.factory, plan.chunk, plan.backend, plan.dtype, True]
                index = SearchIndex.create(plan.partial, plan.model, *options)
            stack.enter_context(index)
            stack.enter_context(_only_build(plan.partial))
            ours = True
            built = _fill(index, plan, documents)
    except BaseException:
        with suppress(InputError, OSError):
            if ours:
                with closing(Database(plan.partial)) as store:
                    is_empty = not store.state().documents
                if is_empty:
                    remove_folder(plan.partial)
        raise
    try:
        with _without_writers(plan.target):
            if (plan.target / DATABASE).is_file():
                # A private index stays private.
                for path in plan.partial.iterdir():
                    keep_permissions(plan.target / DATABASE, path)
                keep_permissions(plan.target, plan.partial)
            put_in_place(plan.partial, plan.target)
    except OSError as error:
        raise InputError(f"cannot write {plan.target}: {error}; continue with --resume") from None
    with suppress(OSError):
        (plan.target / LOCK).unlink()
    return built


def _fill(index: SearchIndex, plan: Plan, documents: Iterator[Document]) -> Built:
    """Add what an index lacks of the sources, in steps that record how far they came; then build FAISS's file."""
    digest = hashlib.sha256()

    def hashed() -> Iterator[Document]:
        for number, document in enumerate(documents, 1):
            if plan.mode == "upsert" and document.id is None:
                raise InputError(
                    f"document {number} has no id, so --upsert would add it once more with each run; name the field of "
                    "ids with --id-field, or add documents without ids with --append"
                )
            digest.update(_JSON.encode([document.text, document.id, document.metadata]).encode())
            yield document

    with closing(Database(index.path)) as store:
        # An addition replaces documents of its own, as with `stores`, and others only by `upsert`.
        first_row = (None if plan.mode == "upsert" else store.state().next_row) if plan.adds else 0
        stored = last_run(store, plan.signature, finished=False) if plan.adds else last_run(store)
        run = stored or Run(uuid.uuid4().hex, plan.signature)
        if run.signature != plan.signature:
            raise InputError(f"{plan.partial}: was started with other sources or options; repeat those, or delete it")
        if not plan.adds and stored is None:
            stored = run
            with store.writing():
                record(store, run)
    if plan.adds and stored is not None and not plan.resume:
        has = f"has the first {run.documents} documents of an interrupted build of the same sources"
        raise InputError(f"{plan.target}: {has}; continue it with --resume")
    stream = hashed()
    skipped = sum(1 for _ in islice(stream, run.documents))
    if (skipped, digest.hexdigest()) != (run.documents, run.digest or digest.hexdigest()):
        raise InputError(
            f"{', '.join(plan.sources)}: the input has changed since this build started; restore its first "
            f"{run.documents} documents{'' if plan.adds else f', or delete {plan.partial} and start again'}"
        )
    expected = None
    if plan.progress and plan.stores:
        expected = sum(store.count() for store in plan.stores)
    elif plan.progress and not plan.reads_whole_files:
        expected = estimated_count(plan.files)
    replacing, synced, more = plan.mode == "upsert" or bool(plan.stores), None, bool(plan.files) and not run.finished
    try:
        with Meter("indexing", expected, "documents", done=run.documents, shown=plan.progress) as meter:
            while more:
                with index.writer.editing(tidy=False, counted=run.documents) as edit:
                    edit.first_row = first_row
                    if last_run(edit.store, plan.signature, finished=False) != stored:
                        raise InputError(f"{index.path}: another build is running; try again when it has finished")
                    while more and not edit.is_long:
                        some = list(islice(stream, writer.BATCH_DOCUMENTS))
                        edit.add(some, replacing=replacing)
                        meter.update(len(some))
                        more = bool(some)
                    stored = run = replace(run, documents=edit.counted, digest=digest.hexdigest())
                    record(edit.store, run)
        if plan.folders:
            synced = _sync(plan, index)
        with closing(Database(index.path)) as store:
            index.writer.tidy(store, progress=plan.progress)
            if not plan.adds and synced is not None:
                if not store.state().documents:
                    reason = synced.left_out or "the folder is empty"
                    raise InputError(f"{', '.join(plan.sources)}: no file that can be read; {reason}")
                run = replace(run, documents=store.state().documents)
            with store.writing():
                record(store, replace(run, finished=True))
    except (InputError, OSError) as error:
        said = str(error) if isinstance(error, InputError) else f"cannot write {plan.target}: {error}"
        done = run.documents
        if not plan.adds:
            with suppress(InputError, OSError), closing(Database(index.path)) as store:
                done = store.state().documents
        said += f"; {done} documents are stored in {index.path}: continue with --resume" if done else ""
        raise InputError(said) from None
    return Built(run.documents + (synced.documents if plan.adds and synced else 0), folders=synced)


def _sync(plan: Plan, index: SearchIndex) -> Synced:
    """Bring an index in step with the plan's folders; options left out keep their last values."""
    given = {known.name: getattr(plan, known.name) for known in declared(FolderOptions)}
    synced = Synced()
    for folder in plan.folders:
        sync_folder(index, folder, given, result=synced, prefixed=len(plan.sources) > 1, progress=plan.progress)
    return synced


def read_sources(
    files: Sequence[str],
    fields: Fields | None = None,
    embedding_field: str | None = None,
    documents: str | None = None,
    encoding: str | None = None,
) -> Iterator[Document]:
    """Yield the documents of files; the arguments are those of :class:`Plan`."""
    for file in files:
        if is_structured(file, documents):
            if not format_of(file).installed:
                raise missing_extra(f"{file}: a {suffix_of(file)} file", EXTRA)
            try:
                with reasons(file), Worker() as worker:
                    status = os.stat(file)
                    if not stat.S_ISREG(status.st_mode):
                        raise InputError("must be a regular file, to be one document; or use --documents lines")
                    texts = worker.read(file) if format_of(file).apart else list(extract(file, encoding))
            except UnreadableFileError as error:
                raise InputError(f"{file}: {error}") from None
            named = File.of(file, PurePath(file).as_posix(), status)
            yield from documents_of(named, texts, documents)
            continue
        if documents == RECORDS and file != "-" and format_of(file).rows is None:
            raise InputError(f"{file}: only tables and JSONL have records; choose lines or files")
        for number, document in enumerate(read_documents(file, fields, encoding=encoding), 1):
            if embedding_field is None:
                yield document
                continue
            metadata = dict(document.metadata)
            # The embedding is one field, or columns that are named after it and numbered from 0.
            columns = takewhile(metadata.__contains__, (f"{embedding_field}_{place}" for place in count()))
            embedding = metadata.pop(embedding_field, None) or [metadata.pop(name) for name in columns]
            if not embedding:
                names = listed_names(document.metadata, repr)
                missing = "null in the field" if embedding_field in document.metadata else "no field"
                raise InputError(f"{file}, document {number}: {missing} {quoted(embedding_field)} (fields: {names})")
            yield Embedded(document.text, document.id, metadata, embedding)


def is_structured(file: str, documents: str | None) -> bool:
    """Return whether a named file is read as a whole: to make files or paragraphs, or because it is no list."""
    kind = format_of(file)
    is_whole = documents is None and kind.reader in ("markdown", "code")
    return file != "-" and (documents in (FILES, PARAGRAPHS) or kind.apart or is_whole)


def merge_indexes(
    sources: Sequence[str | Path], path: str | Path, *, replace: bool = False, progress: bool = False
) -> int:
    """Merge two indexes or more with the same model into a new one, and return its number of documents.

    It gets the FAISS factory and the data type of the first one. Documents without ids of their own are numbered anew.
    ``replace``: a document replaces the one that has its id in an earlier index.
    """
    folders = [Path(source).absolute() for source in sources]
    if len(folders) < 2:
        raise InputError(f"merging needs two indexes or more, got {len(folders)}")
    first, *others = [read_settings(folder) for folder in folders]
    model, *models = [
        f"{quoted(each.model)} (fingerprint {each.model_fingerprint[:12]}, dimension {each.dimension})"
        for each in (first, *others)
    ]
    for folder, settings, its_model in zip(folders[1:], others, models, strict=True):
        for name, here, there in (("the model", model, its_model), ("chunk", repr(first.chunk), repr(settings.chunk))):
            if here != there:
                raise InputError(f"{folder}: {name} must be that of {folders[0]}, {here}, got {there}")
    target = Path(path).absolute()
    require_free(target)
    # Skip numbers that another document was given as its id.
    select = (
        "SELECT max(number) FROM (SELECT CAST(id AS INTEGER) AS number FROM documents "
        "WHERE CAST(number AS TEXT) = CAST(id AS TEXT) AND number < ?) WHERE number NOT IN (SELECT id FROM automatic)"
    )
    next_id = 0
    for folder in folders:
        with closing(Database(folder)) as store:
            ((largest,),) = store.run(select, (LAST_IDS,))
            next_id = max(next_id, 0 if largest is None else largest + 1)
    try:
        with replaced_folder(target, new=True) as beside:
            Database.create(beside, dataclasses.replace(first, index_id=uuid.uuid4().hex, table=1))
            # Only what cuts passages needs the model.
            embedder = None if first.chunk == "none" else model_for(folders[0], first, None)
            with SearchIndex.open(beside, embedder) as index:
                merging = Meter("merging", unit="documents", shown=progress)
                with index.writer.editing(progress=progress) as edit, merging as meter:
                    edit.state = dataclasses.replace(edit.state, next_id=next_id)
                    for folder in folders:
                        edit.add_all(meter.each(copies(folder)), replacing=replace)
                return index.count()
    except TakenIdError as error:
        raise InputError(
            f"two indexes have a document {quoted(error.identifier)}; --replace keeps the later one"
        ) from None


def copies(path: Path) -> Iterator[Embedded]:
    """Yield the documents of one state of an index, as passages; ids that the index has numbered become None."""
    with closing(IndexFolder(path)) as store, store.reading():
        vectors = VectorTable(store, store.present())
        for document in store.all():
            rows = np.arange(document.row, document.row + document.passages)
            identifier = None if store.automatic([document.id]) else document.id
            yield Embedded(document.text, identifier, document.metadata, vectors.get(rows), document.spans)
