"""`ctx-embed distill`: train an encoder to reproduce a teacher's embeddings."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from ctx_embed.cli.groups import command
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
    encoder_options,
    field_options,
)
from ctx_embed.progress import duration


def _read_recipe(context: click.Context, parameter: click.Parameter, value: Path | None) -> None:
    """Make the recipe's values the defaults of the other options."""
    if value is not None:
        from ctx_embed.training.distillation.recipe import read_recipe

        given = {"recipe", "output", "data", "cache", "more", "overwrite", "plot", "score", "device"}
        names = {option.name or "" for option in context.command.params} - given | {"sources"}
        recipe = context.meta[OF_RECIPE] = read_recipe(value, names)
        # Numbers are parsed from text as on the command line, so that 1.5 epochs are refused, not cut to 1.
        context.default_map = {
            name: option if isinstance(option, list) else str(option)
            for name, option in recipe.items()
            if name not in ("sources", "encoder_options")
        }


# The sections of the help, in the order in which one meets their options.
SECTIONS = {
    "Input and output": (
        *("corpus", "teacher", "output", "recipe", "data", "field", "label_field", "sentences", "exclude", "overwrite"),
        *("cache", "plot"),
    ),
    "Student": (
        *("start", "encoder", "encoder_options", "dimension", "steps", "rank", "positions", "scale", "initial_context"),
        *("score", "tokenizer", "vocabulary_size", "phrases", "spare_dimensions", "store"),
    ),
    "Training": (
        *(
            "epochs",
            "batch_size",
            "learning_rate",
            "averaging",
            "held_out",
            "validation",
            "seed",
            "teacher_dtype",
            "device",
        ),
    ),
    "Further objectives": (
        *("relation_weight", "genre_weight", "word_weight", "labelled", "label_weight", "labels_from", "skip"),
        *("pair_weight", "pair_batch", "contrast_weight", "contrast_batch"),
        *("second_teacher", "second_weight", "second_label_weight"),
    ),
    "Other": (),
}


