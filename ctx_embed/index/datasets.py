"""Exchange documents and their vectors with Hugging Face data sets, in both directions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from ctx_embed.errors import InputError
from ctx_embed.index.search_index import SearchIndex
from ctx_embed.index.storage.folder import View
from ctx_embed.rows.reading import unwrapped
from ctx_embed.texts import Embedded

if TYPE_CHECKING:
    from datasets import Dataset


def to_dataset(index: SearchIndex, embedding: str = "embedding") -> Dataset:
    """Return the passages of an index as a Hugging Face data set, with metadata as JSON strings.

    ``embedding`` names the column of vectors. InputError if ids are strings and integers, as a column has one type.
    """
    from datasets import Dataset

    def rows(view: View) -> list[dict[str, Any]]:
        passages = list(view.store.passages())
        vectors = view.vectors.get(np.array([row for row, _ in passages], np.int64))
        return [
            {**passage, "metadata": json.dumps(passage["metadata"], ensure_ascii=False), embedding: vector}
            for (_, passage), vector in zip(passages, vectors, strict=True)
        ]

    found = index._folder.read(rows)
    if len({type(row["id"]) for row in found}) > 1:
        raise InputError(f"{index.path}: the ids must be all integers or all strings for a data set, got both")
    # Dataset.from_list drops a column that the first row lacks.
    start = {"start": 0} if any("start" in row for row in found) else {}
    return Dataset.from_list([{**start, **row} for row in found])


def add_dataset(
    index: SearchIndex,
    dataset: Any,
    text: str = "text",
    embedding: str | None = "embedding",
    identifier: str | None = None,
) -> int:
    """Add the rows of one split of a Hugging Face data set, loaded or streamed, and return their number.

    The columns ``text``, ``embedding`` (None embeds the texts) and ``identifier`` (None numbers the documents) have
    these names. All other columns become metadata, and so do the fields of an object in the column ``metadata`` (or
    JSON, as :func:`to_dataset` writes it). The index's model must have made the embeddings.
    """
    if isinstance(dataset, dict):
        raise InputError(f"the data set must be one split, got several; choose one of {', '.join(map(repr, dataset))}")

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
