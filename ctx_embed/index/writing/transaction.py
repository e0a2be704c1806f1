"""One transaction: documents added and deleted, and new shards, which readers see only once they are listed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ctx_embed.documents.blocks import Block
from ctx_embed.documents.units import Structured
from ctx_embed.errors import InputError, described
from ctx_embed.index.arguments import as_list, unit_vector
from ctx_embed.index.storage.database import Snapshot
from ctx_embed.index.storage.documents import (
    LARGEST_ID,
    DocumentStore,
    Id,
    Span,
    checked_id,
    embedded_texts,
    metadata_json,
)
from ctx_embed.index.storage.shards import SHARD_ROWS, ShardFolder, Vectors
from ctx_embed.texts import Document, well_formed


class TakenIdError(InputError):
    """The id of a document already belongs to another one."""

    def __init__(self, number: int, identifier: Id, owner: str = "is already in the index") -> None:
        super().__init__(f"document {number}: the id {identifier!r} {owner}; ids must be unique")
        self.identifier = identifier


@dataclass(frozen=True)
class Embedded(Document):
    """A document with its embedding, a vector of the index's dimension, not necessarily of unit length."""

    embedding: Any = None


@dataclass(frozen=True)
class Copied(Document):
    """A document of another index, with its passages and their unit vectors; a vector that is None is embedded."""

    spans: Sequence[Span] = ()
    vectors: Any = None


def documents_of(texts: Any, ids: Any, metadata: Any, embeddings: Any = None) -> list[Document]:
    """Return documents from lists of texts, ids, metadata and embeddings.

    Raises:
        InputError: an argument is not a list, or the lists differ in length.
    """
    listed = as_list(texts, "texts", "a list of strings")
    given: dict[str, list[Any]] = {}
    for name, values, needed in (
        ("ids", ids, "a list of strings or integers"),
        ("metadata", metadata, "a list of dictionaries"),
        ("embeddings", embeddings, "an array (documents, dimension)"),
    ):
        given[name] = [None] * len(listed) if values is None else as_list(values, name, needed)
        if len(given[name]) != len(listed):
            raise InputError(f"{name} must have one entry for each of the {len(listed)} texts, got {len(given[name])}")
    for number, embedding in enumerate(given["embeddings"] if embeddings is not None else (), 1):
        if embedding is None:
            raise InputError(f"document {number}: its embedding is None; give one for each text or for none")
    return [
        Embedded(text, identifier, {} if notes is None else notes, embedding)
        for text, identifier, notes, embedding in zip(
            listed, given["ids"], given["metadata"], given["embeddings"], strict=True
        )
    ]


def _checked_text(text: Any, number: int) -> str:
    if not isinstance(text, str):
        raise InputError(f"document {number}: the text must be a string, got {described(text)}")
    return well_formed(str(text))


