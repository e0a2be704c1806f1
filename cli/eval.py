"""`ctx-embed eval`: measure encoders on tasks."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from ctx_embed.cli.options import OUTPUT, SEED, data_option
from ctx_embed.errors import InputError
from ctx_embed.eval.catalogue import DEFAULT_TASKS, TASKS

# Where the output is no terminal, tables are not squeezed into 80 columns.
WIDTH_OF_FILES = 200


@click.group("eval")
def eval() -> None:
    """Evaluate encoders on probe and similarity tasks.

    Example: ctx-embed eval run --encoder default --task MR
    """


@eval.command(
    context_settings={"show_default": True},
    epilog=f"Tasks: {', '.join(TASKS)}. STS12 to STS15: mean over subsets, without the pairs that stand in STSB-dev.",
)
@click.option(
    "--encoder",
    "encoders",
    multiple=True,
    default=["default"],
    metavar="NAME|PATH",
    help="'default', or a SentenceTransformer's folder or name on the hub; may be repeated.",
)
@click.option(
    "--task",
    "tasks",
    multiple=True,
    default=DEFAULT_TASKS,
    metavar="NAME|FILE",
    help="A task, or a label<TAB>text file, plain or gzip; may be repeated.",
)
@data_option
@click.option("--json", "json_path", metavar="FILE", type=OUTPUT, help="Write the results there too.")
@click.option("--seed", default=0, type=SEED, help="Decides the folds.")
def run(
    encoders: tuple[str, ...], tasks: tuple[str, ...], data: Path | None, json_path: Path | None, seed: int
) -> None:
    """Score encoders on tasks, in one table.

    A probe task is scored by stratified 10-fold logistic regression on frozen embeddings (C of 10^-4 .. 10^1 chosen,
    and embeddings standardised, inside each training fold), beside the majority floor and published figures; a
    similarity task by Spearman's rank correlation of the cosines. A task that fails costs a line and the exit code 1;
    the others go on.

    \b
    Example: ctx-embed eval run --encoder default --encoder ./my-model --task MR --task STSB --json out.json
    Example: ctx-embed eval run --task my-reviews.tsv
    """
    from rich.console import Console

    from ctx_embed.eval.encoders import load_encoder
    from ctx_embed.eval.evaluation import evaluate
    from ctx_embed.eval.reports import as_json, notes, tables
    from ctx_embed.eval.task_data import DataReader
    from ctx_embed.eval.catalogue import find_tasks
    from ctx_embed.files import replaced_file, require_file

    # All that can be found wrong at once is looked at before the long work.
    if json_path is not None:
        require_file(json_path)
    found = find_tasks(tasks)
    reader = DataReader(data)
    loaded = [load_encoder(name) for name in dict.fromkeys(encoders)]

    result = evaluate(loaded, found, reader, seed=seed, tell=lambda line: click.echo(line, err=True))

    # Before the tables, since whoever reads these may close the pipe.
    if json_path is not None and result.scores:
        with replaced_file(json_path) as beside:
            beside.write_text(json.dumps(as_json(result), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    console = Console(width=None if sys.stdout.isatty() else WIDTH_OF_FILES)
    for title, table in tables(result).items():
        click.echo(title)
        console.print(table)
    if result.scores:
        for line in notes(result):
            click.echo(line)
    if result.failures:
        missing = len(loaded) * len(found) - len(result.scores)
        raise InputError(f"{missing} of {len(loaded) * len(found)} scores are missing, see the lines above")
