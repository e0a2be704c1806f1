"""The place of a passage: the file in its metadata field `source`, and the line or page in that file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ctx_embed.index.following.records import folders
from ctx_embed.index.storage.documents import DocumentStore


class Location(NamedTuple):
    """The place of a passage.

    Args:
        name: the metadata field ``source``: a path, relative to the followed folder if there is one.
        path: the file, if it is found.
        line: the number of the passage's first line in the file, from 1, if known.
        page: the number of its page, from 1, if known.
    """

    name: str
    path: Path | None
    line: int | None
    page: int | None

    @property
    def label(self) -> str:
        """The place as text, such as ``notes/a.md:12`` or ``report.pdf, page 3``."""
        if self.line is not None:
            return f"{self.name}:{self.line}"
        return self.name if self.page is None else f"{self.name}, page {self.page}"

    @property
    def url(self) -> str | None:
        """The file's URL with its line or page, for terminals and PDF readers; None if the file was not found."""
        if self.path is None:
            return None
        place = f"#page={self.page}" if self.page is not None else "" if self.line is None else f"#{self.line}"
        return f"{self.path.as_uri()}{place}"


def location_of(store: DocumentStore, metadata: dict[str, Any], line: int | None, page: int | None) -> Location | None:
    """Return the location of a passage; None if its document has no field ``source``.

    Args:
        store: the documents.
        metadata: the document's.
        line: the number of the passage's first line.
        page: the number of its page.
    """
    found = named_location(metadata, line, page)
    if found is None:
        return None
    return found._replace(path=next((path for path in _candidates(store, found.name) if _is_file(path)), None))


def named_location(metadata: dict[str, Any], line: int | None, page: int | None) -> Location | None:
    """Return the location of a passage as :func:`location_of` does, without looking for the file."""
    name = metadata.get("source")
    return Location(name, None, line, page) if isinstance(name, str) and name and "\0" not in name else None


def _candidates(store: DocumentStore, name: str) -> Iterator[Path]:
    """Yield where the file may be: in a followed folder, in the working directory, or next to the index."""
    for folder in folders(store):
        if name.startswith(folder.prefix):
            yield Path(folder.path) / name.removeprefix(folder.prefix)
    # If the name is absolute, pathlib drops the folder.
    yield Path.cwd() / name
    yield store.path.parent.parent / name


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False
