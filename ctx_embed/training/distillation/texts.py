"""The texts of a distillation: sources cut into blocks, pairs, labelled texts, and texts that are left out."""

import hashlib
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, cycle, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ctx_embed.errors import InputError
from ctx_embed.reading.rows import Named, read_columns, read_documents, read_fields, read_labelled_rows, read_lines
from ctx_embed.texts import well_formed
from ctx_embed.training.labelled_texts import words_of
from ctx_embed.training.options import Source

# Number of lines of a file in a block, and of texts in a block of a fair source.
BLOCK_LINES, FAIR_BLOCK_TEXTS = 2048, 1024
# One string is a text, two are a pair, three are a pair and its label.
Item = tuple[str, ...]
# The names of a pair's fields, and the labels of pairs of texts with the same meaning.
PAIR_FIELDS = (("query", "passage"), ("a", "b"))
ALIKE = frozenset({"entailment", "1"})
OPPOSED = "contradiction"
NO_PAIRS: NDArray[np.int64] = np.zeros((0, 2), dtype=np.int64)


@dataclass(frozen=True)
class Block:
    """Texts that a teacher embeds and a cache stores together; with ``second``, a second teacher embeds them too.

    Each text has a file family, see :func:`genre`. A text is ``paired`` if the next text is its partner, of similar
    meaning, and ``opposed`` if the next text contradicts it.
    """

    texts: tuple[str, ...]
    families: tuple[str, ...] = ()
    paired: tuple[bool, ...] = ()
    opposed: tuple[bool, ...] = ()
    taught: bool = True
    second: bool = False

    @cached_property
    def key(self) -> str:
        """The block's name in caches: 32 hexadecimal digits of a hash of its texts."""
        return hashlib.sha256("\n".join(self.texts).encode()).hexdigest()[:32]


@dataclass(frozen=True)
class Mixture:
    """The texts of all sources, one after the other, in the blocks in which they were read.

    ``shown`` (texts,) is False for excluded texts; ``genres`` (texts,) number the file families. ``pairs`` (P, 2) are
    rows of texts that belong together, such as a question and its answer; ``opposed`` (Q, 2) are contradictions.
    """

    blocks: list[Block] = field(repr=False)
    shown: NDArray[np.bool_]
    genres: NDArray[np.int64]
    pairs: NDArray[np.int64] = field(default_factory=NO_PAIRS.copy)
    opposed: NDArray[np.int64] = field(default_factory=NO_PAIRS.copy)

    @cached_property
    def texts(self) -> list[str]:
        """The texts of all blocks."""
        return [text for block in self.blocks for text in block.texts]

    @cached_property
    def taught_rows(self) -> NDArray[np.int64]:
        """The rows of the texts that the teacher embeds, ascending."""
        return np.flatnonzero([block.taught for block in self.blocks for _ in block.texts])

    @cached_property
    def second_rows(self) -> NDArray[np.int64]:
        """The rows of the texts that a second teacher embeds, ascending."""
        return np.flatnonzero([block.second for block in self.blocks for _ in block.texts])

    @property
    def excluded(self) -> int:
        """The number of texts that are never trained on."""
        return int((~self.shown).sum())


def read_mixture(sources: Sequence[Source], seed: int, excluded: Set[str], text_field: Named = None) -> Mixture:
    """Read all sources.

    Texts whose words are ``excluded``, see :func:`read_excluded`, are never trained on. They keep their places, so that
    the stored embeddings of the blocks stay valid.
    """
    blocks: list[Block] = []
    for source in sources:
        known = 0
        for block in read_blocks(source, seed, text_field):
            blocks.append(replace(block, taught=source.taught, second=known < source.second_texts))
            known += len(block.texts)
    families = [family for block in blocks for family in block.families]
    number = {name: place for place, name in enumerate(sorted(set(families)))}
    shown = np.array([not excluded or words_of(text) not in excluded for block in blocks for text in block.texts])
    if not shown.any():
        raise InputError(f"all {len(shown)} texts are excluded; give texts that are not in the excluded files")
    paired = np.flatnonzero([is_first for block in blocks for is_first in block.paired])
    opposed = np.flatnonzero([is_first for block in blocks for is_first in block.opposed])
    return Mixture(
        blocks,
        shown,
        np.array([number[family] for family in families]),
        np.stack([paired, paired + 1], axis=1),
        np.stack([opposed, opposed + 1], axis=1),
    )


