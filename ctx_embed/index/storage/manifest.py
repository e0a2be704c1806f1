"""The manifest of an index, `manifest.json`, and the names of the files next to it."""

from __future__ import annotations

import json
import re
import stat
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ctx_embed.errors import DamagedError, InputError
from ctx_embed.files import replaced_file
from ctx_embed.index.storage import dtypes

# An index is written in the oldest format that can hold it: format 3 differs from 2 only in allowing other data types.
OLDEST_FORMAT, FORMAT_VERSION = 2, 3
MANIFEST = "manifest.json"
DOCUMENTS = "documents.sqlite"
VECTORS = "vectors"
CACHE = "faiss"
# Version 0.1 could store vectors of a reranker here; nothing reads them any more.
RERANKING = "reranking"
# The end of messages about damage that cannot be repaired from the rest of the index.
REMEDY = "restore it from a copy or build the index again"

# The ways to cut documents into passages, see ctx_embed.index.writing.chunking.
CHUNKS = re.compile(r"none|sentences|passages|(?:tokens|passages):0*[1-9]\d{0,8}")

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
        index_id: the random id of the index, also stored in documents.sqlite.
        model_fingerprint: the fingerprint of its model, see :func:`ctx_embed.fingerprint.fingerprint`.
        model: ``default``, a path or a name that loads the model; None if its origin is unknown.
        dimension: the dimension of the vectors.
        factory: the FAISS factory string, or ``auto``.
        chunk: how documents are cut into passages, see :mod:`ctx_embed.index.writing.chunking`.
        generation: the number of commits so far; it may lag behind the one in documents.sqlite, which is decisive.
        dtype: the data type in which new vectors are stored, see :mod:`ctx_embed.index.storage.dtypes`. Older shards
            keep theirs until compaction.
        titled: whether passages are embedded with the title of their document. Indexes made before this was recorded
            stay without.
        unrelated: the mean and deviation of the model's cosines of unrelated questions, see
            :class:`ctx_embed.index.searching.relevance.Unrelated`; None if it can read too few of them.
    """

    index_id: str
    model_fingerprint: str
    model: str | None
    dimension: int
    factory: str
    chunk: str = "none"
    generation: int = 0
    dtype: str = dtypes.DEFAULT
    titled: bool = False
    unrelated: tuple[float, float] | None = None

    @property
    def format_version(self) -> int:
        """The version of the file format."""
        return OLDEST_FORMAT if self.dtype == dtypes.DEFAULT else FORMAT_VERSION


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Replace the manifest atomically."""
    with replaced_file(folder / MANIFEST) as beside:
        fields = asdict(manifest) | {"format_version": manifest.format_version}
        beside.write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")


def remove_leftovers(folder: Path) -> None:
    """Remove the files of a writer that was killed while it wrote a manifest; call it inside the writer's lock."""
    for path in folder.glob(f".{MANIFEST}.*"):
        path.unlink()


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of the index in ``folder``.

    Raises:
        InputError: the folder does not exist or is not an index, or its manifest is damaged or of another format.
    """
    path = folder / MANIFEST
    try:
        # Opening a pipe would wait for its writer.
        if not stat.S_ISREG(path.lstat().st_mode):
            raise DamagedError(f"{path}: damaged (not a regular file); {REMEDY}")
        content = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(_why_no_index(folder)) from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise DamagedError(f"{path}: damaged (not UTF-8); {REMEDY}") from None
    try:
        fields = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{path}: damaged (not JSON: {error}); {REMEDY}") from None
    return _checked(path, fields)


def _why_no_index(folder: Path) -> str:
    if folder.is_dir():
        return f"{folder}: a folder but not an index (it has no {MANIFEST})"
    if folder.exists():
        return f"{folder}: must be the folder of an index, got a file"
    return f"{folder}: no such index; make one with `ctx-embed index build` or SearchIndex.create"


def _checked(path: Path, fields: Any) -> Manifest:
    version = fields.get("format_version") if isinstance(fields, dict) else None
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise DamagedError(f"{path}: damaged (no format_version); {REMEDY}")
    if version > FORMAT_VERSION:
        raise InputError(
            f"{path}: has format {version}, but this ctx-embed reads formats up to {FORMAT_VERSION}; upgrade ctx-embed"
        )
    if version < OLDEST_FORMAT:
        raise InputError(
            f"{path}: has the old format {version}, but this ctx-embed reads {OLDEST_FORMAT} and later; "
            "build the index again"
        )
    for name, types in _FIELDS.items():
        if name not in fields or isinstance(fields[name], bool) or not isinstance(fields[name], types):
            raise DamagedError(f"{path}: damaged (the field {name!r} is missing or of the wrong type); {REMEDY}")
    if fields["dimension"] < 1 or fields["dtype"] not in dtypes.DTYPES:
        raise DamagedError(f"{path}: damaged (dimension {fields['dimension']}, dtype {fields['dtype']!r}); {REMEDY}")
    if not CHUNKS.fullmatch(fields["chunk"]):
        raise DamagedError(f"{path}: damaged (chunk {fields['chunk']!r:.80}); {REMEDY}")
    unrelated = fields.get("unrelated")
    if unrelated is not None:
        if not (isinstance(unrelated, list) and [type(number) for number in unrelated] == [float, float]):
            raise DamagedError(f"{path}: damaged (the field 'unrelated' has a wrong type); {REMEDY}")
        unrelated = (unrelated[0], unrelated[1])
    return Manifest(
        **{name: fields[name] for name in _FIELDS}, titled=fields.get("titled") is True, unrelated=unrelated
    )
