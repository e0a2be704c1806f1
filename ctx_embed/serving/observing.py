"""What those who run the server see of it: metrics for Prometheus, and a log of JSON lines."""

from __future__ import annotations

import json
import logging
import os
import time
from datetime import datetime, timezone
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest, multiprocess
from starlette.types import ASGIApp, Message, Receive, Scope, Send

ACCESS = logging.getLogger("ctx_embed.serving.access")
# Where the metrics of all worker processes come together.
SHARED_METRICS = "PROMETHEUS_MULTIPROC_DIR"

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
REQUESTS = Counter("ctx_embed_requests", "Requests answered.", ["route", "method", "status"])
DURATIONS = Histogram("ctx_embed_request_seconds", "From a request's head to its answer.", ["route"], buckets=_SECONDS)
AT_WORK = Gauge("ctx_embed_requests_at_work", "Requests at work.", multiprocess_mode="livesum")
TEXTS = Counter("ctx_embed_texts", "Texts embedded, classified or reranked.")
TOKENS = Counter("ctx_embed_tokens", "Tokens read.")
BATCHES = Histogram("ctx_embed_batch_requests", "Requests in a batch.", ["work"], buckets=(1, 2, 4, 8, 16, 32, 64, 128))

METHODS = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT")

LOG_CONFIG: dict[str, Any] = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"json": {"()": "ctx_embed.serving.observing.JsonFormatter"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "json"}},
    "loggers": {
        "uvicorn": {"handlers": ["stderr"], "level": "WARNING", "propagate": False},
        "ctx_embed": {"handlers": ["stderr"], "level": "INFO", "propagate": False},
    },
}


class JsonFormatter(logging.Formatter):
    """Formats a record as a line of JSON; a message that is a dictionary has its fields in it."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        moment = datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds")
        line: dict[str, Any] = {"time": moment, "level": record.levelname.lower()}
        line |= record.msg if isinstance(record.msg, dict) else {"message": record.getMessage()}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def metrics() -> bytes:
    """Return the metrics of all worker processes in Prometheus' text format."""
    if SHARED_METRICS not in os.environ:
        return generate_latest()
    registry = CollectorRegistry()
    multiprocess.MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    return generate_latest(registry)


def forget_process() -> None:
    """Take the requests of this process out of the shared metrics; call it at its end."""
    if SHARED_METRICS in os.environ:
        multiprocess.mark_process_dead(os.getpid())  # type: ignore[no-untyped-call]


class Observer:
    """Middleware that counts and logs each request.

    Args:
        app: the application behind it.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on and note its answer."""
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        begin = time.perf_counter()
        status, size = 500, 0

        async def noted(message: Message) -> None:
            nonlocal status, size
            if message["type"] == "http.response.start":
                status = message["status"]
            else:
                size += len(message.get("body", b""))
            await send(message)

        AT_WORK.inc()
        try:
            await self.app(scope, receive, noted)
        finally:
            AT_WORK.dec()
            seconds = time.perf_counter() - begin
            # Only known routes and methods: labels must not grow with what strangers ask for.
            route = getattr(scope.get("route"), "path", "other")
            method = (
                scope["method"] if scope["method"] in ("DELETE", "GET", "HEAD", "OPTIONS", "POST", "PUT") else "other"
            )
            REQUESTS.labels(route, method, str(status)).inc()
            DURATIONS.labels(route).observe(seconds)
            client = scope.get("client")
            ACCESS.info(
                {
                    "client": client[0] if client else None,
                    "method": scope["method"],
                    "path": scope["path"],
                    "status": status,
                    "milliseconds": round(1000 * seconds, 1),
                    "bytes": size,
                }
            )
