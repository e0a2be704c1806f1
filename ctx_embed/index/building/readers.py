"""Read the documents of an index from its sources, with embeddings and metadata as an export wrote them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from ctx_embed.errors import InputError
from ctx_embed.index.writing.transaction import Embedded
from ctx_embed.reading import read_documents
from ctx_embed.texts import Document


def read_sources(
    files: Sequence[str], text_field: str | None = None, embedding_field: str | None = None
) -> Iterator[Document]:
    """Yield the documents of some files, see :func:`ctx_embed.reading.read_documents` and :func:`unwrapped`.

    Args:
        files: paths, or ``-`` for standard input.
        text_field: the field with the text.
        embedding_field: the field with the embedding, made by the model of the index; None if there is none.

    Raises:
        InputError: a file cannot be read; the message names the place.
    """
    for file in files:
        documents = read_documents(file, text_field)
        if embedding_field is not None:
            documents = _with_embeddings(file, documents, embedding_field)
        for document in documents:
            if "metadata" in document.metadata:
                yield replace(document, metadata=unwrapped(document.metadata))
            else:
                yield document


def unwrapped(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the metadata in ``fields``: the object, or JSON text, of a sole field ``metadata``, else all fields."""
    if list(fields) != ["metadata"]:
        return fields
    inner = fields["metadata"]
    if isinstance(inner, str):
        with suppress(ValueError, RecursionError):
            inner = json.loads(inner)
    return inner if isinstance(inner, dict) else fields


def _with_embeddings(file: str, documents: Iterator[Document], field: str) -> Iterator[Document]:
    for number, document in enumerate(documents, 1):
        if document.metadata.get(field) is None:
            names = ", ".join(map(repr, document.metadata)) or "none"
            missing = "null in the field" if field in document.metadata else "no field"
            raise InputError(f"{file}, document {number}: {missing} {field!r} for the embedding (fields: {names})")
        metadata = {name: value for name, value in document.metadata.items() if name != field}
        yield Embedded(document.text, document.id, metadata, document.metadata[field])
