"""`ctx-embed index query`."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from ctx_embed.cli.options import backend_option
from ctx_embed.errors import InputError

if TYPE_CHECKING:
    from ctx_embed.index import Hit

# Of each text in the table of hits, so many characters are shown.
SHOWN_CHARACTERS = 160


@click.command(context_settings={"show_default": True})
@click.argument("path", metavar="INDEX")
@click.argument("texts", metavar="TEXT...", nargs=-1)
@click.option("--queries", "source", metavar="FILE", help="Read queries from a file, one a line, or from - .")
@click.option("-k", default=10, type=click.IntRange(min=1), help="Hits of each query.")
@click.option(
    "--mode", default="dense", type=click.Choice(["dense", "words", "hybrid"]), help="Find by meaning, words, or both."
)
@click.option("--where", metavar="FILTER", help="What the metadata must meet, e.g. 'year >= 2020 and lang = \"en\"'.")
@click.option("--threshold", type=click.FloatRange(-1, 1), help="The lowest cosine of a hit.")
@click.option("--model", help="Where the model of the index is now.  [default: where the index was built]")
@backend_option
@click.option("--memory-map", is_flag=True, help="Leave FAISS's vectors on disk: opens quicker, in less memory.")
@click.option("--json", "as_json", is_flag=True, help="Print an array of hits; of arrays for several queries.")
@click.option("--jsonl", "as_jsonl", is_flag=True, help="Print an object a line, with its query.")
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
    """Find the documents nearest in meaning to TEXT; scores are cosines.

    \b
    Example: ctx-embed index query reviews.index "too long, but well acted" -k 3 --json
    Example: ctx-embed index query reviews.index "slow plot" --mode hybrid --where 'stars >= 4'
    """
    from ctx_embed.index import SearchIndex
    from ctx_embed.reading import read_documents

    if as_json and as_jsonl:
        raise click.UsageError("--json and --jsonl exclude each other")
    if bool(texts) == (source is not None):
        raise click.UsageError("a TEXT or --queries is needed, and not both")
    asked = list(texts) if source is None else [document.text for document in read_documents(source)]
    if not asked:
        raise InputError(f"{source}: no queries, at least one line of text is needed")
    with SearchIndex.open(path, model, memory_map, backend) as opened:
        found = opened.search(asked, k, mode=mode, where=where, threshold=threshold)
    if as_json:
        lists = [[_object(text, hit) for hit in hits] for text, hits in zip(asked, found, strict=True)]
        single = len(texts) == 1
        click.echo(json.dumps(lists[0] if single else lists, ensure_ascii=False, indent=2))
    elif as_jsonl:
        for text, hits in zip(asked, found, strict=True):
            for hit in hits:
                click.echo(json.dumps({"query": text, **_object(text, hit)}, ensure_ascii=False))
    else:
        for place, (text, hits) in enumerate(zip(asked, found, strict=True)):
            if len(asked) > 1:
                click.echo(("\n" if place else "") + one_line(text, SHOWN_CHARACTERS))
            _print_table(text, hits)


def _object(text: str, hit: Hit) -> dict[str, Any]:
    """A hit as JSON; the document stands beside the passage where that is a part of it."""
    from ctx_embed.index import snippet

    fields = asdict(hit)
    if hit.document == hit.text:
        del fields["document"], fields["start"]
    return {**fields, "snippet": snippet(text, hit.text)}


def _print_table(text: str, hits: list[Hit]) -> None:
    """A line a hit; what a text or an id could do to a terminal or to the columns is taken out."""
    from ctx_embed.index import snippet

    ids = [one_line(str(hit.id), 40) for hit in hits]
    width = max(map(len, ids), default=0)
    for hit, identifier in zip(hits, ids, strict=True):
        shown = one_line(snippet(text, hit.text), SHOWN_CHARACTERS)
        click.echo(f"{hit.score:7.4f}  {identifier:<{width}}  {shown}")


def one_line(text: str, length: int) -> str:
    """The beginning of a text without what a terminal would act on."""
    # Only so much of the text is looked at: it may be a whole book.
    words = "".join(c if c.isprintable() else " " for c in text[: 4 * length]).split()
    line = " ".join(words)
    return line if len(line) <= length and len(text) <= 4 * length else line[: length - 1] + "…"
