"""Files cut into pieces, each of which a worker reads on its own.

The cut depends only on the files, so that a repeated run finds the same pieces. Lines of uncompressed text and
JSONL are cut by bytes, Parquet by row groups; a file of CSV or of gzip is one piece.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

import numpy as np

from ctx_embed.errors import InputError
from ctx_embed.rows.encodings import SAMPLE_BYTES, UTF_8, has_byte_lines, marked, require_encoding, settled
from ctx_embed.rows.opening import BROKEN_GZIP, is_packed, opened, said
from ctx_embed.rows.reading import Fields, document_of
from ctx_embed.rows.sources import Source
from ctx_embed.rows.table import JSONL, PARQUET, TEXT, Raw, Table, kind_of, open_parquet, open_rows
from ctx_embed.texts import Document, well_formed

# A part is stored in one step. It ends after this many rows or bytes, whichever comes first.
PART_ROWS = 16_384
PART_BYTES = 1 << 24
_READ_BYTES = 1 << 23


@dataclass(frozen=True)
class Piece:
    """A stretch of a file that one worker reads.

    Args:
        source: the file.
        key: the prefix of the names of its parts.
        start: its first byte (in Parquet: row group).
        stop: the byte or row group after the piece; None for the whole file.
        first: the number of its first line or row.
        rows: its approximate number of rows; None if unknown.
        encoding: the encoding of its lines; None: only ASCII, or still to be detected.
    """

    source: Source
    key: str
    start: int = 0
    stop: int | None = None
    first: int = 1
    rows: int | None = None
    encoding: str | None = None

    def opened(self, fields: Fields) -> AbstractContextManager[Table]:
        """Open the rows of the piece, see :func:`ctx_embed.rows.table.open_rows`."""
        return open_rows(
            self.source.name,
            needed=fields.needed,
            encoding=self.encoding,
            start=self.start,
            stop=self.stop,
            first=self.first,
        )

    def document(self, table: Table, number: int, raw: Raw, fields: Fields) -> Document | None:
        """Return the document of a row, with an id as a string; None for a blank line.

        Raises:
            InputError: the row cannot be embedded; the message names it.
        """
        found = document_of(table, number, raw, fields)
        if found is None:
            return None
        identifier = self.derived_id(number) if found.id in (None, "") else well_formed(str(found.id))
        return Document(well_formed(found.text), identifier, found.metadata)

    def derived_id(self, number: int) -> str:
        """Return an id for a row that has none, made of its file and number."""
        return f"{self.source.name}:{number}"


def pieces(
    source: Source,
    number: int,
    part_rows: int = PART_ROWS,
    *,
    encoding: str | None = None,
    part_bytes: int = PART_BYTES,
    read_bytes: int = _READ_BYTES,
) -> Iterator[Piece]:
    """Yield the pieces of a file.

    Args:
        source: the file.
        number: its place among the inputs.
        part_rows: maximum rows of a part.
        encoding: the encoding of its text, see :class:`ctx_embed.rows.lines.Lines`.
        part_bytes: a part ends with the line that reaches this size.
        read_bytes: the bytes that are read at a time.

    Raises:
        InputError: the file cannot be read.
    """
    if encoding is not None:
        require_encoding(encoding)
    whole = Piece(source, f"{number:05d}-00000", encoding=encoding)
    try:
        with opened(source.name) as stream:
            for place, piece in enumerate(_cut(whole, stream, part_rows, part_bytes, read_bytes)):
                yield replace(piece, key=f"{number:05d}-{place:05d}")
    except BROKEN_GZIP as error:
        raise InputError(f"{source.name}: broken gzip ({error})") from None
    except OSError as error:
        raise InputError(f"{source.name}: cannot be read ({said(error)})") from None


def _cut(whole: Piece, stream: io.BufferedReader, part_rows: int, part_bytes: int, read_bytes: int) -> Iterator[Piece]:
    kind = kind_of(whole.source.name)
    if kind == PARQUET:
        yield from _row_groups(whole, stream, part_rows)
        return
    packed = is_packed(stream)
    encoding = whole.encoding or (None if packed else marked(stream.peek(4)[:4]))
    if packed or kind not in (TEXT, JSONL) or (encoding is not None and not has_byte_lines(encoding)):
        yield whole
    else:
        yield from _stretches(whole, stream, part_rows, part_bytes, read_bytes)


def _row_groups(whole: Piece, stream: io.BufferedReader, part_rows: int) -> Iterator[Piece]:
    import pyarrow

    start, first, rows = 0, 1, 0
    try:
        with open_parquet(stream) as table:
            groups = [table.metadata.row_group(group).num_rows for group in range(table.metadata.num_row_groups)]
    except pyarrow.ArrowException as error:
        raise InputError(f"{whole.source.name}: cannot be read as Parquet ({said(error):.120})") from None
    for group, count in enumerate(groups):
        rows += count
        if rows >= part_rows or group == len(groups) - 1:
            yield replace(whole, start=start, stop=group + 1, first=first, rows=rows)
            start, first, rows = group + 1, first + rows, 0


def _stretches(
    whole: Piece, stream: io.BufferedReader, part_rows: int, part_bytes: int, read_bytes: int
) -> Iterator[Piece]:
    """Yield stretches that end where a line ends."""
    start = read = first = lines = 0
    encoding, complete, tail = whole.encoding, True, b""
    while block := stream.read(read_bytes):
        if encoding is None and not block.isascii():
            # UTF-8 is what each piece expects, and there it repairs a few wrong bytes.
            encoding = _settled(tail + block)
            whole = replace(whole, encoding=None if encoding == UTF_8 else encoding)
        ends = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n")) + read + 1
        place = 0
        while place < len(ends):
            # The part ends with the line that completes its rows or reaches its bytes, whichever comes first.
            last = min(place + part_rows - lines - 1, int(np.searchsorted(ends, start + part_bytes)))
            if last >= len(ends):
                break
            stop, count = int(ends[last]), lines + last + 1 - place
            yield replace(whole, start=start, stop=stop, first=first + 1, rows=count)
            start, first, lines, place = stop, first + count, 0, last + 1
        lines += len(ends) - place
        read += len(block)
        complete = block.endswith(b"\n")
        tail = block[block.rfind(b"\n") + 1 :][-SAMPLE_BYTES:]
    if start < read:
        rows = lines + (not complete)
        yield replace(whole, start=start, stop=read, first=first + 1, rows=rows)


def _settled(block: bytes) -> str:
    """Return the encoding of a file whose first line that is not ASCII is in this block."""
    place = next(place for place in range(0, len(block), SAMPLE_BYTES) if not block[place:][:SAMPLE_BYTES].isascii())
    place += next(offset for offset, byte in enumerate(block[place:][:SAMPLE_BYTES]) if byte > 127)
    start = block.rfind(b"\n", 0, place) + 1
    return settled(block[max(start, place - SAMPLE_BYTES) : place + SAMPLE_BYTES])
