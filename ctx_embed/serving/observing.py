"""Metrics for Prometheus, and a log of JSON lines."""

import json
import logging
import os
import re
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
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


class SharedMetrics(Collector):
    """The metrics in files of workers, and of indexes by the properties of each (:meth:`SearchIndex.describe`)."""

    def __init__(self, files: Sequence[str], indexes: Sequence[dict[str, Any]]) -> None:
        self._files, self._indexes = files, indexes

    def collect(self) -> Iterator[Metric]:
        """Yield a metric for each property."""
        for name, text in (("documents", "Documents."), ("generation", "Changes so far."), ("bytes", "Size on disk.")):
            metric = GaugeMetricFamily(f"ctx_embed_index_{name}", text, labels=["index"])
            for index in self._indexes:
                metric.add_metric([index["name"]], index[name])
            yield metric
        yield from multiprocess.MultiProcessCollector.merge(self._files)  # type: ignore[no-untyped-call]


def metrics(indexes: Sequence[dict[str, Any]]) -> bytes:
    """Return the metrics of all worker processes and of the indexes in Prometheus' text format."""
    registry, files, folder = CollectorRegistry(), [], os.environ.get(SHARED_METRICS)
    for path in Path(folder).glob("*.db") if folder else ():
        # That of a worker which starts is empty for a moment; another worker may remove that of one that died.
        with suppress(FileNotFoundError):
            if path.name.startswith("gauge_live"):
                try:
                    os.kill(int(path.stem.rpartition("_")[2]), 0)
                except ProcessLookupError:
                    path.unlink()
            if path.stat().st_size:
                files.append(str(path))
    registry.register(SharedMetrics(files, indexes))
    return (b"" if folder else generate_latest()) + generate_latest(registry)


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
        given = headers.get("x-request-id", "")
        request_id = given if REQUEST_ID.fullmatch(given) else uuid.uuid4().hex

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
            line = {
                "request": request_id,
                "client": (scope.get("client") or (None,))[0],
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
