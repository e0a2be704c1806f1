"""Texts that must not be trained on, as those of evaluation sets."""

from __future__ import annotations

import re
from collections.abc import Iterable, Set
from pathlib import Path

from ctx_embed.texts import read_documents

_WORD = re.compile(r"\w+")


def words_of(text: str) -> str:
    """The text's words in lower case, one space between them: what two texts are compared by."""
    return " ".join(_WORD.findall(text.lower()))


def read_excluded(paths: Iterable[str | Path]) -> frozenset[str]:
    """The :func:`words_of` every text of the files, and of every column where a line has tabs.

    Raises:
        InputError: as :func:`ctx_embed.texts.read_documents`.
    """
    columns = (column for path in paths for document in read_documents(path) for column in document.text.split("\t"))
    return frozenset(map(words_of, columns)) - {""}


def is_excluded(text: str, excluded: Set[str]) -> bool:
    """Whether a text has the words of an excluded one, in their order and no others."""
    return bool(excluded) and words_of(text) in excluded
