"""`python -m papers`: the papers' tables and figures."""

from pathlib import Path
from typing import Any

import click

from ctx_embed.cli.main import errors_in_one_line
from ctx_embed.cli.options import OUTPUT, SEED, data_option, named_values


@click.command("papers", context_settings={"show_default": True, "help_option_names": ["-h", "--help"]})
@click.argument("name")
@click.option("--quick", is_flag=True, help="Run a small sample of the same work, in under two minutes.")
@click.option("--out", default="reproduction", type=OUTPUT, metavar="DIR", help="Results; the report is in DIR/NAME.")
@data_option
@click.option("--seed", default=0, type=SEED, help="Seed of folds, order and weights.")
@click.option("--folds", type=click.IntRange(1, 10), help="How many of the ten folds to run.  [default: 10, quick 2]")
@click.option(
    "--cell", "cells", multiple=True, metavar="PATTERN", help="Run matching cells (* for any); may be repeated."
)
@click.option(
    "--option",
    "changes",
    multiple=True,
    callback=named_values,
    metavar="NAME=VALUE",
    help="Change an option of the encoder, the training or the initial weights (token_deviation, initial_b, "
    "initial_gain) in each cell that has it, e.g. scale=sum, or draw a uniform first context at each reading "
    "(redrawn=true); may be repeated.",
)
@click.option(
    "--tokenizer", type=OUTPUT, metavar="FILE", help="A tokenizer.json to use instead of BERT's (extra peers)."
)
@click.option("--device", default="cpu", help="Where to train, e.g. cuda; times of batches are always the CPU's.")
@click.option("--paper", is_flag=True, help="Use the paper's settings where ours differ (lama-table3).")
@click.option("--list", "as_list", is_flag=True, help="List the cells without running any.")
@errors_in_one_line(lambda: "repeat the command to continue; finished folds are stored")
def reproduce(
    name: str,
    quick: bool,
    paper: bool,
    out: Path,
    data: Path | None,
    seed: int,
    folds: int | None,
    cells: tuple[str, ...],
    changes: dict[str, Any],
    tokenizer: Path | None,
    device: str,
    as_list: bool,
) -> None:
    """Reproduce a table or figure of a paper and compare it with the published values.

    NAME is table1 to table4, figure2, settling or pretraining (the Contextualizer's paper), or lama-... (LAMA's). The
    command writes results.json, README.md and plot.png (extra papers) to OUT/NAME; quick runs, other options, seeds and
    vocabularies get a subfolder of it. Each finished fold is stored in OUT/cells. Repeat the command to resume an
    interrupted run; further --cell or --folds add to the same table, and tables that share a cell compute it once.
    Several shells with the same command share its folds (set OMP_NUM_THREADS to each one's share of the cores).

    \b
    Example: python -m papers table3 --data DIR --folds 3
    Example: python -m papers table2 --data DIR --cell "contextualizer_*" --option scale=sum
    """
    from ctx_embed.loading import require_device
    from ctx_embed.progress import say
    from papers import RunOptions, Workplace, find_experiment, reproduce as run, write_report
    from papers.report import as_markdown, report_folder
    from papers.runner import chosen

    require_device(device)
    experiment = find_experiment(name)
    if as_list:
        for cell in chosen(experiment, cells):
            click.echo(cell.key)
        return
    options = RunOptions(quick, folds, cells, paper, changes)
    folder = report_folder(out / name, options, seed, tokenizer)
    results = run(
        experiment,
        out / "cells",
        Workplace(data, seed, tokenizer, device),
        options,
        say,
        lambda known: write_report(known, folder),
    )
    write_report(results, folder, say)
    click.echo(as_markdown(results), nl=False)


if __name__ == "__main__":
    reproduce(prog_name="python -m papers")
