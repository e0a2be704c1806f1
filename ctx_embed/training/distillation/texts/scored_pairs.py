"""Pairs of texts with a similarity score, which validate a student after each epoch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ctx_embed.errors import InputError
from ctx_embed.rows.reading import read_lines
from ctx_embed.texts import well_formed


@dataclass(frozen=True)
class Pairs:
    """Pairs of texts and their similarity: scores (P,), first and second texts."""

    scores: Sequence[float]
    first: Sequence[str]
    second: Sequence[str]


def read_pairs(path: str | Path) -> Pairs:
    """Read the pairs of a file of lines ``score<TAB>text<TAB>text``.

    Raises:
        InputError: the file cannot be read, a line is no pair, or there are fewer than two pairs.
    """
    scores: list[float] = []
    texts: list[list[str]] = []
    for number, line in read_lines(path):
        if not line.strip():
            continue
        score, *columns = line.rstrip("\n").split("\t")
        try:
            scores.append(float(score))
        except ValueError:
            columns = []
        if len(columns) != 2:
            raise InputError(f"{path}, line {number}: {line[:40]!r} is not score<TAB>text<TAB>text")
        texts.append([well_formed(column) for column in columns])
    if len(texts) < 2:
        raise InputError(f"{path}: must have at least two pairs, got {len(texts)}")
    first, second = zip(*texts, strict=True)
    return Pairs(scores, first, second)
