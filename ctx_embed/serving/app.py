"""The ASGI application, with its routes for operators (health, metrics, limits, access) and the page."""

import asyncio
import gc
import logging
import multiprocessing
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

import anyio
from fastapi import APIRouter, FastAPI, Request, Security
from fastapi.security import HTTPBearer
from fastapi_offline import FastAPIOffline
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.staticfiles import StaticFiles
from threadpoolctl import threadpool_limits

from ctx_embed import __version__
from ctx_embed.errors import quoted
from ctx_embed.serving import observing, routes
from ctx_embed.serving.gate import Gate, Sender
from ctx_embed.serving.service import Service, service_of
from ctx_embed.serving.settings import Settings
from ctx_embed.serving.wire import HANDLERS, RETRY_AFTER, Answer, ApiError

# Time limit of each embedding and search of /readyz.
READY_SECONDS = 5.0
PAGE = Path(__file__).parent / "page"
# The page loads nothing from elsewhere and runs no script that a text contains.
PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}

router = APIRouter(tags=["operation"], default_response_class=Answer)
ROUTERS = [routes.embedding, routes.of_models, routes.of_indexes, router]


@router.head("/healthz", include_in_schema=False)
@router.get("/healthz", summary="Say that the process answers")
async def healthz() -> Answer:
    """Return at once, whatever the state of models and indexes."""
    return Answer({"status": "ok"})


@router.head("/readyz", include_in_schema=False)
@router.get("/readyz", summary="Say that searches are answered")
async def readyz(request: Request) -> Answer:
    """Embed a text with the model and search each index; 503 if one of these fails or takes too long."""
    service = service_of(request)
    probes = {"embedding a text": service.model.probe}
    probes |= {f"searching the index {quoted(name)}": index.probe for name, index in service.indexes.items()}
    seconds = min(READY_SECONDS, service.settings.search_timeout)
    for work, probe in probes.items():
        with anyio.move_on_after(seconds) as limit:
            await probe()
        if limit.cancelled_caught:
            raise ApiError(503, f"{work} took longer than {seconds:g} s", "not_ready", RETRY_AFTER)
    return Answer({"status": "ready"})


@router.get("/metrics", summary="Return metrics for Prometheus", response_class=PlainTextResponse)
async def metrics(request: Request) -> Response:
    """Return counts and durations of requests, texts, tokens and batches over all workers, and the sizes of indexes."""
    return Response(observing.metrics(await service_of(request).facts()), media_type=CONTENT_TYPE_PLAIN_0_0_4)


@router.get("/v1/server", summary="Describe the server")
async def server(request: Request) -> Answer:
    """Return the version, the model, whether clients need a key, and the limits."""
    service = service_of(request)
    settings = service.settings
    return Answer(
        {
            "version": __version__,
            "model": service.model.names[0],
            "dimension": service.model.dimension,
            "keys": bool(service.keys),
            "limits": {
                "body_bytes": settings.body_bytes,
                "answer_bytes": settings.answer_bytes,
                "texts": settings.max_texts,
                "text_characters": settings.max_characters,
                "explained_characters": settings.max_explained,
                "hits": settings.max_hits,
                "seconds": settings.timeout,
                "search_seconds": settings.search_timeout,
                "requests": settings.max_requests,
            },
        }
    )


@router.get("/v1/access", summary="Say what a key allows")
async def access(request: Request) -> Answer:
    """Return whether the request may read and write, with the key that it sent or without a key."""
    keys, key = service_of(request).keys, request.scope["state"].get("key")
    return Answer({"read": key is not None or not keys, "write": key.writes if key else not keys})


@router.head("/", include_in_schema=False)
@router.get("/", include_in_schema=False)
async def page() -> FileResponse:
    """Return the page."""
    return FileResponse(PAGE / "index.html", headers=PAGE_HEADERS)


class PageFiles(StaticFiles):
    """The files of the page; browsers check each time whether their copies are current."""

    def file_response(self, *args: Any, **options: Any) -> Response:
        """Return a file, or 304 if the browser has it."""
        response = super().file_response(*args, **options)
        response.headers["Cache-Control"] = "no-cache"
        response.headers["X-Content-Type-Options"] = "nosniff"
        return response


def create_app(settings: Settings) -> FastAPI:
    """Load the models and indexes that the settings name, and return the application."""
    # Warnings become lines of the log.
    logging.captureWarnings(True)
    service = Service(settings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        if (parent := multiprocessing.parent_process()) is not None:
            # End this worker when the process that started it ends, even if that is killed.
            asyncio.get_running_loop().add_reader(parent.sentinel, signal.raise_signal, signal.SIGTERM)
        # FastAPI would compute the schema for the first who asks, and let all others wait.
        schema = asyncio.get_running_loop().run_in_executor(None, app.openapi)
        # Exempt models and indexes from garbage collection, which stops all threads: they stay loaded anyway.
        gc.collect()
        gc.freeze()
        # A matrix product uses one thread, unless the environment says how many: requests come at the same time, and
        # threads that share a small product mostly wait for each other.
        chosen = any(name in os.environ for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"))
        with nullcontext() if chosen else threadpool_limits(1, user_api="blas"):
            yield
        await schema
        service.close()

    app = FastAPIOffline(
        redoc_url=None,
        static_url="/static/docs",
        redirect_slashes=False,
        root_path=settings.root_path,
        title="ctx-embed",
        version=__version__,
        summary="Embeddings and semantic search.",
        lifespan=lifespan,
        # Declare the key in the OpenAPI schema, so that generated clients send one.
        dependencies=[Security(HTTPBearer(auto_error=False, description="A read or write key."))]
        if service.keys
        else [],
        responses={"default": {"description": 'An error: {"error": {"message", "type", "param", "code"}}.'}},
        exception_handlers=HANDLERS,
    )
    app.state.service = service
    for each in ROUTERS:
        app.include_router(each)
    app.mount("/static", PageFiles(directory=PAGE))
    app.add_middleware(Gate, service=service)
    app.add_middleware(GZipMiddleware, minimum_size=1000, compresslevel=4)
    if settings.cors:
        app.add_middleware(CORSMiddleware, allow_origins=settings.cors, allow_methods=["*"], allow_headers=["*"])
    app.add_middleware(Sender, settings=settings)
    # The middleware added last is the outermost.
    app.add_middleware(observing.Observer, routes=[route for each in ROUTERS for route in each.routes])
    return app
