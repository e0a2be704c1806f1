"""Reading texts: plain or gzip, a text a line or JSONL, from a file or standard input."""

from __future__ import annotations

import gzip
import io
import json
import os
import sys
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

from ctx_embed.errors import InputError

GZIP_MAGIC = b"\x1f\x8b"
# A batch is padded to its longest text by many models: so many characters, padding included, at most.
BATCH_CHARACTERS = 1 << 20
BATCH_TEXTS = 256


@dataclass(frozen=True)
class Document:
    """A text with its id (None: to be given by whoever stores it) and its metadata (JSON values by name)."""

    text: str
    id: str | int | None = None
    metadata: dict[str, Any] = field(default_factory=dict)


def well_formed(text: str) -> str:
    """``text`` with each lone surrogate replaced by U+FFFD, so that it can be encoded as UTF-8."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _name(source: str | Path) -> str:
    return "standard input" if str(source) == "-" else str(source)


def _open(source: str | Path) -> IO[bytes]:
    if str(source) == "-":
        if sys.stdin is None:
            raise InputError("standard input is closed")
        return sys.stdin.buffer
    if os.path.isdir(source):
        raise InputError(f"{source}: is a folder, a file is needed")
    try:
        return open(source, "rb")
    except FileNotFoundError:
        raise InputError(f"{source}: no such file") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{source}: cannot be read ({getattr(error, 'strerror', error)})") from None


@contextmanager
def _unpacked(source: str | Path) -> Iterator[IO[bytes]]:
    """The bytes of ``source`` (``-``: standard input), decompressed where they begin like gzip."""
    raw = _open(source)
    buffered = cast("io.BufferedReader", raw if hasattr(raw, "peek") else io.BufferedReader(cast(Any, raw)))
    try:
        if buffered.peek(2)[:2] == GZIP_MAGIC:
            with gzip.open(buffered, "rb") as unpacked:
                yield cast("IO[bytes]", unpacked)
        else:
            yield buffered
    finally:
        if str(source) != "-":
            raw.close()


def read_lines(source: str | Path) -> Iterator[tuple[int, str]]:
    """The lines of ``source`` with their numbers from 1, split on ``\\n`` only, without the line's end.

    Args:
        source: a path, plain or gzip, or ``-`` for standard input; UTF-8, with or without a byte order mark.

    Raises:
        InputError: no such file, a folder, broken gzip, or bytes that are not UTF-8; the line is named.
    """
    number = 0
    try:
        with _unpacked(source) as file:
            for number, line in enumerate(file, 1):
                text = line.decode("utf-8").removesuffix("\n").removesuffix("\r")
                yield number, text.removeprefix("\ufeff") if number == 1 else text
    except UnicodeDecodeError as error:
        where = f"{_name(source)}, line {number}"
        raise InputError(f"{where}: not UTF-8 (byte {error.start + 1} of the line), convert it first") from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputError(f"{_name(source)}: broken gzip after line {number} ({error})") from None
    except OSError as error:
        raise InputError(f"{_name(source)}: cannot be read after line {number} ({error.strerror})") from None


def _is_json_object(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _parse_row(source: str | Path, number: int, line: str, text_field: str) -> Document:
    where = f"{_name(source)}, line {number}"
    try:
        row = json.loads(line)
    except ValueError as error:
        raise InputError(f"{where}: not JSON ({error})") from None
    except RecursionError:
        raise InputError(f"{where}: nested too deeply to be read") from None
    if not isinstance(row, dict):
        raise InputError(f"{where}: a JSON {type(row).__name__}, an object with the field {text_field!r} is needed")
    if text_field not in row:
        names = ", ".join(map(repr, row)) or "none"
        raise InputError(f"{where}: no field {text_field!r} (fields: {names}), name the right one with --field")
    text = row.pop(text_field)
    if not isinstance(text, str):
        raise InputError(f"{where}: field {text_field!r} is a {type(text).__name__}, a string is needed")
    identifier = row.pop("id", row.pop("_id", None))
    if identifier is not None and (isinstance(identifier, bool) or not isinstance(identifier, str | int)):
        raise InputError(f"{where}: the id is a {type(identifier).__name__}, a string or an integer is needed")
    return Document(text, identifier, row)


def read_documents(source: str | Path, text_field: str = "text") -> Iterator[Document]:
    """The documents of a text file (a line each, blank lines skipped) or a JSONL file, in order.

    A name that ends in ``.jsonl``, ``.ndjson`` or ``.json`` (also ``.gz``) is read as JSONL, and so is standard input
    whose first line is a JSON object. A row's ``id`` (or ``_id``) is its id; all fields beside it and the text are its
    metadata.

    Args:
        source: a path, plain or gzip, or ``-`` for standard input.
        text_field: the JSONL field that holds the text.

    Raises:
        InputError: as :func:`read_lines`; a line that is no JSON object or lacks the field.
    """
    name = str(source).lower().removesuffix(".gz")
    is_jsonl = name.endswith((".jsonl", ".ndjson", ".json"))
    undecided = str(source) == "-"
    for number, line in read_lines(source):
        if not line.strip():
            continue
        if undecided:
            is_jsonl, undecided = _is_json_object(line), False
        yield _parse_row(source, number, line, text_field) if is_jsonl else Document(line)


def read_labelled(source: str | Path) -> tuple[list[str], list[str]]:
    """The labels and texts of a ``label<TAB>text`` file, blank lines skipped; a text may be empty.

    Raises:
        InputError: as :func:`read_lines`; a line without a tab, an empty label, or a file without rows.
    """
    labels: list[str] = []
    texts: list[str] = []
    for number, line in read_lines(source):
        if not line.strip():
            continue
        label, tab, text = line.partition("\t")
        if not tab or not label.strip():
            raise InputError(f"{_name(source)}, line {number}: {line[:40]!r} is not label<TAB>text")
        labels.append(label.strip())
        texts.append(text)
    if not labels:
        raise InputError(f"{_name(source)}: no rows, lines of label<TAB>text are needed")
    return labels, texts


def header_hint(labels: Sequence[str]) -> str:
    """Return what to look at where the first label alone occurs once, and an empty string elsewhere."""
    once = [label for label, count in Counter(labels).items() if count == 1]
    if len(labels) < 2 or once != [labels[0]]:
        return ""
    return f"the label {labels[0]!r} occurs once, on the first line: remove the line if it is a header"


def length_batches(texts: Sequence[str], most: int = BATCH_TEXTS) -> Iterator[list[int]]:
    """The positions of ``texts`` in batches of like length, of at most ``most`` texts and bounded padded characters."""
    batch: list[int] = []
    for position in sorted(range(len(texts)), key=lambda place: len(texts[place])):
        # Sorted by length, so that this text is the longest so far.
        if batch and (len(batch) == most or (len(batch) + 1) * len(texts[position]) > BATCH_CHARACTERS):
            yield batch
            batch = []
        batch.append(position)
    if batch:
        yield batch
