"""A corpus of sentences and passages as blocks in a seeded order: a longer run extends a shorter one."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ctx_embed.errors import InputError
from ctx_embed.reading import read_documents
from ctx_embed.texts import well_formed

BLOCK_SENTENCES = 2048


@dataclass(frozen=True)
class Block:
    """Texts that are embedded and stored together.

    Attributes:
        source: the name of the file whose consecutive texts they are; empty where they come from several.
        texts: of the block.
        families: of each text where they come from several files, else none.
        paired: whether each text and the next one are a pair of like meaning, where there are pairs.
    """

    source: str
    texts: tuple[str, ...]
    families: tuple[str, ...] = ()
    paired: tuple[bool, ...] = ()

    @cached_property
    def key(self) -> str:
        """32 hexadecimal digits over the texts: what a cache knows the block by."""
        return hashlib.sha256("\n".join(self.texts).encode()).hexdigest()[:32]


def genre(file_name: str) -> str:
    """Return the family of a corpus file: its name up to the first dot, ``books`` of ``books.00.txt.gz``."""
    return file_name.split(".")[0] or file_name


def passages(lines: Sequence[str], most: int) -> list[str]:
    """Consecutive lines joined by spaces to passages of 2, 3, .. ``most``, 2, 3, .. lines; each line is in one.

    Short and long passages then come from every part of a file. ``most`` of 1 gives the lines themselves.
    """
    if most == 1:
        return list(lines)
    joined: list[str] = []
    start, length = 0, 2
    while start < len(lines):
        joined.append(" ".join(lines[start : start + length]))
        start += length
        length = length + 1 if length < most else 2
    return joined


def spans(lines: Sequence[str], most: int) -> list[str]:
    """One span of each line, of 1, 2, .. ``most``, 1, 2, .. words (or all it has), from a place that its text decides.

    Words and phrases alone tell what each entry contributes, which whole sentences leave open. ``most`` of 0 gives the
    lines themselves.
    """
    if most == 0:
        return list(lines)
    cut = []
    for number, line in enumerate(lines):
        words = line.split()
        length = min(len(words), 1 + number % most)
        start = zlib.crc32(line.encode()) % (len(words) - length + 1)
        cut.append(" ".join(words[start : start + length]))
    return cut


def read_blocks(
    paths: Iterable[str | Path],
    texts: int | None = None,
    seed: int = 0,
    *,
    passage_lines: int = 1,
    span_words: int = 0,
    text_field: str | None = None,
) -> list[Block]:
    """Cut text files into blocks and put them into a seeded order that depends on the blocks' contents alone.

    A block keeps its place among the others when files are added or ``texts`` grows, so that what was computed for a
    small run serves a larger one.

    Args:
        paths: text, CSV, TSV, JSONL or Parquet, plain or gzip; a sentence a line or row.
        texts: stop after the block that reaches so many texts (None: all).
        seed: of the order.
        passage_lines: more than 1 joins consecutive lines to :func:`passages` of at most so many.
        span_words: above 0 cuts each text to one of its :func:`spans` of at most so many words.
        text_field: the field of tables that holds the text, see :func:`ctx_embed.reading.read_documents`.

    Raises:
        InputError: as :func:`ctx_embed.reading.read_lines`, or no sentence at all.
    """
    blocks: list[Block] = []
    for path in paths:
        lines = [well_formed(document.text) for document in read_documents(path, text_field)]
        blocks.extend(
            Block(
                Path(path).name,
                tuple(spans(passages(lines[start : start + BLOCK_SENTENCES], passage_lines), span_words)),
            )
            for start in range(0, len(lines), BLOCK_SENTENCES)
        )
    if not blocks:
        raise InputError("the corpus has no sentence: give text files with a sentence a line")
    blocks.sort(key=lambda block: hashlib.sha256(f"{seed} {block.key}".encode()).digest())
    return blocks if texts is None else blocks[: _blocks_needed(blocks, texts)]


def _blocks_needed(blocks: Sequence[Block], texts: int) -> int:
    total = 0
    for count, block in enumerate(blocks, 1):
        total += len(block.texts)
        if total >= texts:
            return count
    return len(blocks)