def read_blocks(source: Source, seed: int = 0, text_field: Named = None) -> list[Block]:
    """Read a source's files in blocks, whose order depends on their contents alone.

    A block keeps its place among the others when files are added or more texts are asked for, so that a larger run can
    use what a smaller one has computed. The last block is the one that reaches ``source.texts``.
    """
    if source.fair:
        blocks = _fair_blocks(source)
    else:
        blocks = []
        for path in source.files:
            lines = list(map(well_formed, [document.text for document in read_documents(path, text_field)]))
            for start in range(0, len(lines), BLOCK_LINES):
                joined = passages(lines[start : start + BLOCK_LINES], source.passage_lines)
                texts, none = tuple(spans(joined, source.span_words)), (False,) * len(joined)
                blocks.append(Block(texts, (genre(Path(path).name),) * len(texts), none, none))
        blocks.sort(key=lambda block: hashlib.sha256(f"{seed} {block.key}".encode()).digest())
        if source.texts is not None:
            before = accumulate((len(block.texts) for block in blocks), initial=0)
            blocks = [block for block, read in zip(blocks, before, strict=False) if read < source.texts]
    if not blocks:
        raise InputError("the corpus must have at least one text; give text files with a sentence per line")
    return blocks


def _fair_blocks(source: Source) -> list[Block]:
    """Cut the texts of all files, in :func:`fair_order`, into blocks: a slow teacher may stop after any of them."""
    families: dict[str, list[Item]] = {}
    for path in source.files:
        name = Path(path).name.removesuffix(".gz")
        if name.endswith(".jsonl"):
            items = read_pair_rows(path)
        elif name.endswith(".tsv"):
            items = [(well_formed(text),) for _, _, text in read_labelled_rows(path)]
        else:
            lines = [document.text for document in read_documents(path)]
            items = [(text,) for text in map(well_formed, lines)]
        families.setdefault(genre(Path(path).name), []).extend(items)
    for name, items in families.items():
        if any(len(item) > 1 for item in items):
            continue
        lines = [text for (text,) in items]
        if source.cloze:
            # Pair a span of each passage's middle line with the other lines, joined. Lines that do not fill a passage
            # are left out. Source: the inverse cloze task, Lee et al. (2019), ACL.
            length, middle = source.passage_lines, source.passage_lines // 2
            parts = [lines[start : start + length] for start in range(0, len(lines) - length + 1, length)]
            queries = spans([part[middle] for part in parts], source.span_words)
            families[name] = [
                (query, " ".join([*part[:middle], *part[middle + 1 :]]))
                for query, part in zip(queries, parts, strict=True)
            ]
        else:
            most = source.most_words
            cut = spans(passages(lines, source.passage_lines), source.span_words)
            families[name] = [(text,) for text in cut if most is None or len(text.split()) <= most]
    rows: list[tuple[str, str, bool, bool]] = []
    for name, (first, *others) in fair_order(families):
        if not others:
            rows.append((name, first, False, False))
            continue
        second, *label = others
        if source.first_words is not None:
            first, second = (" ".join(text.split()[: source.first_words]) for text in (first, second))
        # The first text of a pair says whether the two are alike or opposed.
        rows.append((name, first, not label or label[0] in ALIKE, label == [OPPOSED]))
        rows.append((name, second, False, False))
    if source.texts is not None:
        end = -(-source.texts // FAIR_BLOCK_TEXTS) * FAIR_BLOCK_TEXTS
        # The block may end before the partner of its last text.
        rows = rows if end >= len(rows) else [*rows[: end - 1], (*rows[end - 1][:2], False, False)]
    blocks = []
    for start in range(0, len(rows), FAIR_BLOCK_TEXTS):
        names, texts, paired, opposed = zip(*rows[start : start + FAIR_BLOCK_TEXTS], strict=True)
        blocks.append(Block(texts, names, paired, opposed))
    return blocks


def fair_order(families: Mapping[str, Sequence[Item]]) -> list[tuple[str, Item]]:
    """Return each distinct item once, with its family, in an order in which every prefix is a fair sample.

    A family's share is proportional to the square root of its size. The order within a family depends on the
    texts alone.
    """
    placed = []
    for name, items in families.items():
        unique = {hashlib.sha256("\t".join(item).encode()).digest(): item for item in items}
        share = len(unique) ** 0.5
        placed += [((rank + 0.5) / share, name, item) for rank, (_, item) in enumerate(sorted(unique.items()))]
    placed.sort(key=lambda place: place[:2])
    return [(name, item) for _, name, item in placed]


def genre(file_name: str) -> str:
    """Return the family of a corpus file: its name up to the first dot, such as ``books`` for ``books.00.txt.gz``."""
    return file_name.split(".")[0] or file_name


def passages(lines: Sequence[str], most: int) -> list[str]:
    """Join consecutive lines into passages of 2, 3, .. ``most`` lines, then again 2, 3, ..; each line is in one.

    Short and long passages then come from every part of a file. If ``most`` is 1, return the lines themselves.
    """
    if most == 1:
        return list(lines)
    joined: list[str] = []
    rest, lengths = iter(lines), cycle(range(2, most + 1))
    while part := list(islice(rest, next(lengths))):
        joined.append(" ".join(part))
    return joined


def spans(lines: Sequence[str], most: int) -> list[str]:
    """Cut each line to a span of 1, 2, .. ``most``, then again 1, 2, .. words, at a place that its hash chooses.

    Single words and phrases show what each entry contributes, which whole sentences do not. If ``most`` is 0, return
    the lines themselves.
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


def read_pair_rows(path: str | Path) -> list[Item]:
    """Return the pairs of JSON lines with the fields query and passage, or a, b and label, as strings."""
    pairs = []
    for number, line in read_lines(path):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            first, second = next(fields for fields in PAIR_FIELDS if set(fields) <= set(row))
            label = [] if first == "query" else [str(row["label"])]
            pair = (row[first], row[second], *label)
        except (ValueError, TypeError, KeyError, StopIteration):
            pair = ()
        if len(pair) < 2 or not all(isinstance(part, str) for part in pair):
            raise InputError(
                f"{path}, line {number}: must be a JSON object with query and passage, or with a, b "
                f"and label, got {line[:40]!r}"
            )
        pairs.append(tuple(map(well_formed, pair)))
    return pairs


def read_excluded(paths: Iterable[str | Path]) -> frozenset[str]:
    """Return the words of each text in the files, in all columns, as :func:`.words_of` writes them."""
    return frozenset(words_of(column) for path in paths for column in read_columns(path)) - {""}


def read_labelled_files(
    paths: Sequence[str | Path],
    skip: str | Path | None = None,
    text_field: Named = None,
    label_field: str | None = None,
    excluded: Set[str] = frozenset(),
) -> tuple[list[str], list[str]]:
    """Return the labels and texts of files, see :func:`ctx_embed.reading.rows.read_labelled_rows`.

    In lines of tab-separated columns the last one is the text. ``skip`` is a JSON file of lines to leave out,
    ``{"lines": {file name: [numbers from 1]}}``; texts whose words are ``excluded`` are left out, too.
    """
    skipped: dict[str, set[int]] = {}
    if skip is not None:
        content = "".join(line for _, line in read_lines(skip))
        try:
            skipped = {str(name): set(map(int, numbers)) for name, numbers in json.loads(content)["lines"].items()}
        except (AttributeError, KeyError, TypeError, ValueError):
            raise InputError(f'{skip}: not JSON of the form {{"lines": {{"file name": [line numbers]}}}}') from None
    labels: list[str] = []
    texts: list[str] = []
    for path in paths:
        left_out = skipped.get(Path(path).name, set())
        for number, label, text in read_labelled_rows(path, text_field, label_field):
            text = well_formed(text.rpartition("\t")[2])
            if number not in left_out and words_of(text) not in excluded:
                labels.append(label)
                texts.append(text)
    if len(set(labels)) < 2:
        raise InputError(f"the labelled files must have at least two labels, got {len(set(labels))}")
    return labels, texts


class Pairs(NamedTuple):
    """Pairs of texts and their similarity: scores (P,), first and second texts."""

    scores: Sequence[float]
    first: Sequence[str]
    second: Sequence[str]


def read_pairs(path: str | Path) -> Pairs:
    """Read the pairs of a file of lines ``score<TAB>text<TAB>text``."""
    rows = read_fields(path, "score<TAB>text<TAB>text", scored=0)
    if len(rows) < 2:
        raise InputError(f"{path}: must have at least two pairs, got {len(rows)}")
    scores, first, second = zip(*rows, strict=True)
    return Pairs(list(map(float, scores)), *(tuple(map(well_formed, texts)) for texts in (first, second)))
