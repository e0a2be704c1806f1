"""`ctx-embed distill`: train an encoder to reproduce a teacher's embeddings."""

import time
from pathlib import Path
from typing import Any

import click

from ctx_embed.cli.main import command
from ctx_embed.cli.options import (
    OF_RECIPE,
    OUTPUT,
    chosen_options,
    corpus_files,
    data_option,
    encoder_options,
    field_options,
    options_of,
)
from ctx_embed.progress import duration
from ctx_embed.training.options import ContextualizerOptions, DistillationJob, Source, read_recipe

# Options of the command that a recipe must not set.
NOT_OF_RECIPE = {"recipe", "output", "data", "cache", "more", "overwrite", "device"}


def _read_recipe(context: click.Context, parameter: click.Parameter, value: Path | None) -> None:
    """Make the recipe's values the defaults of the other options."""
    if value is not None:
        names = {option.name or "" for option in context.command.params} - NOT_OF_RECIPE | {"sources"}
        recipe = context.meta[OF_RECIPE] = read_recipe(value, names)
        # Pass numbers as text, as the command line does, so that 1.5 epochs are an error instead of being cut to 1.
        context.default_map = {
            name: option if isinstance(option, list) else str(option)
            for name, option in recipe.items()
            if name not in ("sources", "encoder_options")
        }


@command()
@click.option(
    "--corpus",
    multiple=True,
    metavar="FILE...",
    help="Files of texts: one sentence per line, or per row of CSV, TSV, JSONL, Parquet or a spreadsheet.",
)
@click.argument("more", nargs=-1, metavar="[FILE...]")
@click.option("-o", "--output", required=True, type=OUTPUT, metavar="OUT", help="The model folder to write.")
@click.option(
    "--recipe",
    type=click.Path(path_type=Path),
    is_eager=True,
    expose_value=False,
    callback=_read_recipe,
    metavar="FILE.toml",
    help="TOML file of option values; the command line overrides it.",
)
@field_options
@data_option
@click.option(
    "--sentences", type=click.IntRange(min=1), help="Approximate number of sentences to read.  [default: all]"
)
@encoder_options
@options_of(ContextualizerOptions, hidden=True)
@options_of(DistillationJob, section="Training")
def distill(
    output: Path,
    corpus: tuple[str, ...],
    more: tuple[str, ...],
    sentences: int | None,
    exclude: tuple[str, ...],
    labelled: tuple[str, ...],
    skip: str | None,
    validation: str | None,
    data: Path | None,
    **options: Any,
) -> None:
    """Train an encoder over a token table to reproduce a teacher's embeddings.

    Run the same command again to resume an interrupted run: the teacher's embeddings and, in OUT.partial, the state of
    the training are stored. A finished run is not repeated, and a model made by another command is replaced only with
    --overwrite. A recipe may have several sources of texts in [[sources]] tables; --corpus replaces
    them.

    Example: ctx-embed distill --corpus a.txt b.txt.gz --teacher all-MiniLM-L6-v2 -o my-model
    """
    from ctx_embed.loading import model_folder

    began = time.monotonic()
    tables = click.get_current_context().meta.get(OF_RECIPE, {}).get("sources", [])
    if corpus + more:
        sources = [Source(corpus_files(corpus + more, data), sentences)]
    else:
        if sentences is not None and tables:
            raise click.UsageError("--sentences needs --corpus; each of the recipe's [[sources]] has its own texts")
        sources = [Source(**{**table, "files": corpus_files(tuple(table["files"]), data)}) for table in tables]
    if not sources:
        raise click.UsageError("Missing option '--corpus'.")
    # Check before the slow imports that the models exist: a missing model is the most frequent mistake.
    for model in (options["teacher"], options["second_teacher"], options["start"]):
        if model is not None:
            model_folder(model)

    from ctx_embed.training.distillation.job import distill as distilled

    options["encoder_options"] = chosen_options(options["encoder"], options["encoder_options"])
    for name, value in (("skip", skip), ("validation", validation)):
        options[name] = str(corpus_files((value,), data)[0]) if value else None
    options["exclude"] = corpus_files(exclude, data)
    options["labelled"] = corpus_files(labelled, data)
    summary = distilled(sources, output, **options)
    click.echo(
        f"{output}: trained on {summary['trained_texts']:,} texts, held-out 1 - cos "
        f"{summary['held_out_distance']:.4f} ({summary['held_out_texts']:,} held out)"
    )
    click.echo(
        f"took {duration(time.monotonic() - began)}; next: ctx-embed eval run --encoder {output} --encoder default "
        "--task STSB",
        err=True,
    )
