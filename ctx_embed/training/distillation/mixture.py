"""What a student is trained on: texts of several sources, with weights, beside their teacher's embeddings."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ctx_embed.errors import InputError
from ctx_embed.training.distillation.corpus import Block, read_blocks
from ctx_embed.training.distillation.exclusion import is_excluded


@dataclass(frozen=True)
class Source:
    """Text files that are read alike.

    Args:
        files: plain or gzip, a sentence a line or row.
        texts: about so many of them, spread over all files; None: all.
        passage_lines: more than 1 joins consecutive lines to passages of 2 to so many lines.
        span_words: above 0 cuts each text to a span of 1 to so many words.
        weight: how often an epoch shows each text, on average.

    Raises:
        InputError: no file, or a number out of its range.
    """

    files: Sequence[Path]
    texts: int | None = None
    passage_lines: int = 1
    span_words: int = 0
    weight: float = 1.0

    def __post_init__(self) -> None:
        if not self.files:
            raise InputError("a source has no files, name at least one")
        if self.texts is not None and self.texts < 1:
            raise InputError(f"texts of a source is {self.texts}, a positive number is needed")
        if self.passage_lines < 1:
            raise InputError(f"passage_lines of a source is {self.passage_lines}, a positive number is needed")
        if self.span_words < 0:
            raise InputError(f"span_words of a source is {self.span_words}, 0 (whole texts) or more is needed")
        if not 0 < self.weight < 1000:
            raise InputError(f"weight of a source is {self.weight}, a number above 0 is needed")


@dataclass(frozen=True)
class Mixture:
    """The texts of all sources, one after the other.

    Attributes:
        blocks: in which they were read.
        weights: (texts,) how often an epoch shows each, on average; 0: it is excluded.
        genres: (texts,) the number of the file family it came from, see :func:`genre`.
        genre_names: by number.
        followers: (texts,) the row of the text that follows in the same file, -1 where there is none.
    """

    blocks: list[Block]
    weights: NDArray[np.float32]
    genres: NDArray[np.int64]
    genre_names: list[str]
    followers: NDArray[np.int64]
    texts: list[str] = field(repr=False)

    @property
    def excluded(self) -> int:
        """How many of the texts no epoch shows."""
        return int((self.weights == 0).sum())


def genre(file_name: str) -> str:
    """The family of a corpus file: its name up to the first dot, so that ``books.00.txt.gz`` is of ``books``."""
    return file_name.split(".")[0] or file_name


def read_mixture(
    sources: Sequence[Source], seed: int, excluded: Set[str] = frozenset(), text_field: str | None = None
) -> Mixture:
    """Read all sources.

    Args:
        sources: at least one.
        seed: of the order of their blocks.
        excluded: texts that no epoch shows, see :func:`.read_excluded`. They keep their
            places, so that what is held of the blocks stays of use.
        text_field: the field of tables that holds the text.

    Raises:
        InputError: as :func:`ctx_embed.training.distillation.corpus.read_blocks`, or every text is excluded.
    """
    parts = [
        (
            source,
            read_blocks(
                source.files,
                source.texts,
                seed,
                passage_lines=source.passage_lines,
                span_words=source.span_words,
                text_field=text_field,
            ),
        )
        for source in sources
    ]
    blocks = [block for _, of_source in parts for block in of_source]
    sizes = np.array([len(block.texts) for block in blocks])
    names = sorted({genre(block.source) for block in blocks})
    number = {name: index for index, name in enumerate(names)}
    followers = np.arange(1, sizes.sum() + 1)
    followers[sizes.cumsum() - 1] = -1
    texts = [text for block in blocks for text in block.texts]
    weights = np.repeat([source.weight for source, of_source in parts for _ in of_source], sizes).astype(np.float32)
    weights[[is_excluded(text, excluded) for text in texts]] = 0
    if not weights.any():
        raise InputError(f"all {len(texts)} texts are excluded, nothing is left to train on")
    return Mixture(
        blocks,
        weights,
        np.repeat([number[genre(block.source)] for block in blocks], sizes),
        names,
        followers,
        texts,
    )
