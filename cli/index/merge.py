"""`ctx-embed index merge`."""

from __future__ import annotations

import click

from ctx_embed.cli.groups import command
from ctx_embed.cli.output import counted


@command()
@click.argument("sources", metavar="INDEX...", nargs=-1, required=True)
@click.option("-o", "--output", "path", required=True, metavar="NEW", help="The folder of the new index.")
@click.option("--replace", is_flag=True, help="A document replaces one with its id in an earlier index.")
def merge(sources: tuple[str, ...], path: str, replace: bool) -> None:
    """Make one index of several with the same model, without embedding again.

    Documents that were added without ids are numbered anew. An id that was given to documents of two indexes is an
    error, unless --replace keeps the later document.

    Example: ctx-embed index merge monday.index tuesday.index -o week.index
    """
    from ctx_embed.index.building.merging import merge_indexes

    count = merge_indexes(sources, path, replace=replace, progress=True)
    click.echo(f"{counted(count, 'document')} in {path}")
