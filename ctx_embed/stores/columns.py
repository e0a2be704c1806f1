"""Metadata as columns of a table: each field has a type chosen from samples, and the rest is JSON.

A table has the columns ``id``, ``text``, ``embedding`` and one for each field that samples agree on: ``bool``, ``int``,
``float``, ``string``, or lists of these. Values that do not fit their column, and all other fields, are stored as JSON
in the column ``metadata``, so that nothing is lost. Filters can use only fields with a column.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from ctx_embed.errors import InputError, quoted
from ctx_embed.stores.store import Batch, Collection, Floats
from ctx_embed.texts import well_formed

if TYPE_CHECKING:
    import pyarrow

ID, TEXT, EMBEDDING, METADATA = "id", "text", "embedding", "metadata"
RESERVED = {ID, TEXT, EMBEDDING, METADATA}
LIST = "list:"
_SMALLEST, _LARGEST = -(2**63), 2**63 - 1


def _type(value: Any) -> str | None:
    """Return the type of a column for a value; None if no column can hold it."""
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "int" if _SMALLEST <= value <= _LARGEST else None
    if isinstance(value, float):
        return "float"
    if isinstance(value, str):
        return "string"
    if isinstance(value, list) and value:
        types = {_type(item) for item in value}
        if types == {"int", "float"}:
            types = {"float"}
        only = next(iter(types))
        return f"{LIST}{only}" if len(types) == 1 and only is not None and not only.startswith(LIST) else None
    return None


def fields_of(samples: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return the column type of each field whose values in the samples have a common type."""
    types: dict[str, set[str | None]] = {}
    for metadata in samples:
        for name, value in metadata.items():
            # An empty list does not determine a type.
            if value is None or value == []:
                continue
            # Whether the field can be a column in every store, and be named in a filter.
            nameable = name.isprintable() and well_formed(name) == name and 0 < len(name.encode()) <= 63
            if nameable and name.lower() not in RESERVED and name[0] != "_" and not set(name) & set('`"\\.'):
                types.setdefault(name, set()).add(_type(value))
    columns: dict[str, str] = {}
    folded: set[str] = set()
    for name, kinds in types.items():
        for each in ("", LIST):
            if kinds == {f"{each}int", f"{each}float"}:
                kinds = {f"{each}float"}
        agreed = next(iter(kinds)) if len(kinds) == 1 else None
        # Some stores ignore case in column names: make a column of only the first of such fields.
        if agreed is not None and name.lower() not in folded:
            folded.add(name.lower())
            columns[name] = agreed
    return columns


def _fits(value: Any, kind: str) -> bool:
    if isinstance(value, list) and kind.startswith(LIST):
        return all(_fits(item, kind.removeprefix(LIST)) for item in value)
    actual = _type(value)
    return actual == kind or (actual == "int" and kind == "float" and abs(value) <= 2**53)


def arrow_schema(collection: Collection) -> pyarrow.Schema:
    """Return the schema of a table, with the collection in its metadata under ``ctx_embed``."""
    import pyarrow as pa

    types = {"bool": pa.bool_(), "int": pa.int64(), "float": pa.float64(), "string": pa.string()}
    columns = [(ID, pa.string()), (TEXT, pa.string()), (EMBEDDING, pa.list_(pa.float32(), collection.dimension))]
    for name, kind in collection.fields.items():
        of_value = types[kind.removeprefix(LIST)]
        columns.append((name, pa.list_(of_value) if kind.startswith(LIST) else of_value))
    columns.append((METADATA, pa.string()))
    return pa.schema(columns, metadata={"ctx_embed": json.dumps(asdict(collection))})


def arrow_table(rows: Batch, collection: Collection) -> pyarrow.Table:
    """Return rows as a table of :func:`arrow_schema`."""
    import pyarrow as pa

    schema = arrow_schema(collection)
    columns: dict[str, list[Any]] = {name: [] for name in collection.fields}
    rest: list[str | None] = []
    for metadata in rows.metadata:
        other = {name: value for name, value in metadata.items() if value is not None}
        for name, kind in collection.fields.items():
            value = other.get(name)
            fits = value is not None and _fits(value, kind)
            if fits:
                del other[name]
                if isinstance(value, str):
                    value = well_formed(value)
                elif isinstance(value, list):
                    value = [well_formed(item) if isinstance(item, str) else item for item in value]
            columns[name].append(value if fits else None)
        rest.append(well_formed(json.dumps(other, ensure_ascii=False)) if other else None)
    flat = pa.array(np.ascontiguousarray(rows.vectors, dtype=np.float32).ravel())
    arrays = {
        ID: pa.array(rows.ids, pa.string()),
        TEXT: pa.array(rows.texts, pa.string()),
        EMBEDDING: pa.FixedSizeListArray.from_arrays(flat, collection.dimension),
        METADATA: pa.array(rest, pa.string()),
        **{name: pa.array(values, schema.field(name).type) for name, values in columns.items()},
    }
    return pa.table([arrays[name] for name in schema.names], schema=schema)


def vectors_of(column: Any) -> Floats:
    """Return the vectors (rows, dimension) of a column ``embedding``."""
    import pyarrow as pa

    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    flat = array.flatten().to_numpy(zero_copy_only=False)
    vectors: Floats = flat.reshape(len(array), -1).astype(np.float32, copy=False)
    return vectors


def metadata_of(row: Mapping[str, Any], fields: Iterable[str]) -> dict[str, Any]:
    """Return the metadata of a row: its columns that are not null, and the fields in its JSON."""
    metadata = {name: row[name] for name in fields if row.get(name) is not None}
    try:
        return {**metadata, **json.loads(row.get(METADATA) or "{}")}
    except (TypeError, ValueError, RecursionError):
        raise InputError(f"the metadata of the row {quoted(row[ID])} is damaged; encode its text again") from None
