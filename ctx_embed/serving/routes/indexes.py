"""Routes of the search indexes."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Annotated, Any, Literal, cast

from fastapi import APIRouter, Query, Request
from pydantic import Field
from pydantic.config import JsonDict

from ctx_embed.errors import InputError
from ctx_embed.index import Hit, SearchIndex, snippet
from ctx_embed.serving.errors import ApiError
from ctx_embed.serving.indexes import ServedIndex
from ctx_embed.serving.json import Answer, Body, JsonRoute
from ctx_embed.serving.service import service_of

router = APIRouter(prefix="/v1/indexes", tags=["indexes"], route_class=JsonRoute, default_response_class=Answer)

Id = int | str


# OpenAPI's description of a query.
_NUMBERS: JsonDict = {"type": "array", "items": {"type": "number"}}
QUERY: JsonDict = {
    "anyOf": [
        {"type": "string"},
        {"type": "array", "items": {"type": "string"}},
        _NUMBERS,
        {"type": "array", "items": _NUMBERS},
    ]
}
# The most hits of a query, skipped ones included.
MOST_HITS = 10_000
# The most documents in an answer.
MOST_DOCUMENTS = 1_000


class SearchBody(Body):
    """A search; the fields are the arguments of `SearchIndex.search`."""

    query: Any = Field(None, description="A text, a vector, or a list of texts or vectors.", json_schema_extra=QUERY)
    k: int = Field(10, description="The most hits of each query.")
    mode: Literal["dense", "words", "hybrid"] = "dense"
    where: str | None = Field(None, description="A metadata filter.", examples=['year >= 2020 and lang = "en"'])
    threshold: float | None = Field(None, description="The lowest cosine of a hit.")
    like: Id | list[Id] | None = Field(None, description="Instead of a query: documents to find similar ones to.")
    exclude: Id | list[Id] = Field([], description="Texts and ids of documents to keep away from.")
    fuse: bool = Field(False, description="Whether several queries make one ranking.")
    offset: int = Field(0, description="The number of best hits to skip.")
    group: str | None = Field(None, description="The best hit only of each document (`id`) or value of a field.")
    mmr: float | None = Field(None, description="Variety among the hits: 1 weighs relevance alone, 0 variety alone.")
    context: int = Field(0, description="Neighbouring passages to return with a hit.")
    rerank: str | None = Field(None, description="A reranker of the server, which scores the best passages again.")
    candidates: int = Field(50, description="The best passages that `rerank` and `mmr` choose from.")
    snippets: Annotated[list[str], Field(min_length=2, max_length=2)] | None = Field(
        None, description="The marks around the query's words in a snippet of each hit; none without them."
    )

    def texts(self) -> list[str] | None:
        """Return the queries if they are texts with a ranking each, which share batches; else None."""
        queries = [self.query] if isinstance(self.query, str) else self.query
        several = isinstance(queries, list) and all(isinstance(query, str) for query in queries)
        return queries if several and self.like is None and not self.fuse else None

    def options(self) -> dict[str, Any]:
        """Return the other arguments of the search that were given."""
        given = self.model_dump(exclude_unset=True, exclude={"query", "snippets"})
        return {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}


class IdsBody(Body):
    """Ids of documents."""

    ids: list[Id]


class WhereBody(Body):
    """A metadata filter; all documents without one."""

    where: str | None = None


class FilterBody(Body):
    """A metadata filter."""

    where: str


class AddBody(Body):
    """Documents; `ids` (null: the next integer), `metadata` and `embeddings` have an element for each text."""

    texts: list[str]
    ids: list[Id | None] | None = None
    metadata: list[dict[str, Any] | None] | None = None
    embeddings: list[list[float]] | None = None


class DeleteBody(Body):
    """Documents to delete: by id, or by a metadata filter."""

    ids: list[Id] | None = None
    where: str | None = None


class DocumentsBody(Body):
    """Documents in the order they were added, all or those that match a filter."""

    where: str | None = None
    offset: int = 0
    limit: int = Field(100, le=MOST_DOCUMENTS)


class FacetsBody(Body):
    """A metadata field whose values are counted."""

    field: str
    where: str | None = None
    limit: int | None = None


class UpdateBody(Body):
    """New values of metadata fields; null removes a field."""

    ids: list[Id]
    changes: dict[str, Any]


class DuplicatesBody(Body):
    """Options of the search for near-duplicates."""

    threshold: float = 0.9
    most: int = Field(100, le=MOST_HITS)


class TopicsBody(Body):
    """Options of the clustering."""

    count: int | None = None
    seed: int = 0


class ExplainBody(Body):
    """A query, and the document to compare it with: an id, or a text such as that of a hit."""

    query: str
    id: Id | None = None
    text: str | None = None


def index_of(request: Request, name: str) -> ServedIndex:
    """Return the index of that name."""
    return service_of(request).index(name)


def hit_json(hit: Hit, query: str, marks: list[str] | None) -> dict[str, Any]:
    """Return a hit as JSON values; `document` is null where it is the text."""
    fields = dict(vars(hit))
    if hit.document == hit.text:
        fields["document"] = None
    if marks is not None:
        fields["snippet"] = snippet(query, hit.text, marks[0], marks[1])
    return fields


def described(index: SearchIndex) -> dict[str, Any]:
    """Return what describes an index, with its name instead of its path."""
    facts = index.describe()
    del facts["path"]
    return {"name": index.path.name, **facts}


@router.get("", summary="List the indexes")
async def indexes(request: Request) -> Answer:
    """Return the properties of each index."""
    return Answer({"indexes": [await index.read(described) for index in service_of(request).indexes.values()]})


@router.get("/{name}", summary="Describe an index")
async def describe(request: Request, name: str) -> Answer:
    """Return the number of documents, the model, the kind and the size of an index."""
    return Answer(await index_of(request, name).read(described))


@router.get("/{name}/fields", summary="List the metadata fields")
async def fields(request: Request, name: str, most: Annotated[int, Query(ge=1, le=MOST_DOCUMENTS)] = 50) -> Answer:
    """Return the fields that documents have, with their types, ranges and `most` frequent values."""
    found = await index_of(request, name).analyse(lambda index: index.fields(most))
    listed = [
        {**vars(field), "values": [{"value": value, "documents": count} for value, count in field.values]}
        for field in found
    ]
    return Answer({"fields": listed})


@router.post("/{name}/search", summary="Search")
async def search(request: Request, name: str, body: SearchBody) -> Answer:
    """Return the best passages for a query, as `hits`; for a list of queries, a list of such lists."""
    service = service_of(request)
    index = service.index(name)
    if body.k + body.offset > MOST_HITS:
        raise ApiError(422, f"k and offset must be at most {MOST_HITS:,} together", "too_many_hits")
    if body.candidates > MOST_HITS:
        raise ApiError(422, f"candidates must be at most {MOST_HITS:,}, got {body.candidates:,}", "too_many_hits")
    options, texts = body.options(), body.texts()
    if body.rerank is not None:
        options["rerank"] = service.reranker(body.rerank)
    marks = body.snippets
    if texts is None:
        found = await index.read(lambda opened: opened.search(body.query, **options))
        several = bool(found) and isinstance(found[0], list)
        hits: Any = (
            [[hit_json(hit, "", marks) for hit in of_query] for of_query in found]
            if several
            else [hit_json(hit, found.query, marks) for hit in found]
        )
        return Answer({"hits": hits})
    service.require_texts(texts, "query")
    lists = [
        [hit_json(hit, query, marks) for hit in of_query]
        for query, of_query in zip(texts, await index.searches(texts, options), strict=True)
    ]
    return Answer({"hits": lists[0] if isinstance(body.query, str) else lists})


@router.post("/{name}/get", summary="Get documents")
async def get(request: Request, name: str, body: IdsBody) -> Answer:
    """Return the documents with some ids; null for an id that no document has."""
    documents = await index_of(request, name).read(lambda index: [index.get(identifier) for identifier in body.ids])
    return Answer({"documents": [None if document is None else asdict(document) for document in documents]})


@router.post("/{name}/ids", summary="List ids")
async def ids(request: Request, name: str, body: WhereBody) -> Answer:
    """Return the ids of the documents that match a filter, in the order they were added."""
    return Answer({"ids": await index_of(request, name).read(lambda index: index.ids(body.where))})


@router.post("/{name}/count", summary="Count documents")
async def count(request: Request, name: str, body: WhereBody) -> Answer:
    """Return how many documents match a filter."""
    return Answer({"count": await index_of(request, name).read(lambda index: index.count(body.where))})


@router.post("/{name}/documents", summary="List documents")
async def documents(request: Request, name: str, body: DocumentsBody) -> Answer:
    """Return documents in the order they were added."""
    found = await index_of(request, name).read(
        lambda index: list(index.documents(body.where, offset=body.offset, limit=body.limit))
    )
    return Answer({"documents": [asdict(document) for document in found]})


@router.post("/{name}/facets", summary="Count the values of a metadata field")
async def facets(request: Request, name: str, body: FacetsBody) -> Answer:
    """Return the values of a field with their numbers of documents, most frequent first."""
    found = await index_of(request, name).analyse(lambda index: index.facets(body.field, body.where, limit=body.limit))
    return Answer({"values": [{"value": value, "documents": count} for value, count in found]})


@router.post("/{name}/unknown_fields", summary="Check the fields of a filter")
async def unknown_fields(request: Request, name: str, body: FilterBody) -> Answer:
    """Return the fields of a filter that no document has, each with the fields that documents do have."""
    return Answer({"fields": await index_of(request, name).read(lambda index: index.unknown_fields(body.where))})


@router.post("/{name}/add", summary="Add documents")
async def add(request: Request, name: str, body: AddBody) -> Answer:
    """Add all documents or none; they are on disk when this returns. An id that is taken is an error."""
    return await _added(request, name, body, replacing=False)


@router.post("/{name}/upsert", summary="Add or replace documents")
async def upsert(request: Request, name: str, body: AddBody) -> Answer:
    """Add all documents or none; a document whose id is taken replaces the one that has it."""
    return await _added(request, name, body, replacing=True)


async def _added(request: Request, name: str, body: AddBody, replacing: bool) -> Answer:
    service = service_of(request)
    index = service.index(name)
    service.require_texts(body.texts, "texts")

    def added(opened: SearchIndex) -> list[Id]:
        change = opened.upsert if replacing else opened.add
        return change(body.texts, body.ids, body.metadata, body.embeddings)

    return Answer({"ids": await index.change(added)})


@router.post("/{name}/update_metadata", summary="Change metadata")
async def update_metadata(request: Request, name: str, body: UpdateBody) -> Answer:
    """Change metadata fields of documents; other fields stay, and nothing is embedded."""
    updated = await index_of(request, name).change(lambda index: index.update_metadata(body.ids, body.changes))
    return Answer({"updated": updated})


@router.post("/{name}/delete", summary="Delete documents")
async def delete(request: Request, name: str, body: DeleteBody) -> Answer:
    """Delete documents by id or by a filter; ids that no document has are skipped."""
    deleted = await index_of(request, name).change(lambda index: index.delete(body.ids, where=body.where))
    return Answer({"deleted": deleted})


@router.post("/{name}/duplicates", summary="Find near-duplicates")
async def duplicates(request: Request, name: str, body: DuplicatesBody) -> Answer:
    """Return the pairs of documents that say nearly the same, most similar first."""
    pairs = await index_of(request, name).analyse(lambda index: index.duplicates(body.threshold, body.most))
    return Answer({"pairs": [asdict(pair) for pair in pairs]})


@router.post("/{name}/topics", summary="Cluster the documents")
async def topics(request: Request, name: str, body: TopicsBody) -> Answer:
    """Return clusters of the documents with their typical words and most central documents, largest first."""
    found = await index_of(request, name).analyse(lambda index: index.topics(body.count, body.seed))
    # The ids of all documents would make the answer as long as the index.
    facts = [asdict(replace(topic, documents=[])) for topic in found]
    return Answer({"topics": [{name: fact[name] for name in fact if name != "documents"} for fact in facts]})


@router.post("/{name}/explain", summary="Explain a similarity")
async def explain(request: Request, name: str, body: ExplainBody) -> Answer:
    """Return what each token of a query and of a document adds to their cosine."""
    service = service_of(request)
    index = service.index(name)
    if (body.id is None) == (body.text is None):
        raise InputError("give explain either id or text")
    service.require_texts([body.query], "query")
    service.require_texts([body.text or ""], "text")

    def explained(opened: SearchIndex) -> Any:
        if body.text is not None:
            return opened.explain(body.query, body.text)
        document = opened.get(cast(Id, body.id))
        if document is None:
            raise ApiError(404, f"no document has the id {body.id!r}", "document_not_found")
        return opened.explain(body.query, document.text)

    return Answer(asdict(await index.read(explained)))
