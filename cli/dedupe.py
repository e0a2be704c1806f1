"""`ctx-embed dedupe`: files without near-duplicate rows."""

import json
from pathlib import Path
from typing import Any

import click

from ctx_embed.cli.main import command, counted
from ctx_embed.cli.options import OUTPUT, encoding_option, new_output, output_option, text_options
from ctx_embed.texts import well_formed

_SHARE = click.FloatRange(0, 1, min_open=True)


@command()
@click.argument("sources", metavar="FILE...", nargs=-1, required=True)
@output_option("Where to write; - is standard output.", required=True)
@click.option(
    "--groups",
    metavar="FILE",
    type=OUTPUT,
    callback=new_output,
    help="Also write each kept row with the rows that were dropped for it, as JSONL.",
)
@text_options
@encoding_option
@click.option(
    "--threshold",
    default=0.6,
    type=_SHARE,
    help="Minimum Jaccard similarity of near-duplicates, as sets of sequences of six bytes.",
)
@click.option(
    "--meaning",
    metavar="COSINE",
    type=_SHARE,
    help="Also compare embeddings: minimum cosine of near-duplicates, e.g. 0.95.",
)
@click.option("--model", metavar="NAME|PATH", help="The model for --meaning.  [default: default]")
@click.option("--json", "as_json", is_flag=True, help="Print the numbers, and which files were left out, as JSON.")
def dedupe(sources: tuple[str, ...], output: Path, meaning: float | None, model: str | None, **options: Any) -> None:
    """Keep the first of each group of near-duplicate rows in FILEs, in order and unchanged.

    FILE is text (a row per line), JSONL, CSV, TSV or Parquet, plain or gzip, a folder of such files, or - for standard
    input; OUT has the same format. Folders are walked as by 'index build', and what holds no rows is named. Rows are
    near-duplicates if they are equal apart from case, punctuation and spaces, or if they have the same numbers and
    similar characters; with --meaning, also if they have the same numbers and similar embeddings, which know little
    about word order and negation.

    \b
    Example: ctx-embed dedupe reviews.jsonl --field review -o unique.jsonl --groups dropped.jsonl
    Example: ctx-embed dedupe a.txt.gz b.txt.gz -o all.txt.gz --threshold 0.8
    """
    as_json = options.pop("as_json")
    if model is not None and meaning is None:
        raise click.UsageError("--model needs --meaning")

    from ctx_embed.deduplication import dedupe as deduplicated

    found = deduplicated(sources, output, meaning=meaning, model=model, progress=True, **options)
    dropped = found.rows - found.kept
    groups = f", near-duplicates of {counted(found.groups, 'row')}" if dropped else ""
    to_error = str(output) == "-"
    if as_json:
        numbers = {name: value for name, value in vars(found).items() if name != "report"}
        click.echo(well_formed(json.dumps({**numbers, **vars(found.report)}, ensure_ascii=False)), err=to_error)
        return
    found.report.print()
    click.echo(f"{output}: {found.kept} of {counted(found.rows, 'row')} kept, {dropped} dropped{groups}", err=to_error)
