"""Metrics for Prometheus, and a log of JSON lines."""

import json
import logging
import os
import re
import time
import uuid
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest, multiprocess
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.datastructures import Headers, MutableHeaders
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOG = logging.getLogger("ctx_embed.serving")
# The environment variable that names the folder with the metrics of all worker processes.
SHARED_METRICS = "PROMETHEUS_MULTIPROC_DIR"

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
REQUESTS = Counter("ctx_embed_requests", "Requests answered.", ["route", "method", "status"])
DURATIONS = Histogram("ctx_embed_request_seconds", "From a request's head to its answer.", ["route"], buckets=_SECONDS)
AT_WORK = Gauge("ctx_embed_requests_at_work", "Requests at work.", multiprocess_mode="livesum")
TEXTS = Counter("ctx_embed_texts", "Texts embedded, classified or reranked.")
TOKENS = Counter("ctx_embed_tokens", "Tokens read.")
BATCHES = Histogram("ctx_embed_batch_requests", "Requests in a batch.", ["work"], buckets=(1, 2, 4, 8, 16, 32, 64, 128))

METHODS = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT")
# The form of request ids that clients may choose; other characters could forge lines in logs.
REQUEST_ID = re.compile(r"[\w.:/+=@-]{1,128}", re.ASCII)
TRACE = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}.*", re.ASCII)

LOG_CONFIG: dict[str, Any] = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"json": {"()": "ctx_embed.serving.observing.JsonFormatter"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "json"}},
    "loggers": {
        "uvicorn": {"handlers": ["stderr"], "level": "INFO", "propagate": False},
        "ctx_embed": {"handlers": ["stderr"], "level": "INFO", "propagate": False},
        "py.warnings": {"handlers": ["stderr"], "level": "WARNING", "propagate": False},
    },
}


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON. A message that is a dictionary contributes its fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        moment = datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds")
        line: dict[str, Any] = {"time": moment, "level": record.levelname.lower()}
        line |= record.msg if isinstance(record.msg, dict) else {"message": record.getMessage()}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


class IndexMetrics(Collector):
    """The metrics of indexes, made from the properties of each, see :meth:`ctx_embed.SearchIndex.describe`."""

    def __init__(self, indexes: Sequence[dict[str, Any]]) -> None:
        self._indexes = indexes

    def collect(self) -> Iterator[Metric]:
        """Yield a metric for each property."""
        for name, text in (("documents", "Documents."), ("generation", "Changes so far."), ("bytes", "Size on disk.")):
            metric = GaugeMetricFamily(f"ctx_embed_index_{name}", text, labels=["index"])
            for index in self._indexes:
                metric.add_metric([index["name"]], index[name])
            yield metric


def metrics(indexes: Sequence[dict[str, Any]]) -> bytes:
    """Return the metrics of all worker processes and of the indexes in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(IndexMetrics(indexes))
    if SHARED_METRICS not in os.environ:
        return generate_latest() + generate_latest(registry)
    for path in Path(os.environ[SHARED_METRICS]).glob("gauge_live*.db"):
        pid = int(path.stem.rpartition("_")[2])
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            # A worker that died no longer works on any request.
            multiprocess.mark_process_dead(pid)  # type: ignore[no-untyped-call]
    multiprocess.MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    return generate_latest(registry)


class Observer:
    """Middleware that counts and logs each request, and gives it an id."""

    def __init__(self, app: ASGIApp, routes: Sequence[BaseRoute]) -> None:
        self.app, self._routes = app, routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and count and log its answer."""
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        begin = time.perf_counter()
        status, size = 500, 0
        headers = Headers(scope=scope)
        request_id = headers.get("x-request-id", "")
        if not REQUEST_ID.fullmatch(request_id):
            request_id = uuid.uuid4().hex

        async def noted(message: Message) -> None:
            nonlocal status, size
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(raw=message["headers"])["X-Request-ID"] = request_id
            else:
                size += len(message.get("body", b""))
            await send(message)

        AT_WORK.inc()
        try:
            await self.app(scope, receive, noted)
        finally:
            AT_WORK.dec()
            seconds = time.perf_counter() - begin
            # Count refused requests under their route, too, and unknown paths as one route, so that labels stay few.
            matched = scope.get("route") or next((each for each in self._routes if each.matches(scope)[0].value), None)
            route = str(getattr(matched, "path", "other"))
            method = scope["method"] if scope["method"] in METHODS else "other"
            REQUESTS.labels(route, method, str(status)).inc()
            DURATIONS.labels(route).observe(seconds)
            client = scope.get("client")
            line = {
                "request": request_id,
                "client": client[0] if client else None,
                "method": scope["method"],
                "path": scope["path"],
                "status": status,
                "milliseconds": round(1000 * seconds, 1),
                "bytes": size,
            }
            if key := scope["state"].get("key"):
                line["key"] = key.name
            if trace := TRACE.fullmatch(headers.get("traceparent", "")):
                line["trace"] = trace[1]
            LOG.info(line)
