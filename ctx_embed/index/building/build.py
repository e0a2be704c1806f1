"""Build an index from files of documents. Each step is stored in INDEX.partial, so interrupted builds can resume."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING

from ctx_embed.documents.units import checked_unit
from ctx_embed.errors import InputError
from ctx_embed.files import require_folder
from ctx_embed.index.ann.factories import AUTO
from ctx_embed.index.building import progress
from ctx_embed.index.building.merging import merge
from ctx_embed.index.building.plan import (
    Plan,
    drop_if_empty,
    finished_before,
    make_way,
    only_build,
    place,
    require_free,
)
from ctx_embed.index.building.readers import is_structured, read_sources
from ctx_embed.index.following.folders import Options
from ctx_embed.index.following.sync import Synced, known_folder, merged_options, require_source_folder, sync_folder
from ctx_embed.index.search_index import CHUNK_DOCUMENTS, SearchIndex
from ctx_embed.index.storage.documents import DocumentStore, checked_id
from ctx_embed.index.storage.dtypes import DEFAULT, checked_dtype
from ctx_embed.index.storage.manifest import DOCUMENTS, MANIFEST, read_manifest
from ctx_embed.index.writing.transaction import Edit, Embedded
from ctx_embed.progress import Meter
from ctx_embed.reading import estimated_count
from ctx_embed.text.unknown import SAMPLED_CHARACTERS, SAMPLED_TEXTS, sample, tokenizer_of, unknown_share
from ctx_embed.texts import Document

if TYPE_CHECKING:
    from ctx_embed.index.embedder import Model

# A step is committed after this number of documents or seconds.
STEP_DOCUMENTS, STEP_SECONDS = 16_384, 5.0
MODES = ("create", "append", "upsert", "overwrite")


@dataclass(frozen=True)
class Built:
    """The result of a build.

    Args:
        documents: the number of documents read from the sources.
        was_complete: whether an earlier run had already finished the build.
        unknown_share: the share of the first documents' tokens that the model does not know; 0 if the documents came
            with embeddings.
        folders: what was read of folders, and what was not; None if no source is a folder.
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
    encoding: str | None = None,
    embedded: Iterable[Embedded] | None = None,
    progress: bool = False,
) -> Built:
    """Read documents, embed them and store them in an index; ``path`` changes once, when everything is ready.

    Until then, finished work is stored in ``path`` + ``.partial``, in steps of a few seconds. An index follows the
    folders among its sources: a build of a folder that the index knows, and any addition of a folder, changes the index
    in place, see :meth:`SearchIndex.sync`.

    Args:
        sources: folders, and files or ``-``, see :func:`ctx_embed.index.building.readers.read_sources`.
        path: the folder of the index.
        mode: ``create`` makes a new index and fails if there is one; ``append`` adds to an index; ``upsert`` adds to
            it and replaces documents with the same ids; ``overwrite`` replaces the index.
        resume: whether to continue an interrupted build of the same sources and options. If there is none, the build
            starts from the beginning; if it was finished, nothing is done.
        text_field: the field with the text; None: ``text``.
        embedding_field: the field with embeddings made by the model; None embeds the texts.
        model: as in :meth:`SearchIndex.create`; when adding, as in :meth:`SearchIndex.open`.
        factory: the kind of FAISS index, by default ``auto``; when adding, that of the index.
        chunk: how documents are cut into passages, see :meth:`SearchIndex.create`; by default ``none`` for lines and
            records, ``passages`` if there are folders or whole files; when adding, as in the index.
        backend: as in :meth:`SearchIndex.create`.
        dtype: the data type of the vectors, as in :meth:`SearchIndex.create`; when adding, that of the index.
        documents: what becomes a document: ``files``, ``paragraphs``, ``lines`` or ``records``. None: in a folder
            files, and records that have a text; of named files lines and records, if they are plain text.
        include: globs such as ``*.md``, one of which the files of folders must match.
        exclude: globs of files and folders in folders to leave out.
        encoding: of files that are named and plain text; None: UTF-8. In folders encodings are detected.
        embedded: documents with their vectors, in the same order at every iteration; of those with one id the last is
            stored. ``sources`` then only names them, and is not read.
        progress: whether to show a progress bar on standard error, if that is a terminal.

    Raises:
        InputError: an input or the index cannot be used, the sources have no documents or have changed since the build
            started, or an interrupted build exists and ``resume`` is not set.
    """
    listed = [sources] if isinstance(sources, str | Path) else list(sources)
    target = Path(path).absolute()
    if target.is_symlink():
        # Keep the link, and replace what it points to.
        target = Path(os.path.realpath(target))
    if mode in ("append", "upsert"):
        manifest = read_manifest(target)
        for name, given, there in (
            ("factory", factory, manifest.factory),
            ("chunk", chunk, manifest.chunk),
            ("dtype", dtype, manifest.dtype),
        ):
            if given not in (None, there):
                raise InputError(f"{target}: {name} must be {there!r}, got {given!r}; leave --{name} out")
        factory, chunk, dtype = manifest.factory, manifest.chunk, manifest.dtype
        model = manifest.model if model is None else model
    plan = Plan(
        [str(name) for name in listed],
        target,
        mode,
        text_field,
        embedding_field,
        model,
        factory or AUTO,
        chunk or "none",
        backend,
        checked_dtype(dtype or DEFAULT),
        progress,
        Options(tuple(include), tuple(exclude), checked_unit(documents), text_field),
        encoding,
        embedded,
    )
    _check_sources(plan)
    if chunk is None and (plan.folders or _has_structured(plan)):
        plan = replace(plan, chunk="passages")
    if plan.folders and not plan.files and (plan.adds or (mode == "create" and _follows(plan))):
        with SearchIndex.open(target, plan.model, backend=backend) as index:
            synced = _synced(index, plan)
        return Built(synced.documents, folders=synced)
    make_way(plan, resume)
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
    if not plan.folders and (plan.options.include or plan.options.exclude):
        raise InputError("--include and --exclude choose files of a folder; name one")


