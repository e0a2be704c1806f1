"""Build an index from files and folders. Each step is stored in INDEX.partial, so interrupted builds can resume."""

from __future__ import annotations

import hashlib
import json
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import astuple, dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

from ctx_embed.documents.units import checked_unit
from ctx_embed.errors import InputError
from ctx_embed.files import keep_permissions, locked, put_in_place, remove_folder, remove_leftovers, require_folder
from ctx_embed.index.ann.faiss_file import AUTO
from ctx_embed.index.building.merging import add_build
from ctx_embed.index.building.readers import is_structured, read_sources
from ctx_embed.index.following.report import Synced
from ctx_embed.index.following.sync import known_folder, require_source_folder, sync_folder
from ctx_embed.index.model import IndexModel
from ctx_embed.index.search_index import SearchIndex
from ctx_embed.index.storage.database import DATABASE
from ctx_embed.index.storage.documents import DocumentStore, checked_id
from ctx_embed.index.storage.folder import IndexFolder, holds_only_an_index, read_settings
from ctx_embed.index.storage.vectors import DEFAULT, checked_dtype
from ctx_embed.index.writing.transaction import Edit, Embedded, TakenIdError
from ctx_embed.index.writing.writer import STEPS, Steps
from ctx_embed.progress import Meter
from ctx_embed.rows.reading import estimated_count
from ctx_embed.rows.table import TEXT_FIELD
from ctx_embed.text.unknown import SAMPLED_CHARACTERS, SAMPLED_TEXTS, tokenizer_of, unknown_share
from ctx_embed.texts import Document

# The file in INDEX.partial that a build locks.
LOCK = "lock"
_JSON = json.JSONEncoder(sort_keys=True, default=str)


@dataclass(frozen=True)
class Built:
    """The result of a build.

    Args:
        documents: the number of documents read from the sources.
        was_complete: whether an earlier run had already finished the build.
        unknown_share: the share of unknown tokens in the first documents; 0 if the documents came with embeddings.
        folders: what the build read in folders and what it left out; None if no source is a folder.
    """

    documents: int
    was_complete: bool = False
    unknown_share: float = 0.0
    folders: Synced | None = None


@dataclass(frozen=True, kw_only=True)
class BuildOptions:
    """What a build reads, and the index that it makes; options of the index are those of :meth:`SearchIndex.create`.

    Args:
        mode: ``create`` makes a new index and fails if there is one; ``append`` adds to an index; ``upsert`` adds to
            it and replaces documents with the same ids; ``overwrite`` replaces the index. If there is no index yet, all
            make one.
        resume: whether to continue an interrupted build of the same sources and options. If there is none, the build
            starts from the beginning; if it was finished, nothing is done.
        text_field: the field with the text; None: ``text``.
        embedding_field: the field with embeddings made by the model; None embeds the texts.
        model: the model; when adding, as in :meth:`SearchIndex.open`.
        factory: the kind of FAISS index; None: ``auto``, or the kind of the index that is added to.
        chunk: how documents are cut into passages; by default ``none`` for lines and records, ``passages`` if there are
            folders or whole files; when adding, as in the index.
        backend: the backend of the model.
        dtype: the data type of the vectors; None: ``float32``, or that of the index.
        documents: the unit that becomes a document: ``files``, ``paragraphs``, ``lines`` or ``records``. None: in
            folders, files and records that have a text; in named files of plain text, lines and records.
        include: globs such as ``*.md``; files of folders must match one.
        exclude: globs of files and folders to leave out of folders.
        follow_links: whether to read files outside a folder to which links in it point; None: as in the last run.
        encoding: the encoding of named files of plain text; None: UTF-8. In folders encodings are detected.
        embedded: documents with their vectors, in the same order at every iteration; the last document with an id is
            stored. The sources then only name them, and are not read.
        progress: whether to show progress on standard error.
        steps: how often to commit.
    """

    mode: str = "create"
    resume: bool = False
    text_field: str | None = None
    embedding_field: str | None = None
    model: Any = None
    factory: str | None = None
    chunk: str | None = None
    backend: str | None = None
    dtype: str | None = None
    documents: str | None = None
    include: Sequence[str] = ()
    exclude: Sequence[str] = ()
    follow_links: bool | None = None
    encoding: str | None = None
    embedded: Iterable[Embedded] | None = None
    progress: bool = False
    steps: Steps = STEPS


