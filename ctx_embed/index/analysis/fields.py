"""The metadata fields of an index: their types, ranges and most frequent values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ctx_embed.index.storage.documents import DocumentStore
from ctx_embed.index.storage.folder import IndexFolder

# SQLite's types of JSON values, by the type of a field.
TYPES = {
    "number": ("integer", "real"),
    "string": ("text",),
    "boolean": ("true", "false"),
    "list": ("array",),
    "object": ("object",),
}
TYPE_OF = {kind: name for name, kinds in TYPES.items() for kind in kinds}


@dataclass(frozen=True)
class Field:
    """A metadata field.

    Attributes:
        name: its name.
        type: ``number``, ``string``, ``boolean``, ``list`` or ``object``, whichever most documents have.
        documents: the number of documents that have it.
        lowest: the smallest number, or the first string in the order of code points; None for other types.
        highest: the largest number or last string.
        values: the most frequent values (for lists, the most frequent strings in them), each with its number of
            documents.
    """

    name: str
    type: str
    documents: int
    lowest: float | str | None
    highest: float | str | None
    values: list[tuple[Any, int]]


def find_fields(folder: IndexFolder, most: int) -> list[Field]:
    """Return the fields that documents have, the most frequent first; this reads all metadata.

    Args:
        folder: the index.
        most: the maximum number of values of a field.
    """
    return folder.read(lambda _: _fields(folder.documents, most))


def _fields(store: DocumentStore, most: int) -> list[Field]:
    entries = "FROM documents, json_each(documents.metadata) AS entry"
    ranges = f"SELECT entry.key, entry.type, count(*), min(entry.atom), max(entry.atom) {entries} GROUP BY 1, 2"
    by_name: dict[str, dict[str, list[Any]]] = {}
    with store.reporting_errors():
        for name, kind, count, lowest, highest in store.connection.execute(ranges).fetchall():
            if kind in TYPE_OF:
                found = by_name.setdefault(str(name), {}).setdefault(TYPE_OF[kind], [0, [], []])
                found[0] += count
                found[1].append(lowest)
                found[2].append(highest)
    fields = []
    for name, types in by_name.items():
        kind = max(types, key=lambda kind: types[kind][0])
        _, lowest, highest = types[kind]
        ordered = kind in ("number", "string")
        fields.append(
            Field(
                name,
                kind,
                sum(count for count, *_ in types.values()),
                min(lowest) if ordered else None,
                max(highest) if ordered else None,
                [] if kind == "object" else _values(store, name, kind, most),
            )
        )
    return sorted(fields, key=lambda field: (-field.documents, field.name))


def _values(store: DocumentStore, name: str, kind: str, most: int) -> list[tuple[Any, int]]:
    marks = ",".join("?" * len(TYPES[kind]))
    entries = "documents, json_each(documents.metadata) AS entry"
    where = f"entry.key = ? AND entry.type IN ({marks})"
    value, count = "entry.atom", "count(*)"
    if kind == "list":
        # An element that occurs twice in a list counts once.
        entries += ", json_each(CASE entry.type WHEN 'array' THEN entry.value END) AS element"
        where += " AND element.type = 'text'"
        value, count = "element.atom", "count(DISTINCT documents.row)"
    select = f"SELECT {value}, {count} FROM {entries} WHERE {where} GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT ?"
    with store.reporting_errors():
        found = store.connection.execute(select, (name, *TYPES[kind], most)).fetchall()
    return [(bool(value) if kind == "boolean" else value, count) for value, count in found]
