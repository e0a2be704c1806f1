"""The settings of an index: what it is, as one checked JSON object in its database."""

from __future__ import annotations

import json
import re
import zlib
from dataclasses import asdict, dataclass
from typing import Any

from ctx_embed.errors import InputError
from ctx_embed.index.storage import dtypes

# The version of the file format.
FORMAT_VERSION = 1
DATABASE = "index.sqlite"
# SQLite's own files, and those that an index may have besides.
DATABASE_FILES = tuple(f"{DATABASE}{suffix}" for suffix in ("", "-journal", "-shm", "-wal"))
FAISS_SUFFIX = ".faiss"
# What development versions stored; they are refused.
OLD_FILES = ("manifest.json", "documents.sqlite")
# The end of messages about damage that cannot be repaired from the rest of the index.
REMEDY = "restore it from a copy or build the index again"

# The ways to cut documents into passages, see ctx_embed.index.writing.chunking.
CHUNKS = re.compile(r"none|sentences|passages|(?:tokens|passages):0*[1-9]\d{0,8}")

_TYPES: dict[str, tuple[type, ...]] = {
    "format_version": (int,),
    "index_id": (str,),
    "model_fingerprint": (str,),
    "model": (str, type(None)),
    "dimension": (int,),
    "factory": (str,),
    "chunk": (str,),
    "dtype": (str,),
    "unrelated": (list, type(None)),
    "table": (int,),
}


@dataclass(frozen=True)
class Settings:
    """The settings of an index.

    Args:
        index_id: its random id.
        model_fingerprint: the fingerprint of its model, see :func:`ctx_embed.fingerprint.fingerprint`.
        model: ``default``, a path or a name that loads the model; None if its origin is unknown.
        dimension: the dimension of the vectors.
        factory: the FAISS factory string, or ``auto``.
        chunk: how documents are cut into passages, see :mod:`ctx_embed.index.writing.chunking`.
        dtype: the data type in which new vectors are stored, see :mod:`ctx_embed.index.storage.dtypes`.
        unrelated: the mean and deviation of the model's cosines of unrelated questions, see
            :class:`ctx_embed.index.searching.relevance.Unrelated`; None if it can read too few of them.
        table: the number of the table of vectors; a reembedding fills the next one.
        format_version: the version of the file format.
    """

    index_id: str
    model_fingerprint: str
    model: str | None
    dimension: int
    factory: str
    chunk: str = "none"
    dtype: str = dtypes.DEFAULT
    unrelated: tuple[float, float] | None = None
    table: int = 1
    format_version: int = FORMAT_VERSION

    @property
    def titled(self) -> bool:
        """Whether passages are embedded with the title of their document, as they seldom say what it is about."""
        return self.chunk.partition(":")[0] == "passages"

    def json(self) -> str:
        """Return the settings as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, content: Any, checksum: Any) -> Settings:
        """Return the settings in a row of the database.

        Raises:
            InputError: they are of another format.
            ValueError: they are damaged; the message says how.
        """
        if not isinstance(content, str) or checksum != zlib.crc32(content.encode()):
            raise ValueError("its settings are damaged")
        fields = json.loads(content)
        if not isinstance(fields, dict) or not isinstance(fields.get("format_version"), int):
            raise ValueError("its settings have no format_version")
        if fields["format_version"] != FORMAT_VERSION:
            raise InputError(
                f"has format {fields['format_version']}, but this ctx-embed reads {FORMAT_VERSION}; build it again"
            )
        for name, types in _TYPES.items():
            if type(fields.get(name)) not in types:
                raise ValueError(f"the setting {name!r} is missing or of the wrong type")
        if fields["dimension"] < 1 or fields["dtype"] not in dtypes.DTYPES:
            raise ValueError(f"dimension {fields['dimension']}, dtype {fields['dtype']!r}")
        if not CHUNKS.fullmatch(fields["chunk"]):
            raise ValueError(f"chunk {fields['chunk']!r:.80}")
        unrelated = fields["unrelated"]
        if unrelated is not None and [type(number) for number in unrelated] != [float, float]:
            raise ValueError("the setting 'unrelated' is of the wrong type")
        return cls(**{name: fields[name] for name in _TYPES} | {"unrelated": unrelated and tuple(unrelated)})
