"""`ctx-embed systems`: the systems that can be trained, distilled and evaluated."""

import json

import click

from ctx_embed.cli.main import command


@command()
@click.option("--dimension", default=256, type=click.IntRange(1, 2048), help="Dimension m.")
@click.option("--json", "as_json", is_flag=True, help="Print a list of objects, with options and their defaults.")
def systems(dimension: int, as_json: bool) -> None:
    """List the systems: name, number of parameters (without the token table), complexity, formula and source.

    \b
    Example: ctx-embed systems --json
    Example: ctx-embed train reviews.tsv -o model --encoder lama --option heads=10
    """
    from ctx_embed.systems import listing

    rows = listing(dimension)
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    for row in rows:
        click.echo(f"{row['name']:26}{row['parameter_count']:>9,} parameters, {row['complexity']}; {row['source']}")
        click.echo(f"{'':26}{row['formula']}")
