"""Routes of the models: embeddings as OpenAI's clients call them, the list of models, reranking and classification."""

from __future__ import annotations

import asyncio
import base64
from typing import Any, Literal

import numpy as np
import orjson
from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from ctx_embed.errors import InputError, described
from ctx_embed.serving.service import model_named, service_of
from ctx_embed.serving.wire import Answer, ApiError, Body, JsonRoute, Listed, dumps, json_list, loads
from ctx_embed.vectors import unit_rows

# The busiest route reads and writes its bodies without pydantic.
embedding = APIRouter(prefix="/v1", tags=["embeddings"], default_response_class=Answer)
router = APIRouter(prefix="/v1", tags=["models"], route_class=JsonRoute, default_response_class=Answer)


class EmbeddingsBody(BaseModel):
    """Texts to embed."""

    input: str | list[str] = Field(description="A text, or several.")
    model: str = Field(description="`default`, or a name of `GET /v1/models`.")
    encoding_format: Literal["float", "base64"] = Field("float", description="base64: of little-endian float32.")
    dimensions: int | None = Field(None, description="The first features only, at unit length again.")
    user: str | None = Field(None, description="Ignored.")


class ForeignBody(Body):
    """A body as in another API, whose clients send further fields. These are ignored."""

    model_config = ConfigDict(extra="ignore", strict=True)


class RerankDocument(ForeignBody):
    """A document to rerank."""

    text: str


class RerankBody(ForeignBody):
    """A query and the documents to order, as in the APIs of Cohere and Jina."""

    query: str
    documents: Listed[str | RerankDocument]
    model: str = "default"
    top_n: int | None = Field(None, ge=1, description="Maximum number of results; null for all.")
    return_documents: bool = False


class ClassifyBody(ForeignBody):
    """Texts to classify, as in the API of Jina."""

    input: str | Listed[str]
    model: str


FIELDS = frozenset(EmbeddingsBody.model_fields)
# Fields that other programs send and that have no effect here.
IGNORED = frozenset(("task", "normalized", "truncate", "late_chunking", "embedding_type", "input_type", "user"))
# Write up to this many embeddings as JSON in the event loop; use a thread for more.
FEW = 64
TOKEN_IDS = (
    "input must be texts, got token ids: they are those of another model's tokenizer "
    "(LangChain: OpenAIEmbeddings(check_embedding_ctx_length=False))"
)


def _refused(message: str, param: str) -> ApiError:
    return ApiError(400, message, f"invalid_{param}")


@embedding.post(
    "/embeddings",
    summary="Embed texts",
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": EmbeddingsBody.model_json_schema()}},
        }
    },
)
async def embeddings(request: Request) -> Response:
    """Return a unit vector for each text. A text has the same vector alone and with others.

    The body is that of OpenAI's API.
    """
    service = service_of(request)
    try:
        values = loads(await request.body())
    except orjson.JSONDecodeError as error:
        raise _refused(f"the body must be JSON ({error})", "json") from None
    if not isinstance(values, dict):
        raise ApiError(400, f"the body must be a JSON object, got {described(values)}")
    if unknown := values.keys() - FIELDS - IGNORED:
        raise _refused(f"unknown field {min(unknown)!r}: known are {', '.join(sorted(FIELDS))}", "field")
    name, encoding, dimensions = values.get("model"), values.get("encoding_format"), values.get("dimensions")
    if not isinstance(name, str):
        raise _refused(f"model must be the name of a model: {', '.join(service.embedding)}", "model")
    model = model_named("model", name, service.embedding)
    if encoding not in (None, "float", "base64"):
        raise _refused(f"encoding_format must be float or base64, got {encoding!r:.60}", "encoding_format")
    texts = [values["input"]] if isinstance(values.get("input"), str) else values.get("input")
    if not isinstance(texts, list):
        raise _refused(f"input must be a string or a list of strings, got {described(texts)}", "input")
    if not texts:
        raise _refused("input must have at least one text, got an empty list", "input")
    for place, text in enumerate(texts):
        if isinstance(text, int | list):
            raise _refused(TOKEN_IDS, "input")
        if not isinstance(text, str):
            raise _refused(f"input[{place}] must be a string, got {described(text)}", "input")
    service.require_texts(texts, "input")
    is_number = isinstance(dimensions, int) and not isinstance(dimensions, bool)
    if dimensions is not None and not (is_number and 1 <= dimensions <= model.dimension):
        said = f"dimensions must be an integer from 1 to {model.dimension}, got {dimensions!r:.60}"
        raise _refused(said, "dimensions")
    vectors, tokens = await model(texts)
    if dimensions not in (None, model.dimension):
        vectors = np.ascontiguousarray(unit_rows(vectors[:, :dimensions]))

    def written() -> bytes:
        rows: Any = vectors
        if encoding == "base64":
            rows = (base64.b64encode(row.astype("<f4").tobytes()).decode() for row in vectors)
        data = ({"object": "embedding", "index": place, "embedding": row} for place, row in enumerate(rows))
        return json_list(data, service.settings.answer_bytes)

    data = written() if len(texts) <= FEW else await asyncio.to_thread(written)
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return Answer(b'{"object":"list","data":%b,"model":%b,"usage":%b}' % (data, dumps(name), dumps(usage)))


