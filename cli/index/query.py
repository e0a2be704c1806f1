"""`ctx-embed index query` and `similar`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ctx_embed.cli.index.documents import SHOWN_CHARACTERS
from ctx_embed.cli.main import command, one_line
from ctx_embed.cli.options import backend_option, options_of, together
from ctx_embed.cli.terminal import styled
from ctx_embed.errors import InputError
from ctx_embed.index.query import Options, is_blank

if TYPE_CHECKING:
    from ctx_embed.index import Hit
    from ctx_embed.index.hits import Hits
    from ctx_embed.index.records import Location

FORMATS = ("json", "jsonl", "csv")
# The options that `similar` lacks: they need the texts of queries.
OF_TEXTS = ("fuse", "min_relevance", "highlight")
# Minimum number of characters to show around a highlight.
FEWEST_CHARACTERS = 20
ID_CHARACTERS, PLACE_CHARACTERS, CELL_CHARACTERS = 40, 80, 24
INDENT = "    "
SHOWN_FIELDS = 4
CONTEXT_CHARACTERS = 600
# Metadata fields that are not shown, because the place of a hit says the same.
_SOURCE_FIELDS = ("source", "line", "page", "modified")
# Marks around the query's words in a snippet, replaced by colours later; printed text never contains these characters.
_OPENING, _CLOSING = "\x02", "\x03"


# How to open the index, and how to print hits.
_printing_options = together(
    click.option(
        "--model", metavar="NAME|PATH", help="Where the index's model is now.  [default: where it was at the build]"
    ),
    backend_option,
    click.option("--memory-map", is_flag=True, help="Leave FAISS's vectors on disk: opens faster, needs less memory."),
    click.option("--json", "as_json", is_flag=True, help="Print an array of hits as JSON, or one for each query."),
    click.option("--jsonl", "as_jsonl", is_flag=True, help="Print each hit as a line of JSON."),
    click.option("--csv", "as_csv", is_flag=True, help="Print a table with a header and a column per field."),
)


@command()
@click.argument("path", metavar="INDEX")
@click.argument("texts", metavar="TEXT...", nargs=-1)
@click.option(
    "--queries",
    "source",
    metavar="FILE",
    help="Read queries from a file or - (stdin), one per line, or vectors (.npy).",
)
@options_of(Options)
@_printing_options
def query(path: str, texts: tuple[str, ...], source: str | None, **options: Any) -> None:
    """Find the passages that answer TEXT by meaning and by words.

    Scores are cosines. By default hits are ordered by `fused`, the mean of the cosine and the score by words, both as
    shares of the query's best; with --fuse, by the sum of 1 / (60 + rank) over the queries.
    "Words in quotation marks" must occur, as a phrase, unless --mode is dense.
    The relevance of a hit (0 to 1) is the share of questions without an answer here whose best hit would be worse.

    \b
    Example: ctx-embed index query reviews.index "too long, but well acted" -k 3 --json
    Example: ctx-embed index query reviews.index "slow plot" --where 'stars >= 4'
    Example: ctx-embed index query reviews.index "opening hours of the museum" --min-relevance 0.8
    Example: ctx-embed index query reviews.index "a bank" --not "a river" --mmr 0.7 --group source
    """
    chosen = _format(options)
    if bool(texts) == (source is not None):
        raise click.UsageError("give either TEXT or --queries")
    if any(map(is_blank, texts)):
        raise InputError("the query is empty; give a word or a question")
    asked: Any = list(texts)
    if source is not None and Path(source).suffix == ".npy":
        import numpy as np

        try:
            asked = np.load(source)
        except (OSError, ValueError) as error:
            raise InputError(f"{source}: must be an array (queries, dimension) of numbers ({error})") from None
        if asked.ndim != 2:
            raise InputError(f"{source}: must be an array (queries, dimension), got the shape {asked.shape}")
    elif source is not None:
        from ctx_embed.reading.rows import read_documents

        asked = [document.text for document in read_documents(source)]
    if not len(asked):
        raise InputError(f"{source}: no queries; give at least one line of text")
    # People in a terminal look for the answer; formats for programs are the same in a terminal and in a pipe.
    options["highlight"] |= sys.stdout.isatty() and chosen is None
    _search(path, chosen, options["fuse"] or len(texts) == 1, {**options, "query": asked})


@command()
@click.argument("path", metavar="INDEX")
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@options_of(Options, but=OF_TEXTS)
@_printing_options
def similar(path: str, ids: tuple[str, ...], **options: Any) -> None:
    """Find documents similar to the documents with the given IDs: more like this.

    These documents are left out. With --mode words and hybrid their words are searched for.

    Example: ctx-embed index similar reviews.index tt0133093 -k 3
    """
    _search(path, _format(options), True, {**options, "like": ids})


def _format(options: dict[str, Any]) -> str | None:
    """Remove the output format from the options and return it; None means text for people."""
    given = [name for name in FORMATS if options.pop(f"as_{name}")]
    if len(given) > 1:
        raise click.UsageError(" and ".join(f"--{name}" for name in given) + " cannot be combined")
    return given[0] if given else None


def _search(path: str, chosen: str | None, single: bool, options: dict[str, Any]) -> None:
    """Search, print the hits in the format ``chosen``, and say why there are none."""
    of_index = {name: options.pop(name) for name in ("model", "memory_map", "backend")}
    # Imported here, because it would slow down the help.
    from ctx_embed.index.hits import DEFAULT_RELEVANCE
    from ctx_embed.index.search_index import SearchIndex

    with SearchIndex.open(path, **of_index) as index:
        hits_or_lists: Any = index.search(**options)
        found: list[Hits] = [hits_or_lists] if options.get("fuse") or "like" in options else hits_or_lists
        corrected: dict[str, str] = {}
        for hits in found:
            corrected |= (hits[0].corrected if hits else None) or {}
        if corrected:
            pairs = ", ".join(f"{word} instead of {typed}" for typed, word in corrected.items())
            them = "it" if len(corrected) == 1 else "them"
            click.echo(f"searched for {pairs}: no document has {them}", err=True)
        if chosen == "json":
            lists = [hits.as_dicts() for hits in found]
            click.echo(json.dumps(lists[0] if single else lists, ensure_ascii=False, indent=2))
        elif chosen == "jsonl":
            for hits in found:
                for values in hits.as_dicts():
                    click.echo(json.dumps({"query": hits.query, **values}, ensure_ascii=False))
        elif chosen == "csv":
            from ctx_embed.writing import cells_writer

            rows, first = list[dict[str, Any]](), ["query", "id", "score", "text", "snippet"]
            for hits in found:
                for values in hits.as_dicts():
                    metadata = values.pop("metadata")
                    # A metadata field may have the same name as a column of the hits.
                    own = {*first, *values}
                    fields = {f"metadata.{name}" if name in own else name: each for name, each in metadata.items()}
                    rows.append({"query": hits.query, **values, **fields})
            names = [*first, *dict.fromkeys(name for row in rows for name in row if name not in first)]
            write = cells_writer(sys.stdout, ",", True)
            write(names)
            for row in rows:
                cells = (row.get(name, "") for name in names)
                write(json.dumps(c, ensure_ascii=False) if isinstance(c, list | dict | bool) else c for c in cells)
        else:
            for number, hits in enumerate(found, 1):
                if not single:
                    title = one_line(hits.query, SHOWN_CHARACTERS) or f"query {number}"
                    click.echo(("\n" if number > 1 else "") + title)
                shown: list[Hit] = hits
                if hits and hits.answered is False:
                    click.echo(
                        f"nothing answers this: no relevance reaches {DEFAULT_RELEVANCE:g}; the nearest:", err=True
                    )
                    shown = [replace(hit, highlight=None) for hit in hits]
                if hits:
                    print_hits(hits.query, shown, list(map(index.source, hits)))
        if not all(found):
            where, threshold = options["where"], options["threshold"]
            if not index.count():
                why = "the index has no documents"
            elif where is not None and not index.count(where):
                why = "no document meets the filter"
            elif options["offset"]:
                why = f"there are fewer than {options['offset'] + 1}"
            elif threshold is not None:
                why = f"no cosine reaches {threshold:g}"
            elif options.get("min_relevance"):
                why = f"no relevance reaches {options['min_relevance']:g}"
            elif options["mode"] == "words":
                why = "no document has a word of the query"
            else:
                why = "nothing is like the query"
            click.echo(f"no hits: {why}", err=True)


def print_hits(query: str, hits: list[Hit], sources: Sequence[Location | None] = ()) -> None:
    """Print hits: scores, id, place and metadata on one line, and below it the part of the passage that fits the query.

    Hits of one document are printed together, at the rank of the best one. In a terminal the query's words are
    coloured and places link to their files. Control characters are removed.
    """
    from ctx_embed.index.hits import rounded_down, snippets

    together: dict[str | int, list[tuple[Hit, Location | None]]] = {}
    for hit, source in zip(hits, sources or [None] * len(hits), strict=True):
        together.setdefault(hit.id, []).append((hit, source))
    ordered = [pair for pairs in together.values() for pair in pairs]
    places = [hit.highlight or (0, len(hit.text)) for hit, _ in ordered]
    plain = [
        hit.text[start:stop].replace(_OPENING, " ").replace(_CLOSING, " ")
        for (hit, _), (start, stop) in zip(ordered, places, strict=True)
    ]
    relevances = [None if hit.relevance is None else rounded_down(hit.relevance) for hit, _ in ordered]
    # The snippets with marks around the query's words, which are bold; click leaves styles out of a pipe.
    marked = [
        "".join(c if c.isprintable() or c in (_OPENING, _CLOSING) else " " for c in snippet)
        for snippet in snippets(query, plain, _OPENING, _CLOSING)
    ]
    for (hit, source), (start, stop), snippet, relevance in zip(ordered, places, marked, relevances, strict=True):
        shown = [f"{hit.score:.4f}"]
        # The score that orders the hits, if that is not the cosine.
        ordering = "fused" if hit.reranked is None else "reranked"
        if (value := getattr(hit, ordering)) is not None:
            shown.append(f"{ordering} {value:.4f}")
        if relevance is not None:
            shown.append(f"relevance {relevance:.2f}")
        # Leave out the id of a file: it is the file's name, which the place shows.
        if source is None or not source.label.startswith(str(hit.id)):
            shown.append(click.style(one_line(str(hit.id), ID_CHARACTERS), bold=True))
        if source is not None:
            place = one_line(source.label, PLACE_CHARACTERS)
            if source.url is not None and sys.stdout.isatty():
                # A link in a terminal (OSC 8); terminals without links show only the text.
                place = f"\x1b]8;;{source.url}\x1b\\{place}\x1b]8;;\x1b\\"
            shown.append(place)
        more = SHOWN_FIELDS
        for name, value in hit.metadata.items():
            is_own = source is not None and name in _SOURCE_FIELDS
            if more and isinstance(value, str | int | float) and value != "" and not is_own:
                cell = value if isinstance(value, str) else json.dumps(value)
                shown.append(f"{one_line(name, CELL_CHARACTERS)}: {one_line(cell, CELL_CHARACTERS)}")
                more -= 1
        click.echo("  ".join(shown), styled(sys.stdout))
        answer, left = "", SHOWN_CHARACTERS
        for number, words in enumerate(" ".join(snippet.split()).replace(_CLOSING, _OPENING).split(_OPENING)):
            if len(words) > left:
                answer += words[: max(left - 1, 0)] + "…"
                break
            left -= len(words)
            answer += click.style(words, bold=True, fg="yellow") if number % 2 else words
        answer, room = answer.rstrip(), SHOWN_CHARACTERS - (stop - start)
        # In a terminal, the highlight has the text around it, dimmed.
        if sys.stdout.isatty() and hit.highlight is not None and room >= FEWEST_CHARACTERS:
            before, after = hit.text[:start], hit.text[stop:]
            if len(before) > room // 3:
                before = "… " + before[-(room // 3) :].partition(" ")[2]
            around = [one_line(before, room), one_line(after, room - len(before))]
            first, last = (click.style(text, dim=True) if text else "" for text in around)
            answer = " ".join(part for part in (first, answer, last) if part)
        click.echo(f"{INDENT}{answer}", styled(sys.stdout))
        if hit.context not in (None, hit.text):
            context = one_line(str(hit.context), CONTEXT_CHARACTERS)
            click.secho(f"{INDENT}{context}", styled(sys.stdout), dim=True)
