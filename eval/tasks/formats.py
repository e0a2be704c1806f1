"""The file formats of the tasks: each reader returns the rows of one file.

The formats of SentEval (Conneau and Kiela 2018, arXiv:1803.05449) are those of the datasets' original releases, as
its loaders read them.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ctx_embed.errors import InputError
from ctx_embed.eval.tasks.task import Reader, Row
from ctx_embed.rows.reading import read_labelled, read_lines


def labelled(path: Path, text_field: str | None = None, label_field: str | None = None) -> list[Row]:
    """Return the rows of a user's labelled file, see :func:`ctx_embed.rows.reading.read_labelled`."""
    return list(zip(*read_labelled(path, text_field, label_field), strict=True))


def labelled_pairs(path: Path) -> list[Row]:
    """Return the rows of ``label<TAB>text<TAB>text``."""
    return _table(path, "label<TAB>text<TAB>text", 3)


def labelled_reviews(path: Path) -> list[Row]:
    """Return label and text from ``label<TAB>stars<TAB>text``."""
    return [(label, text) for label, _, text in _table(path, "label<TAB>stars<TAB>text", 3)]


def scored_pairs(path: Path) -> list[Row]:
    """Return the rows of ``score<TAB>text<TAB>text``."""
    return _table(path, "score<TAB>text<TAB>text", 3, scored=0)


def lines_of(label: str) -> Reader:
    """Return a reader of one class's texts, one a line, as SentEval's ``rt-polarity.pos``; UTF-8, else Latin-1."""

    def read(path: Path) -> list[Row]:
        return _some([(label, line) for _, line in _lines(path)], path, "lines of text")

    return read


def sst_fine(path: Path) -> list[Row]:
    """Return the rows of ``label text``, split at the first space: SentEval's fine-grained SST."""
    return _split_first(path, " ", "label text")


def sst_binary(path: Path) -> list[Row]:
    """Return label and text from ``text<TAB>label``, SentEval's binary SST."""
    return [(label.strip(), text) for text, label in _table(path, "text<TAB>label", 2)]


def trec(path: Path) -> list[Row]:
    """Return the coarse class and the question from TREC's ``COARSE:fine question``."""
    rows: list[Row] = []
    for label, question in _split_first(path, " ", "COARSE:fine question"):
        coarse, colon, _ = label.partition(":")
        if not colon:
            raise InputError(f"{path}: labels must be COARSE:fine, got {label!r}")
        rows.append((coarse, question))
    return rows


def mrpc(path: Path) -> list[Row]:
    """Return label and texts from ``Quality<TAB>id<TAB>id<TAB>text<TAB>text`` below a header line."""
    rows = _table(path, "Quality<TAB>#1 ID<TAB>#2 ID<TAB>#1 String<TAB>#2 String", 5, head=True)
    return [(quality, first, second) for quality, _, _, first, second in rows]


def sick_entailment(path: Path) -> list[Row]:
    """Return judgement and texts from SICK's ``pair<TAB>text<TAB>text<TAB>relatedness<TAB>judgement`` with a header."""
    return [(judgement.strip(), first, second) for _, first, second, _, judgement, *_ in _sick(path)]


def sick_relatedness(path: Path) -> list[Row]:
    """Return relatedness and texts from the same file."""
    return [(relatedness, first, second) for _, first, second, relatedness, *_ in _sick(path)]


def _sick(path: Path) -> list[Row]:
    shape = "pair_ID<TAB>sentence_A<TAB>sentence_B<TAB>relatedness_score<TAB>entailment_judgment"
    return _table(path, shape, 5, scored=3, head=True, more=True)


def sts_benchmark(path: Path) -> list[Row]:
    """Return score and texts from STS-B's seven tab-separated fields; further fields are ignored."""
    shape = "genre<TAB>file<TAB>year<TAB>id<TAB>score<TAB>text<TAB>text"
    return [(row[4], row[5], row[6]) for row in _table(path, shape, 7, scored=4, more=True)]