def build_index(sources: str | Path | Sequence[str | Path], path: str | Path, **options: Any) -> Built:
    """Read documents, embed them and store them in an index; ``path`` changes once, when everything is ready.

    Until then, finished work is stored in ``path`` + ``.partial``, in steps of a few seconds. An index follows the
    folders among its sources: a build of a folder that the index knows, and any addition of a folder, changes the index
    in place, see :meth:`SearchIndex.sync`.

    Args:
        sources: folders, and files or ``-``, see :func:`ctx_embed.index.building.readers.read_sources`.
        path: the folder of the index.
        **options: see :class:`BuildOptions`.

    Raises:
        InputError: an input or the index cannot be used, the sources have no documents or have changed since the build
            started, or an interrupted build exists and ``resume`` is not set.
    """
    listed = [sources] if isinstance(sources, str | Path) else list(sources)
    # A link to an index stays; what it points to is replaced.
    target = Path(os.path.realpath(path) if Path(path).is_symlink() else path).absolute()
    is_there = target.exists() and not (target.is_dir() and not any(target.iterdir()))
    plan = Plan(sources=[str(name) for name in listed], target=target, is_there=is_there, **options)
    checked_unit(plan.documents)
    if plan.adds:
        settings = read_settings(target)
        for name in ("factory", "chunk", "dtype"):
            given, there = getattr(plan, name), getattr(settings, name)
            if given not in (None, there):
                raise InputError(f"{target}: {name} must be {there!r}, got {given!r}; leave --{name} out")
        model = settings.model if plan.model is None else plan.model
        plan = replace(plan, model=model, factory=settings.factory, chunk=settings.chunk, dtype=settings.dtype)
    else:
        chunk = plan.chunk or ("passages" if plan.folders or plan.reads_whole_files else "none")
        plan = replace(plan, factory=plan.factory or AUTO, chunk=chunk, dtype=checked_dtype(plan.dtype or DEFAULT))
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
            with closing(DocumentStore(target / DATABASE)) as store:
                in_place = all(known_folder(store, folder) is not None for folder in plan.folders)
        if in_place:
            with SearchIndex.open(target, plan.model, backend=plan.backend) as index:
                synced = _sync(index, plan)
            return Built(synced.documents, folders=synced)
    _remove_stale(plan)
    if plan.resume and not plan.partial.exists() and (target / DATABASE).is_file():
        with closing(IndexFolder(target).documents) as store:
            same = [run for run in _recorded(store) if run.signature == plan.signature]
        if same:
            return Built(same[-1].documents, was_complete=True)
    if not plan.adds:
        _require_free(plan)
    return _build(plan)


@dataclass(frozen=True, kw_only=True)
class Plan(BuildOptions):
    """A build: its options, sources and folder; ``is_there`` says whether there is something in that folder."""

    sources: list[str]
    target: Path
    is_there: bool

    @property
    def adds(self) -> bool:
        """Whether there is an index to which the build adds."""
        return self.is_there and self.mode in ("append", "upsert")

    @property
    def folders(self) -> list[str]:
        """The sources that are folders of files to read; none if ``embedded`` is given."""
        return [name for name in self.sources if self.embedded is None and name != "-" and os.path.isdir(name)]

    @property
    def files(self) -> list[str]:
        """The other sources."""
        folders = self.folders
        return [name for name in self.sources if name not in folders]

    @property
    def partial(self) -> Path:
        """The folder of the unfinished index."""
        return self.target.with_name(f"{self.target.name}.partial")

    @property
    def reads_whole_files(self) -> bool:
        """Whether a named file is read as a whole rather than line by line or record by record."""
        return self.embedded is None and any(is_structured(file, self.documents) for file in self.files)

    @property
    def signature(self) -> str:
        """A hash that is the same for two runs of the same build."""
        names = [name if name == "-" else str(Path(name).absolute()) for name in self.sources]
        fields: list[Any] = [names, self.mode, self.text_field or TEXT_FIELD, self.embedding_field, self.factory]
        fields += [self.chunk, self.dtype, self.documents, list(self.include), list(self.exclude), self.encoding]
        fields += [bool(self.follow_links), self.embedded is not None]
        return hashlib.sha256(json.dumps(fields).encode()).hexdigest()

    def no_documents(self) -> InputError:
        """Return the error of sources without documents."""
        return InputError(f"{', '.join(self.sources)}: no documents; give at least one line of text")


