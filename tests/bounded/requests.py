"""Requests to the server's own application, in this process: each route with odd bodies, and odd URLs and headers."""

import asyncio
import json
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

from fastapi.routing import APIRoute

from ctx_embed import SearchIndex
from ctx_embed.serving.app import ROUTERS, create_app
from ctx_embed.serving.routes import EmbeddingsBody
from ctx_embed.serving.settings import Settings
from tests.bounded.growth import Entry, Make, different, repeated, strings

# Bodies of routes that read them without FastAPI, and what a route asks for in a body and a path.
BODIES = {"/v1/embeddings": EmbeddingsBody}
NEEDED: dict[str, Any] = {
    **dict.fromkeys(("query", "input", "field", "text"), "cat"),
    **{name: ["cat"] for name in ("documents", "texts", "ids")},
    "model": "default",
    "changes": {"a": 1},
}
# Bytes of a body that come at a time.
PART = 1 << 16
# How a value of a body may be odd.
VALUES: dict[str, Callable[[int], Any]] = {
    "text": lambda n: "a" * n,
    "words": lambda n: " ".join(different(n)),
    "soft hyphens": lambda n: "\xad\u200b" * (n // 2),
    "list": lambda n: list(different(n)),
    "keys": lambda n: dict.fromkeys(different(n), 1),
}


@cache
def application(folder: Path) -> Any:
    with SearchIndex.create(folder / "served") as index:
        index.add(["the cat sat on the mat", "a dog barked"], ["cat", "dog"], [{"tags": ["a"]}, {"tags": ["b"]}])
    return create_app(Settings([folder / "served"])), asyncio.new_event_loop()


def answer(folder: Path, method: str, path: str, query: str, headers: list[tuple[bytes, bytes]], body: bytes) -> int:
    """Return the status of the answer to a request, computed in this process."""
    app, loop = application(folder)
    parts, status = [body[start : start + PART] for start in range(0, len(body), PART)] or [b""], []

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(0)
        part = parts.pop(0) if parts else await asyncio.Future()
        return {"type": "http.request", "body": part, "more_body": bool(parts)}

    async def send(message: dict[str, Any]) -> None:
        status.append(message.get("status"))

    headers = [(b"host", b"localhost"), (b"content-type", b"application/json"), *headers]
    scope = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http", "root_path": ""}
    scope |= {"path": path, "raw_path": path.encode("utf-8", "surrogatepass"), "query_string": query.encode()}
    scope |= {"client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80), "state": {}}
    loop.run_until_complete(app({**scope, "method": method, "headers": headers}, receive, send))
    return int(status[0])


def bodies(fields: dict[str, Any]) -> dict[str, Make]:
    """Families of bodies: each field with each odd value, unknown fields, and what is no object."""
    needed = {name: NEEDED[name] for name, field in fields.items() if field.is_required()}

    def odd(name: str, kind: str, n: int) -> bytes:
        return json.dumps({**needed, name: VALUES[kind](n)}).encode()

    return {
        **{f"{name} {kind}": partial(odd, name, kind) for name in fields for kind in VALUES},
        "unknown fields": lambda n: json.dumps({**needed, **VALUES["keys"](n)}).encode(),
        "nested": lambda n: b"[" * (n // 2) + b"]" * (n // 2),
        "an object in objects": lambda n: b'{"a":' * (n // 5) + b"1",
        **{repr(piece): repeated(piece) for piece in (b"\\ud83d", b" ", b"\xff", b'"')},
    }


def requests(folder: Path) -> Iterator[tuple[str, Entry]]:
    """Yield an entry for each route of the server, with its bodies or what its path names, and for URLs and headers.

    A field that a new body needs is named in NEEDED, or a KeyError says so.
    """

    def asked(path: str, text: str) -> None:
        answer(folder, "GET", path.replace("{name:path}", "{name}").replace("{name}", text), "", [], b"")
        answer(folder, "GET", path.replace("{name}", "served"), f"most={text[:9]}&a={text}", [], b"")

    def headed(name: bytes, text: str) -> int:
        return answer(folder, "GET", "/v1/models", "", [(name, text.encode("latin-1", "replace"))], b"")

    def located(text: str) -> int:
        return answer(folder, "GET", f"/{text}", text.encode("ascii", "replace").decode(), [], b"")

    for route in (route for router in ROUTERS for route in router.routes if isinstance(route, APIRoute)):
        for method in sorted(route.methods - {"HEAD"}):
            if method == "GET":
                families = strings("a", "%", "/", "\xe9") if "{name" in route.path else strings("a", "&")
                call = partial(asked, route.path)
            else:
                model = BODIES.get(route.path) or route.body_field.field_info.annotation  # type: ignore[union-attr]
                families = bodies(model.model_fields)
                call = partial(answer, folder, method, route.path.replace("{name}", "served"), "", [])
            yield f"route {method} {route.path}", Entry(call, families, 1 << 14)
    values = strings("a", ",", ";q=", "=", " ", "gzip, ", "-", "\xe9")
    for header in (b"accept-encoding", b"authorization", b"host", b"origin", b"cookie", b"range", b"content-length"):
        yield f"header {header.decode()}", Entry(partial(headed, header), values, 1 << 14)
    many = {"names": lambda n: [(f"x-{word}".encode(), b"1") for word in different(n)]}
    many["one name"] = lambda n: [(b"accept", b"a/b")] * (n // 8 + 1)
    yield "headers", Entry(lambda given: answer(folder, "GET", "/healthz", "", given, b""), many, 1 << 14)
    yield "URL", Entry(located, strings("/", "a", "%2F", "..", ";", "\ufffd"), 1 << 14)
