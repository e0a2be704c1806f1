"""The rows of files, copied as they are: lines of text and JSONL, rows of CSV and TSV, and rows of Parquet."""

from __future__ import annotations

import csv
import gzip
import io
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, cast

from ctx_embed.errors import InputError
from ctx_embed.reading import format_of, open_parquet, read_lines


def spooled(folder: Path, text_field: str | None) -> str:
    """Copy standard input into a file whose name says its format, and return the path, to read it twice."""
    if sys.stdin is None:
        raise InputError("standard input is closed")
    path = folder / "input"
    with path.open("wb") as file:
        shutil.copyfileobj(sys.stdin.buffer, file)
    return str(path.rename(path.with_suffix(format_of(path, text_field, recognise=True))))


def common_format(files: Sequence[str], text_field: str | None) -> str:
    """Return the suffix that names the format of some files, see :func:`ctx_embed.reading.format_of`.

    Raises:
        InputError: the formats differ.
    """
    formats = {format_of(file, text_field): file for file in reversed(files)}
    if len(formats) > 1:
        (one, first), (other, second), *_ = reversed(formats.items())
        raise InputError(f"all files must have one format, got {one} ({first}) and {other} ({second})")
    return next(iter(formats))


def require_format(path: Path, kind: str) -> None:
    """Raise an error if the name of an output says another format than that of the rows.

    Raises:
        InputError: it does, or a table of Parquet would go to standard output.
    """
    if str(path) == "-":
        if kind == ".parquet":
            raise InputError("Parquet cannot be written to standard output; name a file")
    elif format_of(path, recognise=False) != kind:
        wanted = f"end in {kind}" if kind != ".txt" else "be that of a text file, e.g. end in .txt"
        raise InputError(f"cannot write {path}: the rows stay in the format of the input, so its name must {wanted}")


def copy_rows(files: Sequence[str], kind: str, chosen: Iterator[bool], output: IO[bytes], packed: bool = False) -> None:
    """Write some rows of files of one format, as they are.

    Args:
        files: their paths.
        kind: their format.
        chosen: whether to write each row, blank lines not counted.
        output: the file to write to.
        packed: whether to compress with gzip; Parquet is compressed inside anyway.

    Raises:
        InputError: a file has other columns than the first, or has changed since it was read.
    """
    try:
        if kind == ".parquet":
            _copy_parquet(files, chosen, output)
        else:
            with ExitStack() as stack:
                if packed:
                    # Without a name and a time in it, equal rows give equal files.
                    zipped = gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=output, mtime=0)
                    output = cast("IO[bytes]", stack.enter_context(zipped))
                if kind in (".csv", ".tsv"):
                    _copy_table(files, kind, chosen, output)
                else:
                    _copy_lines(files, chosen, output)
    except StopIteration:
        raise InputError(f"{', '.join(files)}: changed while it was read; run this again") from None
    if next(chosen, None) is not None:
        raise InputError(f"{', '.join(files)}: changed while it was read; run this again")


def _copy_lines(files: Sequence[str], chosen: Iterator[bool], output: IO[bytes]) -> None:
    for file in files:
        for _, line in read_lines(file):
            if line.strip() and next(chosen):
                output.write(f"{line}\n".encode())


def _copy_table(files: Sequence[str], kind: str, chosen: Iterator[bool], output: IO[bytes]) -> None:
    dialect: dict[str, Any] = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if kind == ".tsv" else {}
    text = io.TextIOWrapper(output, encoding="utf-8", newline="")
    # Cells of TSV have no quotes and no line ends, so that they need none.
    writer = csv.writer(text, lineterminator="\n", **dialect, quotechar=None if dialect else '"')
    header: list[str] | None = None
    for file in files:
        rows = csv.reader((f"{line}\n" for _, line in read_lines(file)), strict=True, **dialect)
        names = next(row for row in rows if row)
        if header is None:
            header = names
            writer.writerow(header)
        elif names != header:
            raise InputError(f"{file}: all tables must have the columns of the first, {', '.join(header)}")
        for row in rows:
            # Empty rows are not counted.
            if len(row) > 0 and next(chosen):
                writer.writerow(row)
    text.flush()
    text.detach()


def _copy_parquet(files: Sequence[str], chosen: Iterator[bool], output: IO[bytes]) -> None:
    import pyarrow
    from pyarrow import parquet

    writer: Any = None
    for file in files:
        with open_parquet(file) as table:
            schema = table.schema_arrow
            if writer is None:
                writer = parquet.ParquetWriter(output, schema)
            elif not schema.equals(writer.schema):
                raise InputError(f"{file}: all tables must have the columns of the first, {writer.schema.names}")
            for batch in table.iter_batches():
                mask = pyarrow.array([next(chosen) for _ in range(batch.num_rows)], pyarrow.bool_())
                writer.write_batch(batch.filter(mask))
    if writer is not None:
        writer.close()
