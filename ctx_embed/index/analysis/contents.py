"""What an index holds: its metadata fields, an export of all passages, and what makes a text similar to a query."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from ctx_embed.files import replaced_file, require_file, require_folder
from ctx_embed.index.storage.folder import IndexFolder, View
from ctx_embed.numpy_model.embedder import CosineParts

# The type of a field for each type of JSON value in SQLite; NULL for null.
_KIND = (
    "CASE entry.type WHEN 'integer' THEN 'number' WHEN 'real' THEN 'number' WHEN 'text' THEN 'string' "
    "WHEN 'true' THEN 'boolean' WHEN 'false' THEN 'boolean' WHEN 'array' THEN 'list' WHEN 'object' THEN 'object' END"
)
ROWS_AT_ONCE = 2048


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


def find_fields(view: View, most: int) -> list[Field]:
    """Return the fields that documents have, the most frequent first, with at most ``most`` values of each."""
    entries = "FROM documents, json_each(documents.metadata) AS entry"
    kinds = f"SELECT entry.key, {_KIND} AS kind, count(*), min(entry.atom), max(entry.atom) {entries}"
    by_name: dict[str, list[tuple[Any, ...]]] = {}
    for name, *found in view.store.run(f"{kinds} WHERE kind IS NOT NULL GROUP BY 1, 2 ORDER BY 3 DESC, 2"):
        by_name.setdefault(str(name), []).append(tuple(found))
    fields = []
    for name, types in by_name.items():
        kind, _, lowest, highest = types[0]
        if kind not in ("number", "string"):
            lowest = highest = None
        value, counted, where = "entry.atom", "count(*)", f"{_KIND} = ?"
        of_lists = ""
        if kind == "list":
            # An element that occurs twice in a list counts once.
            of_lists = ", json_each(CASE entry.type WHEN 'array' THEN entry.value END) AS element"
            value, counted = "element.atom", "count(DISTINCT documents.row)"
            where += " AND element.type = 'text'"
        select = f"SELECT {value}, {counted} {entries}{of_lists} WHERE entry.key = ? AND {where}"
        select += " GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT ?"
        values = view.store.run(select, (name, kind, 0 if kind == "object" else most))
        if kind == "boolean":
            values = [(bool(value), documents) for value, documents in values]
        fields.append(Field(name, kind, sum(count for _, count, *_ in types), lowest, highest, values))
    return sorted(fields, key=lambda field: (-field.documents, field.name))


def export_index(folder: IndexFolder, output: Path) -> int:
    """Write vectors and passages, see :meth:`SearchIndex.export`."""
    require_folder(output)
    vectors_path, texts_path = (output.with_name(output.name + suffix) for suffix in (".npy", ".jsonl"))
    require_file(vectors_path)
    require_file(texts_path)

    def write(view: View) -> int:
        with (
            replaced_file(vectors_path) as vectors,
            replaced_file(texts_path) as texts,
            vectors.open("wb") as array,
            texts.open("w", encoding="utf-8") as lines,
        ):
            header = {"descr": "<f4", "fortran_order": False, "shape": (view.count, folder.settings.dimension)}
            np.lib.format.write_array_header_1_0(array, header)
            passages = folder.passages()
            while part := list(islice(passages, ROWS_AT_ONCE)):
                array.write(view.vectors.get(np.array([row for row, _ in part])).astype("<f4").tobytes())
                lines.writelines(json.dumps(passage, ensure_ascii=False) + "\n" for _, passage in part)
        return view.count

    return folder.read(write)


@dataclass(frozen=True)
class Similarity:
    """The cosine of a query and a document, and what their tokens add to it.

    Attributes:
        score: the cosine.
        query: the part of the cosine that each token of the query adds.
        document: the part of the cosine that each token of the document adds.
    """

    score: float
    query: CosineParts
    document: CosineParts
