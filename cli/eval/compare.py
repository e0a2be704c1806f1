"""`ctx-embed eval compare`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from ctx_embed.cli.groups import command

RESULTS = click.Path(path_type=Path)


@command()
@click.argument("first", metavar="A.json", type=RESULTS)
@click.argument("second", metavar="B.json", type=RESULTS)
@click.option(
    "--encoder",
    "encoders",
    multiple=True,
    metavar="NAME",
    help="Encoder to compare; given twice: that of A, that of B.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON: the difference by task.")
def compare(first: Path, second: Path, encoders: tuple[str, ...], as_json: bool) -> None:
    """Print by how much B is better than A on each task, with a 95 % interval and p-value.

    A and B are results of eval run (files or folders) over the same data. The first encoder of each is compared unless
    --encoder names another.

    \b
    Example: ctx-embed eval compare before/results.json after/results.json
    Example: ctx-embed eval compare results results --encoder minilm --encoder default
    """
    if len(encoders) > 2:
        raise click.UsageError(f"--encoder must be given at most twice, for A and for B, got {len(encoders)}")

    from ctx_embed.eval.reports import read_results

    # A missing file is found before the statistics, whose libraries are slow to import.
    for path in (first, second):
        read_results(path)
    from ctx_embed.eval.results import compare as compared

    differences = compared(first, second, (encoders[0], encoders[-1]) if encoders else (None, None))
    if as_json:
        click.echo(json.dumps({task: asdict(found) for task, found in differences.items()}, indent=2))
        return
    width = max(map(len, differences))
    for task, found in differences.items():
        low, high = found.interval
        p = f"p {found.p:.3f}" if found.p >= 0.001 else "p < 0.001"
        click.echo(f"{task:<{width}}  {found.value:+6.2f}  [{low:+.2f}, {high:+.2f}]  {p} ({found.test})")
