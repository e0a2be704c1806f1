"""The file formats of the tasks: each reader returns the rows of one file.

The formats of SentEval (Conneau and Kiela 2018, arXiv:1803.05449) are those of the datasets' original releases, as
its loaders read them.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ctx_embed.errors import InputError
from ctx_embed.rows.reading import read_labelled, read_lines

# A row is one of: a label and one or two texts; a score and two texts; an id and a text; two ids and a relevance.
Row = tuple[str, ...]
Reader = Callable[[Path], list[Row]]


def labelled(path: Path, text_field: str | None = None, label_field: str | None = None) -> list[Row]:
    """Return the rows of a user's labelled file, see :func:`ctx_embed.rows.reading.read_labelled`."""
    return list(zip(*read_labelled(path, text_field, label_field), strict=True))


def table(
    shape: str, columns: Sequence[int] = (), *, scored: int | None = None, head: bool = False, more: bool = False
) -> Reader:
    """Return a reader of lines with tab-separated fields.

    Args:
        shape: the names of the fields.
        columns: the fields of a row in their order, of which the first is stripped; by default all, as they are.
        scored: the field that must be a number.
        head: whether the first line names the fields.
        more: whether further fields may follow.
    """
    count = shape.count("<TAB>") + 1

    def read(path: Path) -> list[Row]:
        rows: list[Row] = []
        for number, line in _lines(path):
            row = tuple(line.split("\t"))
            if head and number == 1:
                continue
            wrong = len(row) < count or (len(row) > count and not more)
            if wrong or (scored is not None and not _is_number(row[scored])):
                raise InputError(f"{path}, line {number}: must be {shape}, got {line[:40]!r}")
            rows.append((row[columns[0]].strip(), *(row[place] for place in columns[1:])) if columns else row)
        return _some(rows, path, f"lines of {shape}")

    return read


def lines_of(label: str) -> Reader:
    """Return a reader of one class's texts, one a line, as SentEval's ``rt-polarity.pos``."""
    return lambda path: _some([(label, line) for _, line in _lines(path)], path, "lines of text")


def words_after(shape: str) -> Reader:
    """Return a reader of lines with a label, a space and a text; of TREC's ``COARSE:fine``, COARSE is the label."""

    def read(path: Path) -> list[Row]:
        rows: list[Row] = []
        for number, line in _lines(path):
            label, space, text = line.strip().partition(" ")
            if not space or (":" in shape and ":" not in label):
                raise InputError(f"{path}, line {number}: must be {shape}, got {line[:40]!r}")
            rows.append((label.partition(":")[0] if ":" in shape else label, text))
        return _some(rows, path, f"lines of {shape}")

    return read


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

    def is_whole(text: str) -> bool:
        return text.strip().removeprefix("-").isdecimal()

    shape = "query-id<TAB>corpus-id<TAB>score"
    first, *others = table(shape)(path)
    rows = _some([first, *others] if is_whole(first[2]) else others, path, f"lines of {shape}")
    for query, document, relevance in rows:
        if not is_whole(relevance):
            raise InputError(f"{path}: the score of {query!r} and {document!r} must be an integer, got {relevance!r}")
    return rows


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Return the numbered lines that are not blank. A file that is not UTF-8 is read as Latin-1, as old sets need."""
    return ((number, line) for number, line in read_lines(path, fallback="latin-1") if line.strip())


def _some(rows: list[Row], path: Path, needed: str) -> list[Row]:
    if not rows:
        raise InputError(f"{path}: must have {needed}, got none")
    return rows


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


_SICK = "pair_ID<TAB>sentence_A<TAB>sentence_B<TAB>relatedness_score<TAB>entailment_judgment"
_MRPC = "Quality<TAB>#1 ID<TAB>#2 ID<TAB>#1 String<TAB>#2 String"
_STS_BENCHMARK = "genre<TAB>file<TAB>year<TAB>id<TAB>score<TAB>text<TAB>text"
# The formats as the catalogue names them. Those with capitals are SentEval's.
READERS: dict[str, Reader] = {
    "label, text": labelled,
    "label, stars, text": table("label<TAB>stars<TAB>text", (0, 2)),
    "label, text, text": table("label<TAB>text<TAB>text"),
    "score, text, text": table("score<TAB>text<TAB>text", scored=0),
    "documents": beir_documents,
    "judgements": beir_judgements,
    "positive": lines_of("1"),
    "negative": lines_of("0"),
    "SST fine": words_after("label text"),
    "SST binary": table("text<TAB>label", (1, 0)),
    "TREC": words_after("COARSE:fine question"),
    "MRPC": table(_MRPC, (0, 3, 4), head=True),
    "SICK entailment": table(_SICK, (4, 1, 2), scored=3, head=True, more=True),
    "SICK relatedness": table(_SICK, (3, 1, 2), scored=3, head=True, more=True),
    "STS benchmark": table(_STS_BENCHMARK, (4, 5, 6), scored=4, more=True),
    "STS input": sts_input,
}
