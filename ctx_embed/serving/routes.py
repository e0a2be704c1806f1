"""The routes of models, as OpenAI's, Cohere's and Jina's clients call them, and of search indexes."""

import asyncio
import base64
import inspect
import re
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, cast, get_type_hints
from urllib.parse import quote

import numpy as np
from fastapi import APIRouter, Depends, Query, Request
from pydantic import BeforeValidator, ConfigDict, Field, WithJsonSchema, create_model
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import PydanticCustomError
from starlette.responses import Response, StreamingResponse

from ctx_embed.errors import InputError, quoted, unknown_name
from ctx_embed.index import SearchIndex
from ctx_embed.index.filters import unknown_fields_message
from ctx_embed.index.query import Options
from ctx_embed.options import declared
from ctx_embed.reading.encodings import settled
from ctx_embed.reading.formats import format_of
from ctx_embed.reading.opening import suffix_of
from ctx_embed.serving.gate import PIECE
from ctx_embed.serving.indexes import BATCH_HITS, SHORT_FILTER, ServedIndex, fields_json, topics_json
from ctx_embed.serving.service import SHORT_CHARACTERS, model_named, require_length, service_of
from ctx_embed.serving.settings import Key
from ctx_embed.serving.wire import Answer, ApiError, Body, JsonRoute, Listed, dumps, json_list
from ctx_embed.vectors import unit_rows

embedding = APIRouter(prefix="/v1", tags=["embeddings"], route_class=JsonRoute, default_response_class=Answer)
of_models = APIRouter(prefix="/v1", tags=["models"], route_class=JsonRoute, default_response_class=Answer)
of_indexes = APIRouter(prefix="/v1/indexes", tags=["indexes"], route_class=JsonRoute, default_response_class=Answer)


def _listed(given: Any) -> Any:
    if not isinstance(given, str | list):
        raise PydanticCustomError("texts", "must be a string or a list of strings")
    if given and isinstance(given[0], int | list):
        message = (
            "must be texts, got token ids: they are those of another model's tokenizer "
            "(LangChain: OpenAIEmbeddings(check_embedding_ctx_length=False))"
        )
        raise PydanticCustomError("token_ids", message)
    return [given] if isinstance(given, str) else given


# One text or several.
Texts = Annotated[Listed[str], Field(min_length=1), BeforeValidator(_listed, json_schema_input_type=str | list[str])]
Route = TypeVar("Route", bound=Callable[..., Any])
# A field that other programs send and that has no effect here.
Ignored = SkipJsonSchema[Any]


class EmbeddingsBody(Body):
    """Texts to embed, as in OpenAI's API."""

    input: Texts = Field(description="A text, or several.")
    model: str = Field(description="`default`, or a name of `GET /v1/models`.")
    encoding_format: Literal["float", "base64"] | None = Field(None, description="base64: of little-endian float32.")
    dimensions: int | None = Field(None, ge=1, description="The first features only, at unit length again.")
    user: str | None = Field(None, description="Ignored.")
    task: Ignored = None
    normalized: Ignored = None
    truncate: Ignored = None
    late_chunking: Ignored = None
    embedding_type: Ignored = None
    input_type: Ignored = None


class ForeignBody(Body):
    """A body as in another API; further fields that clients of that API send are ignored."""

    model_config = ConfigDict(extra="ignore", strict=True)


class RerankBody(ForeignBody):
    """A query and the documents to order, as in the APIs of Cohere and Jina."""

    query: str
    # Pydantic would look at each before they are counted.
    documents: Annotated[list[Any], WithJsonSchema({"type": "array", "items": {"type": ["string", "object"]}})] = Field(
        description="Texts, or objects whose field `text` has one."
    )
    model: str = "default"
    top_n: int | None = Field(None, ge=1, description="Maximum number of results; null for all.")
    return_documents: bool = False


class ClassifyBody(ForeignBody):
    """Texts to classify, as in the API of Jina."""

    input: Texts
    model: str