def sts_input(path: Path) -> list[Row]:
    """Return scores and texts: ``text<TAB>text`` in ``STS.input.NAME.txt``, scores in ``STS.gs.NAME.txt`` next to it.

    A pair with an empty score was not judged and is left out.
    """
    judged = path.with_name(path.name.replace("STS.input.", "STS.gs.", 1))
    if not os.path.isfile(judged):
        raise InputError(f"{judged} is missing; it must hold the scores of {path}")
    scores = [line.strip() for _, line in read_lines(judged)]
    pairs = [line.split("\t") for _, line in read_lines(path)]
    if len(scores) != len(pairs):
        raise InputError(f"{judged} must hold a score for each of {len(pairs)} pairs in {path}, got {len(scores)}")
    rows: list[Row] = []
    for number, (score, pair) in enumerate(zip(scores, pairs, strict=True), 1):
        if len(pair) < 2:
            raise InputError(f"{path}, line {number}: must be text<TAB>text, got {pair[0][:40]!r}")
        if score and not _is_number(score):
            raise InputError(f"{judged}, line {number}: the score must be a number, got {score[:40]!r}")
        if score:
            rows.append((score, pair[0], pair[1]))
    return _some(rows, judged, "scores")


def beir_documents(path: Path) -> list[Row]:
    """Return id and text (after the title, if any) from JSON lines with ``_id``, ``text`` and perhaps ``title``."""
    rows: list[Row] = []
    for number, line in _lines(path):
        try:
            entry: Any = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}, line {number}: not JSON ({error})") from None
        if not isinstance(entry, dict) or not {"_id", "text"} <= set(entry):
            raise InputError(f"{path}, line {number}: must be an object with _id and text, got {line[:40]!r}")
        for name in ("_id", "text"):
            if not isinstance(entry[name], str):
                shown = json.dumps(entry[name], ensure_ascii=False)
                hint = f'; write "{shown}"' if isinstance(entry[name], int | float) else ""
                raise InputError(f"{path}, line {number}: {name} must be a string, got {shown:.40}{hint}")
        title = entry.get("title")
        rows.append((entry["_id"], f"{title} {entry['text']}".strip() if isinstance(title, str) else entry["text"]))
    return _some(rows, path, "lines of a JSON object with _id and text")


def beir_judgements(path: Path) -> list[Row]:
    """Return the rows of ``query-id<TAB>corpus-id<TAB>score``, with or without a header. The score is an integer."""
    shape = "query-id<TAB>corpus-id<TAB>score"
    first, *others = _table(path, shape, 3)
    rows = _some([first, *others] if _is_whole(first[2]) else others, path, f"lines of {shape}")
    for query, document, relevance in rows:
        if not _is_whole(relevance):
            raise InputError(f"{path}: the score of {query!r} and {document!r} must be an integer, got {relevance!r}")
    return rows


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Return the numbered lines that are not blank. A file that is not UTF-8 is read as Latin-1, as old sets need."""
    return ((number, line) for number, line in read_lines(path, fallback="latin-1") if line.strip())


def _split_first(path: Path, mark: str, shape: str) -> list[Row]:
    rows: list[Row] = []
    for number, line in _lines(path):
        label, found, text = line.strip().partition(mark)
        if not found:
            raise InputError(f"{path}, line {number}: must be {shape}, got {line[:40]!r}")
        rows.append((label, text))
    return _some(rows, path, f"lines of {shape}")


def _table(
    path: Path, shape: str, count: int, *, scored: int | None = None, head: bool = False, more: bool = False
) -> list[Row]:
    """Return the tab-separated fields of each line: ``count`` of them, or more if ``more`` is True.

    Raises:
        InputError: the file cannot be read, a line has a wrong number of fields, a score is not a number, or there are
            no rows.
    """
    rows: list[Row] = []
    for number, line in _lines(path):
        row = tuple(line.split("\t"))
        if head and number == 1:
            continue
        wrong = len(row) < count or (len(row) > count and not more)
        if wrong or (scored is not None and not _is_number(row[scored])):
            raise InputError(f"{path}, line {number}: must be {shape}, got {line[:40]!r}")
        rows.append(row)
    return _some(rows, path, f"lines of {shape}")


def _some(rows: list[Row], path: Path, needed: str) -> list[Row]:
    if not rows:
        raise InputError(f"{path}: must have {needed}, got none")
    return rows


def _is_whole(text: str) -> bool:
    return text.strip().removeprefix("-").isdecimal()


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
