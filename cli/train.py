"""`ctx-embed train`: train an encoder and a linear head, or only the head, on labelled texts."""

import json
import shlex
import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from ctx_embed.cli.main import command
from ctx_embed.cli.options import OUTPUT, SEED, chosen_options, encoder_options, label_option, options_of, text_options
from ctx_embed.progress import duration
from ctx_embed.training.options import DIMENSION, FINE_TUNING, PAPER, SCRATCH, SupervisedOptions, TrainingJob

OF_SYSTEM = ("encoder_options", "dimension", *vars(PAPER))
# Flags whose name differs from that of their parameter.
FLAGS = {"encoder_options": "option"}


@command()
@click.argument("train_file", metavar="TRAIN")
@click.option("-o", "--output", required=True, type=OUTPUT, metavar="OUT", help="The model folder to write.")
@text_options
@label_option
@options_of(TrainingJob)
@click.option(
    "--class-weight",
    "class_weights",
    multiple=True,
    metavar="balanced|LABEL=W",
    help="Weight of a class; balanced weighs rare classes as much as frequent ones. May be repeated.",
)
@options_of(SupervisedOptions, but=["seed"], cases={"": FINE_TUNING, "from scratch": SupervisedOptions()})
@click.option("--seed", default=0, type=SEED, help="Seed of the split, the order and the initial weights.")
@encoder_options
@click.option("--dimension", default=DIMENSION, type=click.IntRange(min=1), hidden=True)
@options_of(PAPER, hidden=True)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def train(
    train_file: str,
    output: Path,
    class_weights: tuple[str, ...],
    as_json: bool,
    seed: int,
    encoder: str,
    encoder_options: dict[str, Any],
    **given: Any,
) -> None:
    """Train a classifier on labelled texts, over the meaning and the words of a text.

    TRAIN, --valid and --test are lines of label<TAB>text, or tables: CSV, TSV with a header, JSONL, Parquet or
    spreadsheets, whose columns --field and --label-field name; plain or gzip. A linear head is fitted in seconds, over
    the embeddings of the default model and over words; its options are chosen by cross-validation. --no-frozen, or an
    option of the training, trains the encoder too; each run keeps its best epoch on the validation texts.

    --from scratch trains random weights by the paper's protocol: Adam 1e-4, batches of 32, 10 epochs. The options of
    the vocabulary, and of the architecture (docs/encoders.md lists them), are only for this.

    --cv 5 prints how well texts are classified that the classifier has not learned from: accuracy, macro F1 (the mean
    over the classes that occur or are predicted), and precision, recall and F1 of each class. --test does so for texts
    of their own.

    Run the command again to resume an interrupted run after its last epoch; a finished run is not repeated, and a model
    that another command made is replaced only with --overwrite.

    OUT is a model folder for `ctx-embed predict`, and an encoder for `ctx-embed encode --model`.

    \b
    Example: ctx-embed train reviews.tsv -o reviews-model
    Example: ctx-embed train reviews.csv -o reviews-model --field review --label-field stars
    """
    began = time.monotonic()
    context = click.get_current_context()
    named = {name for name in context.params if context.get_parameter_source(name) is ParameterSource.COMMANDLINE}
    architecture = {name: given.pop(name) for name in ("dimension", *vars(PAPER))}
    in_training = {name: given.pop(name) for name in vars(FINE_TUNING) if name in given}
    in_training = {name: value for name, value in in_training.items() if value is not None}
    job = {**given, "encoder": encoder if "encoder" in named else None, "class_weight": _class_weight(class_weights)}
    from_scratch = job["start"] == SCRATCH or (job["start"] is None and job["encoder"] is not None)
    if not from_scratch and (useless := _flags(named & {"encoder", "tokenizer", "vocabulary_size", *OF_SYSTEM})):
        raise click.UsageError(
            f"{useless}: only for a model from scratch; add --from scratch, or leave it out: "
            f"{job['start'] or 'default'} has its own."
        )
    if job["frozen"] and from_scratch:
        raise click.UsageError("--frozen needs a model to start from: an encoder from scratch must be trained.")
    if job["frozen"] and in_training:
        raise click.UsageError(f"{_flags(in_training)}: only for training the encoder, which --frozen leaves as it is.")
    if "runs" in in_training and from_scratch:
        raise click.UsageError("--runs needs a model to start from: the mean of encoders from scratch is useless.")

    from ctx_embed.classify.labelled import as_text
    from ctx_embed.training.supervised.job import train as trained

    # Only the options of an encoder from scratch need torch to be checked.
    of_system = chosen_options(encoder, encoder_options) if from_scratch else {}
    if encoder != "contextualizer":
        architecture = {"dimension": architecture["dimension"]}
    result = trained(
        train_file,
        output,
        replace(SupervisedOptions() if from_scratch else FINE_TUNING, seed=seed, **in_training),
        **{**job, "frozen": False if in_training else job["frozen"] is not False and not from_scratch},
        architecture={**architecture, **of_system},
    )
    if as_json:
        click.echo(json.dumps({"model": str(output), **result}, ensure_ascii=False))
    else:
        if validated := result.get("cv"):
            title = f"{validated['folds']}-fold cross-validation, seed {validated['seed']}"
            click.echo(f"{title}, majority class {validated['floor']:.4f}: {as_text(validated)}\n")
        if "test" in result:
            click.echo(f"{as_text(result['test'])}\n")
        figures = [f"meaning and {result['words']:,} words and pairs" if result["words"] else "meaning"]
        if best := result.get("best_epochs"):
            figures = figures if result["words"] else []
            figures.append(f"best epoch{'s' if len(best) > 1 else ''} {', '.join(map(str, best))}")
        for part in ("valid", "test"):
            if f"{part}_accuracy" in result:
                accuracy, floor = result[f"{part}_accuracy"], result[f"{part}_floor"]
                # Without --valid, each of several runs holds out different texts.
                mean = (
                    "mean " if part == "valid" and not job["valid"] and len(result.get("best_epochs", ())) > 1 else ""
                )
                figures.append(f"{mean}{part} accuracy {accuracy:.4g} (majority class {floor:.4g})")
        click.echo(f"{output}: {', '.join(figures)}")
    elapsed = duration(time.monotonic() - began)
    click.echo(f"took {elapsed}; next: ctx-embed predict {shlex.quote(str(output))} FILE", err=True)
    if not {"cv", "test"} & result.keys():
        again = shlex.join([*sys.argv[1:], *["--overwrite"] * (not job["overwrite"])])
        click.echo(f"for its accuracy on new texts: ctx-embed {again} --cv 5", err=True)


def _flags(names: Iterable[str]) -> str:
    return ", ".join(f"--{FLAGS.get(name, name).replace('_', '-')}" for name in sorted(names))


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
