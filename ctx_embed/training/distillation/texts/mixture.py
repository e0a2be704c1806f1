"""What a student is trained on: the texts of several sources."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctx_embed.errors import InputError
from ctx_embed.training.distillation.options import Source
from ctx_embed.training.distillation.texts.corpus import Block, genre, read_blocks
from ctx_embed.training.distillation.texts.exclusion import is_excluded
from ctx_embed.training.distillation.texts.fair_sample import read_fair_blocks


@dataclass(frozen=True)
class Mixture:
    """The texts of all sources, one after the other.

    Attributes:
        blocks: the blocks in which they were read.
        shown: (texts,) whether each is trained on; the others are excluded.
        genres: (texts,) the number of the file family it came from, see :func:`genre`.
        genre_names: the families by number.
        second_blocks: numbers of the blocks that a second teacher embeds as well.
        pairs: (P, 2) rows of texts that belong together, such as a question and its answer.
        opposed: (Q, 2) rows of texts that contradict each other.
        untaught_blocks: numbers of the blocks that no teacher embeds.
    """

    blocks: list[Block]
    shown: NDArray[np.bool_]
    genres: NDArray[np.int64]
    genre_names: list[str]
    texts: list[str] = field(repr=False)
    second_blocks: list[int] = field(default_factory=list)
    pairs: NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 2), dtype=np.int64))
    opposed: NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 2), dtype=np.int64))
    untaught_blocks: list[int] = field(default_factory=list)

    def _rows_of(self, blocks: Sequence[int]) -> NDArray[np.int64]:
        ends = np.cumsum([0, *(len(block.texts) for block in self.blocks)])
        parts = [np.arange(ends[block], ends[block + 1]) for block in blocks]
        return np.concatenate([np.zeros(0, dtype=np.int64), *parts])

    @property
    def second_rows(self) -> NDArray[np.int64]:
        """The rows of the texts that a second teacher embeds as well, ascending."""
        return self._rows_of(self.second_blocks)

    @property
    def taught_blocks(self) -> list[int]:
        """The numbers of the blocks that the teacher embeds."""
        return sorted({*range(len(self.blocks))} - {*self.untaught_blocks})

    @property
    def taught_rows(self) -> NDArray[np.int64]:
        """The rows of the texts that the teacher embeds, ascending."""
        return self._rows_of(self.taught_blocks)

    @property
    def excluded(self) -> int:
        """Number of texts that no epoch shows."""
        return int((~self.shown).sum())


def read_mixture(
    sources: Sequence[Source], seed: int, excluded: Set[str] = frozenset(), text_field: str | None = None
) -> Mixture:
    """Read all sources.

    Args:
        sources: at least one.
        seed: seed of the order of their blocks.
        excluded: texts that no epoch shows, see :func:`.read_excluded`. They keep their places, so that the stored
            embeddings of the blocks stay valid.
        text_field: the field of tables that holds the text.

    Raises:
        InputError: as :func:`.read_blocks`, or every text is excluded.
    """
    parts: list[tuple[Source, list[Block]]] = []
    for source in sources:
        cut: dict[str, Any] = {"passage_lines": source.passage_lines, "span_words": source.span_words}
        if source.fair:
            cut |= {"most_words": source.most_words, "first_words": source.first_words, "cloze": source.cloze}
            parts.append((source, read_fair_blocks(source.files, source.texts, **cut)))
        else:
            parts.append((source, read_blocks(source.files, source.texts, seed, text_field=text_field, **cut)))
    blocks = [block for _, of_source in parts for block in of_source]
    families = [name for block in blocks for name in block.families or [genre(block.source)] * len(block.texts)]
    names = sorted(set(families))
    number = {name: index for index, name in enumerate(names)}
    paired = [pair for block in blocks for pair in block.paired or [False] * len(block.texts)]
    first = np.flatnonzero(paired)
    opposed = np.flatnonzero([pair for block in blocks for pair in block.opposed or [False] * len(block.texts)])
    second: list[int] = []
    untaught: list[int] = []
    number_of_block = 0
    for source, of_source in parts:
        known = 0
        for block in of_source:
            if known < source.second_texts:
                second.append(number_of_block)
            if not source.taught:
                untaught.append(number_of_block)
            known += len(block.texts)
            number_of_block += 1
    texts = [text for block in blocks for text in block.texts]
    shown = np.array([not is_excluded(text, excluded) for text in texts])
    if not shown.any():
        raise InputError(f"all {len(texts)} texts are excluded; give texts that are not in the excluded files")
    return Mixture(
        blocks,
        shown,
        np.array([number[name] for name in families]),
        names,
        texts,
        second,
        np.stack([first, first + 1], axis=1),
        np.stack([opposed, opposed + 1], axis=1),
        untaught,
    )
