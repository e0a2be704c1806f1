"""Read the documents of an index from its sources, with embeddings and metadata as an export wrote them."""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import count, takewhile
from pathlib import PurePath

from ctx_embed.documents.extracted import UnreadableFileError
from ctx_embed.documents.extraction import Extraction
from ctx_embed.documents.formats import EXTRA, extract, format_of, suffix_of
from ctx_embed.documents.units import FILES, PARAGRAPHS, RECORDS, described_records, documents_of
from ctx_embed.documents.walking import File, modified_of, walk
from ctx_embed.errors import InputError, missing_extra
from ctx_embed.index.following.records import FolderOptions
from ctx_embed.index.writing.transaction import Embedded
from ctx_embed.rows.opening import source_name
from ctx_embed.rows.reading import outline, read_documents
from ctx_embed.rows.table import KINDS
from ctx_embed.texts import Document


def read_sources(
    files: Sequence[str],
    text_field: str | None = None,
    embedding_field: str | None = None,
    documents: str | None = None,
    encoding: str | None = None,
) -> Iterator[Document]:
    """Yield the documents of some files, see :func:`ctx_embed.rows.reading.read_documents`.

    Args:
        files: paths, or ``-`` for standard input.
        text_field: the field with the text.
        embedding_field: the field with the embedding, made by the model of the index; None if there is none.
        documents: a unit of :data:`ctx_embed.documents.units.UNITS`; None: the lines of text files and the records of
            tables and JSON, and all other files as a whole.
        encoding: the encoding of plain text; None: detected.
    """
    for file in files:
        if is_structured(file, documents):
            if not format_of(file).installed:
                raise missing_extra(f"{file}: a {suffix_of(file)} file", EXTRA)
            try:
                status = os.stat(file)
                if not stat.S_ISREG(status.st_mode):
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
            named = File(file, PurePath(file).as_posix(), status.st_size, modified_of(status))
            yield from documents_of(named, texts, documents)
            continue
        if documents == RECORDS and file != "-" and suffix_of(file) not in KINDS:
            raise InputError(f"{file}: records are those of JSONL, CSV, TSV and Parquet files; choose lines or files")
        found = read_documents(file, text_field, encoding=encoding)
        if embedding_field is None:
            yield from found
            continue
        for number, document in enumerate(found, 1):
            metadata = dict(document.metadata)
            # The embedding is one field, or columns that are named after it and numbered from 0.
            columns = takewhile(metadata.__contains__, (f"{embedding_field}_{place}" for place in count()))
            embedding = metadata.pop(embedding_field, None) or [metadata.pop(name) for name in columns]
            if not embedding:
                names = ", ".join(map(repr, document.metadata)) or "none"
                missing = "null in the field" if embedding_field in document.metadata else "no field"
                raise InputError(
                    f"{file}, document {number}: {missing} {embedding_field!r} for the embedding (fields: {names})"
                )
            yield Embedded(document.text, document.id, metadata, embedding)


def is_structured(file: str, documents: str | None) -> bool:
    """Return whether a named file is read as a whole: for files or paragraphs, or because it is no list of texts."""
    chosen = format_of(file)
    return file != "-" and (
        documents in (FILES, PARAGRAPHS) or chosen.apart or (documents is None and not chosen.is_list)
    )


def preview(sources: Sequence[str], options: FolderOptions, encoding: str | None = None) -> Iterator[str]:
    """Yield a line for each source that says how a build would read it, and for each table in a folder."""
    for source in sources:
        if source != "-" and os.path.isdir(source):
            formats: Counter[str] = Counter()
            for file in walk(source, options.include, options.exclude, bool(options.follow_links)):
                if isinstance(file, File):
                    formats[format_of(file.path).name] += 1
                    if (said := described_records(file.path, options.documents, options.text_field)) is not None:
                        yield f"{file.path}: {said}"
            counts = ", ".join(f"{count:,} {name}" for name, count in formats.most_common())
            yield f"{source}: {counts or 'no files'}"
        elif is_structured(source, options.documents):
            yield f"{source}: {format_of(source).name}, read as a whole"
        else:
            yield f"{source_name(source)}: {outline(source, options.text_field, encoding=encoding)}"
