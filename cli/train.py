"""`ctx-embed train`: train an encoder and a linear head end to end on labelled texts."""

from __future__ import annotations

import json
import shlex
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from ctx_embed.cli.groups import command
from ctx_embed.cli.options import (
    CONTEXTUALIZER_OPTIONS,
    DECAY,
    LEARNING_RATE,
    OUTPUT,
    SEED,
    architecture_options,
    chosen_options,
    encoder_options,
    field_options,
)
from ctx_embed.progress import duration

OF_SYSTEM = {"encoder", "encoder_options", "score", "dimension", *CONTEXTUALIZER_OPTIONS}
FROM_SCRATCH = {"tokenizer", "vocabulary_size", *OF_SYSTEM}
# Flags whose name differs from that of their parameter.
FLAGS = {"encoder_options": "option"}


@command()
@click.argument("train_file", metavar="TRAIN")
@click.option("-o", "--output", required=True, type=OUTPUT, metavar="OUT", help="The model folder to write.")
@click.option("--valid", "valid_file", metavar="FILE", help="Validation texts; else 10 % of TRAIN are held out.")
@click.option("--test", "test_file", metavar="FILE", help="Also report precision, recall and F1 on these texts.")
@click.option("--from", "start", metavar="MODEL|default", help="Start from this model instead of from scratch.")
@click.option(
    "--frozen/--no-frozen",
    default=None,
    help="Learn the head alone and leave the encoder of --from as it is: seconds.  [default: with fewer than 500 "
    "texts, unless an option of the training is given]",
)
@click.option("--multi-label", is_flag=True, help="A text has any number of labels, with commas between them.")
@click.option(
    "--class-weight",
    "class_weights",
    multiple=True,
    metavar="balanced|LABEL=W",
    help="Weigh rare classes as much as frequent ones, or a class by a number; repeatable.",
)
@click.option("--tokenizer", metavar="FILE", help="tokenizer.json of a model from scratch; else learned from TRAIN.")
@click.option("--vocabulary-size", default=16_000, show_default=True, type=click.IntRange(min=3))
@field_options
@encoder_options
@architecture_options(dimension=128, steps=5, rank=260, positions="absolute", scale="sum", initial_context="ones")
@click.option("--epochs", type=click.IntRange(min=1), help="[default: 10; with --from 4]")
@click.option("--batch-size", type=click.IntRange(min=1), help="[default: 32; with --from 64]")
@click.option("--learning-rate", type=LEARNING_RATE, help="Learning rate of Adam.  [default: 1e-4; with --from 1e-3]")
@click.option("--token-dropout", type=DECAY, help="Fraction of tokens dropped during training.  [default: 0]")
@click.option(
    "--head",
    type=click.Choice(["zeros", "random", "probe"]),
    help="Initial weights of the head: zeros, random, or probe (a linear probe of the embeddings).  [default: "
    "zeros for the Contextualizer, random for other encoders; with --from probe]",
)
@click.option(
    "--runs",
    type=click.IntRange(min=1),
    help="With --from: trainings whose weights are averaged, each in another order and, without --valid, with another "
    "tenth held out.  [default: 5]",
)
@click.option("--seed", default=0, show_default=True, type=SEED)
@click.option("--overwrite", is_flag=True, help="Replace the model in OUT, once the new one is complete.")
@click.option("--device", metavar="NAME", help="As in sentence-transformers, e.g. cpu or cuda.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def train(
    train_file: str,
    output: Path,
    valid_file: str | None,
    test_file: str | None,
    start: str | None,
    field: str | None,
    label_field: str | None,
    frozen: bool | None,
    multi_label: bool,
    class_weights: tuple[str, ...],
    tokenizer: str | None,
    vocabulary_size: int,
    epochs: int | None,
    batch_size: int | None,
    learning_rate: float | None,
    token_dropout: float | None,
    head: str | None,
    runs: int | None,
    seed: int,
    overwrite: bool,
    device: str | None,
    as_json: bool,
    encoder: str,
    encoder_options: dict[str, Any],
    score: str | None,
    **architecture: Any,
) -> None:
    """Train a classifier on labelled texts; the best epoch of a run on validation texts is kept.

    TRAIN, --valid and --test are lines of label<TAB>text, or tables: CSV, TSV with a header, JSONL or Parquet, whose
    columns --field and --label-field name; plain or gzip.

    From scratch the defaults are the paper's protocol: Adam 1e-4, batches of 32, 10 epochs, 10 % for validation. The
    options of the architecture and the vocabulary apply only to a model from scratch. Run the command again to resume
    an interrupted run after its last epoch; a finished run is not repeated, and a model that another command made is
    replaced only with --overwrite. With --from and fewer than 500 texts only the head is trained.

    OUT is a model folder for `ctx-embed predict`, and an encoder for `ctx-embed encode --model`.

    \b
    Example: ctx-embed train reviews.tsv -o reviews-model --from default
    Example: ctx-embed train reviews.csv -o reviews-model --from default --field review --label-field stars
    Example: ctx-embed train reviews.tsv -o san-model --encoder san --option heads=10
    """
    began = time.monotonic()
    context = click.get_current_context()
    given = {name for name in FROM_SCRATCH if context.get_parameter_source(name) is ParameterSource.COMMANDLINE}
    if start and given:
        named = ", ".join(f"--{FLAGS.get(name, name).replace('_', '-')}" for name in sorted(given))
        raise click.UsageError(f"{named}: only for a model from scratch; leave it out, --from {start} has its own.")
    class_weight = _class_weight(class_weights)
    chosen: dict[str, Any] = {
        "epochs": epochs,
        "batch_size": batch_size,
        "learning_rate": learning_rate,
        "token_dropout": token_dropout,
        "head": head,
        "runs": runs,
    }
    in_training = {name: value for name, value in chosen.items() if value is not None}
    if frozen and in_training:
        named = ", ".join(f"--{name.replace('_', '-')}" for name in in_training)
        raise click.UsageError(f"{named}: for a training of the encoder, which --frozen leaves as it is.")
    if runs is not None and not start:
        raise click.UsageError("--runs needs --from MODEL: the weights of encoders from scratch have no useful mean.")
    if frozen and not start:
        raise click.UsageError("--frozen needs --from MODEL: an encoder from scratch must be trained.")

    from ctx_embed.files import require_replaceable
    from ctx_embed.rows import read_labelled_rows

    # Before the slow imports.
    require_replaceable(output, "modules.json")
    for file in (train_file, valid_file, test_file):
        if file is not None and file != "-":
            next(read_labelled_rows(file, field, label_field, several=multi_label), None)

    from ctx_embed.training.supervised.files import train as trained
    from ctx_embed.training.supervised.report import as_text
    from ctx_embed.training.supervised.train import FINE_TUNING, SupervisedOptions

    of_system = chosen_options(encoder, encoder_options, score)
    if encoder != "contextualizer":
        architecture = {"dimension": architecture["dimension"]}
    options = replace(
        FINE_TUNING if start else SupervisedOptions(),
        seed=seed,
        **in_training,
    )
    result = trained(
        train_file,
        output,
        options,
        valid=valid_file,
        test=test_file,
        start=start,
        frozen=False if in_training else frozen,
        multi_label=multi_label,
        class_weight=class_weight,
        tokenizer=tokenizer,
        vocabulary_size=vocabulary_size,
        device=device,
        encoder=encoder,
        architecture={**architecture, **of_system},
        text_field=field,
        label_field=label_field,
        overwrite=overwrite,
    )
    if as_json:
        click.echo(json.dumps({"model": str(output), **result}, ensure_ascii=False))
    else:
        if "test" in result:
            click.echo(f"{as_text(result['test'])}\n")
        figures = ["head over a frozen encoder"]
        if best := result.get("best_epochs"):
            figures = [f"best epoch{'s' if len(best) > 1 else ''} {', '.join(map(str, best))}"]
        for part in ("valid", "test"):
            if f"{part}_accuracy" in result:
                accuracy, floor = result[f"{part}_accuracy"], result[f"{part}_floor"]
                # Of several runs without --valid: each on what it held out.
                mean = "mean " if part == "valid" and not valid_file and len(result.get("best_epochs", ())) > 1 else ""
                figures.append(f"{mean}{part} accuracy {accuracy:.4g} (majority class {floor:.4g})")
        click.echo(f"{output}: {', '.join(figures)}")
    elapsed = duration(time.monotonic() - began)
    click.echo(f"took {elapsed}; next: ctx-embed predict {shlex.quote(str(output))} FILE", err=True)


def _class_weight(given: tuple[str, ...]) -> str | dict[str, float] | None:
    """Return the class weights of the command line."""
    if given in ((), ("balanced",)):
        return given[0] if given else None
    weights: dict[str, float] = {}
    for entry in given:
        label, _, number = entry.rpartition("=")
        try:
            weights[label] = float(number)
        except ValueError:
            label = ""
        if not label:
            raise click.UsageError(f"--class-weight must be balanced, or LABEL=W with a number W, got {entry!r}")
    return weights
