"""What may be stored of a document: its id and its metadata, and what is embedded of its passages."""

import json
import numbers
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from typing import Any, TypeAlias

import numpy as np

from ctx_embed.errors import InputError, described, quoted
from ctx_embed.texts import Document, Embedded, as_list, well_formed

Id: TypeAlias = str | int
Span: TypeAlias = tuple[int, int]

LARGEST_ID = 2**63 - 1
# Automatic ids continue after the largest integer that was given as an id, unless it is one of these last 2**32.
LAST_IDS = LARGEST_ID - 2**32
# Maximum depth of nested metadata; JSON readers, including SQLite's, fail at some greater depth.
DEEPEST_METADATA = 100
_NUMERAL = re.compile("0|-?[1-9][0-9]{0,18}")
_JSON = json.JSONEncoder(ensure_ascii=False, allow_nan=False)


def checked_id(identifier: Any, number: int | None = None) -> Id:
    """Return an id as it is stored: a string without lone surrogates, or a 64-bit integer, also of NumPy."""
    place = "" if number is None else f"document {number}: "
    if isinstance(identifier, str):
        if well_formed(identifier) != identifier:
            raise InputError(f"{place}the id {quoted(identifier)} has a lone surrogate; give it another id")
        return str(identifier)
    if isinstance(identifier, bool) or not isinstance(identifier, numbers.Integral):
        raise InputError(f"{place}the id must be a string or an integer, got {described(identifier)}")
    if not -LARGEST_ID - 1 <= int(identifier) <= LARGEST_ID:
        raise InputError(f"{place}the id {quoted(identifier)} does not fit into 64 bits; give it as a string")
    return int(identifier)


def integer_of(identifier: Id) -> int | None:
    """Return the integer that an id is or spells: 7 for 7 and "7", None for "007"."""
    if isinstance(identifier, str) and not _NUMERAL.fullmatch(identifier):
        return None
    return number if -LARGEST_ID - 1 <= (number := int(identifier)) <= LARGEST_ID else None


def forms_of(identifiers: Iterable[Id]) -> list[Id]:
    """Return each id as a string, and as an integer if it is one: 7 and "7" are one id."""
    forms = ((str(identifier), integer_of(identifier)) for identifier in identifiers)
    return [form for both in forms for form in both if form is not None]


def documents_of(texts: Any, ids: Any, metadata: Any, embeddings: Any = None) -> list[Document]:
    """Return documents from lists of texts, ids, metadata and embeddings, which must be of one length."""
    listed = as_list(texts, "texts", "a list of strings")
    columns: list[list[Any]] = []
    for name, values, needed in (
        ("ids", ids, "a list of strings or integers"),
        ("metadata", metadata, "a list of dictionaries"),
        ("embeddings", embeddings, "an array (documents, dimension)"),
    ):
        columns.append([None] * len(listed) if values is None else as_list(values, name, needed))
        if len(columns[-1]) != len(listed):
            raise InputError(f"{name} must have one entry for each of the {len(listed)} texts, got {len(columns[-1])}")
    documents: list[Document] = []
    for number, (text, identifier, fields, embedding) in enumerate(zip(listed, *columns, strict=True), 1):
        if embedding is None and embeddings is not None:
            raise InputError(f"document {number}: its embedding is None; give one for each text or for none")
        documents.append(Embedded(text, identifier, {} if fields is None else fields, embedding))
    return documents


def metadata_json(metadata: Any, number: int) -> str:
    """Return metadata as the JSON that is stored, or raise InputError; lone surrogates become U+FFFD.

    Scalars of NumPy become numbers, and dates and times strings in ISO 8601. A field that is NaN, or missing as pandas
    has it, is left out.
    """
    if not isinstance(metadata, dict) or not all(isinstance(name, str) for name in metadata):
        raise InputError(
            f"document {number}: the metadata must be a dictionary with string keys, got {quoted(metadata)}"
        )
    written, name = [], ""
    try:
        for name, value in metadata.items():
            if not _is_missing(value):
                written.append(f"{_JSON.encode(name)}: {_JSON.encode(_plain(value, DEEPEST_METADATA - 1))}")
    except RecursionError:
        raise InputError(
            f"document {number}: the metadata is nested more than {DEEPEST_METADATA} levels deep; flatten it"
        ) from None
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(
            f"document {number}: the metadata field {quoted(name)} cannot be stored as JSON ({error})"
        ) from None
    return well_formed(f"{{{', '.join(written)}}}")


def _plain(value: Any, depth: int) -> Any:
    """Return a value without types of NumPy and pandas: times as ISO 8601, and missing values in lists as None."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict | list | tuple):
        if not depth:
            raise RecursionError
        if isinstance(value, dict):
            return {name: _plain(item, depth - 1) for name, item in value.items()}
        return [_plain(item, depth - 1) for item in value]
    if _is_missing(value):
        return None
    if type(value) is int:
        # SQLite reads integers as infinity where this raises OverflowError.
        float(value)
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, np.datetime64):
        return str(value)
    return value.item() if isinstance(value, np.generic) else value


def _is_missing(value: Any) -> bool:
    """Return whether a value is NaN, pandas' NaT, or pandas' NA."""
    if isinstance(value, numbers.Real | date | np.datetime64):
        return bool(value != value)
    return type(value).__name__ == "NAType"


def embedded_texts(text: str, metadata: Mapping[str, Any], spans: Sequence[Span], titled: bool) -> list[str]:
    """Return the text to embed for each passage; ``titled`` puts the document's title before those that lack it.

    A passage alone seldom says what its document is about.
    """
    title = metadata.get("title")
    passages = [text[start:stop] for start, stop in spans]
    if not titled or len(spans) < 2 or not isinstance(title, str) or not title.strip():
        return passages
    return [passage if title in passage else f"{title}\n{passage}" for passage in passages]