@embedding.post("/embeddings", summary="Embed texts")
async def embeddings(request: Request, body: EmbeddingsBody) -> Response:
    """Return a unit vector for each text, as OpenAI's API does. Other texts in a request do not change a vector."""
    service, texts, dimensions = service_of(request), body.input, body.dimensions
    model = model_named("model", body.model, service.embedding)
    service.require_texts(texts, "input")
    if dimensions is not None and dimensions > model.dimension:
        raise InputError(f"dimensions must be at most {model.dimension}, got {quoted(dimensions)}")
    vectors, tokens = await model(texts)
    if dimensions not in (None, model.dimension):
        vectors = np.ascontiguousarray(unit_rows(vectors[:, :dimensions]))

    def written() -> bytes:
        rows: Any = vectors
        if body.encoding_format == "base64":
            rows = (base64.b64encode(row.astype("<f4").tobytes()).decode() for row in vectors)
        data = ({"object": "embedding", "index": place, "embedding": row} for place, row in enumerate(rows))
        return json_list(data, service.settings.answer_bytes)

    # A few are written in the event loop.
    data = written() if len(texts) <= 64 else await asyncio.to_thread(written)
    usage = dict.fromkeys(("prompt_tokens", "total_tokens"), int(tokens.sum()))
    return Answer(b'{"object":"list","data":%b,"model":%b,"usage":%b}' % (data, dumps(body.model), dumps(usage)))


@of_models.get("/models", summary="List the models")
async def models(request: Request) -> Answer:
    """Return the models that requests may name."""
    return Answer({"object": "list", "data": service_of(request).models()})


@of_models.get("/models/{name:path}", summary="Describe a model")
async def model(request: Request, name: str) -> Answer:
    """Return a model by its name."""
    for facts in service_of(request).models():
        if facts["id"] == name:
            return Answer(facts)
    raise ApiError(404, f"unknown model {quoted(name)}; GET /v1/models lists them", "model_not_found")


@of_models.post("/rerank", summary="Order documents by a query")
async def rerank(request: Request, body: RerankBody) -> Answer:
    """Return the places of the documents, best first, ordered by a reranker or by the embedding model's cosines."""
    service = service_of(request)
    texts: list[Any] = [each.get("text") if isinstance(each, dict) else each for each in body.documents]
    if (wrong := next((n for n, text in enumerate(texts) if not isinstance(text, str)), None)) is not None:
        raise ApiError(400, f"documents.{wrong}: must be a string or have a string `text`", param="documents")
    service.require_texts([body.query], "query")
    service.require_texts(texts, "documents")
    answer: dict[str, Any] = {"model": body.model}
    if (reranker := service.rerankers.get(body.model)) is not None:
        scores = await reranker(body.query, texts)
    else:
        vectors, tokens = await model_named("model", body.model, service.embedding)([body.query, *texts])
        scores = (vectors[1:] @ vectors[0]).tolist()
        answer["usage"] = {"total_tokens": int(tokens.sum())}
    order = sorted(range(len(texts)), key=lambda place: -scores[place])[: body.top_n]
    results = (
        {"index": place, "relevance_score": scores[place]}
        | ({"document": {"text": texts[place]}} if body.return_documents else {})
        for place in order
    )
    data = await asyncio.to_thread(json_list, results, service.settings.answer_bytes)
    return Answer(b'{"results":%b,%b' % (data, dumps(answer)[1:]))


@of_models.post("/classify", summary="Classify texts")
async def classify(request: Request, body: ClassifyBody) -> Answer:
    """Return the likeliest label of each text, and the probability of every label."""
    service = service_of(request)
    classifier = model_named("classifier", body.model, service.classifiers, "--model FOLDER")
    service.require_texts(body.input, "input")
    (probabilities,) = await classifier(body.input)

    def classified(row: list[float]) -> dict[str, Any]:
        predictions = [{"label": label, "score": score} for label, score in zip(classifier.labels, row, strict=True)]
        best = predictions[row.index(max(row))]
        return {"prediction": best["label"], "score": best["score"], "predictions": predictions}

    results = (
        {"object": "classification", "index": place, **classified(row.tolist())}
        for place, row in enumerate(probabilities)
    )
    data = await asyncio.to_thread(json_list, results, service.settings.answer_bytes)
    return Answer(b'{"model":%b,"data":%b}' % (dumps(body.model), data))


# Indexes


async def _served(request: Request, name: str) -> ServedIndex:
    indexes = service_of(request).indexes
    if name not in indexes:
        message = str(unknown_name("index", name, indexes)) if indexes else "the server has no indexes"
        raise ApiError(404, message, "index_not_found")
    return indexes[name]


def _may_write(request: Request) -> None:
    key: Key | None = request.scope["state"].get("key")
    if key is not None and not key.writes:
        raise ApiError(403, "this key may read only; changes need a write key", "read_only_key")


