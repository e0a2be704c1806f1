"""`ctx-embed index get`, `count`, `facets`, `set`, `delete` and `export`: single documents, or all of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import click

from ctx_embed.cli.index import opened
from ctx_embed.cli.main import command, counted, one_line
from ctx_embed.cli.options import Command, named_values, overwrite_option, require_new, together
from ctx_embed.errors import InputError, examples

# Maximum characters to show of a passage or a value.
SHOWN_CHARACTERS = 240


def _where_option(does: str) -> Callable[[Command], Command]:
    return click.option("--where", metavar="FILTER", help=f"{does} the documents whose metadata match it.")


def _documents(does: str) -> Callable[[Command], Command]:
    """Return a decorator that adds an index, and which of its documents a command takes."""
    path, ids = click.argument("path", metavar="INDEX"), click.argument("ids", metavar="[ID]...", nargs=-1)
    return together(path, ids, _where_option(does))


def _require_chosen(ids: tuple[str, ...], where: str | None) -> None:
    if bool(ids) == (where is not None):
        raise click.UsageError("give either IDs or --where FILTER")


@command()
@_documents("Print")
@click.option("-k", "most", default=10, type=click.IntRange(min=1), help="Maximum number of documents, without IDs.")
@click.option("--offset", default=0, type=click.IntRange(min=0), help="Documents to skip, without IDs.")
def get(path: str, ids: tuple[str, ...], where: str | None, most: int, offset: int) -> None:
    """Print the documents with the given IDs as JSON, one per line; without IDs, the first ones.

    \b
    Example: ctx-embed index get reviews.index 17 tt0133093
    Example: ctx-embed index get reviews.index --where 'stars >= 4' -k 3
    """
    if ids and where is not None:
        raise click.UsageError("give either IDs or --where")

    with opened(path) as index:
        shown = 0
        for document in map(index.get, ids) if ids else index.documents(where, offset=offset, limit=most):
            if document is not None:
                click.echo(json.dumps(asdict(document), ensure_ascii=False))
                shown += 1
        if not ids:
            matching = index.count(where)
            click.echo(f"{shown} of {counted(matching, 'document')}" if matching else "no documents", err=True)
        elif missing := [identifier for identifier in ids if index.get(identifier) is None]:
            raise InputError(f"{path}: no document has the id {', '.join(map(repr, missing))}")


@command()
@click.argument("path", metavar="INDEX")
@_where_option("Count")
def count(path: str, where: str | None) -> None:
    """Print the number of documents.

    Example: ctx-embed index count reviews.index --where 'stars >= 4'
    """
    with opened(path) as index:
        click.echo(index.count(where))


@command()
@click.argument("path", metavar="INDEX")
@click.argument("field", metavar="FIELD")
@_where_option("Count")
@click.option("-k", "most", default=20, type=click.IntRange(min=1), help="Maximum number of values.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array of objects: value, documents.")
def facets(path: str, field: str, where: str | None, most: int, as_json: bool) -> None:
    """Print the values of a metadata FIELD and how many documents have each, most frequent first.

    Example: ctx-embed index facets reviews.index lang --where 'stars >= 4'
    """
    with opened(path) as index:
        found = index.facets(field, where, limit=most)
        if as_json:
            rows = [{"value": value, "documents": documents} for value, documents in found]
            click.echo(json.dumps(rows, ensure_ascii=False, indent=2))
            return
        for value, documents in found:
            text = value if isinstance(value, str) else json.dumps(value)
            click.echo(f"{documents:8d}  {one_line(text, SHOWN_CHARACTERS)}")
        if not found:
            click.echo("no values", err=True)


@command("set")
@_documents("Change")
@click.option(
    "-m",
    "--metadata",
    "changes",
    metavar="NAME=VALUE",
    multiple=True,
    required=True,
    callback=partial(named_values, fields=True),
    help="A field's new value: text, a number in its usual spelling (1.10 and 007 are text), true, false or JSON; null "
    "removes the field. May be repeated.",
)
def set_metadata(path: str, ids: tuple[str, ...], where: str | None, changes: dict[str, Any]) -> None:
    """Change metadata fields of documents by ID or by a filter; only a new title embeds passages again.

    \b
    Example: ctx-embed index set reviews.index 17 tt0133093 -m stars=5 -m 'tags=["new", "long"]'
    Example: ctx-embed index set reviews.index --where 'year < 2003' -m archived=true -m draft=null
    """
    _require_chosen(ids, where)
    with opened(path) as index:
        changed = index.update_metadata(ids if where is None else index.ids(where), changes)
        click.echo(f"metadata of {counted(changed, 'document')} set in {path}")


@command()
@_documents("Delete")
@click.option("--dry-run", is_flag=True, help="Print how many would be deleted, and delete none.")
def delete(path: str, ids: tuple[str, ...], where: str | None, dry_run: bool) -> None:
    """Delete documents by ID or by a filter. IDs that the index does not have are skipped.

    \b
    Example: ctx-embed index delete reviews.index 17 tt0133093
    Example: ctx-embed index delete reviews.index --where 'year < 2003' --dry-run
    """
    _require_chosen(ids, where)
    with opened(path) as index:
        wanted = list(dict.fromkeys(ids))
        missing = [identifier for identifier in wanted if index.get(identifier) is None]
        said = f" (no document has the id {examples(missing, len(missing))})" if missing else ""
        asked = len(wanted) if where is None else index.count()
        if dry_run:
            found = len(wanted) - len(missing) if where is None else index.count(where)
            click.echo(f"{found} of {counted(asked, 'document')} would be deleted from {path}{said}")
        else:
            found = index.delete(wanted) if where is None else index.delete(where=where)
            click.echo(f"{found} of {counted(asked, 'document')} deleted from {path}{said}")


@command()
@click.argument("path", metavar="INDEX")
@click.argument("output", metavar="OUT", type=click.Path(path_type=Path))
@overwrite_option("OUT.npy or OUT.jsonl")
def export(path: str, output: Path) -> None:
    """Write the vectors to OUT.npy and ids, texts and metadata to OUT.jsonl, line i for row i.

    Example: ctx-embed index export reviews.index reviews
    """
    for suffix in (".npy", ".jsonl"):
        require_new(Path(f"{output}{suffix}"))
    with opened(path) as index:
        rows, dimension = index.export(output), index.describe()["dimension"]
    click.echo(f"{counted(rows, 'vector')} of dimension {dimension} in {output}.npy, texts in {output}.jsonl")
