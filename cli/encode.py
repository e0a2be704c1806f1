"""`ctx-embed encode`: texts to a file of embeddings, or to a directory or database of any size."""

from itertools import chain
from pathlib import Path
from typing import Any

import click

from ctx_embed.cli.main import command, counted, printable
from ctx_embed.cli.options import backend_option, encoding_option, output_option, text_options
from ctx_embed.errors import InputError

# Maximum number of rows to list if rows could not be embedded.
SHOWN = 10
# Maximum number of rows to embed at a time if the results are printed.
BLOCK = 4096


@command()
@click.argument("inputs", metavar="INPUT...", nargs=-1, required=True)
@output_option("Where to write one file; - is standard output.")
@click.option("--to", "target", metavar="TARGET", help="A directory or a database to write to instead, see above.")
@click.option("--model", default="default", metavar="NAME|PATH", help="'default', or a SentenceTransformer's folder.")
@text_options
@encoding_option
@backend_option
@click.option("--batch-size", type=click.IntRange(min=1), help="Maximum texts in a batch.  [default: by the model]")
@click.option(
    "--workers", type=click.IntRange(min=1), help="With --to, number of threads that embed.  [default: one per core]"
)
@click.option("--json", "as_json", is_flag=True, help="With --to, print the numbers and what was left out as JSON.")
def encode(
    inputs: tuple[str, ...],
    output: Path | None,
    target: str | None,
    batch_size: int | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Embed the texts of INPUT, in order, into a file, or with --to into a directory or database.

    INPUT is text (one text per line, blank lines are skipped), CSV, TSV, JSON, Parquet or a spreadsheet, plain or gzip,
    or - for standard input. The suffix of OUT names its format: .npy holds only the float32 array (texts, dimension);
    .jsonl and .parquet also hold ids, texts and metadata, with the embedding in the field `embedding`; .csv has a
    column for each dimension; - prints JSONL, each row as it arrives if INPUT is - too. A file is written whole, or not
    at all.

    With --to, INPUT may be any number of files, folders, globs and URIs (s3://bucket/folder); several threads embed
    them. TARGET is a directory, which gets Parquet files, postgresql://USER@HOST/DATABASE#TABLE,
    lancedb:FOLDER#TABLE or qdrant:http://HOST:6333#COLLECTION. Rows are stored by id; without one, a row's id is
    FILE:NUMBER, in a workbook of several sheets FILE:SHEET:NUMBER. Repeat an interrupted command to resume it. Rows
    that cannot be embedded are counted and named.

    \b
    Example: ctx-embed encode reviews.txt -o reviews.npy
    Example: ctx-embed encode news.csv --field headline -o news.parquet
    Example: ctx-embed encode 'crawl/*.jsonl.gz' --to embeddings/ --workers 8
    """
    if (output is None) == (target is None):
        raise click.UsageError("give either -o OUT (one file) or --to TARGET (a directory or a database).")
    if target is not None:
        if batch_size is not None:
            raise click.UsageError("--batch-size is for -o; --to has batches of its own.")

        from ctx_embed.bulk_encoding import encode_dataset
        from ctx_embed.stores import open as open_store
        from ctx_embed.writing import json_of

        found = encode_dataset(inputs, target, progress=True, **options)
        if as_json:
            numbers = {name: value for name, value in vars(found).items() if name != "report"}
            click.echo(json_of({**numbers, **vars(found.report)}))
            return
        for line in found.named[:SHOWN]:
            click.echo(printable(f"left out: {line}"), err=True)
        if found.bad:
            more = f", of which {SHOWN} are named above" if found.bad > SHOWN else ""
            click.echo(f"{counted(found.bad, 'row')} could not be embedded{more}", err=True)
        found.report.print()
        held = f"{counted(found.count, 'embedding')} of dimension {found.dimension} in {open_store(target).name}"
        if found.was_complete:
            click.echo(f"nothing to do: {held} already")
        else:
            click.echo(f"{counted(found.rows, 'row')} encoded: {held}")
        return

    if options["workers"] is not None or as_json:
        raise click.UsageError(f"--{'json' if as_json else 'workers'} needs --to TARGET.")
    fields = options["text_field"]
    if output is not None and output.suffix.lower() == ".npy" and (fields.id or fields.title):
        raise click.UsageError("--id-field and --title-field: .npy holds embeddings alone; leave them out.")
    if len(inputs) > 1:
        raise click.UsageError("-o takes one INPUT; use --to TARGET for several.")
    (source,) = inputs
    assert output is not None

    from ctx_embed.files import require_other_file
    from ctx_embed.reading.opening import source_name
    from ctx_embed.reading.rows import arriving, in_blocks, read_documents
    from ctx_embed.writing import STANDARD_OUTPUT, require_embeddings_file, write_embeddings

    is_printed = output == STANDARD_OUTPUT
    require_embeddings_file(output)
    require_other_file(output, source)
    rows = read_documents(source, fields, encoding=options["encoding"])
    # Print results block by block, from standard input as lines arrive. A file is written in one go.
    blocks = (arriving(rows, BLOCK) if source == "-" else in_blocks(rows, BLOCK)) if is_printed else iter([list(rows)])
    documents = next(blocks, [])
    if not documents:
        raise InputError(f"{source_name(source)}: no texts to embed")

    from ctx_embed.model import Model

    encoder = Model.of(options["model"], options["backend"])
    for block in chain([documents], blocks):
        texts = [document.text for document in block]
        embeddings = encoder.encode(texts, batch_size, progress=True)
        write_embeddings(output, block, embeddings)
    if not is_printed:
        count, dimension = embeddings.shape
        click.echo(f"{counted(count, 'embedding')} of dimension {dimension} in {output}")
