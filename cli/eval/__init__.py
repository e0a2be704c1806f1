"""`ctx-embed eval`: measure encoders on tasks."""

from __future__ import annotations

import click

from ctx_embed.cli.eval.reports import compare, report
from ctx_embed.cli.eval.run import run
from ctx_embed.cli.groups import Group


@click.group("eval", cls=Group)
def eval() -> None:
    """Evaluate encoders on probe, similarity and retrieval tasks.

    Example: ctx-embed eval run --encoder default --task MR
    """


for command in (run, compare, report):
    eval.add_command(command)
