"""A collection of Qdrant: ``qdrant:http://HOST:6333#COLLECTION``, or ``qdrant:FOLDER#COLLECTION`` for small ones.

A folder uses the client's local mode: one process at a time, and every search is exact.

A point's payload has ``id``, ``text``, ``metadata`` without its lists, ``lists`` with only the lists, and ``present``,
the paths of all fields; ``undirected`` marks a point whose vector is zeros. Lists are stored separately, so that only
`contains` looks into them: Qdrant's other conditions would, too. In strings, `contains` finds whole words.
"""

import datetime
import functools
import os
import uuid
import warnings
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

from ctx_embed.errors import InputError, missing_extra, quoted
from ctx_embed.index.filters import Contains, Filter, IsNull, Value
from ctx_embed.stores.store import NOTES, Batch, Collection, Condition, Database, Floats, Row, translated

# The payload's mark of a point whose vector is zeros.
UNDIRECTED = "undirected"
# The environment variable with the API key of the server.
API_KEY = "QDRANT_API_KEY"
# Maximum points in a request: 3 MB of JSON with 320 dimensions. A server refuses more than 32 MB.
POINTS_AT_ONCE = 512
MOST_NOTES = 1 << 24
# The namespace of the UUIDs that name points: Qdrant accepts only integers and UUIDs.
_NAMESPACE = uuid.UUID("8a1d1f9c-5a0e-4f0b-9d52-3c2f6d1b7e10")


class Qdrant(Database):
    """A collection of Qdrant, on a server or in a folder."""

    def __init__(self, place: str, collection: str) -> None:
        super().__init__(f"qdrant:{place}", collection)
        self.place = place
        self.is_server = "://" in place
        self.parallel = self.is_server

    @cached_property
    def _opened(self) -> Any:
        try:
            from qdrant_client import QdrantClient
        except ImportError:
            raise missing_extra("Qdrant", "qdrant") from None
        with self._reporting_errors(), warnings.catch_warnings():
            if self.is_server:
                key = os.environ.get(API_KEY)
                return QdrantClient(url=self.place, api_key=key, timeout=60, check_compatibility=False)
            # The client warns about more than 20,000 points in a folder.
            warnings.simplefilter("ignore", UserWarning)
            return QdrantClient(path=self.place)

    def _has(self, name: str) -> bool:
        with self._reporting_errors():
            return bool(self._opened.collection_exists(name))

    def _create(self, collection: Collection) -> None:
        from qdrant_client import models

        if not self._has(self.collection_name):
            vectors = models.VectorParams(size=collection.dimension, distance=models.Distance.COSINE)
            with self._reporting_errors():
                self._opened.create_collection(self.collection_name, vectors_config=vectors)

    def notes(self, prefix: str) -> dict[str, dict[str, Any]]:
        """Return the notes whose names begin with ``prefix``, from the collection ``_ctx_embed``."""
        if not self._has(NOTES):
            return {}
        from qdrant_client import models

        same = models.FieldCondition(key="collection", match=models.MatchValue(value=self.collection_name))
        with self._reporting_errors():
            points, _ = self._opened.scroll(NOTES, scroll_filter=models.Filter(must=[same]), limit=MOST_NOTES)
        notes = sorted((str(point.payload["name"]), point.payload["note"]) for point in points)
        return {name: note for name, note in notes if name.startswith(prefix)}

    def write_note(self, name: str, note: Mapping[str, Any]) -> None:
        """Store a note in the collection ``_ctx_embed``."""
        from qdrant_client import models

        if not self._has(NOTES):
            with self._reporting_errors():
                self._opened.create_collection(NOTES, vectors_config={})
        payload = {"collection": self.collection_name, "name": name, "note": dict(note)}
        point = models.PointStruct(id=_point(f"{self.collection_name}\n{name}"), vector={}, payload=payload)
        with self._reporting_errors():
            self._opened.upsert(NOTES, [point], wait=True)

    def _put(self, rows: Batch) -> None:
        """Store the rows as points named by a hash of their ids."""
        payloads: list[dict[str, Any]] = []
        for identifier, text, metadata, vector in zip(rows.ids, rows.texts, rows.metadata, rows.vectors, strict=True):
            present: list[str] = []
            plain, lists = _split(metadata, "", present)
            fields = {"metadata": plain, "lists": lists, "present": present}
            payloads.append({"id": identifier, "text": text, **fields, **({} if vector.any() else {UNDIRECTED: True})})
        with self._reporting_errors():
            self._opened.upload_collection(
                self.collection_name, rows.vectors, payloads, map(_point, rows.ids), POINTS_AT_ONCE, wait=True
            )

    def count(self) -> int:
        """Return the number of points."""
        self.require_collection()
        with self._reporting_errors():
            return int(self._opened.count(self.collection_name, exact=True).count)

    def _nearest(self, queries: Floats, k: int, tree: Filter | None, exact: bool) -> Iterator[list[Row]]:
        from qdrant_client import models

        # The local mode is always exact, and warns about the option.
        options = models.SearchParams(exact=True) if exact and self.is_server else None
        chosen = None if tree is None else models.Filter(must=[condition(self.name, tree)])
        directed = models.FieldCondition(key=UNDIRECTED, match=models.MatchValue(value=True))
        others = models.Filter(must=None if chosen is None else [chosen], must_not=[directed])
        for query in queries:
            ask = functools.partial(
                self._opened.query_points, self.collection_name, query=query.tolist(), limit=k, search_params=options
            )
            with self._reporting_errors():
                points = ask(query_filter=chosen).points
                # For Qdrant, vectors of zeros have the cosine 0. Excluding them is slow, so do it only if one is found.
                if any(point.payload.get(UNDIRECTED) for point in points):
                    points = ask(query_filter=others).points
            yield [
                (payload["id"], score, payload["text"], _merged(payload["metadata"], payload["lists"]))
                for score, payload in ((point.score, point.payload) for point in points)
            ]


