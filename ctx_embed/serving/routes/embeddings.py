"""Routes that embed texts, as OpenAI's clients call them."""

from __future__ import annotations

import asyncio
import base64
from typing import Any, Literal

import numpy as np
import orjson
from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from ctx_embed.errors import described
from ctx_embed.serving.errors import ApiError, dumps
from ctx_embed.serving.json import Answer, json_list, loads
from ctx_embed.serving.models import Floats
from ctx_embed.serving.service import Service, service_of
from ctx_embed.vectors import unit_rows

router = APIRouter(prefix="/v1", tags=["embeddings"], default_response_class=Answer)


class EmbeddingsBody(BaseModel):
    """Texts to embed."""

    input: str | list[str] = Field(description="A text, or several.")
    model: str = Field(description="`default`, or a name of `GET /v1/models`.")
    encoding_format: Literal["float", "base64"] = Field("float", description="base64: of little-endian float32.")
    dimensions: int | None = Field(None, description="The first features only, at unit length again.")
    user: str | None = Field(None, description="Ignored.")


class Embedding(BaseModel):
    """The embedding of a text."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class Usage(BaseModel):
    """Numbers of tokens."""

    prompt_tokens: int
    total_tokens: int


class Embeddings(BaseModel):
    """The embeddings of all texts, in their order."""

    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: Usage


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


def _object(body: bytes) -> dict[str, Any]:
    """Return a body's JSON object."""
    try:
        values = loads(body)
    except orjson.JSONDecodeError as error:
        raise ApiError(400, f"the body must be JSON ({error})", "invalid_json") from None
    if not isinstance(values, dict):
        raise ApiError(400, f"the body must be a JSON object, got {described(values)}")
    return values


def _texts(service: Service, values: dict[str, Any]) -> list[str]:
    """Return the texts of a body."""
    given = values.get("input")
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list):
        raise _refused(f"input must be a string or a list of strings, got {described(given)}", "input")
    if not texts:
        raise _refused("input must have at least one text, got an empty list", "input")
    for place, text in enumerate(texts):
        if not isinstance(text, str):
            if isinstance(text, int | list):
                raise _refused(TOKEN_IDS, "input")
            raise _refused(f"input[{place}] must be a string, got {described(text)}", "input")
    service.require_texts(texts, "input")
    return texts


def _cut(vectors: Floats, dimensions: Any) -> Floats:
    """Return the first features of vectors, at unit length again."""
    if dimensions is None or dimensions == vectors.shape[1]:
        return vectors
    whole = vectors.shape[1]
    if isinstance(dimensions, bool) or not isinstance(dimensions, int) or not 1 <= dimensions <= whole:
        raise _refused(f"dimensions must be an integer from 1 to {whole}, got {dimensions!r:.60}", "dimensions")
    return np.ascontiguousarray(unit_rows(vectors[:, :dimensions]))


@router.post(
    "/embeddings",
    summary="Embed texts",
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": EmbeddingsBody.model_json_schema()}},
        }
    },
    responses={200: {"model": Embeddings}},
)
async def embeddings(request: Request) -> Response:
    """Return a unit vector for each text. A text has the same vector alone and with others.

    The body is that of OpenAI's API. It is read and written without the models above: this route is the busiest.
    """
    service = service_of(request)
    values = _object(await request.body())
    if unknown := values.keys() - FIELDS - IGNORED:
        raise _refused(f"unknown field {min(unknown)!r}: known are {', '.join(sorted(FIELDS))}", "field")
    name = service.require_model(values.get("model"))
    encoding = values.get("encoding_format")
    if encoding not in (None, "float", "base64"):
        raise _refused(f"encoding_format must be float or base64, got {encoding!r:.60}", "encoding_format")
    texts = _texts(service, values)
    dimensions = values.get("dimensions")
    if dimensions is not None:
        _cut(np.empty((0, service.model.dimension), np.float32), dimensions)
    vectors, tokens = await service.model(texts)
    vectors = _cut(vectors, dimensions)
    most = service.settings.answer_bytes
    if len(texts) <= FEW:
        data = _data(vectors, encoding, most)
    else:
        data = await asyncio.to_thread(_data, vectors, encoding, most)
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return Answer(b'{"object":"list","data":%b,"model":%b,"usage":%b}' % (data, dumps(name), dumps(usage)))


def _data(vectors: Floats, encoding: str | None, most: int) -> bytes:
    """Return the embeddings of an answer as JSON."""

    def written(row: Floats) -> Any:
        return base64.b64encode(row.astype("<f4").tobytes()).decode() if encoding == "base64" else row

    rows = enumerate(vectors)
    return json_list(({"object": "embedding", "index": place, "embedding": written(row)} for place, row in rows), most)
