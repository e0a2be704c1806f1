"""A corpus of sentences as blocks in a seeded order: a longer run extends a shorter one."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ctx_embed.errors import InputError
from ctx_embed.texts import read_documents, well_formed

BLOCK_SENTENCES = 2048


@dataclass(frozen=True)
class Block:
    """Consecutive sentences of one file."""

    source: str
    texts: tuple[str, ...]

    @cached_property
    def key(self) -> str:
        """32 hexadecimal digits over the texts: what a cache knows the block by."""
        return hashlib.sha256("\n".join(self.texts).encode()).hexdigest()[:32]


def read_blocks(paths: Iterable[str | Path], sentences: int | None = None, seed: int = 0) -> list[Block]:
    """Cut text files into blocks and put them into a seeded order that depends on the blocks' contents alone.

    A block keeps its place among the others when files are added or ``sentences`` grows, so that what was computed for
    a small run serves a larger one.

    Args:
        paths: text files, plain or gzip, a sentence a line.
        sentences: stop after the block that reaches so many sentences (None: all).
        seed: of the order.

    Raises:
        InputError: as :func:`ctx_embed.texts.read_lines`, or no sentence at all.
    """
    blocks: list[Block] = []
    for path in paths:
        texts = [well_formed(document.text) for document in read_documents(path)]
        blocks.extend(
            Block(Path(path).name, tuple(texts[start : start + BLOCK_SENTENCES]))
            for start in range(0, len(texts), BLOCK_SENTENCES)
        )
    if not blocks:
        raise InputError("the corpus has no sentence: give text files with a sentence a line")
    blocks.sort(key=lambda block: hashlib.sha256(f"{seed} {block.key}".encode()).digest())
    return blocks if sentences is None else blocks[: _blocks_needed(blocks, sentences)]


def _blocks_needed(blocks: Sequence[Block], sentences: int) -> int:
    total = 0
    for count, block in enumerate(blocks, 1):
        total += len(block.texts)
        if total >= sentences:
            return count
    return len(blocks)
