"""Read the documents of an index from its sources, with embeddings and metadata as an export wrote them."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import PurePath
from typing import Any

from ctx_embed.documents.extracted import UnreadableFileError
from ctx_embed.documents.extraction import Extraction
from ctx_embed.documents.formats import EXTRA, extract, format_of, suffix_of
from ctx_embed.documents.units import FILES, PARAGRAPHS, RECORDS, documents_of
from ctx_embed.documents.walking import File, modified_of
from ctx_embed.errors import InputError, missing_extra
from ctx_embed.index.writing.transaction import Embedded
from ctx_embed.rows import read_documents
from ctx_embed.rows.table import KINDS
from ctx_embed.texts import Document


def read_sources(
    files: Sequence[str],
    text_field: str | None = None,
    embedding_field: str | None = None,
    documents: str | None = None,
    encoding: str | None = None,
) -> Iterator[Document]:
    """Yield the documents of some files, see :func:`ctx_embed.rows.read_documents` and :func:`unwrapped`.

    Args:
        files: paths, or ``-`` for standard input.
        text_field: the field with the text.
        embedding_field: the field with the embedding, made by the model of the index; None if there is none.
        documents: a unit of :data:`ctx_embed.documents.units.UNITS`; None: lines and records of plain files, and all
            other files as a whole.
        encoding: the encoding of plain text; None: detected.

    Raises:
        InputError: a file cannot be read; the message names the place.
    """
    for file in files:
        if is_structured(file, documents):
            yield from _structured(file, documents, encoding)
            continue
        if documents == RECORDS and file != "-" and suffix_of(file) not in KINDS:
            raise InputError(f"{file}: records are those of JSONL, CSV, TSV and Parquet files; choose lines or files")
        found = read_documents(file, text_field, encoding=encoding)
        if embedding_field is not None:
            found = _with_embeddings(file, found, embedding_field)
        for document in found:
            if "metadata" in document.metadata:
                yield replace(document, metadata=unwrapped(document.metadata))
            else:
                yield document


def is_structured(file: str, documents: str | None) -> bool:
    """Return whether a named file is read as a whole: for files or paragraphs, or because it is not plain text."""
    return file != "-" and (documents in (FILES, PARAGRAPHS) or format_of(file).apart)


def _structured(file: str, documents: str | None, encoding: str | None) -> Iterator[Document]:
    if not format_of(file).installed:
        raise missing_extra(f"{file}: a {suffix_of(file)} file", EXTRA)
    try:
        found = os.stat(file)
        if not stat.S_ISREG(found.st_mode):
            raise InputError(f"{file}: must be a file to be read as a whole; choose lines for a pipe")
        if format_of(file).apart:
            with Extraction(workers=1) as extraction:
                ((_, texts),) = extraction.read([(None, file)])
            if isinstance(texts, Exception):
                raise texts
        else:
            texts = list(extract(file, encoding))
    except FileNotFoundError:
        raise InputError(f"{file}: no such file") from None
    except OSError as error:
        raise InputError(f"{file}: cannot be read ({error.strerror})") from None
    except UnreadableFileError as error:
        raise InputError(f"{file}: {error}") from None
    named = File(file, PurePath(file).as_posix(), found.st_size, modified_of(found))
    yield from documents_of(named, texts, documents)


def unwrapped(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the metadata in ``fields``: all of them, or the object (or JSON text) in a sole field ``metadata``."""
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
