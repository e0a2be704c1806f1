"""Routes of the search indexes."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, cast, get_type_hints

from fastapi import APIRouter, Depends, Query, Request
from pydantic import Field, create_model
from pydantic.config import JsonDict

from ctx_embed.errors import InputError
from ctx_embed.index import SearchIndex
from ctx_embed.index.searching.options import Options
from ctx_embed.index.storage.filters import unknown_fields_message
from ctx_embed.options import declared
from ctx_embed.serving.errors import ApiError, dumps
from ctx_embed.serving.indexes import BATCH_HITS, Marks, ServedIndex
from ctx_embed.serving.json import Answer, Body, JsonRoute, Listed
from ctx_embed.serving.service import require_length, service_of
from ctx_embed.serving.settings import Key

router = APIRouter(prefix="/v1/indexes", tags=["indexes"], route_class=JsonRoute, default_response_class=Answer)


async def _served(request: Request, name: str) -> ServedIndex:
    return service_of(request).index(name)


def _may_write(request: Request) -> None:
    key: Key | None = request.scope["state"].get("key")
    if key is not None and not key.writes:
        raise ApiError(403, "this key may read only; changes need a write key", "read_only_key")


# The index named in the path of a request; a route that changes it has WRITES.
Served = Annotated[ServedIndex, Depends(_served)]
WRITES = [Depends(_may_write)]

Id = int | str


# OpenAPI's description of a query.
_NUMBERS: JsonDict = {"type": "array", "items": {"type": "number"}}
VECTORS: JsonDict = {"type": "array", "items": _NUMBERS}
QUERY: JsonDict = {
    "anyOf": [
        {"type": "string"},
        {"type": "array", "items": {"type": "string"}},
        _NUMBERS,
        VECTORS,
    ]
}
# Maximum number of documents in an answer, also of hits that include their documents.
MOST_DOCUMENTS = 1_000
UNKNOWN = "The model knows no word of a query: it finds nothing by meaning."
# SQLite's largest integer.
MOST_OFFSET = 2**63 - 1
# The longest filter, in characters.
FILTER_CHARACTERS = 100_000
# The longest mark before or after a word of a snippet.
MARK_CHARACTERS = 100

Mark = Annotated[str, Field(max_length=MARK_CHARACTERS)]
Where = Annotated[str, Field(max_length=FILTER_CHARACTERS)]


def _search_options() -> dict[str, Any]:
    """Return the options of a search as fields of a body."""
    own = {"where": Where | None, "exclude": Id | Listed[Id], "rerank": str | None}
    fields: dict[str, Any] = {}
    hints = get_type_hints(Options)
    for known in declared(Options):
        field = Field(known.default, description=known.metadata["meaning"])
        fields[known.name] = (own.get(known.name, hints[known.name]), field)
    return fields


class SearchBody(create_model("SearchBody", __base__=Body, **_search_options())):  # type: ignore[misc]
    """A search. The fields are the arguments of `SearchIndex.search`."""

    query: Any = Field(None, description="A text, a vector, or a list of texts or vectors.", json_schema_extra=QUERY)
    like: Id | Listed[Id] | None = Field(None, description="Instead of a query: documents to find similar ones to.")
    snippets: Annotated[list[Mark], Field(min_length=2, max_length=2)] | None = Field(
        None, description="The marks around the query's words in a snippet of each hit; none without them."
    )

    def queries(self) -> list[Any]:
        """Return the queries: texts or vectors."""
        return self.query if isinstance(self.query, list) and not _is_vector(self.query) else [self.query]

    def hits(self) -> int:
        """Return the number of hits that the search may look at: of all queries, with skipped ones and neighbours."""
        wanted = self.k + self.offset
        if self.rerank is not None or self.mmr is not None:
            wanted = max(wanted, self.candidates)
        return len(self.queries()) * int(wanted) * (1 + 2 * int(self.context))

    def options(self) -> dict[str, Any]:
        """Return the other arguments of the search that were given."""
        given = self.model_dump(exclude_unset=True, exclude={"query", "snippets", "document"})
        return {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}

    def marks(self) -> Marks:
        """Return the marks around words in snippets, or None."""
        return None if self.snippets is None else (self.snippets[0], self.snippets[1])


def _is_vector(value: list[Any]) -> bool:
    return bool(value) and isinstance(value[0], int | float)


class IdsBody(Body):
    """Ids of documents."""

    ids: Annotated[Listed[Id], Field(max_length=MOST_DOCUMENTS)]


class WhereBody(Body):
    """A metadata filter; None matches all documents."""

    where: Where | None = None


class AddBody(Body):
    """Documents; `ids` (null: the next integer), `metadata` and `embeddings` have an element for each text."""

    texts: Listed[str]
    ids: Listed[Id | None] | None = None
    metadata: Listed[dict[str, Any] | None] | None = None
    embeddings: Any = Field(None, description="A vector for each text.", json_schema_extra=VECTORS)


class DeleteBody(Body):
    """Documents to delete: by id, or by a metadata filter."""

    ids: Listed[Id] | None = None
    where: Where | None = None


class DocumentsBody(Body):
    """Documents in the order they were added, all or those that match a filter."""

    where: Where | None = None
    offset: int = Field(0, le=MOST_OFFSET)
    limit: int = Field(100, le=MOST_DOCUMENTS)


class FacetsBody(Body):
    """A metadata field whose values are counted."""

    field: str
    where: Where | None = None
    limit: int | None = None


class UpdateBody(Body):
    """New values of metadata fields; null removes a field."""

    ids: Listed[Id]
    changes: dict[str, Any]


class TopicsBody(Body):
    """Options of the clustering."""

    count: int | None = None
    seed: int = 0


class ExplainBody(Body):
    """A query, and what to compare it with: the id of a document, or a text."""

    query: str
    id: Id | None = None
    text: str | None = None


@router.get("", summary="List the indexes")
async def indexes(request: Request) -> Answer:
    """Return the properties of each index."""
    return Answer({"indexes": await service_of(request).facts()})


@router.get("/{name}", summary="Describe an index")
async def describe(served: Served) -> Answer:
    """Return the number of documents, the model, the kind and the size of an index."""
    return Answer(await served.describe())


@router.get("/{name}/fields", summary="List the metadata fields")
async def fields(served: Served, most: Annotated[int, Query(ge=1, le=MOST_DOCUMENTS)] = 50) -> Answer:
    """Return the fields that documents have, with their types, ranges and `most` frequent values."""
    return Answer(b'{"fields":%b}' % await served.fields(most))


@router.post("/{name}/search", summary="Search")
async def search(request: Request, served: Served, body: SearchBody) -> Answer:
    """Return the best passages for a query, as `hits`; for a list of queries, a list of such lists."""
    service = service_of(request)
    queries, hits, most = body.queries(), body.hits(), service.settings.max_hits
    if hits > most:
        said = (
            f"queries times hits must be at most {most:,}, got {hits:,} (skipped hits, candidates of a reranker or of "
            "mmr, and neighbours count); ask for fewer"
        )
        raise ApiError(400, said, "too_many_hits")
    if body.document and hits > MOST_DOCUMENTS:
        raise ApiError(400, f"hits with documents must be at most {MOST_DOCUMENTS:,}, got {hits:,}", "too_many_hits")
    service.require_texts([query for query in queries if isinstance(query, str)], "query")
    options, marks = body.options(), body.marks()
    if body.rerank is not None:
        options["rerank"] = service.reranker(body.rerank)
    texts = bool(queries) and all(isinstance(query, str) for query in queries)
    if not texts or hits > BATCH_HITS or body.rerank is not None or body.like is not None or body.fuse:
        found, known = await served.search(body.query, marks, body.document, options)
    else:
        lists = await served.searches(queries, marks, body.document, options)
        known = all(found.known for found in lists)
        listed = served.json_list(found.hits for found in lists)
        found = lists[0].hits if isinstance(body.query, str) else listed
    # Without any hit, the answer has nothing but brackets.
    warnings = ([] if known else [UNKNOWN]) + await _hints(served, body.where, found.strip(b"[,]"))
    return Answer(b'{"hits":%b,"warnings":%b}' % (found, dumps(warnings)) if warnings else b'{"hits":%b}' % found)


async def _hints(served: ServedIndex, where: str | None, found: Any) -> list[str]:
    """Return a warning if a filter finds nothing because no document has one of its fields."""
    if where is None or found:
        return []
    return list(filter(None, [unknown_fields_message(await served.read(lambda index: index.unknown_fields(where)))]))


async def _counted(served: ServedIndex, name: str, number: int, where: str | None) -> Answer:
    """Return a number of documents under a name, with the warnings of :func:`_hints`."""
    warnings = await _hints(served, where, number)
    return Answer({name: number, **({"warnings": warnings} if warnings else {})})


@router.post("/{name}/get", summary="Get documents")
async def get(served: Served, body: IdsBody) -> Answer:
    """Return the documents with some ids; null for an id that no document has."""

    def found(index: SearchIndex) -> bytes:
        documents = (index.get(identifier) for identifier in body.ids)
        return served.json_list(None if document is None else asdict(document) for document in documents)

    return Answer(b'{"documents":%b}' % await served.read(found))


@router.post("/{name}/ids", summary="List ids")
async def ids(served: Served, body: WhereBody) -> Answer:
    """Return the ids of the documents that match a filter, in the order they were added."""
    return Answer(b'{"ids":%b}' % await served.analyse(lambda index: served.json_list(index.ids(body.where))))


@router.post("/{name}/count", summary="Count documents")
async def count(served: Served, body: WhereBody) -> Answer:
    """Return how many documents match a filter."""
    return await _counted(served, "count", await served.read(lambda index: index.count(body.where)), body.where)


@router.post("/{name}/documents", summary="List documents")
async def documents(served: Served, body: DocumentsBody) -> Answer:
    """Return documents in the order they were added; fewer than `limit` if the answer is full: go on after them."""

    def listed(index: SearchIndex) -> bytes:
        found = index.documents(body.where, offset=body.offset, limit=body.limit)
        return served.json_list((asdict(document) for document in found), part=True)

    return Answer(b'{"documents":%b}' % await served.read(listed))


@router.post("/{name}/facets", summary="Count the values of a metadata field")
async def facets(served: Served, body: FacetsBody) -> Answer:
    """Return the values of a field with their numbers of documents, most frequent first."""

    def counted(index: SearchIndex) -> bytes:
        found = index.facets(body.field, body.where, limit=body.limit)
        return served.json_list({"value": value, "documents": count} for value, count in found)

    return Answer(b'{"values":%b}' % await served.analyse(counted))


@router.post("/{name}/add", summary="Add documents", dependencies=WRITES)
async def add(request: Request, served: Served, body: AddBody) -> Answer:
    """Add all documents or none. They are on disk when this returns. An id that is taken is an error."""
    service_of(request).require_texts(body.texts, "texts")
    added = await served.change(lambda index: index.add(body.texts, body.ids, body.metadata, body.embeddings))
    return Answer({"ids": added})


@router.post("/{name}/upsert", summary="Add or replace documents", dependencies=WRITES)
async def upsert(request: Request, served: Served, body: AddBody) -> Answer:
    """Add all documents or none. A document whose id is taken replaces the one that has it."""
    service_of(request).require_texts(body.texts, "texts")
    added = await served.change(lambda index: index.upsert(body.texts, body.ids, body.metadata, body.embeddings))
    return Answer({"ids": added})


@router.post("/{name}/update_metadata", summary="Change metadata", dependencies=WRITES)
async def update_metadata(served: Served, body: UpdateBody) -> Answer:
    """Change metadata fields of documents. Other fields stay, and nothing is embedded."""
    updated = await served.change(lambda index: index.update_metadata(body.ids, body.changes))
    return Answer({"updated": updated})


@router.post("/{name}/delete", summary="Delete documents", dependencies=WRITES)
async def delete(served: Served, body: DeleteBody) -> Answer:
    """Delete documents by id or by a filter; ids that no document has are skipped."""
    deleted = await served.change(lambda index: index.delete(body.ids, where=body.where))
    return await _counted(served, "deleted", deleted, body.where)


@router.post("/{name}/topics", summary="Cluster the documents")
async def topics(served: Served, body: TopicsBody) -> Answer:
    """Return clusters of the documents with their typical words and most central documents, largest first."""
    return Answer(b'{"topics":%b}' % await served.topics(body.count, body.seed))


@router.post("/{name}/explain", summary="Explain a similarity")
async def explain(request: Request, served: Served, body: ExplainBody) -> Answer:
    """Return what each token of a query and of a document adds to their cosine."""
    if (body.id is None) == (body.text is None):
        raise InputError("give explain either id or text")
    most = service_of(request).settings.max_explained

    def explained(opened: SearchIndex) -> bytes:
        text = body.text
        if text is None:
            document = opened.get(cast(Id, body.id))
            if document is None:
                raise ApiError(404, f"no document has the id {body.id!r}", "document_not_found")
            text = document.text
        require_length("text", text, most)
        return dumps(asdict(opened.explain(body.query, text)))

    require_length("query", body.query, most)
    require_length("text", body.text or "", most)
    return Answer(await served.analyse(explained))
