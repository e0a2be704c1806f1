"""`ctx-embed distill`: train an encoder to give a teacher's embeddings."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from ctx_embed.cli.options import (
    DECAY,
    LEARNING_RATE,
    OF_RECIPE,
    OUTPUT,
    SEED,
    WEIGHT,
    architecture_options,
    chosen_options,
    corpus_files,
    data_option,
    duration,
    encoder_options,
    field_options,
)


def _read_recipe(context: click.Context, parameter: click.Parameter, value: Path | None) -> None:
    """Make the recipe's values the defaults of the other options."""
    if value is not None:
        from ctx_embed.training.distillation.recipe import read_recipe

        given = {"recipe", "output", "data", "cache", "more", "overwrite", "plot", "score"}
        names = {option.name or "" for option in context.command.params} - given | {"sources"}
        recipe = context.meta[OF_RECIPE] = read_recipe(value, names)
        # As on the command line, numbers are parsed from text: 1.5 epochs are refused, not cut to 1.
        context.default_map = {
            name: option if isinstance(option, list) else str(option)
            for name, option in recipe.items()
            if name not in ("sources", "encoder_options")
        }


@click.command()
@click.option(
    "--corpus",
    multiple=True,
    metavar="FILE...",
    help="Texts: a sentence a line, or a row of CSV, TSV, JSONL or Parquet.",
)
@click.argument("more", nargs=-1, metavar="[FILE...]")
@click.option("--teacher", required=True, metavar="PATH", help="Any SentenceTransformer; minilm is all-MiniLM-L6-v2.")
@click.option("--second-teacher", metavar="PATH", help="Teaches the second_texts of a recipe's sources as well.")
@click.option("--second-weight", default=0.5, show_default=True, type=WEIGHT, help="Of the second teacher.")
@click.option("--from", "start", metavar="MODEL", help="Begin as this model, with its vocabulary and sizes.")
@click.option("-o", "--output", required=True, type=OUTPUT, metavar="OUT", help="The model folder to write.")
@click.option(
    "--recipe",
    type=click.Path(path_type=Path),
    is_eager=True,
    expose_value=False,
    callback=_read_recipe,
    metavar="FILE.toml",
    help="Options by name; those given here go first.",
)
@field_options
@data_option
@click.option("--cache", type=OUTPUT, metavar="DIR", help="Keeps the teacher's embeddings; else OUT.teacher.")
@click.option("--sentences", type=click.IntRange(min=1), help="Read about so many sentences; else all.")
@encoder_options
@click.option("--tokenizer", metavar="FILE", help="tokenizer.json; else learned from the corpus.")
@click.option("--vocabulary-size", default=32_000, show_default=True, type=click.IntRange(min=3))
@click.option("--phrases", default=0, show_default=True, type=click.IntRange(min=0), help="Entries of several words.")
@click.option(
    "--spare-dimensions", default=0, show_default=True, type=click.IntRange(min=0), help="0 in the teacher's."
)
@architecture_options(dimension=256, steps=3, rank=64, positions="none", scale="mean", initial_context="ones")
@click.option("--epochs", default=3, show_default=True, type=click.IntRange(min=1))
@click.option("--batch-size", default=256, show_default=True, type=click.IntRange(min=2))
@click.option("--learning-rate", default=5e-3, show_default=True, type=LEARNING_RATE)
@click.option("--averaging", default=0.0, show_default=True, type=DECAY, help="Decay of the weights' moving average.")
@click.option("--relation-weight", default=2.0, show_default=True, type=WEIGHT, help="Of the teacher's cosines.")
@click.option("--genre-weight", default=0.0, show_default=True, type=WEIGHT, help="Of naming the text's file.")
@click.option("--pair-weight", default=0.0, show_default=True, type=WEIGHT, help="Of finding a text's partner.")
@click.option("--pair-batch", default=64, show_default=True, type=click.IntRange(min=2), help="Pairs of a batch.")
@click.option(
    "--held-out",
    type=click.IntRange(min=2),
    help="Texts that are not trained on and measure the distance.  [default: 10 %, at most 4096]",
)
@click.option(
    "--exclude", multiple=True, metavar="FILE", help="Texts, or columns of them, that must not be trained on."
)
@click.option(
    "--labelled", multiple=True, metavar="FILE", help="label<TAB>text, or a table, to learn beside the teacher."
)
@click.option("--skip", metavar="FILE.json", help="Lines of the labelled files to leave out.")
@click.option("--label-weight", default=0.3, show_default=True, type=WEIGHT, help="Of the labels in the loss.")
@click.option(
    "--labels-from", default="all", show_default=True, type=click.Choice(["all", "spare"]), help="Dimensions read."
)
@click.option("--word-weight", default=0.0, show_default=True, type=WEIGHT, help="Of naming the text's own words.")
@click.option("--validation", metavar="FILE", help="score<TAB>text<TAB>text, measured after each epoch.")
@click.option("--seed", default=0, show_default=True, type=SEED)
@click.option("--teacher-dtype", default="float32", show_default=True, type=click.Choice(["float32", "bfloat16"]))
@click.option("--store", default="float32", show_default=True, type=click.Choice(["float32", "float16", "int8"]))
@click.option("--overwrite", is_flag=True, help="Replace the model in OUT, once the new one is complete.")
@click.option("--plot", type=OUTPUT, metavar="FILE.png", help="Draw the course of the training (extra plots).")
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
    plot: Path | None,
    score: str | None,
    **options: Any,
) -> None:
    """Train an encoder over a token table to give the embeddings of a teacher.

    The teacher's embeddings are kept in shards and the training's state in OUT.partial, so that the same command
    resumes where it was interrupted; a finished run is not repeated, and a model that another command made is kept
    unless --overwrite is given. A recipe may name several sources of texts, with weights, in [[sources]] tables;
    --corpus takes their place.

    Example: ctx-embed distill --corpus a.txt b.txt.gz --teacher all-MiniLM-L6-v2 -o my-model
    """
    from ctx_embed.files import require_file
    from ctx_embed.training.distillation.files import LOG
    from ctx_embed.training.distillation.files import distill as distilled
    from ctx_embed.training.distillation.log import plot_log, require_matplotlib
    from ctx_embed.training.distillation.mixture import Source

    began = time.monotonic()
    options["encoder_options"] = chosen_options(options["encoder"], options["encoder_options"], score)
    if plot is not None:
        require_file(plot)
        require_matplotlib()
    if corpus + more:
        sources = [Source(corpus_files(corpus + more, data), sentences)]
    else:
        tables = click.get_current_context().meta.get(OF_RECIPE, {}).get("sources", [])
        sources = [Source(**{**table, "files": corpus_files(tuple(table["files"]), data)}) for table in tables]
    if not sources:
        raise click.UsageError("Missing option '--corpus'.")
    for name, value in (("skip", skip), ("validation", validation)):
        options[name] = str(corpus_files((value,), data)[0]) if value else None
    options["exclude"] = corpus_files(exclude, data)
    options["labelled"] = corpus_files(labelled, data)
    options["text_field"], options["label_field"] = options.pop("field"), options.pop("label_field")
    summary = distilled(sources, output, **options)
    if plot is not None:
        plot_log(output / LOG, plot)
    click.echo(
        f"{output}: trained on {summary['trained_texts']:,} texts, held-out 1 - cos "
        f"{summary['held_out_distance']:.4f} ({summary['held_out_texts']:,} held out)"
    )
    click.echo(
        f"took {duration(time.monotonic() - began)}; next: ctx-embed eval run --encoder {output} --encoder default "
        "--task STSB",
        err=True,
    )
