"""The file formats of the tasks: each reader gives the rows of one file."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ctx_embed.errors import InputError
from ctx_embed.eval.tasks import Row
from ctx_embed.texts import read_labelled, read_lines


def labelled(path: Path) -> list[Row]:
    """``label<TAB>text``; errors as :func:`ctx_embed.texts.read_labelled`."""
    return list(zip(*read_labelled(path), strict=True))


def labelled_reviews(path: Path) -> list[Row]:
    """``label<TAB>stars<TAB>text``: the label and the text."""
    return [(label, text) for label, _, text in _fields(path, "label<TAB>stars<TAB>text", 3)]


def scored_pairs(path: Path) -> list[Row]:
    """``score<TAB>text<TAB>text``.

    Raises:
        InputError: as :func:`ctx_embed.texts.read_lines`; another number of fields, a score that is no number, no rows.
    """
    return list(_fields(path, "score<TAB>text<TAB>text", 3, scored=0))


def beir_documents(path: Path) -> list[Row]:
    """A JSON object a line with ``_id``, ``text`` and perhaps ``title``: the id, and the title before the text."""
    rows: list[Row] = []
    for number, line in _lines(path):
        try:
            entry: Any = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}, line {number}: not JSON ({error})") from None
        fields = (entry.get("_id"), entry.get("title", ""), entry.get("text")) if isinstance(entry, dict) else ()
        if not fields or not all(isinstance(value, str) for value in fields):
            raise InputError(f"{path}, line {number}: {line[:40]!r} is no object with the strings _id and text")
        identifier, title, text = fields
        rows.append((identifier, f"{title} {text}".strip()))
    return _some(rows, path, "lines of a JSON object with _id and text")


def beir_judgements(path: Path) -> list[Row]:
    """``query-id<TAB>corpus-id<TAB>score`` below a line with these names."""
    shape = "query-id<TAB>corpus-id<TAB>score"
    rows = [
        row
        for number, row in _numbered_fields(path, shape, 3)
        # The head is a line like any other where it is missing.
        if number > 1 or _is_number(row[2])
    ]
    for row in rows:
        if not row[2].strip().lstrip("-").isdecimal():
            raise InputError(f"{path}: the score {row[2]!r} of {row[0]!r} and {row[1]!r} is no whole number")
    return _some(rows, path, f"lines of {shape}")


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    return ((number, line) for number, line in read_lines(path) if line.strip())


def _numbered_fields(path: Path, shape: str, count: int) -> Iterator[tuple[int, Row]]:
    for number, line in _lines(path):
        row = tuple(line.split("\t"))
        if len(row) != count:
            raise InputError(f"{path}, line {number}: {line[:40]!r} is not {shape}")
        yield number, row


def _fields(path: Path, shape: str, count: int, scored: int | None = None) -> list[Row]:
    rows: list[Row] = []
    for number, row in _numbered_fields(path, shape, count):
        if scored is not None and not _is_number(row[scored]):
            line = "\t".join(row)
            raise InputError(f"{path}, line {number}: {line[:40]!r} is not {shape}")
        rows.append(row)
    return _some(rows, path, f"lines of {shape}")


def _some(rows: list[Row], path: Path, needed: str) -> list[Row]:
    if not rows:
        raise InputError(f"{path}: no rows, {needed} are needed")
    return rows


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
