"""Merge indexes with their vectors."""

import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace as replaced
from pathlib import Path

import numpy as np

from ctx_embed.errors import InputError
from ctx_embed.files import replaced_folder
from ctx_embed.index.search_index import SearchIndex
from ctx_embed.index.storage.database import Database
from ctx_embed.index.storage.folder import IndexFolder, VectorTable, read_settings, require_free
from ctx_embed.index.writing.writer import TakenIdError
from ctx_embed.progress import Meter
from ctx_embed.texts import Embedded


def merge_indexes(
    sources: Sequence[str | Path], path: str | Path, *, replace: bool = False, progress: bool = False
) -> int:
    """Merge several indexes with the same model into one; documents without ids of their own are numbered anew.

    Args:
        sources: two indexes or more. The new index gets the FAISS factory and the data type of the first one.
        path: the folder of the new index.
        replace: whether a document replaces the one that has its id in an earlier index.
        progress: whether to show progress on standard error.

    Returns:
        The number of documents.
    """
    folders = [Path(source).absolute() for source in sources]
    if len(folders) < 2:
        raise InputError(f"merging needs two indexes or more, got {len(folders)}")
    first, *others = [read_settings(folder) for folder in folders]
    model, *models = [
        f"{of.model!r} (fingerprint {of.model_fingerprint[:12]}, dimension {of.dimension})" for of in (first, *others)
    ]
    for folder, settings, its_model in zip(folders[1:], others, models, strict=True):
        for name, here, there in (("the model", model, its_model), ("chunk", repr(first.chunk), repr(settings.chunk))):
            if here != there:
                raise InputError(f"{folder}: {name} must be that of {folders[0]}, {here}, got {there}")
    target = Path(path).absolute()
    require_free(target)
    # Skip numbers that another document was given as its id.
    select = "SELECT max(id) FROM documents WHERE typeof(id) = 'integer' AND id NOT IN (SELECT id FROM automatic)"
    next_id = 0
    for folder in folders:
        with closing(Database(folder)) as store:
            (largest,) = store.run_one(select)
            next_id = max(next_id, 0 if largest is None else largest + 1)
    try:
        with replaced_folder(target, new=True) as beside:
            Database.create(beside, replaced(first, index_id=uuid.uuid4().hex, table=1))
            with SearchIndex.open(beside) as index:
                with index.writer.editing() as edit, Meter("merging", unit="documents", shown=progress) as meter:
                    edit.state = replaced(edit.state, next_id=next_id)
                    for folder in folders:
                        edit.add_all(meter.each(copies(folder)), replacing=replace)
                    meter.now("finishing")
                return index.count()
    except TakenIdError as error:
        owners = []
        for folder in folders:
            with closing(Database(folder)) as store:
                owners += [str(folder)] if store.rows_of_ids([error.identifier]) else []
        raise InputError(
            f"{' and '.join(owners[:2])} both have a document {error.identifier!r}; --replace keeps the later one"
        ) from None


def copies(path: Path) -> Iterator[Embedded]:
    """Yield the documents of one state of an index, as passages; ids that the index has numbered become None."""
    with closing(IndexFolder(path)) as store, store.reading():
        vectors = VectorTable(store, store.present())
        for document in store.all():
            rows = np.arange(document.row, document.row + document.passages)
            identifier = None if store.automatic([document.id]) else document.id
            yield Embedded(document.text, identifier, document.metadata, vectors.get(rows), document.spans)