def _has_structured(plan: Plan) -> bool:
    return plan.embedded is None and any(is_structured(file, plan.options.documents) for file in plan.files)


def _follows(plan: Plan) -> bool:
    """Return whether there is an index that follows all folders of the plan."""
    if not (plan.target / MANIFEST).is_file():
        return False
    with closing(DocumentStore(plan.target / DOCUMENTS)) as store:
        return all(known_folder(store, folder) is not None for folder in plan.folders)


def _synced(index: SearchIndex, plan: Plan, committing: Callable[[Edit, int], None] | None = None) -> Synced:
    """Bring an index in step with the folders of the plan; options that are not given are those of the last run."""
    found = Synced()
    given = plan.options
    for folder in plan.folders:
        options = merged_options(
            index, folder, given.include or None, given.exclude or None, given.documents, given.text_field
        )
        found += sync_folder(
            index,
            folder,
            options,
            prefixed=len(plan.sources) > 1,
            committing=committing,
            progress=plan.progress,
        )
    return found


def _documents(plan: Plan) -> Iterator[Document]:
    if plan.embedded is not None:
        return iter(plan.embedded)
    return read_sources(plan.files, plan.text_field, plan.embedding_field, plan.options.documents, plan.encoding)


def _build(plan: Plan) -> Built:
    documents = _documents(plan)
    if plan.files and not plan.partial.exists():
        # Fail on empty sources before anything is written or a model is loaded.
        documents = _some(documents, plan.sources)
    ours, unknown, synced = False, 0.0, None
    try:
        with ExitStack() as stack:
            if not plan.partial.exists():
                require_folder(plan.target)
                index = stack.enter_context(_new_partial(plan))
                stack.enter_context(only_build(plan.partial))
                ours = True
                if plan.adds:
                    _require_same_model(index, plan)
            else:
                stack.enter_context(only_build(plan.partial))
                ours = True
                index = stack.enter_context(SearchIndex.open(plan.partial, plan.model, backend=plan.backend))
            state = _begun(index, plan)
            if not state.finished:
                first: list[str] = []
                if plan.files:
                    state = _fill(index, plan, state, _noting(documents, first))
                if plan.embedding_field is None and plan.embedded is None:
                    unknown = unknown_share(tokenizer_of(index.embedder.model), sample(first))
            if plan.adds:
                merge(index, plan.target, state, replacing=plan.mode == "upsert")
            elif plan.folders:
                state, synced = _fill_from_folders(index, plan, state)
                unknown = max(unknown, unknown_share(tokenizer_of(index.embedder.model), _first_texts(index)))
        place(plan)
    except (InputError, OSError) as error:
        # Never remove what another build has stored.
        kept = drop_if_empty(plan) if ours else 0
        said = str(error) if isinstance(error, InputError) else f"cannot write {plan.target}: {error}"
        hint = f"; {kept} documents are stored in {plan.partial}: continue with --resume" if kept else ""
        raise InputError(f"{said}{hint}") from None
    except BaseException:
        if ours:
            drop_if_empty(plan)
        raise
    if plan.adds and plan.folders:
        with SearchIndex.open(plan.target, plan.model, backend=plan.backend) as index:
            synced = _synced(index, plan)
        state = replace(state, documents=state.documents + synced.documents)
    return Built(state.documents, unknown_share=unknown, folders=synced)


