"""`ctx-embed index build`."""

from pathlib import Path
from typing import Any

import click

from ctx_embed.cli.index import opened
from ctx_embed.cli.index.sync import show
from ctx_embed.cli.main import command, counted
from ctx_embed.cli.options import backend_option, dtype_option, encoding_option, options_of
from ctx_embed.index.following import FolderOptions


@command()
@click.argument("sources", metavar="INPUT...", nargs=-1, required=True)
@click.argument("path", metavar="INDEX")
@click.option("--append", is_flag=True, help="Add to INDEX, or make it.")
@click.option("--upsert", is_flag=True, help="Add to INDEX, or make it; documents replace those with the same ids.")
@click.option("--overwrite", is_flag=True, help="Replace INDEX once the new one is complete.")
@click.option("--resume", is_flag=True, help="Continue this build if it was interrupted; start it if not.")
@click.option("--from-parquet", is_flag=True, help="INPUT are directories of `encode --to`; use their embeddings.")
@click.option("--embedding-field", metavar="FIELD", help="The field with embeddings made by the model.")
@click.option(
    "--model",
    metavar="NAME|PATH",
    help="A model folder, a name, or 'default'.  [default: default, or the model of the index]",
)
@backend_option
@click.option(
    "--factory", metavar="KIND", help="The kind of FAISS index: auto, Flat, HNSW32, IVF256,PQ32, ...  [default: auto]"
)
@dtype_option("[default: float32]")
@click.option(
    "--chunk",
    metavar="RULE",
    help="Cut documents: none, sentences, tokens:N, or passages[:N] of at most N tokens between paragraphs.  "
    "[default: none; passages for folders and whole files]",
)
@options_of(FolderOptions)
@encoding_option
def build(
    sources: tuple[str, ...], path: str, append: bool, upsert: bool, overwrite: bool, from_parquet: bool, **options: Any
) -> None:
    """Index the documents of INPUT in the folder INDEX.

    INPUT is a folder, a file, or - for standard input. In a folder every file is a document, cut into passages: text,
    Markdown and source code in any encoding, HTML, Word and more, and with the extra 'documents' PDF. The same
    command again brings INDEX in step with the folder, see 'index sync'.

    A named file is text (one document per line, blank lines skipped), label<TAB>text, JSONL or a JSON array, CSV or
    TSV with a header, or Parquet, plain or gzipped; any other is one document, as in a folder. Except in text, the
    field 'id' or '_id' is the id and all other fields become metadata. A new INDEX appears only when everything is
    ready; until then, finished work is in INDEX.partial. An error leaves INDEX unchanged.

    \b
    Example: ctx-embed index build notes/ notes.index --exclude 'drafts/'
    Example: ctx-embed index build reviews.jsonl.gz reviews.index --field review
    Example: ctx-embed index build --from-parquet embeddings/ articles.index
    """
    chosen = [name for name, given in (("append", append), ("upsert", upsert), ("overwrite", overwrite)) if given]
    if len(chosen) > 1:
        raise click.UsageError(" and ".join(f"--{name}" for name in chosen) + " cannot be combined")

    mode = chosen[0] if chosen else "create"
    adds = (append or upsert) and Path(path).exists()
    if from_parquet:
        used = {name: options.pop(name) for name in ("resume", "model", "factory", "dtype")}
        for name, value in options.items():
            if value and name != "backend":
                raise click.UsageError(
                    f"--{name.replace('text_', '').replace('_', '-')} and --from-parquet cannot be combined"
                )
        from ctx_embed.stores.indexing import index_parquet

        built = index_parquet(sources, path, mode=mode, **used, progress=True)
    else:
        from ctx_embed.index.build import build_index

        built = build_index(sources, path, mode=mode, progress=True, **options)
    if built.was_complete:
        were = "was" if built.documents == 1 else "were"
        click.echo(f"nothing to do: {counted(built.documents, 'document')} {were} indexed in {path} already")
    elif built.folders is not None:
        show(built.folders, path)
    else:
        click.echo(f"{counted(built.documents, 'document')} {'added to' if adds else 'indexed in'} {path}")
    from ctx_embed.index.faiss_file import AUTO, EXACT_ROWS, searched

    with opened(path) as index:
        facts = index.describe()
    if facts["factory"] == AUTO and facts["vectors"] > EXACT_ROWS:
        click.echo(f"above {EXACT_ROWS:,} passages, --factory auto leaves exact search: {searched(facts['faiss'])}")
