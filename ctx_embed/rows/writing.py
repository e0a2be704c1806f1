"""Writing embeddings: to one file in the format that its suffix names, or as JSONL to standard output."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable, Iterator, Sequence
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


def require_embeddings_file(path: Path) -> None:
    """Raise an InputError for an output of unknown format, or one that cannot be written."""
    if path == STANDARD_OUTPUT:
        return
    if path.suffix.lower() not in _WRITERS:
        raise InputError(f"cannot write {path}: its name must end in {', '.join(_WRITERS)}, or be - (standard output)")
    if path.suffix.lower() == ".parquet":
        with naming_left_out(f"writing {path}"):
            import pyarrow  # noqa: F401
    require_file(path)


def write_embeddings(path: Path, documents: Sequence[Document], embeddings: NDArray[np.float32]) -> None:
    """Write embeddings, row i for document i. A file is written whole or not at all.

    ``.npy`` holds the array alone. ``.jsonl``, ``.csv`` and ``.parquet`` have ids and metadata where there are any,
    the texts, and the embeddings: in the field ``embedding``, in CSV in a column for each dimension. ``-`` is JSONL on
    standard output. ``ctx-embed index build --embedding-field embedding`` reads JSONL and Parquet.

    Args:
        path: the file, or ``-``, see :func:`require_embeddings_file`.
        documents: at least one.
        embeddings: (documents, dimension).
    """
    require_embeddings_file(path)
    if path == STANDARD_OUTPUT:
        _write_jsonl(sys.stdout.buffer, documents, embeddings)
        # The reader of a pipe gets them at once.
        sys.stdout.buffer.flush()
        return
    with replaced_file(path) as beside, beside.open("wb") as file:
        _WRITERS[path.suffix.lower()](file, documents, embeddings)


def _rows(documents: Sequence[Document]) -> Iterator[dict[str, Any]]:
    """Yield the fields of each document. All documents have the same ones."""
    with_ids = any(document.id is not None for document in documents)
    with_metadata = any(document.metadata for document in documents)
    for document in documents:
        row: dict[str, Any] = {"id": document.id} if with_ids else {}
        row["text"] = well_formed(document.text)
        if with_metadata:
            row["metadata"] = document.metadata
        yield row


def _json(value: Any) -> str:
    return well_formed(json.dumps(value, ensure_ascii=False))


def _write_npy(file: IO[bytes], documents: Sequence[Document], embeddings: NDArray[np.float32]) -> None:
    import numpy as np

    # Not numpy.save: it bypasses the file object, and its errors do not say why writing failed.
    np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(embeddings))
    file.write(np.ascontiguousarray(embeddings).data)


def _write_jsonl(file: IO[bytes], documents: Sequence[Document], embeddings: NDArray[np.float32]) -> None:
    for row, embedding in zip(_rows(documents), embeddings, strict=True):
        # 9 digits represent a float32 exactly; repr() would write up to 17.
        numbers = ", ".join(f"{value:.9g}" for value in embedding.tolist())
        file.write(f'{_json(row)[:-1]}, "{EMBEDDING}": [{numbers}]}}\n'.encode())


def _write_csv(file: IO[bytes], documents: Sequence[Document], embeddings: NDArray[np.float32]) -> None:
    text = io.TextIOWrapper(file, encoding="utf-8", newline="")
    table = csv.writer(text, lineterminator="\n")
    for number, (row, embedding) in enumerate(zip(_rows(documents), embeddings, strict=True)):
        if not number:
            table.writerow([*row, *(f"{EMBEDDING}_{place}" for place in range(len(embedding)))])
        if "metadata" in row:
            row["metadata"] = _json(row["metadata"])
        table.writerow([*row.values(), *(f"{value:.9g}" for value in embedding.tolist())])
    text.flush()
    text.detach()


def _write_parquet(file: IO[bytes], documents: Sequence[Document], embeddings: NDArray[np.float32]) -> None:
    import pyarrow
    from pyarrow import parquet

    columns: dict[str, Any] = {}
    rows = list(_rows(documents))
    for name in rows[0]:
        values = [row[name] for row in rows]
        if name == "metadata":
            values = [_json(value) for value in values]
        elif name == "id" and len({type(value) for value in values if value is not None}) > 1:
            values = [None if value is None else str(value) for value in values]
        columns[name] = pyarrow.array(values)
    columns[EMBEDDING] = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(embeddings.ravel()), embeddings.shape[1])
    parquet.write_table(pyarrow.table(columns), file)


_WRITERS: dict[str, Callable[[IO[bytes], Sequence[Document], NDArray[np.float32]], None]] = {
    ".npy": _write_npy,
    ".csv": _write_csv,
    ".jsonl": _write_jsonl,
    ".parquet": _write_parquet,
}
