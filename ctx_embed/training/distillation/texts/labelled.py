"""Labelled texts that a student learns from in addition to its teacher."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from ctx_embed.errors import InputError
from ctx_embed.rows.reading import read_labelled_rows, read_lines
from ctx_embed.texts import well_formed


def read_skipped(path: str | Path) -> dict[str, set[int]]:
    """Return the lines to leave out by file name, from JSON ``{"lines": {name: [numbers from 1]}}``.

    Raises:
        InputError: no such file, or another content.
    """
    content = "".join(line for _, line in read_lines(path))
    try:
        return {
            str(name): {int(number) for number in numbers} for name, numbers in json.loads(content)["lines"].items()
        }
    except (AttributeError, KeyError, TypeError, ValueError):
        raise InputError(f'{path}: not JSON of the form {{"lines": {{"file name": [line numbers]}}}}') from None


def read_labelled_files(
    paths: Sequence[str | Path],
    skipped: Mapping[str, set[int]] | None = None,
    text_field: str | None = None,
    label_field: str | None = None,
) -> tuple[list[str], list[str]]:
    """Return the labels and texts of files, see :func:`ctx_embed.rows.reading.read_labelled_rows`.

    Args:
        paths: plain or gzip; in lines of tab-separated columns the last one is the text.
        skipped: line numbers to leave out by file name.
        text_field, label_field: the columns of files that are tables.

    Raises:
        InputError: a row cannot be read (see :func:`.read_labelled_rows`), or there is only one label.
    """
    labels: list[str] = []
    texts: list[str] = []
    for path in paths:
        leave_out = (skipped or {}).get(Path(path).name, set())
        for number, label, text in read_labelled_rows(path, text_field, label_field):
            if number not in leave_out:
                labels.append(label)
                texts.append(well_formed(text.rpartition("\t")[2]))
    if len(set(labels)) < 2:
        raise InputError(f"the labelled files must have at least two labels, got {len(set(labels))}")
    return labels, texts
