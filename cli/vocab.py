"""`ctx-embed vocab`: learn a vocabulary from text."""

from pathlib import Path

import click

from ctx_embed.cli.main import command
from ctx_embed.cli.options import encoding_option, field_option, output_option


@command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@output_option("The tokenizer to write.", metavar="TOKENIZER.json", required=True)
@click.option(
    "--vocabulary-size", "size", default=32_000, type=click.IntRange(min=3), help="Maximum number of entries."
)
@field_option
@encoding_option
def vocab(files: tuple[str, ...], output: Path, size: int, text_field: tuple[str, ...], encoding: str | None) -> None:
    """Learn a lower-case WordPiece vocabulary from FILEs.

    A FILE is text, CSV, TSV, JSONL, Parquet or a spreadsheet, plain or gzip; `-` is standard input.

    Example: ctx-embed vocab a.txt b.txt.gz -o tokenizer.json --vocabulary-size 8000
    """
    from ctx_embed.files import replaced_file, require_file
    from ctx_embed.reading.rows import read_documents
    from ctx_embed.training.vocabulary import learn_vocabulary

    require_file(output)
    texts = (document.text for file in files for document in read_documents(file, text_field, encoding=encoding))
    tokenizer = learn_vocabulary(texts, size)
    with replaced_file(output) as beside:
        tokenizer.save(str(beside))
    click.echo(f"{output}: {tokenizer.get_vocab_size()} entries")
