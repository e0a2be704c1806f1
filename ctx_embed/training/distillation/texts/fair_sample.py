"""Texts of many files, ordered so that any first part is a fair sample: a slow teacher may stop anywhere."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ctx_embed.errors import InputError
from ctx_embed.rows.reading import read_documents, read_labelled_rows, read_lines
from ctx_embed.texts import well_formed
from ctx_embed.training.distillation.texts.corpus import Block, cloze_pairs, genre, passages, spans

BLOCK_TEXTS = 1024
# One string is a text, two are a pair, three are a pair and its label.
Item = tuple[str, ...]
# The names of a pair's fields, and the labels of pairs of texts with the same meaning.
PAIR_FIELDS = (("query", "passage"), ("a", "b"))
ALIKE = frozenset({"entailment", "1"})
OPPOSED = "contradiction"


def fair_order(families: Mapping[str, Sequence[Item]]) -> list[tuple[str, Item]]:
    """Return each distinct item once, with its family.

    Shares of families are proportional to the square roots of their sizes. The order within a family depends on the
    texts alone.
    """
    placed = []
    for name, items in families.items():
        unique = {hashlib.sha256("\t".join(item).encode()).digest(): item for item in items}
        share = len(unique) ** 0.5
        placed += [((rank + 0.5) / share, name, item) for rank, (_, item) in enumerate(sorted(unique.items()))]
    placed.sort(key=lambda place: place[:2])
    return [(name, item) for _, name, item in placed]


def read_pair_rows(path: str | Path) -> list[Item]:
    """Return the pairs of JSON lines with the fields query and passage, or a, b and label, as strings.

    Raises:
        InputError: the file cannot be read, or a line has other fields. The message names the line.
    """
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
                f"{path}, line {number}: {line[:40]!r} is no pair: a JSON object with query and passage, or with a, b "
                "and label"
            )
        pairs.append(tuple(map(well_formed, pair)))
    return pairs


def _read(path: Path) -> list[Item]:
    name = path.name.removesuffix(".gz")
    if name.endswith(".jsonl"):
        return read_pair_rows(path)
    if name.endswith(".tsv"):
        return [(well_formed(text),) for _, _, text in read_labelled_rows(path)]
    return [(well_formed(document.text),) for document in read_documents(path)]


def read_fair_blocks(
    paths: Iterable[str | Path],
    texts: int | None = None,
    *,
    passage_lines: int = 1,
    span_words: int = 0,
    most_words: int | None = None,
    first_words: int | None = None,
    cloze: bool = False,
) -> list[Block]:
    """Cut the texts of all files, in :func:`fair_order`, into blocks.

    Args:
        paths: files of texts (a line each), of labelled texts (``.tsv``) or of pairs (``.jsonl``), plain or gzip. Files
            of one :func:`.genre` are one family.
        texts: stop after the block that reaches this number of texts (None: all).
        passage_lines, span_words: join or cut texts, see :func:`.read_blocks`;
            pairs stay as they are.
        most_words: leave out longer texts.
        first_words: cut the texts of pairs to this number of words (None: whole).
        cloze: make pairs of the lines of texts, see :func:`.cloze_pairs`.

    Raises:
        InputError: a file cannot be read, or there is no text at all.
    """
    families: dict[str, list[Item]] = {}
    for path in map(Path, paths):
        families.setdefault(genre(path.name), []).extend(_read(path))
    for name, items in families.items():
        if all(len(item) == 1 for item in items):
            lines = [item[0] for item in items]
            if cloze:
                families[name] = list(cloze_pairs(lines, passage_lines, span_words))
                continue
            cut = spans(passages(lines, passage_lines), span_words)
            families[name] = [(text,) for text in cut if most_words is None or len(text.split()) <= most_words]
    rows = []
    for name, item in fair_order(families):
        texts_of_item = item if len(item) == 1 else item[:2]
        if len(item) > 1 and first_words is not None:
            texts_of_item = tuple(" ".join(text.split()[:first_words]) for text in texts_of_item)
        is_alike = len(item) > 1 and (len(item) == 2 or item[2] in ALIKE)
        is_opposed = len(item) > 2 and item[2] == OPPOSED
        # A pair is marked at its first text.
        rows += [
            (name, text, is_alike and place == 0, is_opposed and place == 0) for place, text in enumerate(texts_of_item)
        ]
    if not rows:
        raise InputError("the corpus must have at least one text; give text files with a sentence per line")
    blocks = []
    for start in range(0, len(rows), BLOCK_TEXTS):
        if texts is not None and start >= texts:
            break
        names, part, paired, opposed = zip(*rows[start : start + BLOCK_TEXTS], strict=True)
        blocks.append(Block("", part, names, paired, opposed))
    return blocks
