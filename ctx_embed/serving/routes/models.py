"""Routes that list, rerank and classify."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from pydantic import ConfigDict, Field

from ctx_embed.errors import InputError
from ctx_embed.serving.errors import ApiError
from ctx_embed.serving.json import Answer, Body, JsonRoute, Listed
from ctx_embed.serving.service import service_of

router = APIRouter(prefix="/v1", tags=["models"], route_class=JsonRoute, default_response_class=Answer)


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
    reranker = service.rerankers.get(body.model)
    name = body.model if reranker is not None else service.require_model(body.model)
    texts = [document if isinstance(document, str) else document.text for document in body.documents]
    service.require_texts([body.query], "query")
    service.require_texts(texts, "documents")
    answer: dict[str, Any] = {"model": name}
    if reranker is not None:
        scores = await reranker(body.query, texts)
    else:
        vectors, tokens = await service.model([body.query, *texts])
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
    classifier = service.classifier(body.model)
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