def _point(identifier: str) -> str:
    return str(uuid.uuid5(_NAMESPACE, identifier))


def _split(fields: Mapping[str, Any], path: str, present: list[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return an object without its lists, and one with only its lists; add the paths of all fields to ``present``."""
    plain: dict[str, Any] = {}
    lists: dict[str, Any] = {}
    for name, value in fields.items():
        if value is None:
            continue
        here = f"{path}.{name}" if path else name
        present.append(here)
        if isinstance(value, list):
            lists[name] = value
        elif isinstance(value, dict):
            plain[name], inner = _split(value, here, present)
            if inner:
                lists[name] = inner
        else:
            plain[name] = value
    return plain, lists


def _merged(plain: dict[str, Any], lists: dict[str, Any]) -> dict[str, Any]:
    merged = dict(plain)
    for name, value in lists.items():
        merged[name] = _merged(merged.get(name, {}), value) if isinstance(value, dict) else value
    return merged


def condition(name: str, tree: Filter) -> Any:
    """Return a filter as a condition of Qdrant, which cannot order booleans, nor strings that are not dates."""
    from qdrant_client import models

    def equal(key: str, value: Value) -> Any:
        if isinstance(value, str | bool):
            return models.FieldCondition(key=key, match=models.MatchValue(value=value))
        return models.FieldCondition(key=key, range=models.Range(gte=value, lte=value))

    def one(tree: Condition) -> Any:
        if isinstance(tree, IsNull):
            present = models.FieldCondition(key="present", match=models.MatchValue(value=".".join(tree.path)))
            return models.Filter(must_not=[present])
        # Quotes keep Qdrant from reading dots and brackets in a name as a path.
        path = ".".join(name if name.replace("_", "").isalnum() else f'"{name}"' for name in tree.path)
        value, key = tree.value, f"metadata.{path}"
        if isinstance(tree, Contains):
            element = equal(f"lists.{path}", value)
            if not isinstance(value, str):
                return element
            words = models.FieldCondition(key=key, match=models.MatchPhrase(phrase=value))
            return models.Filter(should=[element, words])
        if tree.operator == "=":
            return equal(key, value)
        bound = {"<": "lt", "<=": "lte", ">": "gt", ">=": "gte"}[tree.operator]
        if isinstance(value, int | float) and not isinstance(value, bool):
            return models.FieldCondition(key=key, range=models.Range(**{bound: value}))
        try:
            date = datetime.datetime.fromisoformat(str(value))
        except ValueError:
            raise InputError(
                f"{name}: Qdrant can order only numbers and ISO dates, so {'.'.join(tree.path)} {tree.operator} "
                f"{quoted(value)} is not possible; compare with =, in or contains"
            ) from None
        return models.FieldCondition(key=key, range=models.DatetimeRange(**{bound: date}))

    return translated(
        tree,
        one,
        lambda word, parts: models.Filter(**{"must" if word == "and" else "should": list(parts)}),
        lambda part: models.Filter(must_not=[part]),
    )