def _fill_from_folders(index: SearchIndex, plan: Plan, state: progress.Progress) -> tuple[progress.Progress, Synced]:
    """Add the documents of the plan's folders to INDEX.partial, and return the progress and what was read.

    Raises:
        InputError: there are no documents at all.
    """
    # The files are done: a build that is resumed must not read them again.
    state = replace(state, finished=True)

    def committing(edit: Edit, documents: int) -> None:
        nonlocal state
        state = replace(state, documents=state.documents + documents)
        progress.record(edit.store, state)

    synced = _synced(index, plan, committing)
    if not index.count():
        raise InputError(
            f"{', '.join(plan.sources)}: no file that can be read; {synced.left_out or 'the folder is empty'}"
        )
    return state, synced


def _first_texts(index: SearchIndex) -> list[str]:
    with closing(DocumentStore(index.path / DOCUMENTS)) as store:
        return [document.text[:SAMPLED_CHARACTERS] for document in store.after(-1, SAMPLED_TEXTS)]


def _noting(documents: Iterator[Document], texts: list[str]) -> Iterator[Document]:
    """Yield documents, and append the texts of the first ones to ``texts``."""
    for document in documents:
        if len(texts) < SAMPLED_TEXTS:
            texts.append(document.text)
        yield document


def _new_partial(plan: Plan) -> SearchIndex:
    try:
        factory = "Flat" if plan.adds else plan.factory
        return SearchIndex.create(plan.partial, plan.model, factory, plan.chunk, plan.backend, plan.dtype)
    except InputError:
        if not plan.partial.exists():
            raise
        # It did not exist a moment ago.
        raise InputError(f"{plan.target}: another build of it has just started; wait until it ends") from None


