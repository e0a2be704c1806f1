"""`ctx-embed index`: build, query and describe search indexes."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Literal

import click

if TYPE_CHECKING:
    from ctx_embed.index import Hit

# Of each text in the table of hits, so many characters are shown.
SHOWN_CHARACTERS = 160


@click.group()
def index() -> None:
    """Build and query search indexes.

    Example: ctx-embed index build notes.txt notes.index && ctx-embed index query notes.index "a question"
    """


@index.command(context_settings={"show_default": True})
@click.argument("source", metavar="INPUT")
@click.argument("path", metavar="INDEX")
@click.option("--append", is_flag=True, help="Add to the index that is there.")
@click.option("--overwrite", is_flag=True, help="Replace the index that is there, once the new one is complete.")
@click.option("--field", default="text", help="The JSONL field that holds the text.")
@click.option("--model", help="A model folder, a name, or 'default'.  [default: default, or the model of the index]")
@click.option("--factory", help="The kind of FAISS index: Flat, HNSW32, IVF256,PQ32, ...  [default: Flat]")
def build(
    source: str, path: str, append: bool, overwrite: bool, field: str, model: str | None, factory: str | None
) -> None:
    """Index the documents of INPUT in the folder INDEX.

    INPUT is text (a document a line, blank lines skipped) or JSONL (*.jsonl, *.ndjson; the field 'id' or '_id' is the
    id, all others are metadata), plain or gzip, or - for standard input. An error leaves INDEX as it was: not there,
    or with its old documents.

    Example: ctx-embed index build reviews.jsonl.gz reviews.index --field review
    """
    from ctx_embed.index.build import build_index

    if append and overwrite:
        raise click.UsageError("--append and --overwrite exclude each other")
    mode: Literal["create", "append", "overwrite"] = "append" if append else "overwrite" if overwrite else "create"
    added = build_index(source, path, mode=mode, text_field=field, model=model, factory=factory, progress=True)
    click.echo(f"{added} documents {'added to' if append else 'indexed in'} {path}")


@index.command(context_settings={"show_default": True})
@click.argument("path", metavar="INDEX")
@click.argument("text")
@click.option("-k", default=10, type=click.IntRange(min=1), help="Hits to show.")
@click.option("--model", help="Where the model of the index is now.  [default: where the index was built]")
@click.option("--json", "as_json", is_flag=True, help="Print an array of objects: id, score, text, metadata.")
def query(path: str, text: str, k: int, model: str | None, as_json: bool) -> None:
    """Find the documents nearest in meaning to TEXT; scores are cosines.

    Example: ctx-embed index query reviews.index "too long, but well acted" -k 3 --json
    """
    from ctx_embed.index import SearchIndex

    with SearchIndex.open(path, model) as opened:
        (hits,) = opened.search(text, k)
    if as_json:
        click.echo(json.dumps([asdict(hit) for hit in hits], ensure_ascii=False, indent=2))
    else:
        _print_table(hits)


def _print_table(hits: list[Hit]) -> None:
    """A line a hit; what a text or an id could do to a terminal or to the columns is taken out."""
    ids = [_one_line(str(hit.id), 40) for hit in hits]
    width = max(map(len, ids), default=0)
    for hit, identifier in zip(hits, ids, strict=True):
        click.echo(f"{hit.score:7.4f}  {identifier:<{width}}  {_one_line(hit.text, SHOWN_CHARACTERS)}")


def _one_line(text: str, length: int) -> str:
    # Only so much of the text is looked at: it may be a whole book.
    words = "".join(c if c.isprintable() else " " for c in text[: 4 * length]).split()
    line = " ".join(words)
    return line if len(line) <= length and len(text) <= 4 * length else line[: length - 1] + "…"


@index.command()
@click.argument("path", metavar="INDEX")
@click.option("--json", "as_json", is_flag=True, help="Print an object.")
def info(path: str, as_json: bool) -> None:
    """Tell how many documents INDEX holds, its model, kind and size.

    Example: ctx-embed index info reviews.index
    """
    from ctx_embed.index.folder import IndexFolder

    folder = IndexFolder(path)
    facts = folder.describe()
    folder.documents.close()
    if as_json:
        click.echo(json.dumps(facts, ensure_ascii=False, indent=2))
    else:
        for name, value in facts.items():
            click.echo(f"{name.replace('_', ' '):<18} {'unknown' if value is None else value}")
