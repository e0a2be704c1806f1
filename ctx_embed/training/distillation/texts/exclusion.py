"""Texts that must not be trained on, such as those of evaluation sets."""

from __future__ import annotations

import re
from collections.abc import Iterable, Set
from pathlib import Path

from ctx_embed.rows import read_columns

_WORD = re.compile(r"\w+")


def words_of(text: str) -> str:
    """Return the text's words in lower case, separated by single spaces: texts are compared in this form."""
    return " ".join(_WORD.findall(text.lower()))


def read_excluded(paths: Iterable[str | Path]) -> frozenset[str]:
    """Return the :func:`words_of` each text in the files, from all columns.

    Raises:
        InputError: as :func:`ctx_embed.rows.read_columns`.
    """
    return frozenset(words_of(column) for path in paths for column in read_columns(path)) - {""}


def is_excluded(text: str, excluded: Set[str]) -> bool:
    """Return whether a text has the same words as an excluded one, in the same order."""
    return bool(excluded) and words_of(text) in excluded
