"""Inputs on disks and in object stores, cut into pieces that workers read each on its own.

The cut depends on the files alone, so that a run that is repeated finds the same pieces. Lines of uncompressed text and
JSONL are cut by bytes, Parquet by row groups; a file of CSV or of gzip is one piece.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from glob import glob, has_magic
from pathlib import Path
from typing import Any, cast

import numpy as np

from ctx_embed import reading
from ctx_embed.errors import InputError, described
from ctx_embed.reading import FOLDER_SUFFIXES, GZIP_MAGIC, TEXT_FIELD, cell_value, document_of, plain_value, suffix_of
from ctx_embed.stores.parquet import filesystem
from ctx_embed.texts import Document, well_formed

# A part is stored at once: these many rows at most, or fewer long ones.
PART_ROWS = 16_384
PART_BYTES = 1 << 24
_READ_BYTES = 1 << 23
_ROWS_AT_ONCE = 2048
_TEXT, _JSONL, _CSV, _TSV, _PARQUET = "text", "jsonl", "csv", "tsv", "parquet"
_KINDS = {".jsonl": _JSONL, ".ndjson": _JSONL, ".json": _JSONL, ".csv": _CSV, ".tsv": _TSV, ".parquet": _PARQUET}

Raw = bytes | dict[str, Any] | InputError


@dataclass(frozen=True)
class Source:
    """A file.

    Args:
        name: its path or URI; ids derived from rows begin with it.
        size: in bytes.
        modified: when, in nanoseconds.
    """

    name: str
    size: int
    modified: int

    @cached_property
    def kind(self) -> str:
        """The format that the suffix names."""
        return _KINDS.get(suffix_of(self.name.partition("?")[0]), _TEXT)


@dataclass(frozen=True)
class Piece:
    """A stretch of a file that one worker reads.

    Args:
        source: the file.
        key: what the names of its parts begin with.
        start: its first byte, or row group.
        stop: the byte or row group after its last; None for the whole file.
        first: the number of its first line or row.
        rows: about how many it has; None if unknown.
    """

    source: Source
    key: str
    start: int = 0
    stop: int | None = None
    first: int = 1
    rows: int | None = None


@dataclass(frozen=True)
class Fields:
    """Which fields of a row are its text and its id; None: ``text``, and ``id`` or ``_id`` if there is one."""

    text: str | None = None
    id: str | None = None


def find_sources(inputs: Sequence[str | Path]) -> list[Source]:
    """Return the files that inputs name, each once: files, folders, globs and URIs.

    Raises:
        InputError: one names no file, or standard input.
    """
    found: dict[str, Source] = {}
    for given in inputs:
        name = str(given)
        if name == "-":
            raise InputError("standard input cannot be read twice, so encoding to a store needs files")
        for source in _remote(name) if "://" in name else _local(name):
            found.setdefault(source.name, source)
    if not found:
        raise InputError("no input: give a file, a folder, a glob or a URI")
    return list(found.values())


def is_inside(name: str, folder: str) -> bool:
    """Return whether a file lies in a folder; both are paths, or both are URIs."""
    if "://" in name or "://" in folder:
        return name.startswith(folder.rstrip("/") + "/")
    return os.path.abspath(name).startswith(os.path.join(os.path.abspath(folder), ""))


def _local(name: str) -> Iterator[Source]:
    names = [name]
    if has_magic(name) and not os.path.exists(name):
        names = sorted(glob(name, recursive=True))
        if not names:
            raise InputError(f"{name}: no such file, and nothing matches it")
    for file in reading.expanded(names):
        try:
            status = os.stat(file)
        except (OSError, ValueError) as error:
            said = "no such file" if isinstance(error, FileNotFoundError) else f"cannot be read ({error})"
            raise InputError(f"{file}: {said}") from None
        yield Source(file, status.st_size, status.st_mtime_ns)


def _remote(name: str) -> Iterator[Source]:
    from pyarrow import fs

    address, question, options = name.partition("?")
    scheme = address.partition("://")[0]
    steps = address.split("/")
    magic = next((place for place, step in enumerate(steps) if has_magic(step)), None)
    files, root = filesystem("/".join(steps[:magic]) + question + options)
    try:
        info = files.get_file_info(root)
        if info.type == fs.FileType.File:
            infos = [info]
        else:
            infos = files.get_file_info(fs.FileSelector(root, recursive=True, allow_not_found=True))
    except OSError as error:
        raise InputError(f"{name}: cannot be read ({' '.join(str(error).split()):.200})") from None
    infos = [each for each in infos if each.type == fs.FileType.File]
    if magic is not None:
        matching = _pattern("/".join([root.rstrip("/"), *steps[magic:]]))
        infos = [each for each in infos if matching.fullmatch(each.path)]
    elif infos != [info]:
        infos = [each for each in infos if suffix_of(each.path) in FOLDER_SUFFIXES and not _hidden(each.path, root)]
    if not infos:
        raise InputError(f"{name}: no such file, and no file in it that ends in {', '.join(FOLDER_SUFFIXES)}")
    for each in sorted(infos, key=lambda each: str(each.path)):
        yield Source(f"{scheme}://{each.path}{question}{options}", int(each.size or 0), int(each.mtime_ns or 0))


def _hidden(path: str, root: str) -> bool:
    return any(step.startswith(".") for step in path.removeprefix(root).split("/"))


def _pattern(path: str) -> re.Pattern[str]:
    """Return the expression of a glob in which ``*`` stays within a folder and ``**/`` does not."""
    parts = re.split(r"(\*\*/|\*|\?)", path)
    meanings = {"**/": "(?:.*/)?", "*": "[^/]*", "?": "[^/]"}
    return re.compile("".join(meanings.get(part, re.escape(part)) for part in parts))


@contextmanager
def _stream(source: Source) -> Iterator[Any]:
    """Yield a file that pyarrow can seek in; report its errors in one line."""
    import pyarrow

    files, path = filesystem(source.name)
    try:
        with files.open_input_file(path) as stream:
            yield stream
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputError(f"{source.name}: broken gzip ({error})") from None
    except (pyarrow.ArrowException, OSError) as error:
        raise InputError(f"{source.name}: cannot be read ({' '.join(str(error).split()):.120})") from None


def _is_packed(stream: Any) -> bool:
    packed: bool = stream.read(2) == GZIP_MAGIC
    stream.seek(0)
    return packed


def pieces(source: Source, number: int, part_rows: int = PART_ROWS) -> Iterator[Piece]:
    """Yield the pieces of a file.

    Args:
        source: the file.
        number: its place among the inputs.
        part_rows: the most rows of a part.

    Raises:
        InputError: the file cannot be read.
    """
    whole = Piece(source, f"{number:05d}-00000")
    with _stream(source) as stream:
        packed = _is_packed(stream)
        if source.kind == _PARQUET and packed:
            raise InputError(f"{source.name}: Parquet is compressed by itself; unpack the gzip")
        if source.kind == _PARQUET:
            cut = _row_groups(stream, part_rows)
        elif source.kind in (_TEXT, _JSONL) and not packed:
            cut = _stretches(stream, part_rows)
        else:
            yield whole
            return
        for place, (start, stop, first, rows) in enumerate(cut):
            key = f"{number:05d}-{place:05d}"
            yield replace(whole, key=key, start=start, stop=stop, first=first, rows=rows)


def _row_groups(stream: Any, part_rows: int) -> Iterator[tuple[int, int, int, int]]:
    from pyarrow import parquet

    metadata = parquet.ParquetFile(stream).metadata
    start, first, rows = 0, 1, 0
    for group in range(metadata.num_row_groups):
        rows += metadata.row_group(group).num_rows
        if rows >= part_rows or group == metadata.num_row_groups - 1:
            yield start, group + 1, first, rows
            start, first, rows = group + 1, first + rows, 0


def _stretches(stream: Any, part_rows: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield first and last byte, first line and lines of stretches that end with a line's end."""
    start = read = first = lines = 0
    complete = True
    while block := stream.read(_READ_BYTES):
        ends = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n")) + read + 1
        place = 0
        while place < len(ends):
            # The last line that fits: by rows, or the first that reaches the most bytes.
            last = min(place + part_rows - lines - 1, int(np.searchsorted(ends, start + PART_BYTES)))
            if last >= len(ends):
                break
            count = lines + last + 1 - place
            yield start, int(ends[last]), first + 1, count
            start, first, lines, place = int(ends[last]), first + count, 0, last + 1
        lines += len(ends) - place
        read += len(block)
        complete = block.endswith(b"\n")
    if start < read:
        yield start, read, first + 1, lines + (not complete)


