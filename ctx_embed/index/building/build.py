"""Build an index from files and folders. Each step is stored in INDEX.partial, so interrupted builds can resume."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING

from ctx_embed.documents.units import checked_unit
from ctx_embed.errors import InputError
from ctx_embed.files import require_folder
from ctx_embed.index.ann.factories import AUTO
from ctx_embed.index.building import partial
from ctx_embed.index.building.merging import add_build
from ctx_embed.index.building.partial import (
    Digest,
    Run,
    finished_before,
    only_build,
    publish,
    remove_if_empty,
    remove_stale,
    require_free,
)
from ctx_embed.index.building.plan import Plan
from ctx_embed.index.following.records import FolderOptions
from ctx_embed.index.following.report import Synced
from ctx_embed.index.following.sync import known_folder, require_source_folder, sync_folder
from ctx_embed.index.model import IndexModel
from ctx_embed.index.search_index import SearchIndex
from ctx_embed.index.storage.database import DATABASE
from ctx_embed.index.storage.documents import DocumentStore, checked_id
from ctx_embed.index.storage.folder import read_settings
from ctx_embed.index.storage.vectors import DEFAULT, checked_dtype
from ctx_embed.index.writing.transaction import Edit, Embedded, TakenIdError
from ctx_embed.index.writing.writer import STEPS, Steps
from ctx_embed.progress import Meter
from ctx_embed.text.unknown import SAMPLED_CHARACTERS, SAMPLED_TEXTS, tokenizer_of, unknown_share
from ctx_embed.texts import Document

if TYPE_CHECKING:
    from ctx_embed.index.model import Model


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


def build_index(
    sources: str | Path | Sequence[str | Path],
    path: str | Path,
    *,
    mode: str = "create",
    resume: bool = False,
    text_field: str | None = None,
    embedding_field: str | None = None,
    model: str | Path | Model | None = None,
    factory: str | None = None,
    chunk: str | None = None,
    backend: str | None = None,
    dtype: str | None = None,
    documents: str | None = None,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    follow_links: bool | None = None,
    encoding: str | None = None,
    embedded: Iterable[Embedded] | None = None,
    progress: bool = False,
    steps: Steps = STEPS,
) -> Built:
    """Read documents, embed them and store them in an index; ``path`` changes once, when everything is ready.

    Until then, finished work is stored in ``path`` + ``.partial``, in steps of a few seconds. An index follows the
    folders among its sources: a build of a folder that the index knows, and any addition of a folder, changes the index
    in place, see :meth:`SearchIndex.sync`.

    Args:
        sources: folders, and files or ``-``, see :func:`ctx_embed.index.building.readers.read_sources`.
        path: the folder of the index.
        mode: ``create`` makes a new index and fails if there is one; ``append`` adds to an index; ``upsert`` adds to
            it and replaces documents with the same ids; ``overwrite`` replaces the index. If there is no index yet, all
            make one.
        resume: whether to continue an interrupted build of the same sources and options. If there is none, the build
            starts from the beginning; if it was finished, nothing is done.
        text_field: the field with the text; None: ``text``.
        embedding_field: the field with embeddings made by the model; None embeds the texts.
        model: as in :meth:`SearchIndex.create`; when adding, as in :meth:`SearchIndex.open`.
        factory: the kind of FAISS index; None: ``auto``, or the kind of the index that is added to.
        chunk: how documents are cut into passages, see :meth:`SearchIndex.create`; by default ``none`` for lines and
            records, ``passages`` if there are folders or whole files; when adding, as in the index.
        backend: as in :meth:`SearchIndex.create`.
        dtype: the data type of the vectors, as in :meth:`SearchIndex.create`; None: ``float32``, or that of the index.
        documents: the unit that becomes a document: ``files``, ``paragraphs``, ``lines`` or ``records``. None: in
            folders, files and records that have a text; in named files of plain text, lines and records.
        include: globs such as ``*.md``; files of folders must match one.
        exclude: globs of files and folders to leave out of folders.
        follow_links: whether to read files outside a folder to which links in it point; None: as in the last run.
        encoding: the encoding of named files of plain text; None: UTF-8. In folders encodings are detected.
        embedded: documents with their vectors, in the same order at every iteration; the last document with an id is
            stored. ``sources`` then only names them, and is not read.
        progress: whether to show progress on standard error.
        steps: how often to commit.

    Raises:
        InputError: an input or the index cannot be used, the sources have no documents or have changed since the build
            started, or an interrupted build exists and ``resume`` is not set.
    """
    listed = [sources] if isinstance(sources, str | Path) else list(sources)
    # A link to an index stays; what it points to is replaced.
    target = Path(os.path.realpath(path) if Path(path).is_symlink() else path).absolute()
    adds = mode in ("append", "upsert") and target.exists() and not (target.is_dir() and not any(target.iterdir()))
    if adds:
        settings = read_settings(target)
        for name, given, there in (
            ("factory", factory, settings.factory),
            ("chunk", chunk, settings.chunk),
            ("dtype", dtype, settings.dtype),
        ):
            if given not in (None, there):
                raise InputError(f"{target}: {name} must be {there!r}, got {given!r}; leave --{name} out")
        factory, chunk, dtype = settings.factory, settings.chunk, settings.dtype
        model = settings.model if model is None else model
    plan = Plan(
        sources=[str(name) for name in listed],
        target=target,
        mode=mode,
        adds=adds,
        text_field=text_field,
        embedding_field=embedding_field,
        model=model,
        factory=factory or AUTO,
        chunk=chunk or "none",
        backend=backend,
        dtype=checked_dtype(dtype or DEFAULT),
        options=FolderOptions(tuple(include), tuple(exclude), checked_unit(documents), text_field),
        follow_links=follow_links,
        encoding=encoding,
        embedded=embedded,
        progress=progress,
        steps=steps,
    )
    _check_sources(plan)
    if chunk is None and (plan.folders or plan.reads_whole_files):
        plan = replace(plan, chunk="passages")
    if plan.folders and not plan.files and (plan.adds or (mode == "create" and _follows(plan))):
        with SearchIndex.open(target, plan.model, backend=backend) as index:
            synced = _sync(index, plan)
        return Built(synced.documents, folders=synced)
    remove_stale(plan, resume)
    if resume and not plan.partial.exists() and (finished := finished_before(plan)) is not None:
        return Built(finished.documents, was_complete=True)
    if not plan.adds:
        require_free(plan)
    return _build(plan)


def _check_sources(plan: Plan) -> None:
    if not plan.sources:
        raise InputError("no source of documents: give a file, a folder or - (standard input)")
    if plan.files.count("-") > 1:
        raise InputError("standard input is named twice, but can be read only once")
    if plan.folders and plan.embedding_field is not None:
        raise InputError(f"{plan.folders[0]}: --embedding-field needs files, got a folder; name its files")
    for folder in plan.folders:
        require_source_folder(folder)
    if not plan.folders and (plan.options.include or plan.options.exclude or plan.follow_links is not None):
        raise InputError("--include, --exclude and --follow-links choose files of a folder; name one")


def _follows(plan: Plan) -> bool:
    """Return whether there is an index that follows all folders of the plan."""
    if not (plan.target / DATABASE).is_file():
        return False
    with closing(DocumentStore(plan.target / DATABASE)) as store:
        return all(known_folder(store, folder) is not None for folder in plan.folders)


def _build(plan: Plan) -> Built:
    """Fill INDEX.partial, resuming an earlier run if there is one; then make it INDEX, or add it to INDEX."""
    documents = plan.documents()
    if plan.files and not plan.partial.exists():
        # Fail on empty sources before anything is written or a model is loaded.
        documents = _require_some(documents, plan)
    # Set once INDEX.partial is locked, so that the work of another build is never removed.
    ours, synced = False, None
    try:
        with ExitStack() as stack:
            if plan.partial.exists():
                stack.enter_context(only_build(plan.partial))
                ours = True
                index = stack.enter_context(SearchIndex.open(plan.partial, plan.model, backend=plan.backend))
            else:
                require_folder(plan.target)
                index = stack.enter_context(_new_partial(plan))
                stack.enter_context(only_build(plan.partial))
                ours = True
                if plan.adds:
                    IndexModel.require(plan.target, read_settings(plan.target), index.embedder)
            run = _begun(plan)
            if plan.files and not run.finished:
                run = _add_files(index, plan, run, documents)
            if plan.adds:
                add_build(index, plan.target, run, replacing=plan.mode == "upsert")
            elif plan.folders:
                run, synced = _add_folders(index, plan, run)
            unknown = _unknown_share(index, plan)
        publish(plan)
    except (InputError, OSError) as error:
        stored = remove_if_empty(plan) if ours else 0
        said = str(error) if isinstance(error, InputError) else f"cannot write {plan.target}: {error}"
        hint = f"; {stored} documents are stored in {plan.partial}: continue with --resume" if stored else ""
        raise InputError(f"{said}{hint}") from None
    except BaseException:
        if ours:
            remove_if_empty(plan)
        raise
    if plan.adds and plan.folders:
        with SearchIndex.open(plan.target, plan.model, backend=plan.backend) as index:
            synced = _sync(index, plan)
        run = replace(run, documents=run.documents + synced.documents)
    return Built(run.documents, unknown_share=unknown, folders=synced)


def _require_some(documents: Iterator[Document], plan: Plan) -> Iterator[Document]:
    """Return the documents unchanged, after checking that there is at least one.

    Raises:
        InputError: there are none.
    """
    first = next(documents, None)
    if first is None:
        raise _no_documents(plan)
    return chain([first], documents)


def _no_documents(plan: Plan) -> InputError:
    return InputError(f"{plan.named}: no documents; give at least one line of text")


def _new_partial(plan: Plan) -> SearchIndex:
    try:
        factory = "Flat" if plan.adds else plan.factory
        return SearchIndex.create(plan.partial, plan.model, factory, plan.chunk, plan.backend, plan.dtype)
    except InputError:
        if not plan.partial.exists():
            raise
        # It did not exist when this build looked.
        raise InputError(f"{plan.target}: another build of it has just started; wait until it ends") from None


def _begun(plan: Plan) -> Run:
    """Return the run recorded in INDEX.partial; record a new one if there is none.

    Raises:
        InputError: the run there has other sources or options.
    """
    with closing(DocumentStore(plan.partial / DATABASE)) as store:
        known = partial.recorded(store)
        if not known:
            run = Run(uuid.uuid4().hex, plan.signature)
            next_id = 0
            if plan.adds:
                with closing(DocumentStore(plan.target / DATABASE)) as target:
                    next_id = target.state().next_id
            partial.begin(store, run, next_id)
            return run
    if known[-1].signature != plan.signature:
        raise InputError(
            f"{plan.partial}: was started with other sources or options; repeat those with --resume, or delete it"
        )
    return known[-1]


def _add_files(index: SearchIndex, plan: Plan, run: Run, documents: Iterator[Document]) -> Run:
    """Add the documents that are not yet stored, step by step, then build FAISS's file; return the finished run."""
    digest = Digest()
    skipped = digest.update(islice(documents, run.documents))
    if (skipped, digest.hexdigest()) != (run.documents, run.digest or digest.hexdigest()):
        raise InputError(
            f"{plan.named}: the input has changed since this build started; restore its first "
            f"{run.documents} documents, or delete {plan.partial} and start again"
        )
    with ExitStack() as stack:
        target = DocumentStore(plan.target / DATABASE) if plan.adds and plan.mode == "append" else None
        if target is not None:
            stack.enter_context(closing(target))
        meter = stack.enter_context(
            Meter("indexing", plan.estimated_count(), "documents", done=run.documents, shown=plan.progress)
        )
        more = True
        while more:
            with index.writer.editing(tidy=False, counted=run.documents) as edit:
                began = time.monotonic()
                while more and not plan.steps.ends(edit.counted - run.documents, began):
                    some = list(islice(documents, plan.steps.batch))
                    if target is not None:
                        _require_new(target, some, edit.counted)
                    edit.add(some, replacing=plan.replaces)
                    digest.update(some)
                    meter.update(len(some))
                    more = bool(some)
                run = replace(run, documents=edit.counted, digest=digest.hexdigest())
                partial.record(edit.store, run)
        meter.now("finishing")
        if not run.documents:
            raise _no_documents(plan)
        with closing(DocumentStore(plan.partial / DATABASE)) as store:
            index.writer.tidy(store)
            run = replace(run, finished=True)
            with store.writing():
                partial.record(store, run)
    return run


