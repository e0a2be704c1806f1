"""`ctx-embed index query`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from ctx_embed.cli.index_documents import unknown_fields
from ctx_embed.cli.options import backend_option
from ctx_embed.cli.output import SHOWN_CHARACTERS, one_line, print_hits
from ctx_embed.errors import InputError

if TYPE_CHECKING:
    from ctx_embed.index import Hit, SearchIndex


@click.command(context_settings={"show_default": True})
@click.argument("path", metavar="INDEX")
@click.argument("texts", metavar="TEXT...", nargs=-1)
@click.option("--queries", "source", metavar="FILE", help="Read queries from a file or - (stdin), one per line.")
@click.option("-k", default=10, type=click.IntRange(min=1), help="Hits for each query.")
@click.option(
    "--mode",
    default="dense",
    type=click.Choice(["dense", "words", "hybrid"]),
    help="Find by meaning, keywords, or both.",
)
@click.option("--where", metavar="FILTER", help="A metadata filter, e.g. 'year >= 2020 and lang = \"en\"'.")
@click.option("--threshold", type=click.FloatRange(-1, 1), help="The lowest cosine of a hit.")
@click.option("--model", help="Where the index's model is now.  [default: where it was at the build]")
@backend_option
@click.option("--memory-map", is_flag=True, help="Leave FAISS's vectors on disk: opens faster and needs less memory.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print a JSON array of hits; for several queries, an array of such arrays."
)
@click.option("--jsonl", "as_jsonl", is_flag=True, help="Print a JSON object per hit and line, with its query.")
def query(
    path: str,
    texts: tuple[str, ...],
    source: str | None,
    k: int,
    mode: str,
    where: str | None,
    threshold: float | None,
    model: str | None,
    backend: str | None,
    memory_map: bool,
    as_json: bool,
    as_jsonl: bool,
) -> None:
    """Find the documents nearest in meaning to TEXT.

    Scores are cosines. With --mode hybrid the hits are ordered by `fused`, the sum of 1 / (60 + rank) over the ranks
    by meaning and by words.

    \b
    Example: ctx-embed index query reviews.index "too long, but well acted" -k 3 --json
    Example: ctx-embed index query reviews.index "slow plot" --mode hybrid --where 'stars >= 4'
    """
    if as_json and as_jsonl:
        raise click.UsageError("--json and --jsonl exclude each other")
    if bool(texts) == (source is not None):
        raise click.UsageError("give either TEXT or --queries")

    from ctx_embed.index import SearchIndex
    from ctx_embed.index.storage.filters import parse_filter
    from ctx_embed.reading import read_documents

    if where is not None:
        # Check the filter before the model is loaded.
        parse_filter(where)
    asked = list(texts) if source is None else [document.text for document in read_documents(source)]
    if not asked:
        raise InputError(f"{source}: no queries; give at least one line of text")
    with SearchIndex.open(path, model, memory_map, backend) as opened:
        found = opened.search(asked, k, mode=mode, where=where, threshold=threshold)
        _print(asked, found, as_json, as_jsonl, single=len(texts) == 1)
        if not all(found):
            click.echo(_why_none(opened, mode, where, threshold), err=True)


def _print(asked: list[str], found: Sequence[list[Hit]], as_json: bool, as_jsonl: bool, single: bool) -> None:
    if as_json:
        lists = [[_object(text, hit) for hit in hits] for text, hits in zip(asked, found, strict=True)]
        click.echo(json.dumps(lists[0] if single else lists, ensure_ascii=False, indent=2))
    elif as_jsonl:
        for text, hits in zip(asked, found, strict=True):
            for hit in hits:
                click.echo(json.dumps({"query": text, **_object(text, hit)}, ensure_ascii=False))
    else:
        for place, (text, hits) in enumerate(zip(asked, found, strict=True)):
            if len(asked) > 1:
                click.echo(("\n" if place else "") + one_line(text, SHOWN_CHARACTERS))
            if hits:
                print_hits(text, hits)


def _object(text: str, hit: Hit) -> dict[str, Any]:
    """Return a hit as JSON values: with its document if the passage is only part of it, and a fused score if any."""
    from ctx_embed.index import snippet

    fields = asdict(hit)
    if hit.document == hit.text:
        del fields["document"], fields["start"]
    if hit.fused is None:
        del fields["fused"]
    return {**fields, "snippet": snippet(text, hit.text)}


def _why_none(index: SearchIndex, mode: str, where: str | None, threshold: float | None) -> str:
    """Return a message about why a query has no hits."""
    if not index.count():
        return "no hits: the index has no documents"
    if where is not None and not index.count(where):
        return f"no hits: {unknown_fields(index, where) or 'no document meets the filter'}"
    if threshold is not None:
        return f"no hits: no cosine reaches {threshold:g}"
    return "no hits: no document has a word of the query" if mode == "words" else "no hits"
