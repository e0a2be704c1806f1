"""The ASGI application."""

from __future__ import annotations

import asyncio
import gc
import logging
import multiprocessing
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from typing import Any

from fastapi import FastAPI, Security
from fastapi.security import HTTPBearer
from fastapi_offline import FastAPIOffline
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from threadpoolctl import threadpool_limits

from ctx_embed import __version__
from ctx_embed.serving.errors import HANDLERS, ErrorBody
from ctx_embed.serving.gate import Gate
from ctx_embed.serving.observing import Observer
from ctx_embed.serving.routes import embeddings, indexes, models, operation
from ctx_embed.serving.sending import Sender
from ctx_embed.serving.service import Service
from ctx_embed.serving.settings import Settings

ROUTERS = [embeddings.router, models.router, indexes.router, operation.router]


class PageFiles(StaticFiles):
    """The files of the page; browsers check each time whether their copies are current."""

    def file_response(self, *args: Any, **options: Any) -> Response:
        """Return a file, or 304 if the browser has it."""
        response = super().file_response(*args, **options)
        response.headers["Cache-Control"] = "no-cache"
        response.headers["X-Content-Type-Options"] = "nosniff"
        return response


def one_blas_thread() -> AbstractContextManager[Any]:
    """Return a context in which a matrix product uses one thread, unless the environment says how many.

    Requests come at the same time: threads that share a small product mostly wait for each other.
    """
    chosen = any(name in os.environ for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"))
    return nullcontext() if chosen else threadpool_limits(1, user_api="blas")


def create_app(settings: Settings) -> FastAPI:
    """Return the application. Its models and indexes are loaded.

    Raises:
        InputError: a model, an index or the file of keys cannot be used.
    """
    # Warnings become lines of the log.
    logging.captureWarnings(True)
    service = Service(settings)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        if (parent := multiprocessing.parent_process()) is not None:
            # End this worker when the process that started it ends, even if that is killed.
            asyncio.get_running_loop().add_reader(parent.sentinel, signal.raise_signal, signal.SIGTERM)
        # Exempt models and indexes from garbage collection, which stops all threads: they stay loaded anyway.
        gc.collect()
        gc.freeze()
        with one_blas_thread():
            yield
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
        responses={"default": {"model": ErrorBody, "description": "An error."}},
        exception_handlers=HANDLERS,
    )
    app.state.service = service
    for router in ROUTERS:
        app.include_router(router)
    app.mount("/static", PageFiles(directory=operation.PAGE))
    app.add_middleware(Gate, service=service)
    app.add_middleware(GZipMiddleware, minimum_size=1000, compresslevel=4)
    if settings.cors:
        app.add_middleware(CORSMiddleware, allow_origins=settings.cors, allow_methods=["*"], allow_headers=["*"])
    app.add_middleware(Sender, settings=settings)
    # The middleware that is added last is the outermost.
    app.add_middleware(Observer, routes=[route for router in ROUTERS for route in router.routes])
    return app
