"""The interface of every store, and the record of the model that made its vectors."""

from __future__ import annotations

import math
import numbers
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from datetime import date, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from ctx_embed.errors import InputError, described, quoted, without_secrets
from ctx_embed.index.filters import Among, Comparison, Contains, Filter, IsNull, Junction, Not, moment_of, parse
from ctx_embed.index.hits import Hit, Hits
from ctx_embed.model import Model
from ctx_embed.texts import as_list, well_formed

if TYPE_CHECKING:
    from ctx_embed.model import Given

COLLECTION = "collection"
# Prefix of the notes that record encoding runs; the highest number is the newest.
RUN = "run-"
METRIC = "cosine"
# The table or collection in which databases store notes.
NOTES = "_ctx_embed"

Floats = NDArray[np.float32]
T = TypeVar("T")
# The id, cosine, text and metadata of a document that is found.
Row: TypeAlias = tuple[str, float, str, dict[str, Any]]
Condition: TypeAlias = Comparison | Contains | IsNull


@dataclass(frozen=True)
class Collection:
    """A store's record of how its vectors were made, so that vectors of other models are neither added nor compared.

    ``model`` is the name or path that loads the model again, None if unknown; ``fields`` are the metadata fields that
    have a column, with its type, see :mod:`ctx_embed.stores.columns`.
    """

    model_fingerprint: str
    dimension: int
    model: str | None = None
    metric: str = METRIC
    fields: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, embedder: Model, fields: Mapping[str, str] | None = None) -> Collection:
        """Return the record for vectors that ``embedder`` makes."""
        return cls(embedder.fingerprint, embedder.dimension, embedder.reference, fields=dict(fields or {}))

    def require(self, name: str, other: Collection) -> None:
        """Raise an InputError that names both models unless the vectors of ``other`` come from the same one."""
        if (self.model_fingerprint, self.dimension) != (other.model_fingerprint, other.dimension):
            here, there = (
                f"{'unnamed' if each.model is None else repr(each.model)} "
                f"(fingerprint {each.model_fingerprint[:12]}, dimension {each.dimension})"
                for each in (self, other)
            )
            hint = "use that model or another target, or embed all texts again"
            raise InputError(f"{name}: its vectors come from the model {here}, not from {there}; {hint}")


@dataclass(frozen=True)
class Batch:
    """Documents with their ids (strings), texts, metadata (JSON values by name) and unit vectors (rows, dimension)."""

    ids: Sequence[str]
    texts: Sequence[str]
    metadata: Sequence[Mapping[str, Any]]
    vectors: Floats

    def __len__(self) -> int:
        """Return the number of documents."""
        return len(self.ids)

    def latest(self) -> Batch:
        """Return only the last row of each id, sorted by id, so that all writers lock rows in the same order."""
        last = {identifier: place for place, identifier in enumerate(self.ids)}
        places = [last[identifier] for identifier in sorted(last)]
        ids, texts = ([column[place] for place in places] for column in (self.ids, self.texts))
        return Batch(ids, texts, [self.metadata[place] for place in places], self.vectors[places])