@dataclass(frozen=True)
class Run:
    """The progress of a build: its random id, its plan's signature, and what it has read of its sources so far.

    ``digest`` is the sha256 of the documents read, which shows whether the sources have changed; ``finished`` says
    whether all have been read.
    """

    run: str
    signature: str
    documents: int = 0
    digest: str = ""
    finished: bool = False


def _recorded(store: DocumentStore) -> list[Run]:
    """Return all runs recorded in an index, the newest last."""
    found = store.run("SELECT run, signature, documents, digest, finished FROM builds")
    return [Run(run, signature, count, digest, bool(finished)) for run, signature, count, digest, finished in found]


def record(store: DocumentStore, run: Run) -> None:
    """Store a run, replacing its earlier record; call it inside :meth:`Database.writing`."""
    store.run("INSERT OR REPLACE INTO builds VALUES (?, ?, ?, ?, ?)", astuple(run))


@contextmanager
def _only_build(partial: Path) -> Iterator[None]:
    """Hold the lock of INDEX.partial inside the block; the system releases it when the process ends."""
    with locked(partial / LOCK, wait=False) as free:
        if not free:
            raise InputError(f"{partial}: another build is running; try again when it has finished")
        yield


@contextmanager
def _without_writers(target: Path) -> Iterator[None]:
    """Hold the writer's lock of an index that is about to be replaced, so that no change to it gets lost."""
    try:
        store = DocumentStore(target / DATABASE)
    except InputError:
        # There is no index, or it is damaged and nobody can write to it.
        yield
        return
    with closing(store), store.writing():
        yield


def _require_free(plan: Plan) -> None:
    """Raise InputError unless INDEX can be written: it is empty, or an index that this build replaces."""
    target = plan.target
    require_folder(target)
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return
    if not target.is_dir():
        raise InputError(f"{target}: is a file; choose a new or empty folder for the index")
    if not holds_only_an_index(target, LOCK):
        raise InputError(f"{target}: has files that do not belong to an index; choose another folder")
    if plan.mode != "overwrite":
        raise InputError(
            f"{target}: already exists; add to it with --append or --upsert, or replace it with --overwrite"
        )
    with _without_writers(target):
        # If another process is writing, fail now rather than after the work.
        return


def _remove_stale(plan: Plan) -> None:
    """Remove an INDEX.partial that is no longer needed; InputError if it is none, or still needed."""
    for folder in (plan.partial, plan.target):
        remove_leftovers(folder)
    if not plan.partial.exists():
        return
    if not plan.partial.is_dir() or not holds_only_an_index(plan.partial, LOCK):
        raise InputError(
            f"{plan.partial}: exists but is not an interrupted build; delete it or choose another index name"
        )
    # A folder without a lock file is a replaced index, or a build that never started.
    if (plan.partial / LOCK).is_file():
        if plan.resume:
            return
        with _only_build(plan.partial):
            if plan.mode != "overwrite":
                raise InputError(f"{plan.partial}: holds an interrupted build; continue it with --resume or delete it")
    remove_folder(plan.partial)


