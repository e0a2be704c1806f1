"""A search index on a server, with the methods of :class:`ctx_embed.SearchIndex`."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields
from typing import Any
from urllib.parse import quote

from ctx_embed.errors import (
    BusyError,
    DamagedError,
    InputError,
    UnwritableError,
    described,
    missing_extra,
    unknown_name,
)
from ctx_embed.index.analysis.duplicates import Pair
from ctx_embed.index.analysis.explaining import Similarity
from ctx_embed.index.analysis.fields import Field
from ctx_embed.index.analysis.topics import Topic
from ctx_embed.index.arguments import as_list
from ctx_embed.index.collection import Collection
from ctx_embed.index.following.location import Location, named_location
from ctx_embed.index.searching.hits import Hit, Hits, counted
from ctx_embed.index.storage.documents import Id, metadata_json
from ctx_embed.numpy_model.explaining import CosineParts, TokenWeight
from ctx_embed.texts import Document, well_formed

try:
    import httpx
except ModuleNotFoundError:
    raise missing_extra("ctx_embed.Client", "server") from None

# Maximum attempts to get an answer from a busy server.
ATTEMPTS = 5
# Number of documents to fetch at a time.
PAGE = 1000


class Client(Collection):
    """A search index that `ctx-embed serve` serves; it has the methods of :class:`ctx_embed.SearchIndex`.

    Methods that work on the folder are missing: building, syncing, tuning, compacting, re-embedding, verifying and
    exporting. A client may be used by several threads.

    Args:
        url: the address of the server, such as ``http://127.0.0.1:8080``.
        index: the name of the index; None takes the only one.
        api_key: a key of the server, if it asks for one.
        timeout: seconds to wait for an answer.

    Raises:
        InputError: the server has no such index.
        ConnectionError: nothing answers there.
        PermissionError: the key is not accepted.

    Example:
        >>> from ctx_embed import Client
        >>> with Client("http://127.0.0.1:8080", "notes.index") as index:  # instead of SearchIndex.open("notes.index")
        ...     index.search("inflation", k=1)[0].text
        'prices rise faster than wages'
    """

    def __init__(
        self, url: str, index: str | None = None, *, api_key: str | None = None, timeout: float = 60.0
    ) -> None:
        if not isinstance(url, str) or not url.startswith(("http://", "https://")):
            raise InputError(f"url must be the address of a server, such as http://127.0.0.1:8080, got {url!r}")
        self.url = url.rstrip("/")
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {api_key}"} if api_key else {})
        self._http = httpx.Client(headers=headers, timeout=timeout)
        try:
            names = [facts["name"] for facts in self._ask("GET", "/v1/indexes")["indexes"]]
            if index is None:
                if len(names) != 1:
                    raise InputError(
                        f"{self.url} serves {len(names)} indexes; name one of {', '.join(names) or 'none'}"
                    )
                (index,) = names
            if index not in names:
                raise unknown_name("index", index, names)
        except BaseException:
            self._http.close()
            raise
        self.index = index

    def search(self, query: Any = None, k: int = 10, **options: Any) -> Any:
        """Return the best passages for a query, see :meth:`ctx_embed.SearchIndex.search`."""
        query = _listed(query)
        found = self._post("search", {"query": query, "k": k, **options})["hits"]
        if found and isinstance(found[0], list):
            return [_hits(text, hits) for text, hits in zip(query, found, strict=True)]
        return _hits(query, found) if query != [] else []

    def count(self, where: str | None = None) -> int:
        """Return the number of documents, or of those that match a filter."""
        return int(self._post("count", {"where": where})["count"])

    def ids(self, where: str | None = None) -> list[Id]:
        """Return the ids of the documents in the order they were added."""
        found: list[Id] = self._post("ids", {"where": where})["ids"]
        return found

    def get(self, identifier: Id) -> Document | None:
        """Return the document with an id, or None if there is none."""
        (document,) = self._post("get", {"ids": [identifier]})["documents"]
        return None if document is None else Document(**document)

    def source(self, hit: Hit | Id) -> Location | None:
        """Return the name of the file that a hit or a document comes from, with the line or page of the passage."""
        if isinstance(hit, Hit):
            return named_location(hit.metadata, hit.line, hit.page)
        found = self.get(hit)
        if found is None:
            return None
        line, page = (counted(found.metadata.get(name), "", "\n", 0) for name in ("line", "page"))
        return named_location(found.metadata, line, page)

    def documents(self, where: str | None = None, *, offset: int = 0, limit: int | None = None) -> Iterator[Document]:
        """Return an iterator over documents in the order they were added, which fetches them page by page."""
        while limit is None or limit > 0:
            count = PAGE if limit is None else min(PAGE, limit)
            found = self._post("documents", {"where": where, "offset": offset, "limit": count})["documents"]
            yield from (Document(**document) for document in found)
            if not found:
                return
            # The server may send fewer documents than asked for, to keep its answer small enough.
            offset, limit = offset + len(found), None if limit is None else limit - len(found)

    def facets(
        self, field: str, where: str | None = None, *, limit: int | None = None
    ) -> list[tuple[str | int | float | bool, int]]:
        """Return the values of a metadata field with their numbers of documents, most frequent first."""
        found = self._post("facets", {"field": field, "where": where, "limit": limit})["values"]
        return [(value["value"], value["documents"]) for value in found]

    def unknown_fields(self, where: str) -> dict[str, list[str]]:
        """Return the fields of a filter that no document has, each mapped to the fields that documents do have."""
        found: dict[str, list[str]] = self._post("unknown_fields", {"where": where})["fields"]
        return found

    def update_metadata(self, ids: Id | Sequence[Id], changes: dict[str, Any]) -> int:
        """Change metadata fields of documents without embedding anything; None removes a field."""
        listed = [ids] if isinstance(ids, str | int) else _listed(ids)
        return int(self._post("update_metadata", {"ids": listed, "changes": changes})["updated"])

    def add(
        self,
        texts: Iterable[str],
        ids: Sequence[Id | None] | None = None,
        metadata: Sequence[dict[str, Any] | None] | None = None,
        embeddings: Any = None,
    ) -> list[Id]:
        """Add documents: all are on the server's disk when this returns, and none if it raises."""
        return self._add("add", texts, ids, metadata, embeddings)

    def upsert(
        self,
        texts: Iterable[str],
        ids: Sequence[Id | None] | None = None,
        metadata: Sequence[dict[str, Any] | None] | None = None,
        embeddings: Any = None,
    ) -> list[Id]:
        """Add documents as :meth:`add` does; a document whose id is taken replaces the one that has it."""
        return self._add("upsert", texts, ids, metadata, embeddings)

    def _add(self, route: str, texts: Any, ids: Any, metadata: Any, embeddings: Any) -> list[Id]:
        listed = as_list(texts, "texts", "a list of strings")
        notes = None if metadata is None else as_list(metadata, "metadata", "a list of dictionaries")
        if notes is not None:
            # Convert metadata as an index does: no NaN, and times as ISO 8601.
            notes = [
                None if each is None else json.loads(metadata_json(each, place)) for place, each in enumerate(notes, 1)
            ]
        body = {"texts": listed, "ids": _listed(ids), "metadata": notes, "embeddings": embeddings}
        added: list[Id] = self._post(route, body)["ids"]
        return added

    def add_documents(self, documents: Iterable[Document], *, replacing: bool = False) -> list[Id]:
        """Add documents in one request, which the server's limits apply to; a document whose id is None gets one.

        Args:
            documents: any number that fits into a request.
            replacing: whether a document replaces the one that has its id.
        """
        listed = list(documents)
        texts, ids, metadata = ([getattr(document, name) for document in listed] for name in ("text", "id", "metadata"))
        return self._add("upsert" if replacing else "add", texts, ids, metadata, None)

    def delete(self, ids: Id | Sequence[Id] | None = None, *, where: str | None = None) -> int:
        """Delete documents by id or by a filter and return their number."""
        listed = [ids] if isinstance(ids, str | int) else _listed(ids)
        return int(self._post("delete", {"ids": listed, "where": where})["deleted"])

    def describe(self) -> dict[str, Any]:
        """Return the properties of the index as JSON values; its path is its URL."""
        facts = self._ask("GET", self._path())
        return {"path": f"{self.url}{self._path()}", **facts}

    def fields(self, most: int = 50) -> list[Field]:
        """Return the metadata fields that documents have, the most frequent first, with at most ``most`` values."""
        found = self._ask("GET", f"{self._path()}/fields?most={most}")["fields"]
        return [
            Field(**{**field, "values": [(value["value"], value["documents"]) for value in field["values"]]})
            for field in found
        ]

    def duplicates(self, threshold: float = 0.9, most: int = 100) -> list[Pair]:
        """Return the pairs of documents that say nearly the same, most similar first."""
        return [Pair(**pair) for pair in self._post("duplicates", {"threshold": threshold, "most": most})["pairs"]]

    def topics(self, count: int | None = None, seed: int = 0) -> list[Topic]:
        """Cluster the documents and return the clusters with their typical words, largest first, without their ids."""
        found = self._post("topics", {"count": count, "seed": seed})["topics"]
        return [
            Topic(topic["size"], topic["words"], list(map(tuple, topic["examples"])), topic["label"]) for topic in found
        ]

    def explain(self, query: str, text: str) -> Similarity:
        """Return what each token of a query and of a text adds to their cosine."""
        found = self._post("explain", {"query": query, "text": text})
        return Similarity(found["score"], _parts(found["query"]), _parts(found["document"]))

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def _path(self) -> str:
        return f"/v1/indexes/{quote(str(self.index), safe='')}"

    def _post(self, route: str, body: dict[str, Any]) -> Any:
        found = self._ask("POST", f"{self._path()}/{route}", _json(body))
        for warning in found.get("warnings", ()):
            warnings.warn(warning, stacklevel=3)
        return found

    def _ask(self, method: str, path: str, content: bytes | None = None) -> Any:
        """Return the JSON of an answer; a busy server is asked again.

        Raises:
            InputError: the server refuses the input, with its message.
            PermissionError: the key does not allow it.
            ConnectionError: nothing answers.
            TimeoutError: the answer takes too long.
            RuntimeError: the server failed.
        """
        for attempt in range(1, ATTEMPTS + 1):
            try:
                answer = self._http.request(method, f"{self.url}{path}", content=content)
            except httpx.TimeoutException:
                raise TimeoutError(f"{self.url}: no answer in time") from None
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                raise ConnectionError(f"{self.url}: no answer ({error})") from None
            if answer.status_code not in (429, 503) or attempt == ATTEMPTS:
                break
            time.sleep(float(answer.headers.get("Retry-After", 1)))
        if answer.status_code < 400:
            return answer.json()
        raise _error(answer)

    def __repr__(self) -> str:
        return f"Client({self.url!r}, {self.index!r})"


