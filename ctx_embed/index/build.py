"""An index from a file of documents, whole or not at all: a new one, more of an old one, or one in its place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tqdm import tqdm

from ctx_embed.errors import InputError
from ctx_embed.files import replaced_folder, require_folder
from ctx_embed.index.documents import DocumentStore
from ctx_embed.index.manifest import CACHE, DOCUMENTS, MANIFEST, VECTORS, read_manifest
from ctx_embed.index.search_index import SearchIndex
from ctx_embed.texts import Document, read_documents

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

_OWN_FILES = {MANIFEST, DOCUMENTS, f"{DOCUMENTS}-wal", f"{DOCUMENTS}-shm", VECTORS, CACHE}


def build_index(
    source: str | Path,
    path: str | Path,
    *,
    mode: Literal["create", "append", "overwrite"] = "create",
    text_field: str = "text",
    model: str | Path | SentenceTransformer | None = None,
    factory: str | None = None,
    progress: bool = False,
) -> int:
    """Read documents, embed them and store them; when anything fails, ``path`` is as it was before.

    Args:
        source: a text or JSONL file, plain or gzip, or ``-``, see :func:`ctx_embed.texts.read_documents`.
        path: the folder of the index.
        mode: ``create`` needs that there is none yet, ``append`` adds to it, ``overwrite`` puts a new one in its place.
        text_field: the JSONL field that holds the text.
        model: as in :meth:`SearchIndex.create`; to append, as in :meth:`SearchIndex.open`.
        factory: the kind of FAISS index, by default ``Flat``, to append the one it has.
        progress: show a bar on standard error, where that is a terminal.

    Returns:
        The number of documents added.

    Raises:
        InputError: an input or an index that cannot be used, or a source without documents.
    """
    target = Path(path).absolute()
    if mode == "append":
        manifest = read_manifest(target)
        if factory not in (None, manifest.factory):
            raise InputError(
                f"{target}: its factory is {manifest.factory!r}, not {factory!r}: append without --factory"
            )
    else:
        _require_free(target, overwrite=mode == "overwrite")
    documents = _documents(source, text_field)
    bar = tqdm(documents, desc="indexing", unit=" documents", disable=None if progress else True)
    if mode == "append":
        with bar, SearchIndex.open(target, model) as index:
            return len(index.add_documents(bar))
    try:
        with (
            bar,
            _kept_from_writers(target),
            replaced_folder(target) as beside,
            SearchIndex.create(beside, model, factory or "Flat") as index,
        ):
            return len(index.add_documents(bar))
    except OSError as error:
        raise InputError(f"cannot write {target}: {error}") from None


def _require_free(target: Path, *, overwrite: bool) -> None:
    """Refuse to write over what is no index, and over an index unless that is wanted."""
    require_folder(target)
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return
    if not target.is_dir():
        raise InputError(f"{target}: a file, the index needs a folder of its own")
    if not {entry.name for entry in target.iterdir()} <= _OWN_FILES:
        raise InputError(f"{target}: a folder with other files than those of an index, choose another one")
    if not overwrite:
        raise InputError(f"{target}: exists already, add to it with --append or replace it with --overwrite")


@contextmanager
def _kept_from_writers(target: Path) -> Iterator[None]:
    """Be the writer of the index that is about to be replaced, so that nobody adds to it in vain."""
    try:
        store: DocumentStore | None = DocumentStore(target / DOCUMENTS)
    except InputError:
        # There is none, or it is damaged, and nobody can write to it.
        store = None
    if store is None:
        yield
    else:
        with closing(store), store.writing():
            yield


def _documents(source: str | Path, text_field: str) -> Iterator[Document]:
    """The documents, of which there is at least one: found out before anything is written or a model loaded."""
    documents = read_documents(source, text_field)
    first = next(documents, None)
    if first is None:
        raise InputError(f"{source}: no documents, at least one line of text is needed")
    return chain([first], documents)
