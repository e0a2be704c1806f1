"""Routes of the search indexes."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Literal, cast

from fastapi import APIRouter, Request
from pydantic import Field

from ctx_embed.errors import InputError
from ctx_embed.index import Hit, SearchIndex, snippet
from ctx_embed.serving.errors import ApiError
from ctx_embed.serving.indexes import ServedIndex
from ctx_embed.serving.json import Answer, Body, JsonRoute
from ctx_embed.serving.service import service_of

router = APIRouter(prefix="/v1/indexes", tags=["indexes"], route_class=JsonRoute, default_response_class=Answer)

Id = int | str


class SearchBody(Body):
    """A search; see `SearchIndex.search`."""

    query: str | list[str] = Field(description="A text, or several.")
    k: int = Field(10, description="The most hits of each query.")
    mode: Literal["dense", "words", "hybrid"] = "dense"
    where: str | None = Field(None, description="A metadata filter.", examples=['year >= 2020 and lang = "en"'])
    threshold: float | None = Field(None, description="The lowest cosine of a hit.")
    snippets: Annotated[list[str], Field(min_length=2, max_length=2)] | None = Field(
        None, description="The marks around the query's words in a snippet of each hit; none without them."
    )

    def options(self) -> dict[str, Any]:
        """Return the keyword arguments of the search."""
        return {"k": self.k, "mode": self.mode, "where": self.where, "threshold": self.threshold}


class IdsBody(Body):
    """Ids of documents."""

    ids: list[Id]


class WhereBody(Body):
    """A metadata filter; all documents without one."""

    where: str | None = None


class AddBody(Body):
    """Documents; `ids`, `metadata` and `embeddings` have an element for each text."""

    texts: list[str]
    ids: list[Id] | None = None
    metadata: list[dict[str, Any] | None] | None = None
    embeddings: list[list[float]] | None = None


class DeleteBody(Body):
    """Documents to delete: by id, or by a metadata filter."""

    ids: list[Id] | None = None
    where: str | None = None


class DuplicatesBody(Body):
    """Options of the search for near-duplicates."""

    threshold: float = 0.9
    most: int = 100


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
async def fields(request: Request, name: str) -> Answer:
    """Return the fields that documents have, with their types, ranges and most frequent values."""
    found = await index_of(request, name).analyse(lambda index: index.fields())
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
    queries = [body.query] if isinstance(body.query, str) else body.query
    service.require_texts(queries, "query")
    options = body.options()
    found = []
    for hits, query in zip(await index.searches(queries, options), queries, strict=True):
        found.append([hit_json(hit, query, body.snippets) for hit in hits])
    return Answer({"hits": found[0] if isinstance(body.query, str) else found})


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
    return Answer({"topics": [asdict(topic) for topic in found]})


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
