"""The base class of search indexes in a folder and on a server, which makes them behave like Python's collections."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING

from ctx_embed.index.storage.documents import Id
from ctx_embed.texts import Document

if TYPE_CHECKING:
    from typing_extensions import Self


class Collection(ABC):
    """Documents by id, in a context manager that closes them."""

    @abstractmethod
    def count(self, where: str | None = None) -> int:
        """Return the number of documents, or of those that match a filter."""

    @abstractmethod
    def get(self, identifier: Id) -> Document | None:
        """Return the document with an id, or None if there is none."""

    @abstractmethod
    def documents(self, where: str | None = None, *, offset: int = 0, limit: int | None = None) -> Iterator[Document]:
        """Return an iterator over documents in the order they were added."""

    @abstractmethod
    def close(self) -> None:
        """Release open files, connections and memory."""

    def __len__(self) -> int:
        """Return the number of documents."""
        return self.count()

    def __contains__(self, identifier: object) -> bool:
        """Return whether a document has this id."""
        return isinstance(identifier, str | int) and self.get(identifier) is not None

    def __getitem__(self, identifier: Id) -> Document:
        """Return the document with an id.

        Raises:
            KeyError: there is none.
        """
        found = self.get(identifier)
        if found is None:
            raise KeyError(identifier)
        return found

    def __iter__(self) -> Iterator[Document]:
        """Return an iterator over all documents in the order they were added."""
        return self.documents()

    def __bool__(self) -> bool:
        """Return True, even for an index without documents."""
        return True

    def __enter__(self) -> Self:
        """Return the index."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the index."""
        self.close()