def _fill(index: SearchIndex, plan: Plan, state: progress.Progress, documents: Iterator[Document]) -> progress.Progress:
    """Add the documents that are not yet stored, step by step, then build FAISS's file; return the progress."""
    digest = progress.Digest()
    done = 0
    for document in islice(documents, state.documents):
        digest.update(document)
        done += 1
    if (done, digest.hexdigest()) != (state.documents, state.digest or digest.hexdigest()):
        raise InputError(
            f"{', '.join(plan.sources)}: the input has changed since this build started; restore its first "
            f"{state.documents} documents, or delete {plan.partial} and start again"
        )
    others = closing(DocumentStore(plan.target / DOCUMENTS)) if plan.mode == "append" else None
    with ExitStack() as stack:
        taken = stack.enter_context(others) if others else None
        meter = stack.enter_context(Meter("indexing", _total(plan), "documents", done=done, shown=plan.progress))
        more = True
        while more:
            with index.writer.editing(tidy=False, counted=state.documents) as edit:
                begun = time.monotonic()
                while edit.counted - state.documents < STEP_DOCUMENTS and time.monotonic() - begun < STEP_SECONDS:
                    chunk = list(islice(documents, CHUNK_DOCUMENTS))
                    if not chunk:
                        more = False
                        break
                    if taken is not None:
                        _require_new(taken, chunk, edit.counted)
                    ids = edit.add(chunk, replacing=plan.replaces)
                    if plan.adds:
                        pairs = list(zip(ids, chunk, strict=True))
                        progress.mark_given(edit.store, [name for name, document in pairs if document.id is not None])
                        progress.mark_automatic(edit.store, [name for name, document in pairs if document.id is None])
                    for document in chunk:
                        digest.update(document)
                    meter.update(len(chunk))
                state = replace(state, documents=edit.counted, digest=digest.hexdigest())
                progress.record(edit.store, state)
            edit.vectors.remove_unlisted(edit.shards)
        meter.now("finishing")
    with closing(DocumentStore(plan.partial / DOCUMENTS)) as store:
        if not state.documents:
            raise InputError(_no_documents(plan.sources))
        index.writer.tidy(store)
        state = replace(state, finished=True)
        with store.writing():
            progress.record(store, state)
    return state


def _total(plan: Plan) -> int | None:
    """Return about how many documents there are, for the progress bar; None if unknown."""
    if not plan.progress or _has_structured(plan):
        return None
    if plan.embedded is not None:
        return len(plan.embedded) if isinstance(plan.embedded, Sized) else None
    return estimated_count(plan.files)


def _begun(index: SearchIndex, plan: Plan) -> progress.Progress:
    """Return the progress of the build in INDEX.partial; record a new build if there is none.

    Raises:
        InputError: the build there has other sources or options.
    """
    with closing(DocumentStore(plan.partial / DOCUMENTS)) as store:
        known = progress.builds(store)
        if not known:
            state = progress.Progress(uuid.uuid4().hex, plan.signature)
            next_id = 0
            if plan.adds:
                with closing(DocumentStore(plan.target / DOCUMENTS)) as target:
                    next_id = target.state().next_id
            progress.begin(store, state, next_id)
            return state
    if known[-1].signature != plan.signature:
        raise InputError(
            f"{plan.partial}: was started with other sources or options; repeat those with --resume, or delete it"
        )
    return known[-1]


def _require_same_model(index: SearchIndex, plan: Plan) -> None:
    from ctx_embed.index.embedder import Embedder

    Embedder.require(plan.target, read_manifest(plan.target), index.embedder)


def _require_new(store: DocumentStore, documents: Sequence[Document], counted: int) -> None:
    """Raise an error for ids that the index already has, before their texts are embedded.

    Raises:
        InputError: an id is taken.
    """
    numbers = {
        checked_id(document.id, number): number
        for number, document in enumerate(documents, counted + 1)
        if document.id is not None
    }
    for taken in store.find(list(numbers)):
        raise InputError(f"document {numbers[taken]}: the id {taken!r} is already in the index; ids must be unique")


def _some(documents: Iterator[Document], sources: Sequence[str]) -> Iterator[Document]:
    """Return the same documents, at least one.

    Raises:
        InputError: there are none.
    """
    first = next(documents, None)
    if first is None:
        raise InputError(_no_documents(sources))
    return chain([first], documents)


def _no_documents(sources: Sequence[str]) -> str:
    return f"{', '.join(sources)}: no documents; give at least one line of text"
