"""Routes for operators (health, metrics, limits, access), and the page."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter, Request
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from starlette.responses import FileResponse, PlainTextResponse, Response

from ctx_embed import __version__
from ctx_embed.serving import observing
from ctx_embed.serving.gate import sent_key
from ctx_embed.serving.json import Answer
from ctx_embed.serving.service import service_of

PAGE = Path(__file__).parent.parent / "page"
# The page loads nothing from elsewhere and runs no script that a text contains.
PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}

router = APIRouter(tags=["operation"], default_response_class=Answer)


@router.head("/healthz", include_in_schema=False)
@router.get("/healthz", summary="Say that the process answers")
async def healthz() -> Answer:
    """Return at once, whatever the state of models and indexes."""
    return Answer({"status": "ok"})


@router.head("/readyz", include_in_schema=False)
@router.get("/readyz", summary="Say that searches are answered")
async def readyz(request: Request) -> Answer:
    """Search each index."""
    await service_of(request).probe()
    return Answer({"status": "ready"})


@router.get("/metrics", summary="Return metrics for Prometheus", response_class=PlainTextResponse)
async def metrics(request: Request) -> Response:
    """Return counts and durations of requests, texts, tokens and batches, of all workers, and the sizes of indexes."""
    return Response(observing.metrics(await service_of(request).facts()), media_type=CONTENT_TYPE_PLAIN_0_0_4)


@router.get("/v1/server", summary="Describe the server")
async def server(request: Request) -> Answer:
    """Return the version, the model, whether clients need a key, and the limits."""
    service = service_of(request)
    return Answer(
        {
            "version": __version__,
            "model": service.model.names[0],
            "dimension": service.model.dimension,
            "keys": bool(service.keys),
            "limits": service.settings.limits(),
        }
    )


@router.get("/v1/access", summary="Say what a key allows")
async def access(request: Request) -> Answer:
    """Return whether the key that was sent, or none, allows to read and to write."""
    keys = service_of(request).keys
    key = keys.find(sent_key(request.scope))
    return Answer({"read": key is not None or not keys, "write": key.writes if key else not keys})


@router.head("/", include_in_schema=False)
@router.get("/", include_in_schema=False)
async def page() -> FileResponse:
    """Return the page."""
    return FileResponse(PAGE / "index.html", headers=PAGE_HEADERS)
