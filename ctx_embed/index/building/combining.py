"""An index made of others, with their vectors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path

import numpy as np

from ctx_embed.errors import InputError
from ctx_embed.files import replaced_folder
from ctx_embed.index.search_index import CHUNK_DOCUMENTS, SearchIndex
from ctx_embed.index.storage.folder import IndexFolder
from ctx_embed.index.storage.manifest import Manifest, read_manifest
from ctx_embed.index.writing.transaction import Copied


def merge_indexes(
    sources: Sequence[str | Path], path: str | Path, *, replace: bool = False, renumber: bool = False
) -> int:
    """Make one index of several that have the same model; nothing is embedded again, but passages without titles.

    Args:
        sources: two indexes or more. The first one's kind and data type are those of the new index.
        path: the folder of the new index.
        replace: a document replaces one that has its id in an earlier index.
        renumber: ids that are integers are numbered anew, in order; strings stay.

    Returns:
        The number of documents.

    Raises:
        InputError: fewer than two, of different models or chunking, an id that several have, or the folder is taken.
    """
    folders = [Path(source).absolute() for source in sources]
    if len(folders) < 2:
        raise InputError(f"merging needs two indexes or more, got {len(folders)}")
    manifests = [read_manifest(folder) for folder in folders]
    first = manifests[0]
    for folder, manifest in zip(folders[1:], manifests[1:], strict=True):
        for name, here, there in (
            ("the model", _model(first), _model(manifest)),
            ("chunk", repr(first.chunk), repr(manifest.chunk)),
        ):
            if here != there:
                raise InputError(f"{folder}: {name} must be that of {folders[0]}, {here}, got {there}")
    target = Path(path).absolute()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InputError(f"{target}: already exists; choose another name")
    documents = (document for folder in folders for document in _copied(folder, renumber))
    try:
        with (
            replaced_folder(target, new=True) as beside,
            SearchIndex.create(beside, first.model, first.factory, first.chunk, dtype=first.dtype) as index,
        ):
            with index.writer.editing() as edit:
                while some := list(islice(documents, CHUNK_DOCUMENTS)):
                    edit.add(some, replacing=replace)
            return index.count()
    except InputError as error:
        if "ids must be unique" not in str(error):
            raise
        raise InputError(f"{error}: --replace keeps the later document, --renumber numbers integers anew") from None


def _model(manifest: Manifest) -> str:
    return f"{manifest.model!r} (fingerprint {manifest.model_fingerprint[:12]}, dimension {manifest.dimension})"


def _copied(path: Path, renumber: bool) -> Iterator[Copied]:
    """Yield the documents of one state of an index, with their vectors."""
    folder = IndexFolder(path)
    untitled = folder.manifest.chunk.startswith("passages") and not folder.manifest.titled
    with closing(folder.documents) as store, store.reading():
        shards = store.shards()
        for document in store.all():
            yield Copied(
                document.text,
                None if renumber and isinstance(document.id, int) else document.id,
                document.metadata,
                spans=store.spans(document),
                # A new index embeds passages with titles.
                vectors=[None] * document.passages
                if untitled
                else folder.vectors.gather(shards, np.arange(document.row, document.row + document.passages)),
            )
