"""`ctx-embed serve`: embeddings and indexes over HTTP."""

from pathlib import Path
from typing import Any

import click

from ctx_embed.cli.main import command
from ctx_embed.cli.options import options_of
from ctx_embed.errors import InputError, missing_extra
from ctx_embed.serving.settings import LOOPBACK, Settings

# The prefix of the environment variables that set options.
PREFIX = "CTX_EMBED_SERVE"


@command(context_settings={"auto_envvar_prefix": PREFIX})
@click.argument("indexes", metavar="[INDEX]...", nargs=-1, type=click.Path(path_type=Path), envvar=f"{PREFIX}_INDEXES")
@click.option("--port", default=8080, type=click.IntRange(0, 65535), help="Port; 0 takes a free one.")
@click.option("--workers", default=1, type=click.IntRange(min=1), help="Processes that share the port.")
@options_of(Settings)
def serve(port: int, workers: int, **given: Any) -> None:
    """Serve embeddings and search indexes over HTTP, with a page to search them at /.

    POST /v1/embeddings is OpenAI's, so its clients work with base_url="http://127.0.0.1:8080/v1". Each INDEX is served
    under the name of its folder at /v1/indexes/NAME. All routes are at /docs. Options may also come from environment
    variables: CTX_EMBED_SERVE_PORT=9000 is --port 9000.

    \b
    Example: ctx-embed serve
    Example: ctx-embed serve reviews.index --port 9000
    Example: ctx-embed serve reviews.index --host 0.0.0.0 --api-key-file keys.txt --workers 4
    """
    settings = Settings(**{**given, "root_path": given["root_path"].rstrip("/")})
    host, no_keys, has_keys = settings.host, settings.no_keys, settings.api_key_file is not None
    if host not in LOOPBACK and not has_keys and not no_keys:
        raise InputError(
            f"--host {host} lets other machines in: give --api-key-file FILE, or --no-keys to let anyone read and write"
        )
    if "*" in settings.cors and not has_keys and not no_keys:
        raise InputError(
            "--cors * lets the pages of any site read and write: give --api-key-file FILE, or --no-keys to let them"
        )
    if no_keys and has_keys:
        raise click.UsageError("--no-keys and --api-key-file cannot be combined")
    if not settings.root_path.startswith("/") and settings.root_path:
        raise click.UsageError(f"--root-path must start with /, got {settings.root_path}")
    try:
        from ctx_embed.serving.running import run
    except ModuleNotFoundError as error:
        raise missing_extra(f"ctx-embed serve: {error.name}", "server") from None

    run(settings, port, workers)