def _build(plan: Plan) -> Built:
    """Fill INDEX.partial, resuming an earlier run if there is one; then make it INDEX, or add it to INDEX."""
    documents: Iterator[Document]
    if plan.embedded is None:
        documents = read_sources(plan.files, plan.text_field, plan.embedding_field, plan.documents, plan.encoding)
    else:
        documents = iter(plan.embedded)
    if plan.files and not plan.partial.exists():
        # Fail on empty sources before anything is written or a model is loaded.
        first = next(documents, None)
        if first is None:
            raise plan.no_documents()
        documents = chain([first], documents)
    # Set once INDEX.partial is locked, so that the work of another build is never removed.
    ours, synced, unknown = False, None, 0.0
    try:
        with ExitStack() as stack:
            if plan.partial.exists():
                stack.enter_context(_only_build(plan.partial))
                ours = True
                index = stack.enter_context(SearchIndex.open(plan.partial, plan.model, backend=plan.backend))
            else:
                require_folder(plan.target)
                index = stack.enter_context(_new_partial(plan))
                stack.enter_context(_only_build(plan.partial))
                ours = True
                if plan.adds:
                    IndexModel.require(plan.target, read_settings(plan.target), index.embedder)
            run = _begun(plan)
            if plan.files and not run.finished:
                run = _add_files(index, plan, run, documents)
            if plan.adds:
                with closing(DocumentStore(plan.target / DATABASE)) as store:
                    was_added = run.run in {known.run for known in _recorded(store)}
                if not was_added:
                    add_build(index, plan.target, plan.mode == "upsert", lambda store: record(store, run))
            elif plan.folders:
                run, synced = _add_folders(index, plan, run)
            if plan.embedding_field is None and plan.embedded is None:
                with closing(DocumentStore(index.path / DATABASE)) as store:
                    texts = [document.text[:SAMPLED_CHARACTERS] for document in store.after(-1, SAMPLED_TEXTS)]
                unknown = unknown_share(tokenizer_of(index.embedder.model), texts)
        if plan.adds:
            remove_folder(plan.partial)
        else:
            with _without_writers(plan.target):
                if (plan.target / DATABASE).is_file():
                    # A private index stays private.
                    for path in plan.partial.iterdir():
                        keep_permissions(plan.target / DATABASE, path)
                    keep_permissions(plan.target, plan.partial)
                put_in_place(plan.partial, plan.target)
            with suppress(OSError):
                (plan.target / LOCK).unlink()
    except (InputError, OSError) as error:
        stored = _remove_if_empty(plan) if ours else 0
        said = str(error) if isinstance(error, InputError) else f"cannot write {plan.target}: {error}"
        hint = f"; {stored} documents are stored in {plan.partial}: continue with --resume" if stored else ""
        raise InputError(f"{said}{hint}") from None
    except BaseException:
        if ours:
            _remove_if_empty(plan)
        raise
    if plan.adds and plan.folders:
        with SearchIndex.open(plan.target, plan.model, backend=plan.backend) as index:
            synced = _sync(index, plan)
        run = replace(run, documents=run.documents + synced.documents)
    return Built(run.documents, unknown_share=unknown, folders=synced)


def _new_partial(plan: Plan) -> SearchIndex:
    assert plan.factory is not None
    assert plan.chunk is not None
    assert plan.dtype is not None
    try:
        factory = "Flat" if plan.adds else plan.factory
        return SearchIndex.create(plan.partial, plan.model, factory, plan.chunk, plan.backend, plan.dtype)
    except InputError:
        if not plan.partial.exists():
            raise
        # It did not exist when this build looked.
        raise InputError(f"{plan.target}: another build of it has just started; wait until it ends") from None


def _begun(plan: Plan) -> Run:
    """Return the run recorded in INDEX.partial, which must be one of this plan; record a new one if there is none."""
    with closing(DocumentStore(plan.partial / DATABASE)) as store:
        known = _recorded(store)
        if not known:
            run, next_id = Run(uuid.uuid4().hex, plan.signature), 0
            if plan.adds:
                with closing(DocumentStore(plan.target / DATABASE)) as target:
                    next_id = target.state().next_id
            with store.writing():
                store.finish(replace(store.state(), next_id=next_id))
                record(store, run)
            return run
    if known[-1].signature != plan.signature:
        raise InputError(
            f"{plan.partial}: was started with other sources or options; repeat those with --resume, or delete it"
        )
    return known[-1]


