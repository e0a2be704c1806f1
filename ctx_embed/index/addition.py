"""What one transaction adds to an index: documents, and shards that nobody sees before they are listed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ctx_embed.errors import InputError
from ctx_embed.index.documents import LARGEST_ID, DocumentStore, Id, checked_id
from ctx_embed.index.shards import SHARD_ROWS, ShardFolder, Vectors
from ctx_embed.index.vectors import Snapshot
from ctx_embed.texts import Document, well_formed


def as_list(values: Any, name: str, needed: str) -> list[Any]:
    """``values`` as a list; a string or a dictionary, which are iterable by accident, is refused."""
    if isinstance(values, str | bytes | dict) or not isinstance(values, Iterable):
        raise InputError(f"{name} is a {type(values).__name__}, {needed} is needed")
    return list(values)


def documents_of(texts: Any, ids: Any, metadata: Any) -> list[Document]:
    """Texts with their ids and metadata, as users of Python hand them over.

    Raises:
        InputError: something else than lists, or lists of different lengths.
    """
    listed = as_list(texts, "texts", "a list of strings")
    identifiers = [None] * len(listed) if ids is None else as_list(ids, "ids", "a list of strings or integers")
    notes = [None] * len(listed) if metadata is None else as_list(metadata, "metadata", "a list of dictionaries")
    for name, values in (("ids", identifiers), ("metadata", notes)):
        if len(values) != len(listed):
            raise InputError(f"{len(values)} {name} for {len(listed)} texts, one for each is needed")
    return [
        Document(text, identifier, {} if note is None else note)
        for text, identifier, note in zip(listed, identifiers, notes, strict=True)
    ]


def _checked_text(text: Any, number: int) -> str:
    if not isinstance(text, str):
        raise InputError(f"document {number}: the text is a {type(text).__name__}, a string is needed")
    return well_formed(str(text))


class Addition:
    """Documents on their way into an index, inside :meth:`DocumentStore.writing`; memory stays bounded.

    Args:
        store: in a writing transaction.
        vectors: where the shards go.
        embed: the unit vectors (n, dimension) of n texts.
    """

    def __init__(self, store: DocumentStore, vectors: ShardFolder, embed: Callable[[Sequence[str]], Vectors]) -> None:
        self.store = store
        self.vectors = vectors
        self.embed = embed
        self.state = store.state()
        self.shards = store.shards()
        self.first_row = Snapshot(self.state.generation, self.shards).rows
        self.ids: list[Id] = []
        self._waiting: list[Vectors] = []

    def extend(self, documents: Sequence[Document]) -> None:
        """Add some thousand documents; those without an id get the integers above all that are in use.

        Raises:
            InputError: a document that cannot be kept, an id that is taken, or a model that gives NaN.
        """
        start = len(self.ids) + 1
        given = [
            None if document.id is None else checked_id(document.id, number)
            for number, document in enumerate(documents, start)
        ]
        next_id = max([self.state.next_id, *(identifier + 1 for identifier in given if isinstance(identifier, int))])
        texts = [_checked_text(document.text, number) for number, document in enumerate(documents, start)]
        for number, (document, identifier, text) in enumerate(zip(documents, given, texts, strict=True), start):
            if identifier is None:
                if next_id > LARGEST_ID:
                    raise InputError(f"document {number}: no larger integer is left for its id, give it one")
                identifier, next_id = next_id, next_id + 1
            self.store.insert(self.first_row + number - 1, replace(document, id=identifier, text=text), number)
            self.ids.append(identifier)
        self.state = replace(self.state, next_id=next_id)
        self._waiting.append(self.embed(texts))
        if sum(map(len, self._waiting)) >= SHARD_ROWS:
            self._flush()

    def _flush(self) -> None:
        waiting = np.concatenate(self._waiting)
        self._waiting = []
        for start in range(0, len(waiting), SHARD_ROWS):
            self.shards = self.vectors.append(self.shards, waiting[start : start + SHARD_ROWS])

    def finish(self) -> Snapshot:
        """Write what is left and list everything, so that the transaction's commit publishes it."""
        if self._waiting:
            self._flush()
        self.state = replace(self.state, generation=self.state.generation + 1)
        self.store.finish(self.state, self.shards)
        return Snapshot(self.state.generation, self.shards)
