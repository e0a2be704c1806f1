"""One transaction: documents added and deleted, with the vectors of their passages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from ctx_embed.documents.blocks import Block
from ctx_embed.documents.units import Structured
from ctx_embed.errors import InputError, described
from ctx_embed.index.storage.database import NEXT
from ctx_embed.index.storage.documents import (
    LARGEST_ID,
    DocumentStore,
    Id,
    NewDocument,
    Span,
    checked_id,
    embedded_texts,
    metadata_json,
    text_hash,
)
from ctx_embed.index.storage.vectors import Vectors, VectorTable
from ctx_embed.texts import Document, as_list, well_formed
from ctx_embed.vectors import unit_vector

# Number of documents that are embedded and written at a time.
BATCH_DOCUMENTS = 2048


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
    """Return documents from lists of texts, ids, metadata and embeddings, which must be of one length."""
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


class _Prepared(NamedTuple):
    """A document that is checked and cut but not yet stored.

    For each passage it has the text that is embedded, and the unit vector; None if that is still to be embedded.
    """

    new: NewDocument
    embedded: list[str]
    vectors: Sequence[Vectors | None]


class Edit:
    """Changes to an index, made inside :meth:`Database.writing` and in bounded memory.

    Args:
        store: the documents, in a writing transaction.
        embed: returns the unit vectors (n, dimension) of n texts; called in another thread.
        chunk: returns the passages of each text, given with its blocks.
        counted: the number of documents that the same operation has already added, for messages.
    """

    def __init__(
        self,
        store: DocumentStore,
        embed: Callable[[Sequence[str]], Vectors],
        chunk: Callable[[Sequence[tuple[str, Sequence[Block]]]], Sequence[Sequence[Span]]],
        counted: int = 0,
    ) -> None:
        self.store = store
        self.embed = embed
        self.chunk = chunk
        self.counted = counted
        settings, following = store.present(), store.settings(NEXT)
        self.titled = settings.titled
        self.vectors = VectorTable(store, settings)
        # A reembedding fills a second table at the same time.
        self._tables = [self.vectors, *([] if following is None else [VectorTable(store, following)])]
        self.state = store.state()
        self.changed = self.edited = False
        self._first_row = 0 if counted else self.state.next_row

    def add_all(self, documents: Iterable[Document], *, replacing: bool, batch: int = BATCH_DOCUMENTS) -> list[Id]:
        """Add a stream of documents in batches, and return their ids; see :meth:`add`."""
        stream = iter(documents)
        ids: list[Id] = []
        while some := list(islice(stream, batch)):
            ids += self.add(some, replacing=replacing)
        return ids

    def add(self, documents: Sequence[Document], *, replacing: bool) -> list[Id]:
        """Add a batch of documents and return their ids; automatic ids are larger than all ids ever used.

        Another thread embeds the texts while this one writes them. ``replacing`` says whether a document replaces one
        with the same id, of which the last in a batch is stored.
        """
        if not documents:
            return []
        first = self.counted + 1
        ids, next_id = self._numbered(documents, first)
        # No document has an automatic id yet.
        given = [identifier for identifier, document in zip(ids, documents, strict=True) if document.id is not None]
        taken = {identifier: row for identifier, (row, _) in self.store.rows_of_ids(given).items()}
        if not replacing:
            self._require_new(ids, first, taken)
        texts = []
        for number, document in enumerate(documents, first):
            if not isinstance(document.text, str):
                raise InputError(f"document {number}: the text must be a string, got {described(document.text)}")
            texts.append(well_formed(str(document.text)))
        # A document that comes with its embedding is not cut.
        uncut = [
            place
            for place, document in enumerate(documents)
            if not isinstance(document, Copied) and getattr(document, "embedding", None) is None
        ]
        blocks = [document.blocks if isinstance(document, Structured) else () for document in documents]
        cut = dict(zip(uncut, self.chunk([(texts[place], blocks[place]) for place in uncut]), strict=True))
        prepared: dict[Id, _Prepared] = {}
        for place, (identifier, document, text) in enumerate(zip(ids, documents, texts, strict=True)):
            number = first + place
            metadata = metadata_json(document.metadata, number)
            spans = document.spans if isinstance(document, Copied) else cut.get(place, [(0, len(text))])
            vectors: Sequence[Vectors | None] = [None] * len(spans)
            if isinstance(document, Copied):
                vectors = document.vectors
            elif isinstance(document, Embedded) and document.embedding is not None:
                vectors = [unit_vector(document.embedding, self.vectors.dimension, f"document {number}: the embedding")]
            prepared.pop(identifier, None)
            prepared[identifier] = _Prepared(
                NewDocument(identifier, metadata, text, spans),
                embedded_texts(text, document.metadata, spans, self.titled),
                vectors,
            )
        self._store(list(prepared.values()), list(taken))
        automatic = [identifier for identifier, document in zip(ids, documents, strict=True) if document.id is None]
        self.store.record_automatic(automatic, given)
        self.state = replace(self.state, next_id=next_id)
        self.counted += len(documents)
        self.changed = True
        return ids

    def _numbered(self, documents: Sequence[Document], first: int) -> tuple[list[Id], int]:
        """Return the id of each document, and the next automatic id."""
        given = [
            None if document.id is None else checked_id(document.id, number)
            for number, document in enumerate(documents, first)
        ]
        largest = max((identifier for identifier in given if isinstance(identifier, int)), default=-1)
        # The largest integer is never an automatic id, so the next id can always be stored.
        next_id = min(max(self.state.next_id, largest + 1), LARGEST_ID)
        ids: list[Id] = []
        for number, identifier in enumerate(given, first):
            if identifier is None:
                if next_id == LARGEST_ID:
                    raise InputError(f"document {number}: no larger integer is left for its id; give it one")
                identifier, next_id = next_id, next_id + 1
            ids.append(identifier)
        return ids, next_id

    def _require_new(self, ids: Sequence[Id], first: int, taken: Mapping[Id, int]) -> None:
        """Raise an error if an id belongs to another document, stored or in the same batch."""
        numbers: dict[Id, int] = {}
        for number, identifier in enumerate(ids, first):
            row = taken.get(identifier)
            if row is not None and row < self._first_row:
                raise TakenIdError(number, identifier)
            other = numbers.setdefault(identifier, number)
            if row is not None:
                between = "SELECT count(*) FROM documents WHERE row BETWEEN ? AND ?"
                (other,) = self.store.run_one(between, (self._first_row, row))
            if other != number:
                raise TakenIdError(number, identifier, f"is also that of document {other}")

    def _store(self, documents: list[_Prepared], replaced: list[Id]) -> None:
        """Write documents and queue the vectors of their passages: given, copied, or embedded.

        A passage's vector is copied if the same text was embedded before, without a title.
        """
        embedded = [text for document in documents for text in document.embedded]
        given = [vector for document in documents for vector in document.vectors]
        passages = [new.text[start:stop] for new, _, _ in documents for start, stop in new.spans]
        rows: dict[str, int] = {}
        for row, (text, passage) in enumerate(zip(embedded, passages, strict=True), self.state.next_row):
            if text == passage:
                rows.setdefault(text, row)
        hashes = {text: text_hash(text) for text in rows}
        # Vectors are copied before their documents are replaced. A text itself is compared, not only its hash.
        by_hash = {digest: text for text, digest in hashes.items()}
        known: dict[str, int] = {}
        for digest, row in self.store.run_among("SELECT hash, row FROM hashes WHERE hash IN ({})", sorted(by_hash)):
            # The row may belong to a deleted document.
            with suppress(InputError):
                if self.store.fetch([row])[row].text == by_hash[digest]:
                    known[by_hash[digest]] = row
        wanted = dict.fromkeys(text for text, vector in zip(embedded, given, strict=True) if vector is None)
        old = [text for text in wanted if text in known]
        new = [text for text in wanted if text not in known]
        found = dict(zip(old, self.vectors.get(np.array([known[text] for text in old], np.int64)), strict=True))
        with ThreadPoolExecutor(1) as pool:
            embedding = pool.submit(self.embed, new) if new else None
            self._delete(replaced)
            self.store.insert(self.state.next_row, [document.new for document in documents])
            # The new row outlives the old one, whose document may be one of those replaced.
            pairs = sorted((hashes[text], row) for text, row in rows.items())
            self.store.run_many("INSERT OR REPLACE INTO hashes VALUES (?, ?)", pairs)
            if embedding is not None:
                found |= zip(new, embedding.result(), strict=True)
        vectors = [found[text] if vector is None else vector for text, vector in zip(embedded, given, strict=True)]
        next_row = self.state.next_row + len(vectors)
        self.vectors.put(range(self.state.next_row, next_row), np.stack(vectors))
        self.state = replace(self.state, next_row=next_row, documents=self.state.documents + len(documents))

    def update_metadata(self, ids: Sequence[Id], changes: dict[str, Any]) -> int:
        """Change metadata fields of documents, and remove those whose new value is None; return their number."""
        metadata_json(changes, 1)
        checked = [checked_id(identifier, number) for number, identifier in enumerate(ids, 1)]
        found = self.store.find(list(dict.fromkeys(checked)))
        for identifier in checked:
            if identifier not in found:
                raise InputError(f"no document has the id {identifier!r}")
        again: list[Document] = []
        for number, document in enumerate(found.values(), 1):
            fields = {name: value for name, value in {**document.metadata, **changes}.items() if value is not None}
            if fields == document.metadata:
                continue
            written = metadata_json(fields, number)
            spans = document.spans
            old, new = (embedded_texts(document.text, of, spans, self.titled) for of in (document.metadata, fields))
            if old == new:
                self.store.set_metadata(document, written)
                self.changed = self.edited = True
            else:
                vectors = [None] * len(spans)
                again.append(Copied(document.text, document.id, fields, spans=spans, vectors=vectors))
        automatic = self.store.automatic([document.id for document in again if document.id is not None])
        self.add_all(again, replacing=True)
        self.store.record_automatic(automatic, [])
        return len(found)

    def delete(self, ids: Sequence[Id]) -> int:
        """Delete the documents with the given ids and return their number; ids that do not exist are skipped."""
        checked = [checked_id(identifier, number) for number, identifier in enumerate(ids, 1)]
        return self._delete(list(dict.fromkeys(checked)))

    def _delete(self, ids: list[Id]) -> int:
        found = self.store.find(ids)
        self.store.remove(list(found.values()), self._tables)
        self.state = replace(self.state, documents=self.state.documents - len(found))
        self.changed = self.changed or bool(found)
        return len(found)

    def finish(self) -> None:
        """Store the state that the transaction's commit publishes."""
        edited = self.state.generation + 1 if self.edited else self.state.edited
        self.store.finish(replace(self.state, edited=edited))
