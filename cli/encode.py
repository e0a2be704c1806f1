"""`ctx-embed encode`: texts to a file of embeddings."""

from __future__ import annotations

from pathlib import Path

import click

from ctx_embed.cli.options import OUTPUT, backend_option, field_option
from ctx_embed.cli.output import counted
from ctx_embed.errors import InputError


@click.command(context_settings={"show_default": True})
@click.argument("source", metavar="INPUT")
@click.option("-o", "--output", required=True, metavar="OUT", type=OUTPUT, help="Where to write; - is standard output.")
@click.option("--model", default="default", metavar="NAME|PATH", help="'default', or a SentenceTransformer's folder.")
@field_option
@backend_option
@click.option("--batch-size", type=click.IntRange(min=1), help="Texts in one batch, at most.  [default: by the model]")
def encode(
    source: str, output: Path, model: str, field: str | None, backend: str | None, batch_size: int | None
) -> None:
    """Embed the texts of INPUT, in order.

    INPUT is text (one text per line, blank lines are skipped), CSV, TSV, JSONL or Parquet, plain or gzip, or - for
    standard input. The suffix of OUT names its format: .npy holds only the float32 array (texts, dimension); .jsonl and
    .parquet also hold ids, texts and metadata, with the embedding in the field `embedding`; .csv has one column for
    each dimension; - prints JSONL. A file is written whole or not at all.

    \b
    Example: ctx-embed encode reviews.txt -o reviews.npy
    Example: ctx-embed encode news.csv --field headline -o news.parquet
    """
    from ctx_embed.files import require_other_file
    from ctx_embed.reading import read_documents, source_name
    from ctx_embed.writing import STANDARD_OUTPUT, require_embeddings_file, write_embeddings

    require_embeddings_file(output)
    require_other_file(output, source)
    documents = list(read_documents(source, field))
    if not documents:
        raise InputError(f"{source_name(source)}: no texts to embed")

    from ctx_embed.encoders import embed, load_encoder
    from ctx_embed.text.unknown import sample, unknown_share, warning

    encoder = load_encoder(model, backend)
    texts = [document.text for document in documents]
    if said := warning(unknown_share(encoder.tokenizer, sample(texts))):
        click.echo(said, err=True)
    embeddings = embed(encoder, texts, batch_size or encoder.batch_size)
    write_embeddings(output, documents, embeddings)
    if output != STANDARD_OUTPUT:
        count, dimension = embeddings.shape
        click.echo(f"{counted(count, 'embedding')} of dimension {dimension} in {output}")