# The index named in the path of a request; a route that changes it has WRITES.
Served = Annotated[ServedIndex, Depends(_served)]
WRITES = [Depends(_may_write)]

# Maximum number of documents in an answer, also of hits that include their documents.
MOST_DOCUMENTS = 1_000
UNKNOWN = "The model knows no word of a query: it finds nothing by meaning."
EMPTY = "A query is empty: it finds nothing."

# Readers of files that are shown as text, see :mod:`ctx_embed.reading.formats`, and the types of those shown as more.
PLAIN = ("prose", "markdown", "code", "rows")
SHOWN = {**dict.fromkeys((".html", ".htm", ".xhtml"), "text/html"), ".pdf": "application/pdf"}
# A file is shown without its scripts, frames, forms and requests, and no other page may read or frame it.
FILE_HEADERS = {
    "Content-Security-Policy": "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}

Id = int | str
Where = Annotated[str, Field(max_length=100_000)]
# The options of a search as fields of a body; some have limits of their own.
_TYPES = get_type_hints(Options) | {"where": Where | None, "exclude": Id | Listed[Id], "rerank": str | None}
_FIELDS: dict[str, Any] = {
    known.name: (_TYPES[known.name], Field(known.default, description=known.metadata["meaning"]))
    for known in declared(Options)
}


class SearchBody(create_model("SearchBody", __base__=Body, **_FIELDS)):  # type: ignore[misc]
    """A search. The fields are the arguments of `SearchIndex.search`."""

    query: Any = Field(None, description="A text, a vector, or a list of texts or vectors.")
    like: Id | Listed[Id] | None = Field(None, description="Instead of a query: documents to find similar ones to.")
    snippets: Annotated[list[Annotated[str, Field(max_length=100)]], Field(min_length=2, max_length=2)] | None = Field(
        None, description="Two marks to put around the query's words in a snippet of each hit; null: no snippets."
    )


def _of_library(method: Callable[..., Any], summary: str, **options: Any) -> Callable[[Route], Route]:
    """Return the decorator of a route that does what a method does, and says what its docstring says of it."""
    description = inspect.cleandoc(method.__doc__ or "").partition("\n\nArgs:")[0]
    description = re.sub(r":\w+:`(\w+)`", r"`\1`", description.replace("``", "`"))
    return of_indexes.post(f"/{{name}}/{method.__name__}", summary=summary, description=description, **options)


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
    embeddings: Any = Field(None, description="A vector for each text.")


class DeleteBody(WhereBody):
    """Documents to delete: by id, or by a metadata filter."""

    ids: Listed[Id] | None = None


class DocumentsBody(WhereBody):
    """Documents in the order they were added, all or those that match a filter."""

    offset: int = Field(0, le=2**63 - 1)  # SQLite's largest integer
    limit: int = Field(100, le=MOST_DOCUMENTS)


class FacetsBody(WhereBody):
    """A metadata field whose values are counted."""

    field: str
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


@of_indexes.get("", summary="List the indexes")
async def indexes(request: Request) -> Answer:
    """Return the properties of each index."""
    return Answer({"indexes": await service_of(request).facts()})


@of_indexes.get("/{name}", summary="Describe an index")
async def describe(served: Served) -> Answer:
    """Return the number of documents, the model, the kind and the size of an index."""
    return Answer(await served.read(lambda _: served.facts()))


@of_indexes.get("/{name}/file", summary="Return a file")
async def file(request: Request, served: Served, source: str) -> Response:
    """Return the file that the `source` of a document names, if the server runs for this machine alone."""
    if not service_of(request).settings.is_local:
        message = "files are only for a server of this machine alone, without keys, --no-keys, --root-path and --cors"
        raise ApiError(403, message, "not_local")
    path, opened = await served.file(source)
    # What a browser does not show as text is downloaded; of the bytes, only the encoding of a text is guessed.
    is_text = suffix_of(path) == Path(path).suffix.lower() and format_of(path).reader in PLAIN
    text = f"text/plain; charset={settled(opened.peek())}" if is_text else "application/octet-stream"
    kind = SHOWN.get(Path(path).suffix.lower(), text)
    if kind == "text/html" and b"charset" not in opened.peek()[:1024].lower():
        kind += f"; charset={settled(opened.peek())}"
    how = "attachment" if kind == "application/octet-stream" else "inline"
    name = quote(Path(path).name.encode("utf-8", "replace"))
    headers = {**FILE_HEADERS, "Content-Type": kind, "Content-Disposition": f"{how}; filename*=UTF-8''{name}"}
    return StreamingResponse(iter(partial(opened.read, PIECE), b""), headers=headers)


@of_indexes.get("/{name}/fields", summary="List the metadata fields")
async def fields(served: Served, most: Annotated[int, Query(ge=1, le=MOST_DOCUMENTS)] = 50) -> Answer:
    """Return the fields that documents have, with their types, ranges and `most` frequent values."""
    return Answer(b'{"fields":%b}' % await served.explored(fields_json, most))


@of_indexes.post("/{name}/search", summary="Search")
async def search(request: Request, served: Served, body: SearchBody) -> Answer:
    """Return the best passages for a query, as `hits`; for a list of queries, a list of such lists.

    `answered` says whether the most relevant one reaches 0.8: if not, the index hardly has an answer, and the hits are
    the nearest passages. It is null without relevance, and in the mode `words`; for a list of queries it is a list.
    """
    service = service_of(request)
    # A list of numbers is a vector.
    is_list = isinstance(body.query, list) and not (body.query and isinstance(body.query[0], int | float))
    queries = body.query if is_list else [body.query]
    wanted = body.k + body.offset
    if body.rerank is not None or body.mmr is not None:
        wanted = max(wanted, body.candidates)
    hits, most = len(queries) * wanted * (1 + 2 * body.context), service.settings.max_hits
    if hits > most:
        message = (
            f"queries times hits must be at most {most:,}, got {hits:,} (skipped hits, candidates of a reranker or of "
            "mmr, and neighbours count); ask for fewer"
        )
        raise ApiError(400, message, "too_many_hits")
    if body.document and hits > MOST_DOCUMENTS:
        raise ApiError(400, f"hits with documents must be at most {MOST_DOCUMENTS:,}, got {hits:,}", "too_many_hits")
    texts = [query for query in queries if isinstance(query, str)]
    service.require_texts(texts, "query")
    given = body.model_dump(exclude_unset=True, exclude={"query", "snippets", "document"})
    options = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    if body.rerank is not None:
        options["rerank"] = model_named("reranker", body.rerank, service.rerankers, "--reranker MODEL")
    # Others do not wait for a long query or filter, or where every passage may be looked at; such a batch may end late.
    shares_batch = len(texts) == len(queries) > 0 and hits <= BATCH_HITS and len(body.where or "") <= SHORT_FILTER
    is_long = not shares_batch or sum(map(len, texts)) > SHORT_CHARACTERS
    reads_all = body.group is not None or body.exclude or (body.threshold is not None and body.mode == "words")
    alone = bool(is_long or reads_all or body.rerank is not None or body.like is not None or body.fuse)
    marks = None if body.snippets is None else tuple(body.snippets)
    lists = await served.search(body.query, alone, marks=marks, document=body.document, **options)
    many = is_list and not body.fuse
    hits_json = served.json_list(written for written, _ in lists) if many else lists[0][0]
    # The hits of a blank query have an empty one; without hits, the JSON consists of brackets and commas alone.
    warnings = [EMPTY] if texts and not all(hits.query for _, hits in lists) else []
    warnings += [] if warnings or all(hits.known for _, hits in lists) else [UNKNOWN]
    warnings += await _hints(served, body.where, hits_json.strip(b"[,]"))
    answered = [hits.answered for _, hits in lists]
    more: dict[str, Any] = {"answered": answered if many else answered[0]}
    more |= {"warnings": warnings} if warnings else {}
    return Answer(b'{"hits":%b,%b' % (hits_json, dumps(more)[1:]))


async def _hints(served: ServedIndex, where: str | None, result: Any) -> list[str]:
    """Return a warning if a filter finds nothing because no document has one of its fields."""
    if where is None or result:
        return []
    message = unknown_fields_message(await served.read(lambda index: index.unknown_fields(where)))
    return [message] if message else []


async def _counted(served: ServedIndex, name: str, number: int, where: str | None) -> Answer:
    """Return a number of documents under a name, with the warnings of :func:`_hints`."""
    warnings = await _hints(served, where, number)
    return Answer({name: number, **({"warnings": warnings} if warnings else {})})


@of_indexes.post("/{name}/get", summary="Get documents")
async def get(served: Served, body: IdsBody) -> Answer:
    """Return the documents with the given ids; null for an id that no document has."""
    items = await served.read(
        lambda index: served.json_list(
            None if document is None else asdict(document) for document in map(index.get, body.ids)
        )
    )
    return Answer(b'{"documents":%b}' % items)


@_of_library(SearchIndex.ids, "List ids")
async def ids(served: Served, body: WhereBody) -> Answer:
    """See :meth:`SearchIndex.ids`."""
    return Answer(b'{"ids":%b}' % await served.analyse(lambda index: served.json_list(index.ids(body.where))))


@_of_library(SearchIndex.count, "Count documents")
async def count(served: Served, body: WhereBody) -> Answer:
    """See :meth:`SearchIndex.count`."""
    work = served.read if body.where is None else served.analyse
    return await _counted(served, "count", await work(lambda index: index.count(body.where)), body.where)


@of_indexes.post("/{name}/documents", summary="List documents")
async def documents(served: Served, body: DocumentsBody) -> Answer:
    """Return documents in the order they were added. If they fill the answer before `limit`, ask again for the rest."""
    items = await (served.read if body.where is None else served.analyse)(
        lambda index: served.json_list(
            map(asdict, index.documents(body.where, offset=body.offset, limit=body.limit)), part=True
        )
    )
    return Answer(b'{"documents":%b}' % items)


@of_indexes.post("/{name}/facets", summary="Count the values of a metadata field")
async def facets(served: Served, body: FacetsBody) -> Answer:
    """Return the values of a field with their numbers of documents, most frequent first."""
    items = await served.analyse(
        lambda index: served.json_list(
            {"value": value, "documents": count}
            for value, count in index.facets(body.field, body.where, limit=body.limit)
        )
    )
    return Answer(b'{"values":%b}' % items)


@_of_library(SearchIndex.add, "Add documents", dependencies=WRITES)
async def add(request: Request, served: Served, body: AddBody) -> Answer:
    """See :meth:`SearchIndex.add`."""
    service_of(request).require_texts(body.texts, "texts")
    added = await served.change(lambda index: index.add(body.texts, body.ids, body.metadata, body.embeddings))
    return Answer({"ids": added})


@_of_library(SearchIndex.upsert, "Add or replace documents", dependencies=WRITES)
async def upsert(request: Request, served: Served, body: AddBody) -> Answer:
    """See :meth:`SearchIndex.upsert`."""
    service_of(request).require_texts(body.texts, "texts")
    added = await served.change(lambda index: index.upsert(body.texts, body.ids, body.metadata, body.embeddings))
    return Answer({"ids": added})


@_of_library(SearchIndex.update_metadata, "Change metadata", dependencies=WRITES)
async def update_metadata(served: Served, body: UpdateBody) -> Answer:
    """See :meth:`SearchIndex.update_metadata`."""
    updated = await served.change(lambda index: index.update_metadata(body.ids, body.changes))
    return Answer({"updated": updated})


@_of_library(SearchIndex.delete, "Delete documents", dependencies=WRITES)
async def delete(served: Served, body: DeleteBody) -> Answer:
    """See :meth:`SearchIndex.delete`."""
    deleted = await served.change(lambda index: index.delete(body.ids, where=body.where))
    return await _counted(served, "deleted", deleted, body.where)


@_of_library(SearchIndex.topics, "Cluster the documents")
async def topics(served: Served, body: TopicsBody) -> Answer:
    """See :meth:`SearchIndex.topics`."""
    return Answer(b'{"topics":%b}' % await served.explored(topics_json, body.count, body.seed))


@of_indexes.post("/{name}/explain", summary="Explain a similarity")
async def explain(request: Request, served: Served, body: ExplainBody) -> Answer:
    """Return what each token of a query and of a document adds to their cosine."""
    if (body.id is None) == (body.text is None):
        raise InputError("explain needs either id or text; give exactly one of them")
    most = service_of(request).settings.max_explained

    def explained(opened: SearchIndex) -> bytes:
        text = body.text
        if text is None:
            document = opened.get(cast(Id, body.id))
            if document is None:
                raise ApiError(404, f"no document has the id {quoted(body.id)}", "document_not_found")
            text = document.text
        require_length("text", text, most)
        return dumps(asdict(opened.explain(body.query, text)))

    require_length("query", body.query, most)
    require_length("text", body.text or "", most)
    return Answer(await served.analyse(explained))