def raw_rows(piece: Piece) -> Iterator[tuple[int, Raw]]:
    """Yield the rows of a piece with their numbers, not yet looked into; an error for one that is not to be had.

    Raises:
        InputError: the file cannot be read further.
    """
    with _stream(piece.source) as stream:
        kind = piece.source.kind
        if kind == _PARQUET:
            yield from _parquet_rows(piece, stream)
        elif piece.stop is not None:
            stream.seek(piece.start)
            lines = stream.read(piece.stop - piece.start).split(b"\n")
            # What follows the last line's end is no line.
            yield from enumerate(lines[:-1] if lines[-1] == b"" else lines, piece.first)
        else:
            # A plain file, as gzip and csv read it.
            file = io.BufferedReader(cast(Any, stream))
            unpacked = gzip.GzipFile(fileobj=file) if _is_packed(file) else file
            numbered = enumerate(cast(Any, unpacked), 1)
            if kind in (_CSV, _TSV):
                yield from _table_rows(piece, numbered)
            else:
                yield from ((number, line.removesuffix(b"\n")) for number, line in numbered)


def _parquet_rows(piece: Piece, stream: Any) -> Iterator[tuple[int, Raw]]:
    from pyarrow import parquet

    table = parquet.ParquetFile(stream)
    groups = range(piece.start, table.metadata.num_row_groups if piece.stop is None else piece.stop)
    number = piece.first
    for batch in table.iter_batches(_ROWS_AT_ONCE, row_groups=list(groups)):
        for row in batch.to_pylist():
            yield number, row
            number += 1