# Exception for each HTTP status; any other 4xx is an InputError.
ERRORS: dict[int, Callable[[str], Exception]] = {
    401: PermissionError,
    403: PermissionError,
    408: TimeoutError,
    429: BusyError,
    503: BusyError,
    504: TimeoutError,
    507: UnwritableError,
}


def _error(answer: httpx.Response) -> Exception:
    try:
        error = dict(answer.json()["error"])
        message = str(error["message"])
    except (ValueError, LookupError, TypeError):
        error, message = {}, f"{answer.url}: {answer.status_code} {answer.reason_phrase}"
    if error.get("code") == "damaged":
        return DamagedError(message)
    return ERRORS.get(answer.status_code, InputError if answer.status_code < 500 else RuntimeError)(message)


def _json(body: dict[str, Any]) -> bytes:
    """Return JSON in UTF-8; lone surrogates become U+FFFD, as they do in an index.

    Raises:
        InputError: a value cannot be written as JSON.
    """
    try:
        return well_formed(json.dumps(body, ensure_ascii=False, allow_nan=False, default=_plain)).encode()
    except (TypeError, ValueError) as error:
        raise InputError(f"the input cannot be sent as JSON ({error})") from None


def _plain(value: Any) -> Any:
    """Return an array as lists and a number of NumPy as one of Python."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"got {described(value)}")


def _listed(values: Any) -> Any:
    """Return an iterable as a list; a string, or anything else, stays as it is."""
    return list(values) if isinstance(values, Iterable) and not isinstance(values, str) else values


HIT_FIELDS = tuple(field.name for field in fields(Hit))


def _hits(query: Any, found: list[dict[str, Any]]) -> Hits:
    return Hits(query if isinstance(query, str) else "", map(_hit, found))


def _hit(found: dict[str, Any]) -> Hit:
    given = {name: found[name] for name in HIT_FIELDS if name in found}
    # JSON has no tuples.
    return Hit(**given | ({"highlight": tuple(found["highlight"])} if found.get("highlight") else {}))


def _parts(side: dict[str, Any]) -> CosineParts:
    return CosineParts(side["text"], [TokenWeight(**token) for token in side["tokens"]], side["rest"])