@router.get("/models", summary="List the models")
async def models(request: Request) -> Answer:
    """Return the models that requests may name."""
    return Answer({"object": "list", "data": service_of(request).models()})


@router.get("/models/{name:path}", summary="Describe a model")
async def model(request: Request, name: str) -> Answer:
    """Return a model by its name."""
    for facts in service_of(request).models():
        if facts["id"] == name:
            return Answer(facts)
    raise ApiError(404, f"unknown model {name!r}; GET /v1/models lists them", "model_not_found")


@router.post("/rerank", summary="Order documents by a query")
async def rerank(request: Request, body: RerankBody) -> Answer:
    """Return the documents' places, best first, by a reranker or by the cosines of the model that embeds."""
    service = service_of(request)
    texts = [document if isinstance(document, str) else document.text for document in body.documents]
    service.require_texts([body.query], "query")
    service.require_texts(texts, "documents")
    answer: dict[str, Any] = {"model": body.model}
    if (reranker := service.rerankers.get(body.model)) is not None:
        scores = await reranker(body.query, texts)
    else:
        vectors, tokens = await model_named("model", body.model, service.embedding)([body.query, *texts])
        scores = (vectors[1:] @ vectors[0]).tolist()
        answer["usage"] = {"total_tokens": tokens}
    order = sorted(range(len(texts)), key=lambda place: -scores[place])[: body.top_n]
    results: list[dict[str, Any]] = [{"index": place, "relevance_score": scores[place]} for place in order]
    if body.return_documents:
        for result in results:
            result["document"] = {"text": texts[result["index"]]}
    return Answer({**answer, "results": results})


@router.post("/classify", summary="Classify texts")
async def classify(request: Request, body: ClassifyBody) -> Answer:
    """Return the likeliest label of each text, and the probability of every label."""
    service = service_of(request)
    classifier = model_named("classifier", body.model, service.classifiers, "--model FOLDER")
    texts = [body.input] if isinstance(body.input, str) else body.input
    if not texts:
        raise InputError("input must have at least one text, got an empty list")
    service.require_texts(texts, "input")
    labels = classifier.head.labels
    data = []
    for place, row in enumerate((await classifier(texts)).tolist()):
        best = max(range(len(labels)), key=row.__getitem__)
        predictions = [{"label": label, "score": score} for label, score in zip(labels, row, strict=True)]
        data.append(
            {
                "object": "classification",
                "index": place,
                "prediction": labels[best],
                "score": row[best],
                "predictions": predictions,
            }
        )
    return Answer({"model": body.model, "data": data})
