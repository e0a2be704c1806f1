"""Documents with their vectors out of an index and into one: .npy with JSONL, and data sets of Hugging Face."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ctx_embed.errors import InputError
from ctx_embed.files import replaced_file, require_file
from ctx_embed.index.building.readers import unwrapped
from ctx_embed.index.search_index import SearchIndex
from ctx_embed.index.storage.folder import IndexFolder
from ctx_embed.index.storage.snapshot import Snapshot
from ctx_embed.index.writing.transaction import Embedded

if TYPE_CHECKING:
    from datasets import Dataset

ROWS_AT_ONCE = 2048


def _passages(folder: IndexFolder) -> Iterator[tuple[int, dict[str, Any]]]:
    """The passages in the order of rows, inside :meth:`IndexFolder.read`."""
    for document in folder.documents.all():
        for row, (start, stop) in enumerate(folder.documents.spans(document), document.row):
            passage: dict[str, Any] = {"id": document.id, "text": document.text[start:stop]}
            if document.passages > 1:
                passage["start"] = start
            yield row, {**passage, "metadata": document.metadata}


def export_index(folder: IndexFolder, output: Path) -> int:
    """Write the vectors to ``output`` + ``.npy`` and the passages to ``output`` + ``.jsonl``, line i for row i.

    A line has the fields id, text and metadata, and start where a document has several passages.

    Returns:
        The number of rows, a float32 array (rows, dimension) of unit vectors.

    Raises:
        InputError: the files cannot be written, or the index is damaged.
    """
    vectors_path, texts_path = (output.with_name(output.name + suffix) for suffix in (".npy", ".jsonl"))
    require_file(vectors_path)
    require_file(texts_path)

    def write(snapshot: Snapshot) -> int:
        count = snapshot.rows - folder.documents.deleted_rows()
        with (
            replaced_file(vectors_path) as vectors,
            replaced_file(texts_path) as texts,
            vectors.open("wb") as array,
            texts.open("w", encoding="utf-8") as lines,
        ):
            header = {"descr": "<f4", "fortran_order": False, "shape": (count, folder.manifest.dimension)}
            np.lib.format.write_array_header_1_0(array, header)
            passages = _passages(folder)
            while part := list(islice(passages, ROWS_AT_ONCE)):
                rows = np.array([row for row, _ in part])
                array.write(folder.vectors.gather(snapshot.shards, rows).astype("<f4").tobytes())
                lines.writelines(json.dumps(passage, ensure_ascii=False) + "\n" for _, passage in part)
        return count

    return folder.read(write)


def to_dataset(index: SearchIndex, embedding: str = "embedding") -> Dataset:
    """The passages of an index as a data set of Hugging Face, with a column of embeddings and metadata as JSON.

    Args:
        index: read as it is now; all ids are of one type, as a column needs it.
        embedding: the name of the column.

    Raises:
        InputError: ids of both types, or a damaged file.
    """
    from datasets import Dataset

    folder = IndexFolder(index.path)

    def rows(snapshot: Snapshot) -> list[dict[str, Any]]:
        passages = list(_passages(folder))
        vectors = folder.vectors.gather(snapshot.shards, np.array([row for row, _ in passages], np.int64))
        return [{**passage, embedding: vector} for (_, passage), vector in zip(passages, vectors, strict=True)]

    try:
        found = folder.read(rows)
    finally:
        folder.documents.close()
    if len({type(row["id"]) for row in found}) > 1:
        raise InputError(f"{index.path}: has integers and strings as ids, a data set needs one of them")
    # A column that the first row lacks would be left out of all.
    start = {"start": 0} if any("start" in row for row in found) else {}
    return Dataset.from_list(
        [{**start, **row, "metadata": json.dumps(row["metadata"], ensure_ascii=False)} for row in found]
    )


def add_dataset(
    index: SearchIndex,
    dataset: Any,
    text: str = "text",
    embedding: str | None = "embedding",
    identifier: str | None = None,
) -> int:
    """Add the rows of a data set of Hugging Face; the columns beside these become metadata.

    A column ``metadata`` of JSON objects that stands alone is the metadata itself, as :func:`to_dataset` writes it.

    Args:
        index: whose model made the embeddings.
        dataset: one split, loaded or streamed.
        text: the column of texts.
        embedding: the column of embeddings; None: the texts are embedded.
        identifier: the column of ids; None: they are counted.

    Returns:
        The number of documents added.

    Raises:
        InputError: a column is missing, or as :meth:`SearchIndex.add`.
    """

    if isinstance(dataset, dict):
        raise InputError(f"the data set has splits, choose one of {', '.join(map(repr, dataset))}")

    def documents() -> Iterator[Embedded]:
        for number, row in enumerate(dataset, 1):
            values = dict(row)
            for column in (text, embedding, identifier):
                if column is not None and column not in values:
                    names = ", ".join(map(repr, row))
                    raise InputError(f"row {number} of the data set: no column {column!r} (columns: {names})")
            vector = None if embedding is None else values.pop(embedding)
            if embedding is not None and vector is None:
                raise InputError(f"row {number} of the data set: null in the column {embedding!r}")
            name = None if identifier is None else values.pop(identifier)
            yield Embedded(values.pop(text), name, unwrapped(values), vector)

    return len(index.add_documents(documents()))
