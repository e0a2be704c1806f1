"""Texts that must not be trained on, such as those of evaluation sets."""

from __future__ import annotations

from collections.abc import Iterable, Set
from pathlib import Path

from ctx_embed.rows.reading import read_columns
from ctx_embed.training.labelled_texts import words_of


def read_excluded(paths: Iterable[str | Path]) -> frozenset[str]:
    """Return the words of each text in the files, in all columns, as :func:`.words_of` writes them.

    Raises:
        InputError: as :func:`ctx_embed.rows.reading.read_columns`.
    """
    return frozenset(words_of(column) for path in paths for column in read_columns(path)) - {""}


def is_excluded(text: str, excluded: Set[str]) -> bool:
    """Return whether a text has the same words as an excluded one, in the same order."""
    return bool(excluded) and words_of(text) in excluded
