"""`ctx-embed eval`: measure encoders on tasks, and compare two measurements; all work is done in ``eval/``."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from ctx_embed.cli.main import Group
from ctx_embed.cli.options import OUTPUT, SEED, data_option, field_options
from ctx_embed.errors import InputError
from ctx_embed.eval.tasks import DEFAULT_TASKS, SUITES, TASKS, DataReader, find_tasks
from ctx_embed.texts import aligned

if TYPE_CHECKING:
    from ctx_embed.eval.scoring.probes import ProtocolName


@click.group(cls=Group)
def eval() -> None:
    """Evaluate encoders on probe, similarity and retrieval tasks.

    Example: ctx-embed eval run --encoder default --task MR
    """


@eval.command(
    epilog=f"Tasks: {', '.join(TASKS)}. STS12 to STS16 are means over subsets, without the pairs of STSB-dev."
)
@click.option(
    "--encoder",
    "encoders",
    multiple=True,
    default=["default"],
    metavar="NAME|PATH",
    help="default, permissive, minilm, tfidf, majority, random, use-multilingual, a system (randomly initialised), "
    "model2vec:PATH, package.module:factory (a function that makes an object with encode(texts)), or a folder or "
    "name on the hub of a SentenceTransformer; NAME+words reads words too; repeated, all are compared with the first.",
)
@click.option(
    "--task",
    "tasks",
    multiple=True,
    metavar="NAME|FILE|DIR",
    help="A task, a labelled file (label<TAB>text, or a table) or a folder in BEIR layout; may be repeated.  "
    f"[default: {', '.join(DEFAULT_TASKS)}]",
)
@click.option("--suite", type=click.Choice(list(SUITES)), help="Eight tasks of MTEB(eng, v2), from files in --data.")
@field_options
@data_option
@click.option(
    "--protocol",
    default="standard",
    metavar="NAME",
    help="Protocol of the probes: standard, quick, senteval, or paper (end to end).",
)
@click.option("--seed", "seeds", multiple=True, default=[0], type=SEED, help="Seed of the folds; repeat for a mean.")
@click.option("--folds", type=click.IntRange(2, 100), help="Outer folds.  [default: the protocol's]")
@click.option("--cost/--no-cost", default=True, help="Measure each encoder's speed and memory.")
@click.option(
    "-o",
    "--output",
    "outputs",
    multiple=True,
    default=["results"],
    type=OUTPUT,
    metavar="DIR|FILE",
    help="Folder for results.json and results.md, or FILE.json, .md, .tex or .csv; may be repeated.",
)
@click.option(
    "--plot",
    type=OUTPUT,
    metavar="FILE",
    help="Draw quality against speed and size into FILE.svg or .png (extra plot).",
)
@click.option(
    "--cache",
    type=OUTPUT,
    metavar="DIR",
    help="Folder for embeddings and scores.  [default: cache in the folder -o, or in results]",
)
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON instead of tables.")
def run(
    encoders: tuple[str, ...],
    tasks: tuple[str, ...],
    suite: str | None,
    text_field: tuple[str, ...],
    label_field: str | None,
    data: Path | None,
    protocol: str,
    seeds: tuple[int, ...],
    folds: int | None,
    cost: bool,
    outputs: tuple[Path, ...],
    plot: Path | None,
    cache: Path | None,
    as_json: bool,
) -> None:
    """Score encoders on tasks, in one table.

    A probe task is scored by the accuracy of a classifier on frozen embeddings, a similarity task by Spearman's rank
    correlation of the cosines, and a retrieval collection by nDCG@10. The table also has published scores, and the
    accuracy of always choosing the most frequent label. If a task fails, the others still run, and the exit code is 1.
    Repeat an interrupted command to resume it. Each -o, and --plot, is a report of the same results.

    \b
    Example: ctx-embed eval run --encoder default --encoder ./my-model --task MR --task STSB -o results -o table.tex
    Example: ctx-embed eval run --task my-reviews.tsv --protocol quick
    Example: ctx-embed eval run --suite mteb --data DIR
    """
    from ctx_embed.eval.reports import notes, tables
    from ctx_embed.eval.writing import PLOTS, WRITERS, require_plots, write_report
    from ctx_embed.files import require_file, require_folder

    # Make quick checks before the slow imports, and all others before the long work.
    folders = [out for out in outputs if out.suffix.lower() not in WRITERS]
    for out in outputs:
        if out not in folders:
            require_file(out)
            continue
        require_folder(out)
        if out.is_dir():
            require_file(out / "results.json")
        elif out.exists():
            raise InputError(f"cannot write {out}: it must be a folder, got a file")
    if plot is not None:
        if plot.suffix.lower() not in PLOTS or not cost:
            raise click.UsageError("--plot needs a FILE.svg or FILE.png, and costs: leave out --no-cost")
        require_file(plot)
        require_plots()
    found = find_tasks([*SUITES.get(suite or "", ()), *tasks], text_field, label_field)
    reader = DataReader(data)

    from ctx_embed.eval.encoders import load_encoder
    from ctx_embed.eval.evaluation import EvaluationOptions, evaluate

    options = EvaluationOptions(cast("ProtocolName", protocol), tuple(dict.fromkeys(seeds)), folds, cost=cost)
    loaded = [load_encoder(name) for name in dict.fromkeys(encoders)]
    tell = partial(click.echo, err=True)
    cache = cache or [*folders, Path("results")][0] / "cache"
    result = evaluate(loaded, found, reader, options, cache=cache, tell=tell, scored=tell)
    report = result.report
    # Write files before printing tables: whoever reads these may close the pipe.
    if result.scores:
        for path in (*outputs, *([plot] if plot else [])):
            write_report(report, path)
        if as_json:
            click.echo(json.dumps(report, indent=2, ensure_ascii=False))
        else:
            for table in tables(report):
                rows = [row for section in table.sections for row in section]
                click.echo(f"{table.title}\n{aligned([table.columns, *rows])}\n")
            for line in notes(report):
                click.echo(line)
    if result.failures:
        missing = result.asked - len(result.scores)
        what = f"{missing} of {result.asked} scores are missing" if missing else "not all could be measured"
        raise InputError(f"{what}; see the lines above")


@eval.command()
@click.argument("first", metavar="A.json", type=OUTPUT)
@click.argument("second", metavar="B.json", type=OUTPUT)
@click.option(
    "--encoder",
    "encoders",
    multiple=True,
    metavar="NAME",
    help="Encoder to compare; if given twice, first A's, then B's.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON: the difference by task.")
def compare(first: Path, second: Path, encoders: tuple[str, ...], as_json: bool) -> None:
    """Print how much better B is than A on each task, with a 95 % interval and p-value.

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
    from ctx_embed.eval.evaluation import compare as compared

    differences = compared(first, second, (encoders[0], encoders[-1]) if encoders else (None, None))
    if as_json:
        click.echo(json.dumps({task: asdict(found) for task, found in differences.items()}, indent=2))
        return
    width = max(map(len, differences))
    for task, found in differences.items():
        low, high = found.interval
        p = f"p {found.p:.3f}" if found.p >= 0.001 else "p < 0.001"
        click.echo(f"{task:<{width}}  {found.value:+6.2f}  [{low:+.2f}, {high:+.2f}]  {p} ({found.test})")
