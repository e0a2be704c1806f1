"""What an index is, and where its parts lie: `manifest.json` and the names of the files beside it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ctx_embed.errors import InputError
from ctx_embed.files import replaced_file

FORMAT_VERSION = 2
MANIFEST = "manifest.json"
DOCUMENTS = "documents.sqlite"
VECTORS = "vectors"
CACHE = "faiss"
DTYPE = "float32"
# Said after whatever cannot be repaired from the rest of the index.
REMEDY = "restore it from a copy, or build the index again"

_FIELDS: dict[str, tuple[type, ...]] = {
    "index_id": (str,),
    "model_fingerprint": (str,),
    "model": (str, type(None)),
    "dimension": (int,),
    "dtype": (str,),
    "factory": (str,),
    "chunk": (str,),
    "generation": (int,),
}


@dataclass(frozen=True)
class Manifest:
    """The fixed properties of an index, and the generation it had when the manifest was last written.

    Args:
        index_id: drawn when the index was created; documents.sqlite holds the same.
        model_fingerprint: of the model whose vectors it holds, see :func:`ctx_embed.fingerprint.fingerprint`.
        model: ``default``, a path or a name that loads the model; None where its origin is unknown.
        dimension: numbers in a vector.
        factory: the FAISS factory string, or ``auto``.
        chunk: how documents are cut into passages, see :mod:`ctx_embed.index.writing.chunking`.
        generation: number of commits so far; the one in documents.sqlite counts, this one may lag behind it.
        dtype: of the stored vectors.
        format_version: of the files.
    """

    index_id: str
    model_fingerprint: str
    model: str | None
    dimension: int
    factory: str
    chunk: str = "none"
    generation: int = 0
    dtype: str = DTYPE
    format_version: int = FORMAT_VERSION


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Put ``manifest`` in the place of the old one, whole or not at all."""
    with replaced_file(folder / MANIFEST) as beside:
        beside.write_text(json.dumps(asdict(manifest), indent=2) + "\n", encoding="utf-8")


def remove_leftovers(folder: Path) -> None:
    """Remove what a writer left that was killed while it wrote a manifest; inside the writer's lock."""
    for path in folder.glob(f".{MANIFEST}.*"):
        path.unlink()


def read_manifest(folder: Path) -> Manifest:
    """The manifest of the index in ``folder``.

    Raises:
        InputError: no such folder, a file, a folder that is no index, a newer format, or a damaged manifest.
    """
    path = folder / MANIFEST
    try:
        content = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(_why_no_index(folder)) from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: damaged (not UTF-8), {REMEDY}") from None
    try:
        fields = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: damaged (not JSON: {error}), {REMEDY}") from None
    return _checked(path, fields)


def _why_no_index(folder: Path) -> str:
    if folder.is_dir():
        return f"{folder}: a folder, but no index (it has no {MANIFEST})"
    if folder.exists():
        return f"{folder}: a file, the folder of an index is needed"
    return f"{folder}: no such index, make one with `ctx-embed index build` or SearchIndex.create"


def _checked(path: Path, fields: Any) -> Manifest:
    version = fields.get("format_version") if isinstance(fields, dict) else None
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise InputError(f"{path}: damaged (no format_version), {REMEDY}")
    if version > FORMAT_VERSION:
        raise InputError(
            f"{path}: written in format {version}, this ctx-embed reads up to {FORMAT_VERSION}: upgrade ctx-embed"
        )
    if version < FORMAT_VERSION:
        raise InputError(
            f"{path}: written in the old format {version}, this ctx-embed reads {FORMAT_VERSION}: build the index again"
        )
    for name, types in _FIELDS.items():
        if name not in fields or isinstance(fields[name], bool) or not isinstance(fields[name], types):
            raise InputError(f"{path}: damaged (the field {name!r} is missing or of the wrong type), {REMEDY}")
    if fields["dimension"] < 1 or fields["dtype"] != DTYPE:
        raise InputError(f"{path}: damaged (dimension {fields['dimension']}, dtype {fields['dtype']!r}), {REMEDY}")
    return Manifest(**{name: fields[name] for name in _FIELDS}, format_version=version)
