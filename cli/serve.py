"""`ctx-embed serve`: embeddings and indexes over HTTP."""

from __future__ import annotations

from pathlib import Path

import click

from ctx_embed.cli.groups import command
from ctx_embed.errors import InputError, missing_extra
from ctx_embed.serving.settings import LOOPBACK, MIB, Settings

# Each option has an environment variable of this prefix.
PREFIX = "CTX_EMBED_SERVE"
SECTIONS = {
    "What it serves": ("model", "alias", "reranker"),
    "To whom": ("host", "port", "root_path", "api_key_file", "no_keys", "cors"),
    "Limits": ("max_body", "max_answer", "max_texts", "max_characters", "max_hits", "max_explained", "max_requests"),
    "Running": ("workers", "timeout", "drain"),
}


@command(context_settings={"auto_envvar_prefix": PREFIX}, sections=SECTIONS)
@click.argument("indexes", metavar="[INDEX]...", nargs=-1, type=click.Path(path_type=Path), envvar=f"{PREFIX}_INDEXES")
@click.option(
    "--model",
    multiple=True,
    metavar="PATH|default",
    default=["default"],
    help="The model behind /v1/embeddings; repeat it for classifiers (/v1/classify).",
)
@click.option(
    "--alias",
    multiple=True,
    metavar="NAME",
    help="A further name of the model that embeds, for programs that insist on one: text-embedding-3-small.",
)
@click.option(
    "--reranker",
    multiple=True,
    metavar="NAME|PATH",
    help="A model that searches and /v1/rerank may score passages with: minilm, a name or a folder; may be repeated.",
)
@click.option(
    "--host",
    metavar="ADDRESS",
    default="127.0.0.1",
    help="Address to listen on; another than this machine's needs keys.",
)
@click.option("--port", default=8080, type=click.IntRange(0, 65535), help="Port; 0 takes a free one.")
@click.option("--root-path", default="", metavar="PATH", help="Path under which a proxy serves it, e.g. /search.")
@click.option(
    "--api-key-file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="File with lines `read KEY [NAME]` and `write KEY [NAME]`.  [default: no keys]",
    show_default=False,
)
@click.option("--no-keys", is_flag=True, help="Listen on other addresses without keys: anyone may read and write.")
@click.option("--workers", default=1, type=click.IntRange(min=1), help="Processes that share the port.")
@click.option("--cors", multiple=True, metavar="ORIGIN", help="Origin whose pages may call the server, or *.")
@click.option("--max-body", default=16, type=click.IntRange(min=1), metavar="MIB", help="Largest request body.")
@click.option("--max-answer", default=16, type=click.IntRange(min=1), metavar="MIB", help="Largest answer.")
@click.option("--max-texts", default=2048, type=click.IntRange(min=1), help="Most texts of a request.")
@click.option("--max-characters", default=1_000_000, type=click.IntRange(min=1), help="Longest text.")
@click.option(
    "--max-hits", default=10_000, type=click.IntRange(min=1), help="Most hits of a search, of all its queries."
)
@click.option(
    "--max-explained", default=10_000, type=click.IntRange(min=1), help="Longest text to explain, characters."
)
@click.option(
    "--timeout",
    default=60.0,
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Time limit of a request, and again of sending its answer.",
)
@click.option(
    "--max-requests",
    default=256,
    type=click.IntRange(min=1),
    help="Most requests a process works on at a time; others get status 429 and should try again later.",
)
@click.option(
    "--drain",
    default=1.0,
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="Go on so long after SIGTERM, while /readyz answers 503.",
)
def serve(
    indexes: tuple[Path, ...],
    model: tuple[str, ...],
    alias: tuple[str, ...],
    reranker: tuple[str, ...],
    host: str,
    port: int,
    root_path: str,
    api_key_file: Path | None,
    no_keys: bool,
    workers: int,
    cors: tuple[str, ...],
    max_body: int,
    max_answer: int,
    max_texts: int,
    max_characters: int,
    max_hits: int,
    max_explained: int,
    timeout: float,
    max_requests: int,
    drain: float,
) -> None:
    """Serve embeddings and search indexes over HTTP, with a page to search them at /.

    POST /v1/embeddings is OpenAI's, so its clients work with base_url="http://127.0.0.1:8080/v1". Each INDEX is served
    under the name of its folder at /v1/indexes/NAME. All routes are at /docs. Options may also come from environment
    variables: CTX_EMBED_SERVE_PORT=9000 is --port 9000.

    \b
    Example: ctx-embed serve
    Example: ctx-embed serve reviews.index --port 9000
    Example: ctx-embed serve reviews.index --host 0.0.0.0 --api-key-file keys.txt --workers 4
    """
    if host not in LOOPBACK and api_key_file is None and not no_keys:
        raise InputError(
            f"--host {host} lets other machines in: give --api-key-file FILE, or --no-keys to let anyone read and write"
        )
    if no_keys and api_key_file is not None:
        raise click.UsageError("--no-keys and --api-key-file exclude each other")
    if root_path and not root_path.startswith("/"):
        raise click.UsageError(f"--root-path must start with /, got {root_path}")
    settings = Settings(
        indexes=indexes,
        models=model,
        aliases=alias,
        rerankers=reranker,
        host=host,
        root_path=root_path.rstrip("/"),
        api_key_file=api_key_file,
        no_keys=no_keys,
        cors=cors,
        body_bytes=max_body * MIB,
        answer_bytes=max_answer * MIB,
        texts=max_texts,
        text_characters=max_characters,
        explained_characters=max_explained,
        hits=max_hits,
        seconds=timeout,
        requests=max_requests,
        drain=drain,
    )
    try:
        from ctx_embed.serving.running import run
    except ModuleNotFoundError as error:
        raise missing_extra(f"ctx-embed serve: {error.name}", "server") from None

    run(settings, port, workers)