class Edit:
    """Changes to an index, made inside :meth:`Database.writing` and in bounded memory.

    Args:
        store: the documents, in a writing transaction.
        vectors: the shards' folder.
        embed: returns the unit vectors (n, dimension) of n texts.
        chunk: cuts a text with these blocks into passages.
        counted: the number of documents that the same operation has already added, for messages.
        titled: whether passages are embedded with the title of their document, see :func:`embedded_texts`.
    """

    def __init__(
        self,
        store: DocumentStore,
        vectors: ShardFolder,
        embed: Callable[[Sequence[str]], Vectors],
        chunk: Callable[[str, Sequence[Block]], Sequence[Span]],
        counted: int = 0,
        *,
        titled: bool = False,
    ) -> None:
        self.store = store
        self.vectors = vectors
        self.embed = embed
        self.chunk = chunk
        self.counted = counted
        self.titled = titled
        self.state = store.state()
        self.shards = store.shards()
        self.changed = False
        self._first_row = 0 if counted else self.state.rows
        self._written = self.state.rows
        self._waiting: list[Vectors] = []

    def add(self, documents: Sequence[Document], *, replacing: bool = False) -> list[Id]:
        """Add a few thousand documents and return their ids; automatic ids are larger than all ids ever used.

        Args:
            documents: the documents, with or without ids.
            replacing: whether a document replaces the one that has its id.

        Raises:
            InputError: a document cannot be stored, an id is taken, or the model returns NaN.
        """
        first = self.counted + 1
        given = [
            None if document.id is None else checked_id(document.id, number)
            for number, document in enumerate(documents, first)
        ]
        integers = [identifier for identifier in given if isinstance(identifier, int)]
        # The largest integer is never an automatic id, so the next id can always be stored.
        next_id = min(max([self.state.next_id, *(identifier + 1 for identifier in integers)]), LARGEST_ID)
        texts = [_checked_text(document.text, number) for number, document in enumerate(documents, first)]
        cut = [self._spans(document, text) for document, text in zip(documents, texts, strict=True)]
        passages = [text[start:stop] for text, spans in zip(texts, cut, strict=True) for start, stop in spans]
        embedded = [
            passage
            for document, text, spans in zip(documents, texts, cut, strict=True)
            for passage in embedded_texts(text, document.metadata, spans, self.titled)
        ]
        plain = [text == passage for text, passage in zip(embedded, passages, strict=True)]
        # Look these up before anything is replaced: vectors of deleted documents can be copied, too.
        known = self.store.rows_of_texts(list(dict.fromkeys(itertools.compress(embedded, plain))))
        first_row = self.state.rows
        ids: list[Id] = []
        embeddings: list[Any] = []
        for number, (document, identifier, text, spans) in enumerate(
            zip(documents, given, texts, cut, strict=True), first
        ):
            if identifier is None:
                if next_id == LARGEST_ID:
                    raise InputError(f"document {number}: no larger integer is left for its id; give it one")
                identifier, next_id = next_id, next_id + 1
            self._make_room(identifier, number, replacing)
            metadata = metadata_json(document.metadata, number)
            self.store.insert(self.state.rows, replace(document, id=identifier, text=text), metadata, spans)
            self.state = replace(self.state, rows=self.state.rows + len(spans), documents=self.state.documents + 1)
            embeddings += self._given(document, number, len(spans))
            ids.append(identifier)
        if documents:
            self.state = replace(self.state, next_id=next_id)
            self.counted += len(documents)
            self.changed = True
            self._keep(first_row, embedded, plain, embeddings, known)
        return ids

    def _spans(self, document: Document, text: str) -> Sequence[Span]:
        """Return the passages of a document; one that comes with its embedding is not cut."""
        if isinstance(document, Copied):
            return document.spans
        if getattr(document, "embedding", None) is not None:
            return [(0, len(text))]
        return self.chunk(text, document.blocks if isinstance(document, Structured) else ())

    def _given(self, document: Document, number: int, passages: int) -> list[Any]:
        """Return a vector for each passage of a document: the one that came with it, or None to embed the passage."""
        if isinstance(document, Copied):
            return list(document.vectors)
        embedding = getattr(document, "embedding", None)
        if embedding is None:
            return [None] * passages
        name = f"document {number}: the embedding"
        return [unit_vector(embedding, self.vectors.dimension, name)] * passages

    def _make_room(self, identifier: Id, number: int, replacing: bool) -> None:
        taken = self.store.find([identifier]).get(identifier)
        if taken is None:
            return
        if replacing:
            self._delete([taken.id])
            return
        if taken.row < self._first_row:
            raise TakenIdError(number, identifier)
        other = self.store.documents_up_to(self._first_row, taken.row)
        raise TakenIdError(number, identifier, f"is also that of document {other}")

    def _keep(
        self, first: int, passages: list[str], plain: list[bool], embeddings: list[Any], known: dict[str, int]
    ) -> None:
        """Queue the vectors of the rows from ``first`` on: given, copied from a row with the same text, or embedded.

        Only rows whose passage was embedded as it is (``plain``) are found again by their text.
        """
        wanted = dict.fromkeys(text for text, vector in zip(passages, embeddings, strict=True) if vector is None)
        old = [text for text in wanted if text in known]
        new = [text for text in wanted if text not in known]
        found: dict[str, Vectors] = {}
        if old:
            found |= dict(zip(old, self._stored([known[text] for text in old]), strict=True))
        if new:
            found |= dict(zip(new, self.embed(new), strict=True))
        self._waiting.append(
            np.stack([found[t] if given is None else given for t, given in zip(passages, embeddings, strict=True)])
        )
        numbered = [(row, text) for row, (text, as_is) in enumerate(zip(passages, plain, strict=True), first) if as_is]
        rows = {text: row for row, text in reversed(numbered) if text not in known}
        self.store.keep_hashes(rows)
        if sum(map(len, self._waiting)) >= SHARD_ROWS:
            self._flush()

    def _stored(self, rows: list[int]) -> Vectors:
        """Return the vectors of earlier rows, from the shards or the queue."""
        wanted = np.array(rows, np.int64)
        vectors = np.empty((len(rows), self.vectors.dimension), np.float32)
        written = wanted < self._written
        vectors[written] = self.vectors.gather(self.shards, wanted[written])
        if not written.all():
            vectors[~written] = np.concatenate(self._waiting)[wanted[~written] - self._written]
        return vectors

    def update_metadata(self, ids: Sequence[Id], changes: dict[str, Any]) -> int:
        """Change metadata fields of documents, and remove those whose new value is None; return their number.

        Raises:
            InputError: there is no document with an id, or a value cannot be stored.
        """
        metadata_json(changes, 1)
        checked = [checked_id(identifier, number) for number, identifier in enumerate(ids, 1)]
        found = self.store.find(list(dict.fromkeys(checked)))
        for identifier in checked:
            if identifier not in found:
                raise InputError(f"no document has the id {identifier!r}")
        for number, document in enumerate(found.values(), 1):
            fields = {name: value for name, value in {**document.metadata, **changes}.items() if value is not None}
            if fields == document.metadata:
                continue
            written = metadata_json(fields, number)
            spans = self.store.spans(document)
            old, new = (embedded_texts(document.text, of, spans, self.titled) for of in (document.metadata, fields))
            if old == new:
                self.store.set_metadata(document, written)
            else:
                again = Copied(document.text, document.id, fields, spans=spans, vectors=[None] * len(spans))
                self.add([again], replacing=True)
            self.changed = True
        return len(found)

    def delete(self, ids: Sequence[Id]) -> int:
        """Delete the documents with the given ids and return their number; ids that do not exist are skipped."""
        checked = [checked_id(identifier, number) for number, identifier in enumerate(ids, 1)]
        return self._delete(list(dict.fromkeys(checked)))

    def _delete(self, ids: list[Id]) -> int:
        found = self.store.find(ids)
        for document in found.values():
            self.store.remove(document)
        self.state = replace(self.state, documents=self.state.documents - len(found))
        self.changed = self.changed or bool(found)
        return len(found)

    def _flush(self) -> None:
        waiting = np.concatenate(self._waiting)
        self._waiting = []
        self._written += len(waiting)
        for start in range(0, len(waiting), SHARD_ROWS):
            self.shards = self.vectors.append(self.shards, waiting[start : start + SHARD_ROWS])

    def finish(self) -> Snapshot:
        """Write the queued vectors and list all shards, so that the transaction's commit publishes them."""
        if self._waiting:
            self._flush()
        self.state = replace(self.state, generation=self.state.generation + 1)
        self.store.finish(self.state, self.shards)
        return Snapshot.of(self.state, self.shards)
