"""`ctx-embed encode`: texts to a file of embeddings."""

from __future__ import annotations

from pathlib import Path

import click

from ctx_embed.cli.options import OUTPUT
from ctx_embed.errors import InputError


@click.command(context_settings={"show_default": True})
@click.argument("source", metavar="INPUT")
@click.option("-o", "--output", required=True, metavar="OUT.npy", type=OUTPUT, help="Where to write.")
@click.option("--model", default="default", metavar="NAME|PATH", help="'default', or a SentenceTransformer's folder.")
@click.option("--field", default="text", help="The JSONL field that holds the text.")
@click.option("--batch-size", default=256, type=click.IntRange(1, 256), help="Texts in one batch, at most.")
def encode(source: str, output: Path, model: str, field: str, batch_size: int) -> None:
    """Embed the texts of INPUT, in order, into a .npy file: a float32 array (texts, dimension).

    INPUT is text (a text a line, blank lines skipped) or JSONL, plain or gzip, or - for standard input. OUT.npy is
    written whole or not at all; numpy.load reads it.

    Example: ctx-embed encode reviews.txt -o reviews.npy
    """
    import numpy as np

    from ctx_embed.eval.encoders import load_encoder
    from ctx_embed.eval.encoding import embed
    from ctx_embed.files import replaced_file, require_file
    from ctx_embed.texts import read_documents

    require_file(output)
    texts = [document.text for document in read_documents(source, field)]
    if not texts:
        raise InputError(f"{'standard input' if source == '-' else source}: no texts, there is nothing to embed")
    embeddings = embed(load_encoder(model), texts, batch_size)
    # numpy.save adds .npy to a name, but not to an open file.
    with replaced_file(output) as beside, beside.open("wb") as file:
        np.save(file, embeddings)
    count, dimension = embeddings.shape
    click.echo(f"{count} {'embedding' if count == 1 else 'embeddings'} of dimension {dimension} in {output}")
