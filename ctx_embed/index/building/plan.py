"""The plan of a build: its sources, options and folders."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ctx_embed.index.building.readers import is_structured, read_sources
from ctx_embed.index.following.records import FolderOptions
from ctx_embed.index.storage.vectors import DEFAULT
from ctx_embed.index.writing.transaction import Embedded
from ctx_embed.index.writing.writer import Steps
from ctx_embed.rows.reading import estimated_count
from ctx_embed.rows.table import TEXT_FIELD
from ctx_embed.texts import Document


@dataclass(frozen=True)
class Plan:
    """The arguments of a build, see :func:`ctx_embed.index.building.build.build_index`.

    ``adds`` says whether there is an index to which the build adds.
    """

    sources: list[str]
    target: Path
    mode: str
    adds: bool
    text_field: str | None
    embedding_field: str | None
    model: Any
    factory: str
    chunk: str
    backend: str | None
    dtype: str
    options: FolderOptions
    follow_links: bool | None
    encoding: str | None
    embedded: Iterable[Embedded] | None
    progress: bool
    steps: Steps

    @property
    def files(self) -> list[str]:
        """The sources that are files or standard input; all sources if ``embedded`` is given, as they only name it."""
        return [name for name in self.sources if self.embedded is not None or not _is_folder(name)]

    @property
    def folders(self) -> list[str]:
        """The sources that are folders of files to read."""
        return [name for name in self.sources if self.embedded is None and _is_folder(name)]

    @property
    def named(self) -> str:
        """The sources, for a message."""
        return ", ".join(self.sources)

    @property
    def partial(self) -> Path:
        """The folder of the unfinished index."""
        return self.target.with_name(f"{self.target.name}.partial")

    @property
    def replaces(self) -> bool:
        """Whether a document replaces an earlier one of this build with the same id."""
        return self.mode == "upsert" or self.embedded is not None

    @property
    def reads_whole_files(self) -> bool:
        """Whether a named file is read as a whole rather than line by line or record by record."""
        return self.embedded is None and any(is_structured(file, self.options.documents) for file in self.files)

    @property
    def signature(self) -> str:
        """A hash that is the same for two runs of the same build."""
        names = [name if name == "-" else str(Path(name).absolute()) for name in self.sources]
        fields: list[Any] = [
            names,
            self.mode,
            self.text_field or TEXT_FIELD,
            self.embedding_field,
            self.factory,
            self.chunk,
        ]
        # Signatures of older versions have no data type.
        fields += [self.dtype] if self.dtype != DEFAULT else []
        more = (self.options.include, self.options.exclude, self.options.documents, self.encoding)
        if any(more):
            fields += more
        fields += ["links"] if self.follow_links else []
        fields += ["embedded"] if self.embedded is not None else []
        return hashlib.sha256(json.dumps(fields).encode()).hexdigest()

    def documents(self) -> Iterator[Document]:
        """Return the documents of the files, or ``embedded``."""
        if self.embedded is not None:
            return iter(self.embedded)
        return read_sources(self.files, self.text_field, self.embedding_field, self.options.documents, self.encoding)

    def estimated_count(self) -> int | None:
        """Return the approximate number of documents in the files, for the progress; None if unknown."""
        if not self.progress or self.reads_whole_files:
            return None
        if self.embedded is not None:
            return len(self.embedded) if isinstance(self.embedded, Sized) else None
        return estimated_count(self.files)


def _is_folder(source: str) -> bool:
    return source != "-" and os.path.isdir(source)
