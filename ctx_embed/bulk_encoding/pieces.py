"""Files cut into pieces, each of which a worker reads on its own.

The cut depends only on the files, so that a repeated run finds the same pieces. Lines of uncompressed text and
JSONL are cut by bytes, Parquet by row groups; any other file is one piece.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import count

from ctx_embed.errors import InputError
from ctx_embed.rows.encodings import SAMPLE_BYTES, UTF_8, has_byte_lines, marked, require_encoding, settled
from ctx_embed.rows.opening import Source, is_packed, opened, said
from ctx_embed.rows.reading import Fields, document_of
from ctx_embed.rows.table import JSONL, PARQUET, TEXT, Raw, Table, kind_of, open_parquet, open_rows
from ctx_embed.texts import Document, well_formed

# A part is stored in one step. It ends after this many rows or bytes, whichever comes first.
PART_ROWS = 16_384
PART_BYTES = 1 << 24
ANY_FIELDS = Fields()


@dataclass(frozen=True)
class Piece:
    """A stretch of a file that one worker reads.

    Args:
        source: the file.
        key: the prefix of the names of its parts.
        start, stop: its first byte, and the one after its last; in Parquet row groups. None: the end of the file.
        first: the number of its first line or row.
        rows: its approximate number of rows; None if unknown.
        encoding: the encoding of its lines; None: UTF-8, or still to be detected.
        kind: the format of its lines; None: that of the whole file.
    """

    source: Source
    key: str
    start: int = 0
    stop: int | None = None
    first: int = 1
    rows: int | None = None
    encoding: str | None = None
    kind: str | None = None

    def opened(self, fields: Fields) -> AbstractContextManager[Table]:
        """Open the rows of the piece, see :func:`ctx_embed.rows.table.open_rows`."""
        return open_rows(
            self.source.name,
            kind=self.kind,
            needed=fields.needed,
            encoding=self.encoding,
            start=self.start,
            stop=self.stop,
            first=self.first,
        )

    def document(self, table: Table, number: int, raw: Raw, fields: Fields) -> Document | None:
        """Return the document of a row, with an id as a string; None for a blank line."""
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
    fields: Fields = ANY_FIELDS,
    encoding: str | None = None,
    part_bytes: int = PART_BYTES,
) -> Iterator[Piece]:
    """Yield the pieces of a file, the input with this number. A piece ends when it has enough rows or bytes."""
    require_encoding(encoding)
    keys = (f"{number:05d}-{place:05d}" for place in count())
    whole = Piece(source, f"{number:05d}-00000", encoding=encoding)
    start = stop = rows = 0
    first = 1
    kind = kind_of(source.name)
    if kind in (TEXT, JSONL):
        with open_rows(source.name, needed=fields.needed, encoding=encoding) as table:
            kind = table.kind
    try:
        with opened(source.name) as stream:
            named = encoding or marked(stream.peek(4)[:4])
            if kind == PARQUET:
                with open_parquet(source.name, stream) as table:
                    groups = table.metadata.num_row_groups
                    for group in range(groups):
                        rows += table.metadata.row_group(group).num_rows
                        if rows >= part_rows or group == groups - 1:
                            yield replace(whole, key=next(keys), start=start, stop=group + 1, first=first, rows=rows)
                            start, first, rows = group + 1, first + rows, 0
            elif kind in (TEXT, JSONL) and not is_packed(stream) and has_byte_lines(named or UTF_8):
                whole = replace(whole, kind=kind)
                for line in stream:
                    if encoding is None and not line.isascii():
                        # One encoding for all pieces; in UTF-8, which each expects, it repairs a few wrong bytes.
                        encoding = settled(line + stream.peek(SAMPLE_BYTES)[:SAMPLE_BYTES])
                        whole = replace(whole, encoding=None if encoding == UTF_8 else encoding)
                    stop, rows = stop + len(line), rows + 1
                    # A stretch ends where a line ends.
                    if rows >= part_rows or stop - start >= part_bytes:
                        yield replace(whole, key=next(keys), start=start, stop=stop, first=first, rows=rows)
                        start, first, rows = stop, first + rows, 0
                if rows:
                    yield replace(whole, key=next(keys), start=start, stop=stop, first=first, rows=rows)
            else:
                yield whole
    except OSError as error:
        raise InputError(f"{source.name}: cannot be read ({said(error)})") from None
