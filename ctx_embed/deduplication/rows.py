"""Copy selected rows of files, unchanged, into one file of the same format."""

from __future__ import annotations

import csv
import gzip
import io
import json
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from ctx_embed.errors import InputError
from ctx_embed.rows.opening import opened, suffix_of
from ctx_embed.rows.reading import Fields
from ctx_embed.rows.table import CSV, JSON, KINDS, LABELLED, PARQUET, TEXT, TSV, kind_of, open_parquet, open_rows


class Form(NamedTuple):
    """The common format of some files, and whether cells of TSV are quoted where they must be."""

    kind: str
    quoted: bool


def spooled(folder: Path) -> str:
    """Copy standard input to a file, so that it can be read twice; return its path."""
    if sys.stdin is None:
        raise InputError("standard input is closed")
    path = folder / "input"
    with path.open("wb") as file:
        shutil.copyfileobj(sys.stdin.buffer, file)
    return str(path)


def common_form(files: Sequence[str], text_field: str | None, encoding: str | None = None) -> Form:
    """Return the common format of some files."""
    kinds: dict[str, str] = {}
    quoted = False
    for file in files:
        with open_rows(file, needed=Fields(text_field).needed, encoding=encoding) as table:
            kinds.setdefault(table.kind, file)
            quoted = quoted or table.quoted
    if len(kinds) > 1:
        (one, first), (other, second), *_ = kinds.items()
        raise InputError(f"all files must have one format, got {one} ({first}) and {other} ({second})")
    return Form(next(iter(kinds)), quoted)


def require_kind(path: Path, kind: str) -> None:
    """Raise an InputError if the name of an output does not suit the format of the rows."""
    if str(path) == "-":
        if kind == PARQUET:
            raise InputError("Parquet cannot be written to standard output; name a file")
        return
    suffixes = [".json"] if kind == JSON else [suffix for suffix, named in KINDS.items() if named == kind]
    is_other = (
        suffix_of(path) not in suffixes if suffixes else kind_of(path) not in (TEXT, TSV)[: 1 + (kind == LABELLED)]
    )
    if is_other:
        wanted = f"end in {' or '.join(suffixes)}" if suffixes else "be that of a text file, e.g. end in .txt"
        raise InputError(f"cannot write {path}: the rows stay in the format of the input, so its name must {wanted}")


def copy_rows(
    files: Sequence[str],
    form: Form,
    chosen: Iterator[bool],
    output: IO[bytes],
    *,
    packed: bool = False,
    encoding: str | None = None,
) -> None:
    """Write the chosen rows of files of one format, unchanged; text is written as UTF-8, with ``packed`` as gzip."""
    changed = InputError(f"{', '.join(files)}: changed while it was read; run this again")
    try:
        if form.kind == PARQUET:
            import pyarrow
            from pyarrow import parquet

            writer: Any = None
            for path in files:
                with opened(path) as stream, open_parquet(path, stream) as table:
                    schema = table.schema_arrow
                    if writer is None:
                        writer = parquet.ParquetWriter(output, schema)
                    elif not schema.equals(writer.schema):
                        names = writer.schema.names
                        raise InputError(f"{path}: all tables must have the columns of the first, {names}")
                    for batch in table.iter_batches():
                        mask = pyarrow.array([next(chosen) for _ in range(batch.num_rows)], pyarrow.bool_())
                        writer.write_batch(batch.filter(mask))
            if writer is not None:
                writer.close()
        else:
            # The gzip header has no name or time, so that equal rows give equal files.
            zipped = gzip.GzipFile("", "wb", 6, output, 0) if packed else nullcontext(output)
            with zipped as file:
                text = io.TextIOWrapper(cast("IO[bytes]", file), encoding="utf-8", errors="replace", newline="")
                _copy_text(files, form, chosen, text, encoding)
                text.flush()
                text.detach()
    except StopIteration:
        raise changed from None
    if next(chosen, None) is not None:
        raise changed


def _copy_text(files: Sequence[str], form: Form, chosen: Iterator[bool], output: IO[str], encoding: str | None) -> None:
    kind = form.kind
    writer = csv.writer(output, lineterminator="\n", delimiter="," if kind == CSV else "\t")

    def write(cells: Iterable[str]) -> None:
        if kind == CSV or form.quoted:
            writer.writerow(cells)
        else:
            output.write("\t".join(cells) + "\n")

    header: list[str] | None = None
    between = "[\n"
    for file in files:
        with open_rows(file, kind=kind, encoding=encoding) as table:
            for number, raw in table.raw:
                if isinstance(raw, InputError):
                    raise InputError(f"{table.where(number)}: {raw}")
                if isinstance(raw, str):
                    if raw.strip() and next(chosen):
                        output.write(f"{raw}\n")
                    continue
                if kind in (CSV, TSV) and list(raw) != header:
                    if header is not None:
                        raise InputError(f"{file}: all tables must have the columns of the first, {', '.join(header)}")
                    header = list(raw)
                    write(header)
                if not next(chosen):
                    continue
                if kind == JSON:
                    output.write(f"{between}{json.dumps(raw, ensure_ascii=False)}")
                    between = ",\n"
                else:
                    write(raw.values())
    if kind == JSON:
        output.write("\n]\n")