def _table_rows(piece: Piece, lines: Iterator[tuple[int, bytes]]) -> Iterator[tuple[int, Raw]]:
    # Bytes that are no UTF-8 become lone surrogates, by which their row is known.
    decoded = (
        line.decode("utf-8", "surrogateescape").removeprefix("\ufeff" if number == 1 else "") for number, line in lines
    )
    dialect: dict[str, Any] = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if piece.source.kind == _TSV else {}
    table = csv.reader(decoded, strict=True, **dialect)
    header: list[str] | None = None
    while True:
        try:
            cells = next(table)
        except StopIteration:
            return
        except csv.Error as error:
            yield table.line_num, InputError(f"cannot be read ({error})")
            continue
        if not cells:
            continue
        if header is None:
            header = cells
        elif len(cells) != len(header):
            count = f"{len(cells)} {'field' if len(cells) == 1 else 'fields'}"
            yield table.line_num, InputError(f"{count}, but the header has {len(header)}")
        elif any("\udc80" <= character <= "\udcff" for cell in cells for character in cell):
            yield table.line_num, InputError("must be UTF-8; convert the file")
        else:
            yield table.line_num, dict(zip(header, cells, strict=True))


def size_of(raw: Raw) -> int:
    """Return about how many bytes a row takes."""
    if isinstance(raw, bytes):
        return len(raw)
    return sum(len(value) for value in raw.values() if isinstance(value, str)) if isinstance(raw, dict) else 0


def document(piece: Piece, number: int, raw: Raw, fields: Fields) -> Document | None:
    """Return the document of a row, with an id as a string; None for a blank line.

    Raises:
        InputError: the row cannot be embedded; the message names it.
    """
    source = piece.source
    where = f"{source.name}, {'row' if source.kind == _PARQUET else 'line'} {number}"
    if isinstance(raw, InputError):
        raise InputError(f"{where}: {raw}")
    if isinstance(raw, bytes):
        try:
            line = raw.removesuffix(b"\r").decode("utf-8")
        except UnicodeDecodeError:
            raise InputError(f"{where}: must be UTF-8; convert the file") from None
        line = line.removeprefix("\ufeff") if number == 1 else line
        if not line.strip():
            return None
        if source.kind == _TEXT:
            return Document(line, f"{source.name}:{number}")
        raw = _object(where, line)
    return _of_row(where, f"{source.name}:{number}", source.kind, raw, fields)


def _object(where: str, line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: not JSON ({error})") from None
    if not isinstance(row, dict):
        raise InputError(f"{where}: must be a JSON object, got {described(row)}")
    return row


def _of_row(where: str, derived: str, kind: str, row: dict[str, Any], fields: Fields) -> Document:
    text_field = fields.text or TEXT_FIELD
    for name in (text_field, fields.id):
        if name is not None and name not in row:
            known = ", ".join(map(repr, row)) or "none"
            option = "--field" if name == text_field else "--id"
            raise InputError(f"{where}: no field {name!r} (fields: {known}); name the right one with {option}")
    if kind in (_CSV, _TSV):
        needed = {text_field: "", **({fields.id: ""} if fields.id else {})}
        row = {name: cell_value(name, cell, needed) for name, cell in row.items() if cell or name in needed}
    elif kind == _PARQUET:
        plain = {name: plain_value(value) for name, value in row.items()}
        row = {name: value for name, value in plain.items() if value is not None or name in (text_field, fields.id)}
    given = row.get(fields.id) if fields.id is not None else None
    found = document_of(where, {name: value for name, value in row.items() if name != fields.id}, text_field)
    if fields.id is not None:
        if isinstance(given, bool) or not isinstance(given, str | int) or given == "":
            raise InputError(f"{where}: the id {fields.id!r} must be a string or an integer, got {given!r:.40}")
        # `id` is another field here.
        others = {} if found.id is None else {"id" if "id" in row else "_id": found.id}
        return Document(well_formed(found.text), well_formed(str(given)), {**others, **found.metadata})
    identifier = derived if found.id is None or found.id == "" else well_formed(str(found.id))
    return Document(well_formed(found.text), identifier, found.metadata)


def has_own_id(piece: Piece, number: int, identifier: str) -> bool:
    """Return whether a row's id was given, and so may occur twice, rather than derived from its place."""
    return identifier != f"{piece.source.name}:{number}"


def require_fields(source: Source, fields: Fields) -> None:
    """Raise an error for a file whose lines of text have no fields.

    Raises:
        InputError: naming the file.
    """
    if source.kind != _TEXT:
        return
    for value, option in ((fields.text, "--field"), (fields.id, "--id")):
        if value is not None:
            raise InputError(
                f"{source.name}: lines of text have no field {value!r}; give CSV, TSV, JSONL or Parquet, or leave "
                f"{option} out"
            )
