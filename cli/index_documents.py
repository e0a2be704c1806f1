"""`ctx-embed index get`, `delete` and `export`: single documents, and all of them."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from ctx_embed.errors import InputError


def _ids(values: tuple[str, ...], strings: bool) -> list[str | int]:
    """Ids as they are written: digits are an integer, unless strings are meant."""
    from ctx_embed.index.storage.documents import checked_id

    found: list[str | int] = []
    for value in values:
        digits = value.removeprefix("-")
        number = not strings and digits.isascii() and digits.isdigit()
        try:
            found.append(checked_id(int(value) if number else value, 1))
        except (InputError, ValueError):
            raise InputError(
                f"the id {value[:40]!r} is no id of 64 bits, with --string it is taken as a string"
            ) from None
    return found


_string_option = click.option("--string", "strings", is_flag=True, help="Take ids of digits as strings too.")


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("path", metavar="INDEX")
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@_string_option
def get(path: str, ids: tuple[str, ...], strings: bool) -> None:
    """Print the documents of some ids, a JSON object a line.

    Example: ctx-embed index get reviews.index 17 tt0133093
    """
    from ctx_embed.index import SearchIndex

    wanted = _ids(ids, strings)
    with SearchIndex.open(path) as index:
        found = [index.get(identifier) for identifier in wanted]
    for document in found:
        if document is not None:
            click.echo(json.dumps(asdict(document), ensure_ascii=False))
    missing = [identifier for identifier, document in zip(wanted, found, strict=True) if document is None]
    if missing:
        raise InputError(f"{path}: no document has the id {', '.join(map(repr, missing))}")


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("path", metavar="INDEX")
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@_string_option
def delete(path: str, ids: tuple[str, ...], strings: bool) -> None:
    """Delete the documents of some ids; ids that there are not are passed over.

    Example: ctx-embed index delete reviews.index 17 tt0133093
    """
    from ctx_embed.index import SearchIndex

    wanted = _ids(ids, strings)
    with SearchIndex.open(path) as index:
        click.echo(f"{index.delete(wanted)} of {len(set(wanted))} documents deleted from {path}")


@click.command()
@click.argument("path", metavar="INDEX")
@click.argument("output", metavar="OUT", type=click.Path(path_type=Path))
def export(path: str, output: Path) -> None:
    """Write the vectors to OUT.npy and ids, texts and metadata to OUT.jsonl, line i for row i.

    Example: ctx-embed index export reviews.index reviews
    """
    from ctx_embed.index import SearchIndex

    with SearchIndex.open(path) as index:
        rows, dimension = index.export(output), index.describe()["dimension"]
    click.echo(f"{rows} vectors of dimension {dimension} in {output}.npy, texts in {output}.jsonl")
