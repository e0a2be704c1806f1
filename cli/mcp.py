"""`ctx-embed mcp`: search for assistants."""

import click

from ctx_embed.cli.main import command
from ctx_embed.errors import missing_extra


@command()
@click.argument("path", metavar="INDEX")
@click.option(
    "--model",
    metavar="NAME|PATH",
    help="The index's model, if it has moved.  [default: its place when the index was built]",
)
def mcp(path: str, model: str | None) -> None:
    """Let assistants search INDEX through the Model Context Protocol, over standard input and output.

    Its tools search and read documents; none changes them. An assistant's configuration names the command, for example
    {"command": "ctx-embed", "args": ["mcp", "/data/my.index"]}.

    Example: ctx-embed mcp reviews.index
    """
    try:
        from ctx_embed.serving.mcp import create_server
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("mcp"):
            raise
        raise missing_extra("ctx-embed mcp", "server") from None
    from ctx_embed.index import SearchIndex

    with SearchIndex.open(path, model) as index:
        create_server(index).run("stdio")
