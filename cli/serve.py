"""`ctx-embed serve`: embeddings and indexes over HTTP."""

from __future__ import annotations

from pathlib import Path

import click

from ctx_embed.cli.groups import command
from ctx_embed.errors import InputError, missing_extra
from ctx_embed.serving.settings import LOOPBACK, MIB, Settings


@command()
@click.argument("indexes", metavar="[INDEX]...", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "--model",
    "models",
    multiple=True,
    metavar="PATH|default",
    default=["default"],
    help="The model behind /v1/embeddings; repeat it for classifiers (/v1/classify).",
)
@click.option(
    "--reranker",
    "rerankers",
    multiple=True,
    metavar="NAME|PATH",
    help="A model that searches and /v1/rerank may score passages with: minilm, a name or a folder; may be repeated.",
)
@click.option(
    "--host",
    metavar="ADDRESS",
    default="127.0.0.1",
    help="The address to listen on; another than this machine's needs keys.",
)
@click.option("--port", default=8080, type=click.IntRange(0, 65535), help="The port; 0 takes a free one.")
@click.option(
    "--api-key-file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="A file with lines `read KEY` and `write KEY`.  [default: no keys]",
    show_default=False,
)
@click.option("--no-keys", is_flag=True, help="Listen on other addresses without keys: anyone may read and write.")
@click.option("--workers", default=1, type=click.IntRange(min=1), help="Processes that share the port.")
@click.option("--cors", multiple=True, metavar="ORIGIN", help="An origin whose pages may call the server, or *.")
@click.option("--max-body", default=16, type=click.IntRange(min=1), metavar="MIB", help="The largest request body.")
@click.option("--max-texts", default=2048, type=click.IntRange(min=1), help="The most texts of a request.")
@click.option("--max-characters", default=1_000_000, type=click.IntRange(min=1), help="The longest text.")
@click.option(
    "--timeout",
    default=60.0,
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="The longest that a request may take.",
)
@click.option(
    "--max-requests",
    default=256,
    type=click.IntRange(min=1),
    help="The most requests a process works on at a time; others get status 429 and should try again later.",
)
def serve(
    indexes: tuple[Path, ...],
    models: tuple[str, ...],
    rerankers: tuple[str, ...],
    host: str,
    port: int,
    api_key_file: Path | None,
    no_keys: bool,
    workers: int,
    cors: tuple[str, ...],
    max_body: int,
    max_texts: int,
    max_characters: int,
    timeout: float,
    max_requests: int,
) -> None:
    """Serve embeddings and search indexes over HTTP, with a page to search them at /.

    POST /v1/embeddings is OpenAI's, so its clients work with base_url="http://127.0.0.1:8080/v1". Each INDEX is served
    under the name of its folder at /v1/indexes/NAME. All routes are at /docs.

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
    settings = Settings(
        indexes=indexes,
        models=models,
        rerankers=rerankers,
        host=host,
        api_key_file=api_key_file,
        no_keys=no_keys,
        cors=cors,
        body_bytes=max_body * MIB,
        texts=max_texts,
        text_characters=max_characters,
        seconds=timeout,
        requests=max_requests,
    )
    try:
        from ctx_embed.serving.running import run
    except ModuleNotFoundError as error:
        raise missing_extra(f"ctx-embed serve: {error.name}", "server") from None

    run(settings, port, workers)
