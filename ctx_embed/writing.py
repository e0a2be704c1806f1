"""Writing embeddings: to one file in the format that its suffix names, or as JSONL to standard output."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from ctx_embed.errors import InputError, naming_left_out
from ctx_embed.files import replaced_file, require_file
from ctx_embed.texts import Document, well_formed

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

STANDARD_OUTPUT = Path("-")
EMBEDDING = "embedding"
CSV_END = "\r\n"
SUFFIXES = (".npy", ".csv", ".jsonl", ".parquet")


class CsvOutput:
    """A file for a ``csv.writer`` whose lines end in CSV_END, so that it quotes carriage returns; ours end in LF."""

    def __init__(self, file: IO[str]) -> None:
        self.file = file

    def write(self, row: str) -> None:
        """Write a row, which ends in CSV_END."""
        self.file.write(well_formed(row.removesuffix(CSV_END)) + "\n")


def cells_writer(file: IO[str], delimiter: str, quoted: bool) -> Callable[[Iterable[str]], object]:
    """Return a function that writes a row of cells to a file, ``quoted`` where needed."""
    if quoted:
        return csv.writer(CsvOutput(file), lineterminator=CSV_END, delimiter=delimiter).writerow
    return lambda cells: file.write(delimiter.join(cells) + "\n")


def require_embeddings_file(path: Path) -> None:
    """Raise an InputError for an output of unknown format, or one that cannot be written."""
    if path == STANDARD_OUTPUT:
        return
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(f"cannot write {path}: its name must end in {', '.join(SUFFIXES)}, or be - (standard output)")
    if path.suffix.lower() == ".parquet":
        with naming_left_out(f"writing {path}"):
            import pyarrow  # noqa: F401
    require_file(path)


def write_embeddings(path: Path, documents: Sequence[Document], embeddings: NDArray[np.float32]) -> None:
    """Write embeddings (documents, dimension), row i for document i. A file is written whole or not at all.

    ``.npy`` holds the array alone. ``.jsonl``, ``.csv`` and ``.parquet`` have ids and metadata where there are any, the
    texts, and the embeddings: in the field ``embedding``, in CSV in a column for each dimension. ``-`` is JSONL on
    standard output. ``ctx-embed index build --embedding-field embedding`` reads JSONL and Parquet.
    """
    if path == STANDARD_OUTPUT:
        _write(sys.stdout.buffer, ".jsonl", documents, embeddings)
        # Flush, so that the reader of a pipe gets each row at once.
        sys.stdout.buffer.flush()
        return
    with replaced_file(path) as beside, beside.open("wb") as file:
        _write(file, path.suffix.lower(), documents, embeddings)


def _write(file: IO[bytes], suffix: str, documents: Sequence[Document], embeddings: NDArray[np.float32]) -> None:
    import numpy as np

    if suffix == ".npy":
        embeddings = np.ascontiguousarray(embeddings)
        # Not numpy.save: it bypasses the file object, and its errors do not say why writing failed.
        np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(embeddings))
        file.write(embeddings.data)
        return
    # All documents have the same fields.
    columns: dict[str, list[Any]] = {}
    if any(document.id is not None for document in documents):
        columns["id"] = [document.id for document in documents]
    columns["text"] = [well_formed(document.text) for document in documents]
    if any(document.metadata for document in documents):
        columns["metadata"] = [document.metadata for document in documents]
        if suffix != ".jsonl":
            columns["metadata"] = [json_of(metadata) for metadata in columns["metadata"]]
    if suffix == ".parquet":
        import pyarrow
        from pyarrow import parquet

        if len({type(identifier) for identifier in columns.get("id", ()) if identifier is not None}) > 1:
            columns["id"] = [None if identifier is None else str(identifier) for identifier in columns["id"]]
        arrays: dict[str, Any] = {name: pyarrow.array(values) for name, values in columns.items()}
        flat = pyarrow.array(embeddings.ravel())
        arrays[EMBEDDING] = pyarrow.FixedSizeListArray.from_arrays(flat, embeddings.shape[1])
        parquet.write_table(pyarrow.table(arrays), file)
        return
    text = io.TextIOWrapper(file, encoding="utf-8", newline="")
    table = csv.writer(CsvOutput(text), lineterminator=CSV_END)
    if suffix == ".csv":
        table.writerow([*columns, *(f"{EMBEDDING}_{place}" for place in range(embeddings.shape[1]))])
    for *row, embedding in zip(*columns.values(), embeddings, strict=True):
        # 9 digits represent a float32 exactly; repr() would write up to 17.
        numbers = [f"{value:.9g}" for value in embedding.tolist()]
        if suffix == ".csv":
            table.writerow([*row, *numbers])
        else:
            fields = json_of(dict(zip(columns, row, strict=True)))
            text.write(f'{fields[:-1]}, "{EMBEDDING}": [{", ".join(numbers)}]}}\n')
    # Leave the file open: the caller closes it.
    text.detach()


def json_of(value: Any) -> str:
    """Return a value as JSON that can be encoded as UTF-8."""
    return well_formed(json.dumps(value, ensure_ascii=False))