class Store(AbstractContextManager["Store"], ABC):
    """Documents and their vectors in a database or a folder; :func:`ctx_embed.stores.open` returns one.

    A document that the model cannot read is stored with a vector of zeros, which no search finds. A subclass stores
    rows by id, and small JSON notes by name; the notes record the collection and encoding runs.
    """

    # Whether several processes may upsert at once.
    parallel = True
    # Embeds queries; None: the model that made the vectors.
    model: Given = None

    def __init__(self, name: str) -> None:
        self.name = without_secrets(name)

    @property
    def collection(self) -> Collection | None:
        """The record of the vectors; None before :meth:`ensure` has made the collection."""
        note = self.notes(COLLECTION).get(COLLECTION)
        if note is None:
            return None
        try:
            collection = Collection(**note)
            strings = [collection.model_fingerprint, collection.model or "", *collection.fields.values()]
            sound = isinstance(collection.dimension, int) and all(isinstance(value, str) for value in strings)
        except (AttributeError, TypeError):
            sound = False
        if not sound:
            raise InputError(f"{self.name}: the record of its model is damaged; encode it again")
        if collection.metric != METRIC:
            raise InputError(f"{self.name}: must compare vectors by the {METRIC}, got {quoted(collection.metric)}")
        return collection

    def ensure(self, collection: Collection) -> Collection:
        """Make the collection, or check that an existing one has the same model, and return what is stored.

        The columns of an existing collection may differ from those of ``collection``.
        """
        there = self.collection
        if there is None:
            self._require_free()
            self.write_note(COLLECTION, asdict(collection))
            there = collection
        else:
            there.require(self.name, collection)
        # A killed run may have written the note without making the collection.
        self._create(there)
        return there

    @cached_property
    def embedder(self) -> Model:
        """The model that made the vectors, loaded at the first search; without torch if the model allows it."""
        collection = self.require_collection()
        try:
            own = self.model is None
            embedder = Model.of(collection.model if own else self.model, local_files_only=own)
        except InputError as error:
            raise InputError(f"{self.name}: its model cannot be loaded ({error}); give model=PATH") from None
        collection.require(self.name, Collection.of(embedder))
        return embedder

    def require_collection(self) -> Collection:
        """Return the collection; raise an InputError if there is none."""
        collection = self.collection
        if collection is None:
            raise InputError(f"{self.name}: no embeddings there; make some with `ctx-embed encode INPUT --to TARGET`")
        return collection

    def search(self, query: str | Iterable[str], k: int = 10, where: str | None = None, *, exact: bool = False) -> Any:
        """Return the k documents nearest to a text, as hits whose scores are cosines; for several texts, several lists.

        ``where`` is a metadata filter, see :mod:`ctx_embed.index.filters`. ``exact`` compares the query with
        every vector, even if the store has a vector index.

        Raises:
            InputError: a query is not a string, k is below 1, the filter cannot be understood by this store, or the
                store is a directory of Parquet files.
        """
        if isinstance(k, bool) or not isinstance(k, numbers.Integral) or k < 1:
            raise InputError(f"k must be an integer of at least 1, got {quoted(k)}")
        texts = [query] if isinstance(query, str) else as_list(query, "query", "a string or a list of strings")
        for place, text in enumerate(texts, 1):
            if not isinstance(text, str):
                raise InputError(f"query {place} must be a string, got {described(text)}")
        tree = None if where is None else parse(where)
        results = [Hits(text, []) for text in texts]
        if texts:
            queries = self.embedder.queries([well_formed(text) for text in texts])
            # A query that the model cannot read is embedded as zeros and finds nothing.
            readable = np.flatnonzero(queries.any(axis=1))
            if len(readable):
                for place, rows in zip(readable, self._nearest(queries[readable], int(k), tree, exact), strict=True):
                    results[place] += [
                        Hit(id=identifier, score=float(score), text=text, metadata=metadata)
                        for identifier, score, text, metadata in rows
                        # The cosine with a vector of zeros may be NaN; such vectors come last.
                        if not math.isnan(score)
                    ]
        return results[0] if isinstance(query, str) else results

    def _require_free(self) -> None:
        """Raise an InputError if something else has the collection's name."""

    def _create(self, collection: Collection) -> None:
        """Make an empty collection if there is none yet."""

    def _nearest(self, queries: Floats, k: int, tree: Filter | None, exact: bool) -> Iterator[list[Row]]:
        """Yield the k documents nearest to each query (Q, dimension); the cosine of a vector of zeros may be NaN."""
        raise NotImplementedError

    @abstractmethod
    def upsert(self, rows: Batch, part: str | None = None, note: Mapping[str, Any] | None = None) -> None:
        """Store documents durably; each replaces a stored or earlier document with the same id.

        In an encoding run, they form the part named ``part``, whose note (JSON values) is stored after them.
        """

    @abstractmethod
    def count(self) -> int:
        """Return the number of documents."""

    @abstractmethod
    def notes(self, prefix: str) -> dict[str, dict[str, Any]]:
        """Return the notes whose names begin with ``prefix``, sorted by name."""

    @abstractmethod
    def write_note(self, name: str, note: Mapping[str, Any]) -> None:
        """Store a note; it replaces an earlier note of this name."""

    def finish(self, *, unique: bool = False) -> None:
        """Complete a run of upserts, for example by building the store's vector index.

        ``unique``: each id of the run is certain to be new and to occur only once.
        """

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Keep other runs from writing during the block, if the store can; raise an InputError if one is writing."""
        yield

    def close(self) -> None:
        """Release connections and files."""

    def __exit__(self, *error: object) -> None:
        """Close the store."""
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


class Database(Store):
    """A store whose documents and notes are tables of a database, which a subclass opens as ``_opened``."""

    def __init__(self, place: str, collection: str) -> None:
        super().__init__(f"{place}#{collection}")
        if collection == NOTES:
            raise InputError(f"{self.name}: {NOTES} holds notes; choose another name")
        self.collection_name = collection

    def upsert(self, rows: Batch, part: str | None = None, note: Mapping[str, Any] | None = None) -> None:
        """Store the rows, and after them the note of their part, in one transaction if the database has them."""
        with self._transaction():
            if len(rows):
                self._put(rows.latest())
            if part is not None:
                self.write_note(f"part-{part}", note or {})

    def _transaction(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def _put(self, rows: Batch) -> None:
        """Store at least one row. All ids differ."""
        raise NotImplementedError

    def _has(self, name: str) -> bool:
        """Return whether there is a table or collection of this name."""
        raise NotImplementedError

    def _require_free(self) -> None:
        if self._has(self.collection_name):
            raise InputError(f"{self.name}: holds other things; choose another name")

    @contextmanager
    def _reporting_errors(self) -> Iterator[None]:
        """Turn errors of the client library, and of the libraries that it uses, into an InputError of one line."""
        try:
            yield
        except InputError:
            raise
        except Exception as error:
            reason = " ".join(without_secrets(str(error)).split()) or type(error).__name__
            raise InputError(f"{self.name}: {type(self).__name__} says {reason:.200}") from None

    def close(self) -> None:
        """Close the connection, so that another process can open a folder."""
        opened = self.__dict__.pop("_opened", None)
        if opened is not None:
            opened.close()


def translated(
    tree: Filter,
    condition: Callable[[Condition], T],
    joined: Callable[[str, Sequence[T]], T],
    negated: Callable[[T], T],
) -> T:
    """Return a filter in the language of a database.

    ``condition`` translates a comparison, `contains` or `is null`, never to null; ``joined`` joins by `and` or `or`.
    """

    def visit(tree: Filter) -> T:
        if isinstance(tree, Not):
            return negated(visit(tree.part))
        if isinstance(tree, Junction):
            return joined(tree.word, [visit(part) for part in tree.parts])
        if isinstance(tree, Among):
            return joined("or", [visit(Comparison(tree.path, "=", value)) for value in tree.values])
        day = tree.value if isinstance(tree, Comparison) and isinstance(tree.value, str) else ""
        if isinstance(tree, Comparison) and len(day) == len("2024-01-31") and moment_of(day):
            # The calendar ends with 9999-12-31.
            is_last = day == "9999-12-31"
            following = f"{day}T23:59:59.999" if is_last else str(date.fromisoformat(day) + timedelta(days=1))
            if tree.operator == "=":
                bounds = [Comparison(tree.path, ">=", day), Comparison(tree.path, "<", following)]
                return joined("and", [condition(bound) for bound in bounds])
            if tree.operator in ("<=", ">"):
                return condition(Comparison(tree.path, "<" if tree.operator == "<=" else ">=", following))
        return condition(tree)

    return visit(tree)