def _add_files(index: SearchIndex, plan: Plan, run: Run, documents: Iterator[Document]) -> Run:
    """Add the documents that are not yet stored, step by step, then build FAISS's file; return the finished run."""
    digest = hashlib.sha256()
    skipped = _hash_all(digest, islice(documents, run.documents))
    if (skipped, digest.hexdigest()) != (run.documents, run.digest or digest.hexdigest()):
        raise InputError(
            f"{', '.join(plan.sources)}: the input has changed since this build started; restore its first "
            f"{run.documents} documents, or delete {plan.partial} and start again"
        )
    count = None
    if plan.progress and isinstance(plan.embedded, Sized):
        count = len(plan.embedded)
    elif plan.progress and plan.embedded is None and not plan.reads_whole_files:
        count = estimated_count(plan.files)
    replacing = plan.mode == "upsert" or plan.embedded is not None
    with ExitStack() as stack:
        target = None
        if plan.adds and plan.mode == "append":
            target = stack.enter_context(closing(DocumentStore(plan.target / DATABASE)))
        meter = stack.enter_context(Meter("indexing", count, "documents", done=run.documents, shown=plan.progress))
        more = True
        while more:
            with index.writer.editing(tidy=False, counted=run.documents) as edit:
                began = time.monotonic()
                while more and not plan.steps.ends(edit.counted - run.documents, began):
                    some = list(islice(documents, plan.steps.batch))
                    if target is not None:
                        _require_new(target, some, edit.counted)
                    edit.add(some, replacing=replacing)
                    _hash_all(digest, some)
                    meter.update(len(some))
                    more = bool(some)
                run = replace(run, documents=edit.counted, digest=digest.hexdigest())
                record(edit.store, run)
        meter.now("finishing")
        if not run.documents:
            raise plan.no_documents()
        with closing(DocumentStore(plan.partial / DATABASE)) as store:
            index.writer.tidy(store)
            run = replace(run, finished=True)
            with store.writing():
                record(store, run)
    return run


def _hash_all(digest: Any, documents: Iterable[Document]) -> int:
    """Add documents to a hash, and return their number."""
    count = 0
    for document in documents:
        count += 1
        digest.update(_JSON.encode([document.text, document.id, document.metadata]).encode())
    return count


def _require_new(store: DocumentStore, documents: Sequence[Document], counted: int) -> None:
    """Refuse ids that the index already has, before their texts are embedded."""
    numbers = {
        checked_id(document.id, number): number
        for number, document in enumerate(documents, counted + 1)
        if document.id is not None
    }
    for taken in store.rows_of_ids(list(numbers)):
        raise TakenIdError(numbers[taken], taken)


def _add_folders(index: SearchIndex, plan: Plan, run: Run) -> tuple[Run, Synced]:
    """Add the documents of the plan's folders to INDEX.partial, and return the run and what was read."""
    # All files are stored; a resumed build must not read them again.
    run = replace(run, finished=True)

    def committing(edit: Edit, documents: int) -> None:
        nonlocal run
        run = replace(run, documents=run.documents + documents)
        record(edit.store, run)

    synced = _sync(index, plan, committing)
    if not index.count():
        raise InputError(
            f"{', '.join(plan.sources)}: no file that can be read; {synced.left_out or 'the folder is empty'}"
        )
    return run, synced


def _sync(index: SearchIndex, plan: Plan, committing: Callable[[Edit, int], None] | None = None) -> Synced:
    """Bring an index in step with the plan's folders; an option that is not given keeps its last value."""
    synced = Synced()
    for folder in plan.folders:
        synced += sync_folder(
            index,
            folder,
            include=plan.include or None,
            exclude=plan.exclude or None,
            documents=plan.documents,
            text_field=plan.text_field,
            follow_links=plan.follow_links,
            prefixed=len(plan.sources) > 1,
            committing=committing,
            progress=plan.progress,
            steps=plan.steps,
        )
    return synced


def _remove_if_empty(plan: Plan) -> int:
    """Remove INDEX.partial if no step of it was finished, and return the number of documents in it."""
    try:
        with closing(DocumentStore(plan.partial / DATABASE)) as store:
            stored = sum(run.documents for run in _recorded(store))
        if not stored:
            remove_folder(plan.partial)
    except (InputError, OSError):
        return 0
    return stored
