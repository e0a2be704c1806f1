"""A corpus of sentences and passages as blocks in a seeded order: a longer run extends a shorter one."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path

from ctx_embed.errors import InputError
from ctx_embed.rows.reading import read_documents
from ctx_embed.texts import well_formed

BLOCK_SENTENCES = 2048


@dataclass(frozen=True)
class Block:
    """Texts that a teacher embeds and a cache stores together.

    Attributes:
        source: the name of the file that they come from, or empty for texts of several files.
        texts: the block's texts, consecutive ones if they are of one file.
        families: the file family of each text, or empty if all are of one file.
        paired: for each text, whether the next one is its partner, of similar meaning; empty without pairs.
        opposed: for each text, whether the next one contradicts it; empty without pairs.
    """

    source: str
    texts: tuple[str, ...]
    families: tuple[str, ...] = ()
    paired: tuple[bool, ...] = ()
    opposed: tuple[bool, ...] = ()

    @cached_property
    def key(self) -> str:
        """The block's name in caches: 32 hexadecimal digits of a hash of its texts."""
        return hashlib.sha256("\n".join(self.texts).encode()).hexdigest()[:32]


def genre(file_name: str) -> str:
    """Return the family of a corpus file: its name up to the first dot, ``books`` of ``books.00.txt.gz``."""
    return file_name.split(".")[0] or file_name


def passages(lines: Sequence[str], most: int) -> list[str]:
    """Join consecutive lines into passages of 2, 3, .. ``most``, 2, 3, .. lines. Each line is in one.

    Short and long passages then come from every part of a file. ``most`` of 1 returns the lines themselves.
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
    """Return one span of each line, of 1, 2, .. ``most``, 1, 2, .. words (or all), placed by a hash of the line.

    Single words and phrases show what each entry contributes, which whole sentences do not. ``most`` of 0 returns the
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


def cloze_pairs(lines: Sequence[str], passage_lines: int, span_words: int) -> list[tuple[str, str]]:
    """Cut lines into passages; return a pair from each: a span of its middle line, and the other lines joined.

    Args:
        lines: sentences in the order of their document.
        passage_lines: lines of a passage, at least 2. Lines that do not fill one are left out.
        span_words: maximum number of words in a span, see :func:`spans`.

    Source: the inverse cloze task, Lee et al. (2019), ACL.
    """
    cut = [lines[start : start + passage_lines] for start in range(0, len(lines) - passage_lines + 1, passage_lines)]
    middle = passage_lines // 2
    queries = spans([part[middle] for part in cut], span_words)
    return [(query, " ".join([*part[:middle], *part[middle + 1 :]])) for query, part in zip(queries, cut, strict=True)]


def read_blocks(
    paths: Iterable[str | Path],
    texts: int | None = None,
    seed: int = 0,
    *,
    passage_lines: int = 1,
    span_words: int = 0,
    text_field: str | None = None,
    block_texts: int = BLOCK_SENTENCES,
) -> list[Block]:
    """Cut text files into blocks and put them into a seeded order that depends on the blocks' contents alone.

    A block keeps its place among the others when files are added or ``texts`` grows, so that a larger run can use what
    a smaller one has computed.

    Args:
        paths: text, CSV, TSV, JSONL or Parquet, plain or gzip; a sentence a line or row.
        texts: stop after the block that reaches this number of texts (None: all).
        seed: seed of the blocks' order.
        passage_lines: above 1, join consecutive lines into :func:`passages` of at most this many.
        span_words: above 0, cut each text to one of its :func:`spans` of at most this many words.
        block_texts: lines per block.
        text_field: the field of tables that holds the text, see :func:`ctx_embed.rows.reading.read_documents`.

    Raises:
        InputError: as :func:`ctx_embed.rows.reading.read_lines`, or no sentence at all.
    """
    blocks: list[Block] = []
    for path in paths:
        lines = [well_formed(document.text) for document in read_documents(path, text_field)]
        blocks.extend(
            Block(
                Path(path).name,
                tuple(spans(passages(lines[start : start + block_texts], passage_lines), span_words)),
            )
            for start in range(0, len(lines), block_texts)
        )
    if not blocks:
        raise InputError("the corpus must have at least one sentence; give text files with a sentence per line")
    blocks.sort(key=lambda block: hashlib.sha256(f"{seed} {block.key}".encode()).digest())
    if texts is not None:
        before = accumulate((len(block.texts) for block in blocks), initial=0)
        blocks = [block for block, read in zip(blocks, before, strict=False) if read < texts]
    return blocks
