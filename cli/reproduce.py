"""`ctx-embed reproduce`: the papers' tables and figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ctx_embed.cli.options import OUTPUT, SEED, data_option, named_values

NAMES = (
    "table1",
    "table2",
    "table3",
    "table4",
    "lama-table3",
    "lama-table4",
    "lama-figure2",
    "lama-figure3",
    "lama-figure4",
    "lama-figure5",
)


@click.command(context_settings={"show_default": True}, epilog=f"Names: {', '.join(NAMES)}.")
@click.argument("name")
@click.option("--quick", is_flag=True, help="A small sample of the same work, in less than two minutes.")
@click.option("--out", default="reproduction", type=OUTPUT, metavar="DIR", help="Folder for a folder of that NAME.")
@data_option
@click.option("--seed", default=0, type=SEED, help="Of folds, order and weights.")
@click.option("--folds", type=click.IntRange(1, 10), help="Run so many of the ten folds.  [default: 10, quick 2]")
@click.option("--cell", "cells", multiple=True, metavar="PATTERN", help="Run these cells, * for any; may be repeated.")
@click.option(
    "--option",
    "changes",
    multiple=True,
    callback=named_values,
    metavar="NAME=VALUE",
    help="Change an encoder's or a training's option, or what weights begin with (token_deviation, initial_b, "
    "initial_gain), of each cell that has it, as scale=sum; may be repeated.",
)
@click.option("--tokenizer", type=OUTPUT, metavar="FILE", help="A tokenizer.json in place of BERT's (extra peers).")
@click.option("--list", "as_list", is_flag=True, help="Name the cells and run none.")
def reproduce(
    name: str,
    quick: bool,
    out: Path,
    data: Path | None,
    seed: int,
    folds: int | None,
    cells: tuple[str, ...],
    changes: dict[str, Any],
    tokenizer: Path | None,
    as_list: bool,
) -> None:
    """Work out a table or figure of a paper, ours beside the published figures.

    NAME is that of the table or figure: table1 to table4 of the Contextualizer's paper, lama-... of LAMA's. OUT/NAME
    gets results.json, README.md and plot.png (extra plots); quick runs, other options, seeds and vocabularies have a
    folder of their own in it. What is done is kept fold by fold in OUT/cells: the same command goes on where an
    interrupted one stood, further --cell or --folds add to the same table, tables that share a cell work it out once,
    and several shells with the same command share its folds (set OMP_NUM_THREADS to each one's share of the cores).

    \b
    Example: ctx-embed reproduce table3 --data DIR --folds 3
    Example: ctx-embed reproduce table2 --data DIR --cell "contextualizer_*" --option scale=sum
    """
    from ctx_embed.eval.reproduce import RunOptions, Workplace, find_experiment, write_report, write_tables
    from ctx_embed.eval.reproduce import reproduce as run
    from ctx_embed.eval.reproduce.report import as_markdown, report_folder
    from ctx_embed.eval.reproduce.runner import chosen

    experiment = find_experiment(name)
    if as_list:
        for cell in chosen(experiment, cells):
            click.echo(cell.key)
        return

    def tell(line: str) -> None:
        click.echo(line, err=True)

    options = RunOptions(quick, folds, cells, changes)
    folder = report_folder(out / name, options, seed, tokenizer)
    results = run(
        experiment,
        out / "cells",
        Workplace(data, seed, tokenizer),
        options,
        tell,
        lambda known: write_tables(known, folder),
    )
    write_report(results, folder, tell)
    click.echo(as_markdown(results), nl=False)