def _require_new(store: DocumentStore, documents: Sequence[Document], counted: int) -> None:
    """Refuse ids that the index already has, before their texts are embedded.

    Raises:
        TakenIdError: an id is taken.
    """
    numbers = {
        checked_id(document.id, number): number
        for number, document in enumerate(documents, counted + 1)
        if document.id is not None
    }
    for taken in store.find(list(numbers)):
        raise TakenIdError(numbers[taken], taken)


def _add_folders(index: SearchIndex, plan: Plan, run: Run) -> tuple[Run, Synced]:
    """Add the documents of the plan's folders to INDEX.partial, and return the run and what was read.

    Raises:
        InputError: there are no documents at all.
    """
    # All files are stored; a resumed build must not read them again.
    run = replace(run, finished=True)

    def committing(edit: Edit, documents: int) -> None:
        nonlocal run
        run = replace(run, documents=run.documents + documents)
        partial.record(edit.store, run)

    synced = _sync(index, plan, committing)
    if not index.count():
        raise InputError(f"{plan.named}: no file that can be read; {synced.left_out or 'the folder is empty'}")
    return run, synced


def _sync(index: SearchIndex, plan: Plan, committing: Callable[[Edit, int], None] | None = None) -> Synced:
    """Bring an index in step with the plan's folders; an option that is not given keeps its last value."""
    synced = Synced()
    for folder in plan.folders:
        synced += sync_folder(
            index,
            folder,
            include=plan.options.include or None,
            exclude=plan.options.exclude or None,
            documents=plan.options.documents,
            text_field=plan.options.text_field,
            follow_links=plan.follow_links,
            prefixed=len(plan.sources) > 1,
            committing=committing,
            progress=plan.progress,
            steps=plan.steps,
        )
    return synced


def _unknown_share(index: SearchIndex, plan: Plan) -> float:
    """Return the share of unknown tokens in the first documents of INDEX.partial; 0 if the build embedded none."""
    if plan.embedding_field is not None or plan.embedded is not None:
        return 0.0
    with closing(DocumentStore(index.path / DATABASE)) as store:
        texts = [document.text[:SAMPLED_CHARACTERS] for document in store.after(-1, SAMPLED_TEXTS)]
    return unknown_share(tokenizer_of(index.embedder.model), texts)