@command(sections=SECTIONS)
@click.option(
    "--corpus",
    multiple=True,
    metavar="FILE...",
    help="Files of texts: one sentence per line, or per row of CSV, TSV, JSONL or Parquet.",
)
@click.argument("more", nargs=-1, metavar="[FILE...]")
@click.option("--teacher", required=True, metavar="PATH", help="Any SentenceTransformer; minilm is all-MiniLM-L6-v2.")
@click.option("--second-teacher", metavar="PATH", help="Another teacher, of the second_texts of a recipe's sources.")
@click.option("--second-weight", default=0.5, show_default=True, type=WEIGHT, help="Loss weight: second teacher.")
@click.option("--from", "start", metavar="MODEL", help="Start from this model, with its vocabulary and sizes.")
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
    "--cache", type=OUTPUT, metavar="DIR", help="Store the teacher's embeddings here.  [default: OUT.teacher]"
)
@click.option("--sentences", type=click.IntRange(min=1), help="Number of sentences to read, roughly.  [default: all]")
@encoder_options
@click.option(
    "--tokenizer", metavar="FILE", help="A tokenizer.json; without one, a vocabulary is learned from the corpus."
)
@click.option(
    "--vocabulary-size",
    default=32_000,
    show_default=True,
    type=click.IntRange(min=3),
    help="Maximum number of entries of a learned vocabulary.",
)
@click.option(
    "--phrases",
    default=0,
    show_default=True,
    type=click.IntRange(min=0),
    help="Number of frequent phrases that become vocabulary entries.",
)
@click.option(
    "--spare-dimensions",
    default=0,
    show_default=True,
    type=click.IntRange(min=0),
    help="Dimensions reserved for labels; zero in the teacher's target.",
)
@architecture_options(dimension=256, steps=3, rank=64, positions="none", scale="mean", initial_context="ones")
@click.option("--epochs", default=3, show_default=True, type=click.IntRange(min=1), help="Passes over the texts.")
@click.option("--batch-size", default=256, show_default=True, type=click.IntRange(min=2), help="Texts per batch.")
@click.option("--learning-rate", default=5e-3, show_default=True, type=LEARNING_RATE, help="Peak learning rate.")
@click.option("--averaging", default=0.0, show_default=True, type=DECAY, help="Decay of the weights' moving average.")
@click.option(
    "--relation-weight", default=2.0, show_default=True, type=WEIGHT, help="Loss weight: the teacher's cosines."
)
@click.option("--genre-weight", default=0.0, show_default=True, type=WEIGHT, help="Loss weight: predict a text's file.")
@click.option("--pair-weight", default=0.0, show_default=True, type=WEIGHT, help="Loss weight: find a text's partner.")
@click.option("--pair-batch", default=64, show_default=True, type=click.IntRange(min=2), help="Pairs per batch.")
@click.option(
    "--contrast-weight",
    default=0.0,
    show_default=True,
    type=WEIGHT,
    help="Loss weight: move texts away from their negations and contradictions.",
)
@click.option("--contrast-batch", default=64, show_default=True, type=click.IntRange(min=2), help="Triples per batch.")
@click.option(
    "--second-label-weight",
    default=0.0,
    show_default=True,
    type=WEIGHT,
    help="Loss weight: predict the labels that the second teacher's embeddings give.",
)
@click.option(
    "--held-out",
    type=click.IntRange(min=2),
    help="Number of texts held out to measure the distance to the teacher.  [default: 10 %, at most 4096]",
)
@click.option(
    "--exclude", multiple=True, metavar="FILE", help="Never train on the texts in this file, in any of its columns."
)
@click.option(
    "--labelled", multiple=True, metavar="FILE", help="Also learn from labelled texts: label<TAB>text, or a table."
)
@click.option("--skip", metavar="FILE.json", help="JSON file that names lines of the labelled files to leave out.")
@click.option("--label-weight", default=0.3, show_default=True, type=WEIGHT, help="Loss weight: predict the labels.")
@click.option(
    "--labels-from",
    default="all",
    show_default=True,
    type=click.Choice(["all", "spare"]),
    help="Dimensions that labels and genres are predicted from.",
)
@click.option(
    "--word-weight", default=0.0, show_default=True, type=WEIGHT, help="Loss weight: predict a text's own words."
)
@click.option("--validation", metavar="FILE", help="Pairs to score after each epoch: score<TAB>text<TAB>text.")
@click.option("--seed", default=0, show_default=True, type=SEED, help="Seed of all random choices.")
@click.option(
    "--teacher-dtype",
    default="float32",
    show_default=True,
    type=click.Choice(["float32", "bfloat16"]),
    help="Precision in which the teacher computes.",
)
@click.option(
    "--store",
    default="float32",
    show_default=True,
    type=click.Choice(["float32", "float16", "int8"]),
    help="Precision in which the token table is saved.",
)
@click.option(
    "--device", metavar="NAME", help="Device of teachers and student, e.g. cuda.  [default: the student on the CPU]"
)
@click.option("--overwrite", is_flag=True, help="Replace the model in OUT, once the new one is complete.")
@click.option("--plot", type=OUTPUT, metavar="FILE.png", help="Plot the training curves (extra plots).")
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
    """Train an encoder over a token table to reproduce a teacher's embeddings.

    Run the same command again to resume an interrupted run: the teacher's embeddings and, in OUT.partial, the state of
    the training are stored. A finished run is not repeated, and a model made by another command is replaced only with
    --overwrite. A recipe may have several sources of texts, with weights, in [[sources]] tables; --corpus replaces
    them.

    Example: ctx-embed distill --corpus a.txt b.txt.gz --teacher all-MiniLM-L6-v2 -o my-model
    """
    from ctx_embed.files import require_file
    from ctx_embed.training.distillation.job import LOG
    from ctx_embed.training.distillation.job import distill as distilled
    from ctx_embed.training.distillation.loop.log import plot_log, require_matplotlib
    from ctx_embed.training.distillation.texts.mixture import Source

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
